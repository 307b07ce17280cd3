"""The tables of one process as words: operators, modules, stacks, layouts and kernels by their ids.

Owns how a table entry reads; each is put into words once. An id that the (damaged) table lacks reads ``?``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rltrace.diff.base.model import Site
from rltrace.trace.kernels.evidence import kernel_names, kernel_text
from rltrace.trace.read.process import ProcessTrace


class Words:
    """The words of one process."""

    def __init__(self, process: ProcessTrace) -> None:
        self._tables = process.tables
        self.stack = cache(self._stack)
        self.layouts_of = cache(self._layouts_of)
        self.kernel = cache(self._kernel)

    def size(self, table: str) -> int:
        return len(self._tables[table].payloads)

    def op(self, number: int) -> str:
        return str(self._payload("ops", number, "?"))

    def skeleton(self, number: int) -> object:
        """What the arguments of an op are, numbers and tensors aside; of an event, the names of its cells."""
        return self._payload("scalars", number, None)

    def module(self, number: int) -> str:
        return str(self._payload("modules", number, "?"))

    def layouts(self, structure: int) -> list[str]:
        """``float32[64,4]`` of each tensor input."""
        return list(self.layouts_of(structure))

    def frames(self, site: int) -> list[tuple[str, str]]:
        """(portable path, function) of the user frames of a site, innermost first."""
        return [(frame.file, frame.function) for frame in self.stack(site)]

    def kernels(self, number: int) -> list[str]:
        """What a ``kernel=`` selector is matched against."""
        return kernel_names(self._payload("kernels", number, {}))

    def _payload(self, table: str, number: int, missing: Any) -> Any:
        payloads = self._tables[table].payloads
        return payloads[number] if number < len(payloads) else missing

    def _stack(self, site: int) -> tuple[Site, ...]:
        frames = [self._payload("frames", number, None) for number in self._payload("sites", site, ())]
        return tuple(
            Site(str(frame["file"]), int(frame["line"]), str(frame["function"]), str(frame["source"]))
            for frame in frames
            if frame and not frame.get("internal")
        )

    def _layouts_of(self, structure: int) -> tuple[str, ...]:
        return tuple(
            _layout(self._payload("layouts", number, None)) for number in self._payload("structures", structure, ())
        )

    def _kernel(self, number: int) -> str:
        return kernel_text(self._payload("kernels", number, {})) or ""


def _layout(payload: Any) -> str:
    if payload is None:
        return "?"
    dtype, shape, _strides, device = payload
    text = f"{dtype}[{','.join(map(str, shape or ()))}]"
    return text if device == "cpu" else f"{text}@{device}"
