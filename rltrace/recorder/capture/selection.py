"""Which rows a selector finds, decided while they are being written.

Owns the translation of a selector into what a row is made of. What depends on names alone is decided once for each
combination of ids; only step and occurrence are looked at each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.row_buffer import PHASE_SHIFT
from rltrace.selectors import Condition, Key, Range, Selector
from rltrace.trace.format.schema import Phase
from rltrace.trace.kernels.evidence import kernel_names

NAMED = ("frames", "kernels", "modules", "sites")
"""Tables whose payloads have to be remembered for this."""

Clause = tuple[Condition, ...]


class Wanted:
    """A selector made ready for one stream."""

    def __init__(self, selector: Selector, stream: OpRecorder) -> None:
        self._stream = stream
        self._tables = stream.process.tables
        self._clauses = [
            tuple(condition for condition in clause if condition.key is not Key.STREAM)
            for clause in selector.clauses
            if all(c.matches_name(stream.name) for c in clause if c.key is Key.STREAM)
        ]
        self._by_op: dict[int, list[Clause]] = {}
        self._by_names: dict[tuple[int, ...], list[Clause]] = {}
        keys = {condition.key for clause in self._clauses for condition in clause}
        self._counts = Key.NTH in keys
        self._is_counted = self._counts or Key.STEP in keys
        self._asks_kernel = Key.KERNEL in keys
        self._seen: dict[tuple[int, int], int] = {}
        self._step = -1

    def may_find(self, op: int, name: str) -> bool:
        """Whether a row of this op can be found in the step at hand; asked before the op runs."""
        clauses = self._of_op(op, name)
        if not clauses or not self._is_counted:
            return bool(clauses)
        step = self._stream.process.step
        return any(_all(clause, Key.STEP, step) for clause in clauses)

    def finds(self, op: int, name: str, structure: int, site: int, module: int, flags: int) -> bool:
        """Whether the row with these ids, which is the stream's next one, is found; asked once for each row of an op
        that ``may_find`` did not rule out."""
        step = self._stream.process.step
        nth = self._occurrence(step, site, op) if self._counts else None
        phase = flags >> PHASE_SHIFT & 0xFF
        key = (
            (op, site, module, phase) if not self._asks_kernel else (op, site, module, phase, structure, self._threads)
        )
        clauses = self._by_names.get(key)
        if clauses is None:
            asked: dict[Key, Callable[[Condition], bool]] = {
                Key.SITE: lambda condition: condition.matches_frames(self._frames(site)),
                Key.MODULE: lambda condition: condition.matches_name(self._payload("modules", module)),
                Key.PHASE: lambda condition: condition.matches_name(Phase(phase).name.lower()),
                Key.KERNEL: lambda condition: any(map(condition.matches_name, self._kernels(name, structure))),
            }
            clauses = self._by_names[key] = [
                clause
                for clause in self._of_op(op, name)
                if all(asked[condition.key](condition) for condition in clause if condition.key in asked)
            ]
        if not clauses or not self._is_counted:
            return bool(clauses)
        return any(_all(clause, Key.STEP, step) and _all(clause, Key.NTH, nth) for clause in clauses)

    def _of_op(self, op: int, name: str) -> list[Clause]:
        found = self._by_op.get(op)
        if found is None:
            found = self._by_op[op] = [
                clause for clause in self._clauses if all(c.matches_name(name) for c in clause if c.key is Key.OP)
            ]
        return found

    def _occurrence(self, step: int, site: int, op: int) -> int:
        if step != self._step:
            self._step = step
            self._seen.clear()
        count = self._seen.get((site, op), 0)
        self._seen[site, op] = count + 1
        return count

    @property
    def _threads(self) -> int:
        return self._stream.process.settings.threads[self._stream.settings.number]

    def _frames(self, site: int) -> list[tuple[str, str]]:
        frames = (self._payload("frames", number) for number in self._payload("sites", site))
        return [(frame["file"], frame["function"]) for frame in frames if not frame["internal"]]

    def _kernels(self, name: str, structure: int) -> Sequence[str]:
        process = self._stream.process
        device = process.calls.structure_devices[structure]
        return kernel_names(self._payload("kernels", process.kernels.of(name, self._threads, device)))

    def _payload(self, table: str, number: int) -> Any:
        return self._tables.remembered[table][number]


def _all(clause: Clause, key: Key, number: int | None) -> bool:
    """Whether all conditions on one counted key hold."""
    for condition in clause:
        if condition.key is key:
            assert isinstance(condition.value, Range)
            if not condition.value.matches(number):
                return False
    return True
