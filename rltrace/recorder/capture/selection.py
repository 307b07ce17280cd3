"""A selector applied to the rows of one stream while they are written.

Owns the translation of a selector into ids of a row. Conditions on names are decided once for each combination of ids;
those on step and occurrence at each row.
"""

from typing import Any

from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.row_buffer import PHASE_SHIFT
from rltrace.selectors import Key, Selector
from rltrace.trace.format.schema import Phase

NAMED = ("frames", "kernels", "modules", "sites")
"""Tables whose payloads have to be remembered for this."""

STEP = Key.STEP  # looking it up in the enumeration takes as long as the rest


class StreamSelector:
    """A selector made ready for one stream."""

    def __init__(self, selector: Selector, stream: OpRecorder) -> None:
        self._stream = stream
        self._process = stream.process
        self._words = stream.process.tables.words
        self._selector = selector = selector.simplify({Key.STREAM: stream.name})
        self._left: dict[int | tuple[int, ...], Selector] = {}
        """What is left to be met by an op; in a module and a phase; by a row of an op."""
        self.has_steps = STEP in selector.keys
        """Whether what may be found depends on the step."""
        self._counts = Key.NTH in selector.keys
        self._asks_kernel = Key.KERNEL in selector.keys
        self._seen: dict[tuple[int, int], int] = {}
        self._step = -1

    def may_find(self, op: int, name: str) -> bool:
        """Whether a row of this op can be found in the step at hand; asked before the op runs."""
        left = self._left.get(op)
        if left is None:
            left = self._left[op] = self._selector.simplify({Key.OP: name}).project(STEP)
        return bool(left.clauses) and (left.matches_all or self._holds_now(left))

    def may_find_in(self, module: int, phase: Phase) -> bool:
        """Whether what happens now, in a module and a phase, can be found."""
        left = self._left.get((module, phase))
        if left is None:
            facts = {Key.MODULE: self._words.module(module), Key.PHASE: phase.name.lower()}
            left = self._left[module, phase] = self._selector.simplify(facts).project(STEP)
        return bool(left.clauses) and (left.matches_all or self._holds_now(left))

    def may_find_here(self, op: int, name: str, module: int, phase: Phase) -> bool:
        """Whether a row of this op can be found in the step at hand, in a module and a phase.

        Where occurrences count, those elsewhere are counted, too.
        """
        if self._counts:
            return self.may_find(op, name)
        facts = {Key.OP: name, Key.MODULE: self._words.module(module), Key.PHASE: phase.name.lower()}
        return self._holds_now(self._selector.simplify(facts).project(STEP))

    def finds(self, op: int, name: str, structure: int, site: int, module: int, flags: int) -> bool:
        """Whether the row with these ids, which is the stream's next one, is found; asked once for each row of an op
        that ``may_find`` did not rule out."""
        nth = self._occurrence(site, op) if self._counts else None
        phase = flags >> PHASE_SHIFT & 0xFF
        key: tuple[int, ...] = (op, site, module, phase)
        if self._asks_kernel:
            key += structure, self._threads
        left = self._left.get(key)
        if left is None:
            words = self._words
            facts: dict[Key, Any] = {Key.OP: name, Key.PHASE: words.phase(phase), Key.MODULE: words.module(module)}
            facts[Key.ARRAY] = ()  # of JAX only
            facts[Key.SITE] = words.calls(site)
            if self._asks_kernel:
                device = self._process.calls.structure_devices[structure]
                facts[Key.KERNEL] = words.kernels(self._process.kernels.of(name, self._threads, device))
            left = self._left[key] = self._selector.simplify(facts)
        return bool(left.clauses) and (left.matches_all or self._holds_now(left, nth))

    def _holds_now(self, left: Selector, nth: int | None = None) -> bool:
        """Whether one clause of conditions on numbers holds."""
        step = self._process.step
        for clause in left.clauses:
            for condition in clause:
                number: Any = step if condition.key is STEP else nth
                if not condition.value.matches(number):
                    break
            else:
                return True
        return False

    def _occurrence(self, site: int, op: int) -> int:
        if self._process.step != self._step:
            self._step = self._process.step
            self._seen.clear()
        count = self._seen.get((site, op), 0)
        self._seen[site, op] = count + 1
        return count

    @property
    def _threads(self) -> int:
        return self._process.settings.threads[self._stream.settings.number]
