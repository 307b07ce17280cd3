"""Values of a JAX program: the bytes of the arrays that selected rows write, and of those that their calls take.

Owns which they are, and the moment at which they are copied: what a call takes before it runs, since it may be donated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rltrace.extensions.jax.programs import host_array
from rltrace.extensions.jax.rows import Operand, RowPlace, RowTemplate, layout_payload
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.capture_queue import NO_DTYPE, ValueQueue
from rltrace.selectors import Key, parse_selectors
from rltrace.trace.format import dtypes
from rltrace.trace.format.records import ValueRequest
from rltrace.trace.format.schema import LIMIT, Column, ValueKind
from rltrace.trace.write.packers import NewValue

ELSEWHERE = "other processes have parts of it"
"""Why a value was left out."""


class ArrayValues:
    """Records the values of the rows that a selector finds: an ``ArrayHook`` that replaces nothing."""

    def __init__(self, options: RecordOptions, tables: Tables) -> None:
        self.queue = ValueQueue(ValueRequest(options.values, options.values_inputs, options.values_limit))
        self._selector = parse_selectors(options.values)
        self._tables = tables
        self._taken: dict[int, Sequence[tuple[Operand, bytes | None]]] = {}
        """By stream, what the call takes that runs now."""
        tables.remember("frames", "kernels", "sites")

    def begin(self, place: RowPlace, inputs: list[Operand], arrays: list[Any]) -> None:
        if self.queue.request.inputs and self._selector.simplify(self._facts(place)).clauses:
            self._taken[place.number] = [
                (operand, host_array(array).tobytes() if self._is_new(operand) else None)
                for operand, array in zip(inputs, arrays, strict=False)
            ]

    def finish(
        self,
        place: RowPlace,
        template: RowTemplate,
        inputs: Sequence[Operand],
        outputs: list[Operand],
        arrays: list[Any],
    ) -> None:
        taken = self._taken.pop(place.number, ())
        kernels = self._tables.words.kernels(template.columns[Column.KERNEL])
        found = self._selector.simplify({**self._facts(place), Key.KERNEL: kernels})
        if not found.clauses:
            return
        chosen = found.chosen(template.names or ("",) * len(arrays))
        for at, (operand, array) in enumerate(zip(outputs, arrays, strict=True)):
            if chosen[at] and self._can_be_recorded(place, operand) and self._is_new(operand):
                self._add(place, at, operand, ValueKind.OUTPUT, host_array(array).tobytes())
        for at, (operand, content) in enumerate(taken if found.matches_all else ()):
            if not self._can_be_recorded(place, operand):
                continue
            if self.queue.knows(operand.digest):
                self.queue.add(NewValue(ValueKind.SAME_INPUT, operand.digest, place.number, place.row, at, 0, b""))
            elif content is not None:
                self._add(place, at, operand, ValueKind.INPUT, content)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return ()

    def _facts(self, place: RowPlace) -> dict[Key, Any]:
        op, _, nth = place.key
        facts: dict[Key, Any] = {Key.OP: op, Key.STREAM: place.stream, Key.STEP: place.step, Key.NTH: nth}
        calls = self._tables.words.calls(place.site)
        return facts | {Key.SITE: calls, Key.MODULE: place.module, Key.PHASE: place.phase.name.lower()}

    def _is_new(self, operand: Operand) -> bool:
        return not _why_not(operand) and not self.queue.knows(operand.digest)

    def _can_be_recorded(self, place: RowPlace, operand: Operand) -> bool:
        """Whether an array has plain bytes, and there is room for it; where not, that is noted."""
        layout = operand.layout
        why = _why_not(operand) or ("" if self.queue.has_room(layout.size) else LIMIT)
        if why:
            self.queue.leave_out(why, place.number, place.row, layout.size)
        return not why

    def _add(self, place: RowPlace, at: int, operand: Operand, kind: ValueKind, content: bytes) -> None:
        layout = self._tables.intern_payload("layouts", layout_payload(operand.layout))
        self.queue.add(NewValue(kind, operand.digest, place.number, place.row, at, layout, content))


def _why_not(operand: Operand) -> str:
    """Why an array cannot be recorded; "": it can."""
    mesh = operand.layout.mesh
    if mesh is not None and not mesh.is_here:
        return ELSEWHERE
    return NO_DTYPE if dtypes.itemsize(operand.layout.dtype) is None else ""
