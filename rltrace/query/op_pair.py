"""One op on both sides, and the ops upstream of its inputs.

Owns the description of a pair of rows, or of a row on one side only. Decides no verdict. Never prints.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rltrace.diff.base.context import DiffContext, Matching
from rltrace.diff.base.findings import RowAt, row_at, writer_of
from rltrace.diff.base.model import Pair
from rltrace.diff.base.row_diff import numbers_text, skeleton_text
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.inputs import match_inputs
from rltrace.json import to_json
from rltrace.query.ops import OpInput, OpLine, op_line
from rltrace.trace.format.schema import Column, Origin, RowFlag

COPIES = (
    "aten.alias",
    "aten.clone",
    "aten.contiguous",
    "aten._to_copy",
    "aten.copy_",
    "aten.detach",
    "aten.lift_fresh",
)
"""Operators that only copy an input."""

MAX_COPIES = 64
"""Views and copies that are skipped at a time."""


@dataclass(frozen=True)
class PairedInput:
    """One tensor input on both sides."""

    place: int
    a: OpInput | None
    b: OpInput | None
    match: str
    """"read", "inferred", "differ", "unknown"; "" where one side lacks it, it is only written, or rows do not match."""


@dataclass(frozen=True)
class OpPair:
    """One op on both sides; at most one side is None."""

    a: OpLine | None
    b: OpLine | None
    inputs: tuple[PairedInput, ...]
    numbers: Pair[str]
    """Numbers among the arguments."""
    skeleton: Pair[str]
    """All other arguments: T tensor, i integer, f float."""
    paths: tuple[str, ...]
    """Paths of the stack's files on the machine that recorded it, innermost first."""

    @property
    def shown(self) -> OpLine:
        """A's side; B's where A has none."""
        line = self.a or self.b
        assert line is not None
        return line

    def both(self, read: Callable[[OpLine], object]) -> Pair[str]:
        """A property of the op on both sides as text; None where a side lacks the op or the property."""
        values = [None if line is None else read(line) for line in (self.a, self.b)]
        return Pair(*(None if value is None else str(value) for value in values))

    @property
    def call(self) -> dict[str, Pair[str]]:
        """What the op logged, and what it was called with, by label."""
        logged, rng = self.both(lambda line: to_json(line.value)), self.both(lambda line: line.rng)
        return {"logged": logged, "scalars": self.numbers, "args": self.skeleton, "rng": rng}


@dataclass(frozen=True)
class Upstream:
    """The op that computed an input, past views and copies."""

    a: int | None
    b: int | None
    passed: int
    """Views and copies in between."""


class OpPairs:
    """Describes rows of one pair of streams."""

    def __init__(self, a: StreamView, b: StreamView, matching: Matching | None) -> None:
        """``matching`` None: rows are not matched, so whether inputs are equal is never known."""
        self._views = a, b
        self._context = None if matching is None else DiffContext(a, b, matching, ())

    def pair(self, a: int | None, b: int | None) -> OpPair:
        """Row ``a`` of A and ``b`` of B. Raises HoleError."""
        rows = [None if index is None else row_at(view, index) for view, index in zip(self._views, (a, b), strict=True)]
        lines = [
            None if row is None else op_line(row.rows, row.place, row.view.name, row.view.process.words) for row in rows
        ]
        shown = next(row for row in rows if row is not None)
        site = int(shown.rows.columns[shown.place, Column.SITE])
        return OpPair(
            lines[0],
            lines[1],
            tuple(self._inputs(rows[0], lines[0], rows[1], lines[1])),
            Pair(*(None if row is None else numbers_text(row) for row in rows)),
            Pair(*(None if row is None else skeleton_text(row) for row in rows)),
            tuple(frame.path for frame in shown.view.process.words.stack(site)),
        )

    def upstream(self, a: int | None, b: int | None, place: int) -> Upstream | None:
        """The op that computed input ``place``, past views and copies; None if unknown."""
        found = [
            (None, 0) if index is None else self._source(row_at(view, index), place)
            for view, index in zip(self._views, (a, b), strict=True)
        ]
        (row_a, passed_a), (row_b, passed_b) = found
        return None if row_a is None and row_b is None else Upstream(row_a, row_b, max(passed_a, passed_b))

    def _source(self, row: RowAt, place: int) -> tuple[int | None, int]:
        links = list(row.rows.inputs(row.place))
        found = writer_of(row, links[place]) if place < len(links) and links[place].distance > 0 else None
        passed = 0
        while found is not None and passed < MAX_COPIES:
            source = _copy_source(found)
            if source is None:
                break
            found, passed = source, passed + 1
        return (None if found is None else found.index), passed

    def _inputs(self, a: RowAt | None, x: OpLine | None, b: RowAt | None, y: OpLine | None) -> list[PairedInput]:
        known: dict[int, str] = {}
        if a is not None and b is not None and self._context is not None:
            known = {i.place: i.match.value for i in match_inputs(self._context, a, b)}
        inputs_a, inputs_b = (x.inputs if x else ()), (y.inputs if y else ())
        return [
            PairedInput(k, _nth(inputs_a, k), _nth(inputs_b, k), known.get(k, ""))
            for k in range(max(len(inputs_a), len(inputs_b)))
        ]


def _nth(inputs: tuple[OpInput, ...], k: int) -> OpInput | None:
    return inputs[k] if k < len(inputs) else None


def _copy_source(row: RowAt) -> RowAt | None:
    """The row that wrote what a view or copy returns; None where the row is neither, or it is unknown."""
    is_view = bool(row.rows.flags(row.place) & RowFlag.VIEW)
    if not is_view and row.op.rpartition(".")[0] not in COPIES:
        return None
    links = [link for link in row.rows.inputs(row.place) if link.distance != Origin.OVERWRITTEN]
    if not links or links[-1].distance <= 0:
        return None
    return writer_of(row, links[0] if is_view else links[-1])
