"""The tables of one process as words: operators, modules, stacks, layouts and kernels by their ids.

Owns how a table entry reads, in a trace and in a process that is recording: both have payloads by id. What no readable
entry names reads ``?``. No torch, no zarr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rltrace.trace.format.schema import Phase
from rltrace.trace.kernels.evidence import Evidence, kernel_names, kernel_text

Payloads = Mapping[str, Any]
"""By the name of a table: its payloads, by id."""


@dataclass(frozen=True)
class Site:
    """One stack frame, for display."""

    file: str
    """Relative to its package."""
    line: int
    function: str
    source: str


def parse_site(found: Mapping[str, Any]) -> Site:
    """The site in a payload of table "frames". Raises KeyError, TypeError or ValueError."""
    return Site(str(found["file"]), int(found["line"]), str(found["function"]), str(found["source"]))


class Words:
    """The words of one process; each is made once."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._site = cache(lambda frame: parse_site(self.payload("frames", frame)))
        self.stack = cache(self._stack)
        self.layouts = cache(self._layouts)
        self.kernel = cache(self._kernel)

    def size(self, table: str) -> int:
        return len(self._payloads[table])

    def payload(self, table: str, number: int) -> Any:
        """An entry as it is; None where the table lacks it."""
        try:
            return self._payloads[table][number]
        except LookupError:
            return None

    def op(self, number: int) -> str:
        """``aten.addmm.default``."""
        return self._name("ops", number)

    def module(self, number: int) -> str:
        return self._name("modules", number)

    def phase(self, number: int) -> str:
        """``phase 9`` for one that a newer version of the format may have added."""
        try:
            return Phase(number).name.lower()
        except ValueError:
            return f"phase {number}"

    def skeleton(self, number: int) -> list[Any]:
        """What the arguments of an op are, numbers and tensors aside; of an event, the names of its cells."""
        return self.payload("scalars", number) or []

    def tensors(self, structure: int) -> list[Any]:
        """The layout of each tensor input: dtype, shape, strides (or the name of another layout), device."""
        return [self.payload("layouts", number) for number in self.payload("structures", structure) or ()]

    def is_inside_torch(self, site: int) -> bool:
        """Whether the innermost frame of a site is torch's."""
        frames = self.payload("sites", site)
        return bool(frames) and not self._is_users(frames[0])

    def calls(self, site: int) -> list[tuple[str, str]]:
        """(portable path, function) of the user frames of a site, innermost first."""
        return [(frame.file, frame.function) for frame in self.stack(site)]

    def paths(self, site: int) -> tuple[str, ...]:
        """Where the files of the user frames stood on the machine that recorded them, innermost first."""
        return tuple(str(self.payload("frames", frame).get("path", "")) for frame in self._user_frames(site))

    def innermost(self, site: int) -> Site | None:
        """The innermost user frame; None: there is none."""
        return next(iter(self.stack(site)), None)

    def evidence(self, kernel: int) -> Evidence:
        """What is known of a kernel; empty: nothing."""
        return self.payload("kernels", kernel) or {}

    def settings(self, number: int) -> dict[str, Any]:
        """What torch was set to; empty where that is not known."""
        found = self.payload("settings", number)
        return found if isinstance(found, dict) else {}

    def kernels(self, kernel: int) -> list[str]:
        """What a ``kernel=`` selector is matched against."""
        return kernel_names(self.evidence(kernel))

    def _name(self, table: str, number: int) -> str:
        name = self.payload(table, number)
        return "?" if name is None else str(name)

    def _stack(self, site: int) -> tuple[Site, ...]:
        return tuple(map(self._site, self._user_frames(site)))

    def _layouts(self, structure: int) -> tuple[str, ...]:
        return tuple(map(layout_text, self.tensors(structure)))

    def _kernel(self, kernel: int) -> str | None:
        return kernel_text(self.evidence(kernel))

    def _user_frames(self, site: int) -> list[int]:
        return [frame for frame in self.payload("sites", site) or () if self._is_users(frame)]

    def _is_users(self, frame: int) -> bool:
        found = self.payload("frames", frame)
        return found is not None and not found.get("internal")


def layout_text(layout: Any, *, strides: bool = False) -> str:
    """``float32[64,4]``, with the device behind an @ where it is not the CPU; ``strides``: with those that are not
    contiguous."""
    if layout is None:
        return "?"
    dtype, shape, lying, device = layout[:4]
    text = f"{dtype}[{','.join(map(str, shape or ()))}]"
    if strides and isinstance(lying, str):
        text += f" {lying}"  # sparse, nested: the name of what it is made of stands for strides
    elif strides and lying is not None and list(lying) != _contiguous(shape or ()):
        text += f" strides {lying}"
    return text + ("" if device == "cpu" else f"@{device}")


def _contiguous(shape: Any) -> list[int]:
    strides: list[int] = []
    size = 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(length, 1)
    return strides[::-1]
