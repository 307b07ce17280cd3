"""What the streams of a process that is being built share: its writer, tables, step and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rltrace.testing.interning import Interned
from rltrace.trace.keptrecords import AskedRows
from rltrace.trace.valuerecords import Asked
from rltrace.trace.writer import ProcessWriter, write_birth


class Process:
    """One process of a trace, as its streams know it."""

    def __init__(
        self,
        trace: Path,
        name: str,
        level: str,
        engine: str,
        *,
        alive: bool = False,
        argv: Sequence[str] = ("train.py",),
    ) -> None:
        birth: dict[str, object] = {"name": name, "argv": list(argv), "executable": "python"}
        if not alive:
            birth["pid"] = 0
        self.writer = ProcessWriter.open(trace, {**birth, "token": write_birth(trace, birth)})
        self.name = self.writer.name
        self.tables = Interned()
        self.step = 0
        self.attempts: dict[int, int] = {}
        self._level, self._engine = level, engine
        self._keeps = False
        self._keeps_rows = False
        self.row_axes: tuple[int, ...] | None = None
        self.writer.facts(level, engine, {"testing": True})

    def keeps(self, *selectors: str, inputs: bool = True, limit: int = 1 << 30, only_with_rows: bool = False) -> None:
        """Values are kept of what these select (default: all); only the first call counts."""
        if not self._keeps:
            self._keeps = True
            asked = () if only_with_rows else selectors or ("all",)
            self.writer.keeps(Asked(asked, inputs and not only_with_rows, limit))

    def keeps_rows(self, *selectors: str, axes: tuple[int, ...] | None = None, limit: int = 1 << 30) -> None:
        """Rows of tensors are kept of what these select (default: all); only the first call counts."""
        if not self._keeps_rows:
            self._keeps_rows = True
            self.row_axes = axes
            self.writer.keeps_rows(AskedRows(selectors or ("all",), axes, limit))

    def fact(self, name: str, value: str | int | float | bool | None) -> None:
        self.writer.facts(self._level, self._engine, {name: value})
