"""Names from the tables of one process: operators, modules, stacks, layouts and kernels by their ids.

Owns the text of a table entry, in a trace and in a process that is recording. A missing or unreadable entry is ``?``.
Imports neither torch nor zarr.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Any, ClassVar

from rltrace.trace.format.schema import LINES, WRITES, Phase
from rltrace.trace.kernels.evidence import LAUNCHES, Evidence, kernel_names, kernel_text, whole_names

Payloads = Mapping[str, Any]
"""Payloads of each table, by the table's name, then by id."""


LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/", "/lib/python3")


@dataclass(frozen=True)
class Site:
    """One stack frame, for display."""

    KEYS: ClassVar = ("file", "line", "function", "source")

    file: str
    """Relative to its package."""
    line: int
    function: str
    source: str
    path: str = field(default="", compare=False)
    """On the machine that recorded it; in no JSON, as it shows that machine's folders."""
    call: str = field(default="", compare=False)
    """The call of the line, where the line reads several numbers: ``actor_loss.item()``."""

    @property
    def place(self) -> str:
        """``train.py:12 in train``; without a function that is not known."""
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")

    @property
    def is_library(self) -> bool:
        """Whether its file is of an installed package or of Python, not of the program."""
        return any(folder in self.path for folder in LIBRARY_FOLDERS)


def parse_site(payload: Mapping[str, Any]) -> Site:
    """The site of a payload of table "frames". Raises KeyError, TypeError or ValueError."""
    file, line, function, source = (payload[key] for key in Site.KEYS)
    return Site(
        str(file), int(line), str(function), str(source), str(payload.get("path", "")), str(payload.get("call", ""))
    )


class Words:
    """The names of one process; each is computed once."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._site = cache(lambda frame: parse_site(self.payload("frames", frame)))
        self.stack = cache(self._stack)
        self.layouts = cache(self._layouts)
        self.kernel = cache(self._kernel)

    def size(self, table: str) -> int:
        return len(self._payloads.get(table, ()))

    def payload(self, table: str, number: int) -> Any:
        """The raw entry; None where the table lacks it."""
        try:
            return self._payloads[table][number]
        except LookupError:
            return None

    def op(self, number: int) -> str:
        """``aten.addmm.default``."""
        return self._name("ops", number)

    def arguments(self, op: int) -> list[str]:
        """Names of the arguments of an op that may be positional, in order; empty where they were not recorded."""
        return self._of_schema(op, "arguments")

    def results(self, op: int) -> list[str]:
        """Names of the several results of an op, "" for one without; empty where none has one."""
        return self._of_schema(op, "results")

    def _of_schema(self, op: int, key: str) -> list[str]:
        for number in range(self.size("schemas")):
            payload = self.payload("schemas", number)
            if payload and payload["op"] == op:
                return [str(name) for name in payload.get(key, ())]
        return []

    def module(self, number: int) -> str:
        return self._name("modules", number)

    def phase(self, number: int) -> str:
        """The phase's name; ``phase 9`` for an id of a newer format."""
        try:
            return Phase(number).name.lower()
        except ValueError:
            return f"phase {number}"

    def skeleton(self, number: int) -> list[Any]:
        """Arguments of an op without numbers and tensors; for an event, the names of its cells."""
        return self.payload("scalars", number) or []

    def written(self, number: int) -> list[str]:
        """Names of what a row of JAX writes ("" where there is none), by its entry in "scalars"; of others, none."""
        return [str(name) for name in self._word(number, WRITES)]

    def lines(self, number: int) -> list[tuple[str, str]]:
        """Source lines that the program of a row of JAX was made of, each with a fingerprint; of others, none."""
        return [(str(line), str(made)) for line, made in self._word(number, LINES)]

    def _word(self, number: int, key: str) -> Sequence[Any]:
        """What a skeleton has under one of the keys of JAX's rows; empty where it has not."""
        return next((word[key] for word in self.skeleton(number) if isinstance(word, dict) and key in word), ())

    def tensors(self, structure: int) -> list[Any]:
        """The layout of each tensor input: dtype, shape, strides (or the name of another layout), device."""
        return [self.payload("layouts", number) for number in self.payload("structures", structure) or ()]

    def is_inside_torch(self, site: int) -> bool:
        """Whether the innermost frame of a site is in torch."""
        frames = self.payload("sites", site)
        return bool(frames) and not self._is_user_frame(frames[0])

    def frames_in_torch(self, site: int) -> tuple[tuple[str, str], ...]:
        """(function, source line) of the frames of a site that are no user frames."""
        payloads = (self.payload("frames", frame) for frame in self.payload("sites", site) or ())
        return tuple((str(p.get("function")), str(p.get("source"))) for p in payloads if p and p.get("internal"))

    def calls(self, site: int) -> list[tuple[str, str]]:
        """(portable path, function) of the user frames of a site, innermost first."""
        return [(frame.file, frame.function) for frame in self.stack(site)]

    def innermost(self, site: int) -> Site | None:
        """The innermost user frame; None: there is none."""
        return next(iter(self.stack(site)), None)

    def evidence(self, kernel: int) -> Evidence:
        """Evidence of a kernel; empty if unknown."""
        return self.payload("kernels", kernel) or {}

    def settings(self, number: int) -> dict[str, Any]:
        """Torch's settings; empty if unknown."""
        payload = self.payload("settings", number)
        return payload if isinstance(payload, dict) else {}

    def kernels(self, kernel: int) -> list[str]:
        """Names that a ``kernel=`` selector is matched against."""
        return kernel_names(self.evidence(kernel))

    def _name(self, table: str, number: int) -> str:
        name = self.payload(table, number)
        return "?" if name is None else str(name)

    def _stack(self, site: int) -> tuple[Site, ...]:
        return tuple(self._site(frame) for frame in self.payload("sites", site) or () if self._is_user_frame(frame))

    def _layouts(self, structure: int) -> tuple[str, ...]:
        return tuple(map(layout_text, self.tensors(structure)))

    def _kernel(self, kernel: int) -> str | None:
        return kernel_text(self.evidence(kernel), self._launched)

    @cached_property
    def _launched(self) -> Mapping[str, str]:
        """How the kernels that a profiler saw are shown, so that no two of the process look alike."""
        evidence = map(self.evidence, range(self.size("kernels")))
        names = dict.fromkeys(chain.from_iterable(whole_names(one) or () for one in evidence if LAUNCHES in one))
        if not names:
            return {}
        from rltrace.trace.kernels.names import distinct_names  # many patterns, which a recorder does not need

        return dict(zip(names, distinct_names(list(names)), strict=True))

    def _is_user_frame(self, frame: int) -> bool:
        payload = self.payload("frames", frame)
        return payload is not None and not payload.get("internal")


def layout_text(layout: Any, *, strides: bool = False) -> str:
    """``float32[64,4]``, followed by ``@device`` unless it is the CPU; with ``strides``, also those of a non-contiguous
    tensor. Of a distributed tensor the global shape, and where it is placed: ``float32[64,4]{tp=2: Shard(0)}``."""
    if layout is None:
        return "?"
    dtype, shape, stride, device = layout[:4]
    text = f"{dtype}[{','.join(map(str, shape or ()))}]{_placements_text(layout[4:])}"
    if strides and isinstance(stride, str):
        text += f" {stride}"  # the name of another layout: sparse, nested
    elif strides and stride is not None and list(stride) != _contiguous(shape or ()):
        text += f" strides {stride}"
    return text + ("" if device == "cpu" else f"@{device}")


def _placements_text(more: list[Any]) -> str:
    """``{dp=2: Replicate, tp=4: Shard(0)}``, for each dimension of a mesh of processes; "" where there is none."""
    mesh = more[0] if more and isinstance(more[0], dict) else {}
    sizes, placements, names = (mesh.get(key) for key in ("sizes", "placements", "names"))
    if not isinstance(sizes, list) or not isinstance(placements, list):
        return ""
    if isinstance(names, list):
        sizes = [f"{name}={size}" for name, size in zip(names, sizes, strict=False)]
    return f"{{{', '.join(f'{size}: {placed}' for size, placed in zip(sizes, placements, strict=False))}}}"


def _contiguous(shape: Any) -> list[int]:
    strides: list[int] = []
    size = 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(length, 1)
    return strides[::-1]
