"""Call sites: the Python stack an op was called from, as one interned id.

Owns the stack walk, and which fields of a frame are identity (portable path, qualified name, source line). Keeps code
objects alive, never frames: a frame would keep the program's tensors alive.
"""

import linecache
import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from rltrace.masking import home_as_tilde
from rltrace.portable_keys import frame_key, portable_path, site_key
from rltrace.recorder.base.intern_tables import Tables

MAX_CODES: Final = 20_000
_INTERNAL: Final = (
    "torch/",
    "jax/",
    "rltrace/",
    "triton/runtime/",
    "multiprocessing/",
    "threading.py",
    "ray/_private/",
    "ray/util/tracing/",
    "typing_extensions.py",
)
"""Files, or folders, whose frames are internal. The last one wraps deprecated functions of torch."""


class Frame(NamedTuple):
    """One interned frame."""

    number: int
    """In table "frames"."""
    key: int
    """Portable identity."""
    internal: bool
    """Inside torch, JAX, Triton's launcher or the recorder: shown, not part of a site's identity."""
    call: str
    """The text of the call, where its line reads several numbers."""


class Anchor:
    """A running frame, and the walk from its caller to the bottom of the stack, done once.

    Ops above that frame share the walk below it. The reference to the frame is dropped before it returns.
    """

    __slots__ = ("frame", "prefix")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.prefix = 0
        """Interned walk below the frame; 0: not walked yet."""


class Sites:
    """Interns the stacks of one process.

    Code objects are kept alive while their ``id()`` is in a key. A program that creates code as it runs (``exec``)
    would accumulate them, so past MAX_CODES all keys are dropped; ids of frames and sites remain, keyed by content.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.known: dict[tuple[int, ...], int] = {}
        """Site id by (id(code), lasti) of every frame, innermost first, down to an anchor's prefix. The hot path walks
        the stack and reads this itself."""
        self._codes: dict[int, CodeType] = {}
        self._frames: dict[tuple[int, int], Frame] = {}
        self._prefixes: dict[tuple[int, ...], int] = {}
        self._last_prefix = 0
        self._by_content: dict[tuple[object, ...], Frame] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self.calls: dict[int, str] = {}
        """By site: the call of its innermost frame, where that is one of several that read numbers."""
        self.on_clear: Callable[[], None] = lambda: None
        """Called when keys are dropped: a native engine has others."""
        self.bottoms: set[CodeType] = set()
        """Functions at which a stack ends: their callers are unrelated to the ops above."""

    def prefix(self, anchors: list[Anchor]) -> int:
        """A number for the walk from the top anchor's caller down, to the anchor below it at most."""
        at = len(anchors) - 1
        while at and not anchors[at - 1].prefix:  # iteratively: the program's stack may be deep
            at -= 1
        for place in range(at, len(anchors)):
            anchors[place].prefix = self._prefix(anchors[place], anchors[place - 1] if place else None)
        return anchors[-1].prefix

    def _prefix(self, anchor: Anchor, below: Anchor | None) -> int:
        frame = anchor.frame.f_back
        stack: list[int] = []
        while frame is not None:
            if below is not None and frame is below.frame:
                stack.append(below.prefix)
                break
            self._codes[id(frame.f_code)] = frame.f_code
            stack += id(frame.f_code), frame.f_lasti
            frame = frame.f_back
        key = tuple(stack)
        number = self._prefixes.get(key)
        if number is None:  # counted down and never reused, also after keys were dropped: anchors hold them
            self._last_prefix -= 1
            number = self._prefixes[key] = self._last_prefix
        return number

    def of_stack(self, innermost: FrameType) -> int:
        """Id of the whole stack of a thread in which no anchor is passed."""
        frame: FrameType | None = innermost
        stack: list[int] = []
        while frame is not None:
            stack += id(frame.f_code), frame.f_lasti
            frame = frame.f_back
        key = tuple(stack)
        site = self.known.get(key)
        return self.make(key, innermost) if site is None else site

    def make(self, key: tuple[int, ...], innermost: FrameType | None, below: FrameType | None = None) -> int:
        """Intern a stack not seen before; ``key`` is its walk. See ``intern``."""
        site = self.intern(innermost, below)
        self.known[key] = site
        return site

    def intern(self, innermost: FrameType | None, below: FrameType | None = None) -> int:
        """Id of the stack from ``innermost`` outwards.

        ``below``: the frame at which the stack continues where ``innermost`` belongs to a thread of autograd; such a
        thread may have no Python frames (None).
        """
        if len(self._codes) > MAX_CODES:
            for table in (self.known, self._codes, self._frames, self._prefixes):
                table.clear()
            self.on_clear()
        frames: list[Frame] = []
        frame = below if innermost is None else innermost
        if innermost is None:
            below = None
        while frame is not None and frame.f_code not in self.bottoms:
            if not _is_recorder(frame.f_code):
                frames.append(self._frame(frame))
            frame = frame.f_back
            if frame is None:
                frame, below = below, None
        return self._site(frames)

    def intern_lines(self, lines: Iterable[tuple[str, str, int]]) -> int:
        """Id of a stack that another library has kept: (file, function, line) of each frame, innermost first."""
        return self._site([self._intern(*at, linecache.getline(at[0], at[2]).strip()) for at in lines])

    def _site(self, frames: list[Frame]) -> int:
        numbers = tuple(f.number for f in frames)
        site = self._by_frames.get(numbers)
        if site is None:
            identity = site_key([f.key for f in frames if not f.internal])
            site = self._by_frames[numbers] = self._tables.add("sites", identity, list(numbers))
            if frames and frames[0].call:
                self.calls[site] = frames[0].call
        return site

    def _frame(self, frame: FrameType) -> Frame:
        code, at = frame.f_code, frame.f_lasti
        found = self._frames.get((id(code), at))
        if found is None:
            self._codes[id(code)] = code
            line = frame.f_lineno or code.co_firstlineno
            name = code.co_filename
            if code.co_names in _CHILD_COMMANDS:
                name = f"<frozen {code.co_names[0]}>"
            elif name == _UNPICKLED:
                name = str(frame.f_globals.get("__file__") or name)
            source = linecache.getline(name, line, frame.f_globals).strip()
            call = _call(code, at, source) if len(_READS.findall(source)) > 1 else ""
            found = self._frames[id(code), at] = self._intern(name, code.co_qualname, line, source, call)
        return found

    def _intern(self, filename: str, qualname: str, line: int, source: str, call: str = "") -> Frame:
        content = (filename, qualname, line, source, call)
        found = self._by_content.get(content)
        if found is None:
            file, function = portable_path(filename), _RESUME_FUNCTION.sub(r"\1", qualname)
            internal = _is_internal(file, filename)
            payload = {
                "file": file,
                "path": home_as_tilde(filename),
                "line": line,
                "function": function,
                "source": source,
                "internal": internal,
            }
            if call:
                payload["call"] = call
            key = frame_key(file, function, source)
            found = self._by_content[content] = Frame(self._tables.add("frames", key, payload), key, internal, call)
        return found


_CHILD_COMMANDS: Final = {("multiprocessing.spawn", "spawn_main"), ("multiprocessing.forkserver", "main")}
"""The names in the commands with which multiprocessing starts Python."""

_UNPICKLED: Final = "<dynamic-code>"
"""The file of a function that cloudpickle sent to another process; its globals still have the file's name."""

_READS = re.compile(r"\.item\(|\.tolist\(|\b(?:float|int|bool)\(")
"""Calls that read a number; a line with several logs as many curves."""


def _call(code: CodeType, at: int, source: str) -> str:
    """The text of the call that an instruction makes, ``actor_loss.item()``; "" where it is not on one line."""
    line, last, start, end = next(islice(code.co_positions(), at // 2, None), (None,) * 4)
    if line is None or line != last or start is None or end is None:
        return ""
    whole = linecache.getline(code.co_filename, line)
    indent = len(whole) - len(whole.lstrip())
    return source.encode()[max(start - indent, 0) : max(end - indent, 0)].decode(errors="ignore")


def is_internal(code: CodeType) -> bool:
    """Whether a function is torch's, one that starts a kernel or a process for the program, or the recorder's."""
    return _is_recorder(code) or _is_internal(portable_path(code.co_filename), code.co_filename)


def _is_internal(file: str, filename: str) -> bool:
    return file.startswith(_INTERNAL) or filename.startswith("<frozen ")


def _is_recorder(code: CodeType) -> bool:
    return code.co_filename.startswith(_RECORDER_FOLDERS)


_RESUME_FUNCTION = re.compile(r"\btorch_dynamo_resume_in_(.+)_at_\d+\b")
"""The name that torch's compiler gives the rest of a function past a graph break: it contains a line number."""

_RECORDER_FOLDERS = tuple(f"{Path(__file__).resolve().parents[2] / name}/" for name in ("recorder", "extensions"))
