"""Call sites: the Python stack an op was called from, as one interned id.

Owns the walk, and what of a frame is identity (portable path, qualified name, source line) and what is for display.
Keeps code objects alive, never frames: a frame would keep the program's tensors alive.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from rltrace.masking import home_as_tilde
from rltrace.portable_keys import frame_key, portable_path, site_key
from rltrace.recorder.base.intern_tables import Tables

MOST_CODES: Final = 20_000
_NOT_THE_USERS: Final = ("torch/", "rltrace/", "typing_extensions.py")
"""Files, or folders of them, whose frames are internal. The last one wraps functions of torch that are deprecated."""


class Frame(NamedTuple):
    """One interned frame."""

    number: int
    """In table "frames"."""
    key: int
    """Portable identity."""
    internal: bool
    """Inside torch or the recorder: shown, not part of a site's identity."""


class Anchor:
    """A frame that is still running, and the walk from its caller down to the bottom of the stack, taken once.

    Every op that runs somewhere above that frame shares the walk below it. The frame is let go before it returns.
    """

    __slots__ = ("frame", "prefix")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.prefix = 0
        """Interned walk below the frame; 0: not taken yet."""


class Sites:
    """Interns the stacks of one process.

    Code objects are kept alive while their ``id()`` stands in a key. A program that makes code as it runs (``exec``)
    would have them pile up, so from time to time all keys are forgotten; ids of frames and sites stay, as those go by
    content.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.known: dict[tuple[int, ...], int] = {}
        """Site id by (id(code), lasti) of every frame, innermost first, down to an anchor's prefix. The hot path takes
        that walk and looks here itself."""
        self._codes: dict[int, CodeType] = {}
        self._frames: dict[tuple[int, int], Frame] = {}
        self._prefixes: dict[tuple[int, ...], int] = {}
        self._last_prefix = 0
        self._by_content: dict[tuple[object, ...], Frame] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self.bottoms: set[CodeType] = set()
        """Functions of the recorder whose callers have nothing to do with what they call."""

    def prefix(self, anchors: list[Anchor]) -> int:
        """A number for the walk from the top anchor's caller down, to the anchor below it at most."""
        at = len(anchors) - 1
        while at and not anchors[at - 1].prefix:  # from below up, without recursion: the program's stack may be deep
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
        if number is None:  # counted down and never used again, also after keys were forgotten: anchors remember them
            self._last_prefix -= 1
            number = self._prefixes[key] = self._last_prefix
        return number

    def make(self, key: tuple[int, ...], innermost: FrameType | None, below: FrameType | None = None) -> int:
        """Intern a stack not seen before; ``key`` is its walk.

        ``below``: where the stack goes on when ``innermost`` is on another thread, which works for that one; such a
        thread may have no frames of its own.
        """
        if len(self._codes) > MOST_CODES:
            for table in (self.known, self._codes, self._frames, self._prefixes):
                table.clear()
        frames: list[Frame] = []
        frame = below if innermost is None else innermost
        if innermost is None:
            below = None
        while frame is not None and frame.f_code not in self.bottoms:
            found = self._frame(frame)
            if not _is_recorder(frame.f_code):
                frames.append(found)
            frame = frame.f_back
            if frame is None:
                frame, below = below, None
        numbers = tuple(f.number for f in frames)
        site = self._by_frames.get(numbers)
        if site is None:
            identity = site_key([f.key for f in frames if not f.internal])
            site = self._by_frames[numbers] = self._tables.add("sites", identity, list(numbers))
        self.known[key] = site
        return site

    def _frame(self, frame: FrameType) -> Frame:
        code, at = frame.f_code, frame.f_lasti
        found = self._frames.get((id(code), at))
        if found is None:
            self._codes[id(code)] = code
            line = frame.f_lineno or code.co_firstlineno
            source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
            found = self._frames[id(code), at] = self._intern(code, line, source)
        return found

    def _intern(self, code: CodeType, line: int, source: str) -> Frame:
        content = (code.co_filename, code.co_qualname, line, source)
        found = self._by_content.get(content)
        if found is None:
            file, function = portable_path(code.co_filename), _RESUMED.sub(r"\1", code.co_qualname)
            internal = file.startswith(_NOT_THE_USERS) or code.co_filename.startswith("<frozen ")
            payload = {
                "file": file,
                "path": home_as_tilde(code.co_filename),
                "line": line,
                "function": function,
                "source": source,
                "internal": internal,
            }
            key = frame_key(file, function, source)
            found = self._by_content[content] = Frame(self._tables.add("frames", key, payload), key, internal)
        return found


def _is_recorder(code: CodeType) -> bool:
    return code.co_filename.startswith(_HERE)


_RESUMED = re.compile(r"\btorch_dynamo_resume_in_(.+)_at_\d+\b")
"""How torch's compiler calls the rest of a function past a place where it paused: by a line number, too."""

_HERE = f"{Path(__file__).resolve().parent.parent}/"
