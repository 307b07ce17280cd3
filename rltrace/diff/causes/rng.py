"""Random draws on one side only, and whether they left the RNG state as it would be without them.

Owns the proof that such a draw is harmless (an evaluation inside ``fork_rng``, or with a separate generator). Where
matched ops draw, the RNG state is equal on both sides, or the walk ends there. So one of these suffices:

- a later matched op draws from the same generator, and its states were compared: it comes before the end of the walk,
  and neither side marks it;
- at a later attempt of both sides, or at the end of both processes, the state of the generator is equal;
- only one-sided ops draw from that generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import match_attempts
from rltrace.diff.base.coverage import FINISHED, recorded_throughout
from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.model import Finding
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.schema import GENERATORS, UNTOUCHED, Column, Generator, RowFlag, Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace
from rltrace.wording import joined

# --- generators -------------------------------------------------------------------------------------------------------
#
# The state of a generator at the end of a process, and the rows that drew from it. The number of a generator
# (``schema.Generator``) identifies it within one process only.


MAX_SCANNED = 1 << 24
"""Rows of a stream that are searched at most for draws from one generator; with more, the question stays open."""


def state_column(number: int) -> Step | None:
    """The column of step digests that covers the state of this generator; None: none does."""
    if number == Generator.TORCH:
        return Step.TORCH_GENERATOR
    return Step.DEVICE_GENERATORS if Generator.DEVICE <= number < Generator.OWN else None


def rng_ends_equal(a: ProcessTrace, b: ProcessTrace, number: int) -> bool:
    """Whether the state of the generator was equal on both sides when the processes ended."""
    column = state_column(number)
    if column is None or a.generators is None or b.generators is None:
        return False
    place = column - Step.TORCH_GENERATOR
    return a.generators[place] == b.generators[place] != 0


@dataclass(frozen=True)
class DrawingRows:
    """Rows of a stream that drew from one generator."""

    rows: Indices
    marked: NDArray[np.bool_]
    """Which of them are marked: the state before these is not compared."""

    def part(self, chosen: NDArray[np.bool_]) -> DrawingRows:
        return DrawingRows(self.rows[chosen], self.marked[chosen])


def draws_from(stream: StreamTrace, number: int) -> DrawingRows | None:
    """Rows of a stream that drew from a generator; None where not all of the stream can be searched."""
    if stream.rows > MAX_SCANNED or stream.holes:
        return None
    found, marked = [np.empty(0, np.int64)], [np.empty(0, bool)]
    try:
        for segment in stream.segments:
            rows = stream.read_segment(segment)
            flags = rows.column(Column.FLAGS)
            drew = np.flatnonzero(((flags & np.uint32(RowFlag.RNG)) != 0) & (rows.generators == number))
            found.append(rows.first + drew)
            marked.append((flags[drew] & np.uint32(RowFlag.MARKED)) != 0)
    except HoleError:
        return None
    return DrawingRows(np.concatenate(found), np.concatenate(marked))


def is_first_draw(row: RowAt) -> bool:
    """Whether no op of the process drew from torch's default generator before ``row``, which does; False where the
    process inherited its state, or not all of it can be searched."""
    process, number = row.view.process, int(row.rows.generators[row.place])
    if number != Generator.TORCH or process.start_record.get("forked") or not recorded_throughout(process):
        return False
    drawn = [(stream.index == row.view.stream.index, draws_from(stream, number)) for stream in process.streams]
    return all(
        found is not None and not len(found.rows[found.rows < row.index] if own else found.rows) for own, found in drawn
    )


MAX_SEARCHED = 1 << 20
"""Rows before a draw that are searched at most for an earlier one from the same state."""


def draw_from_same_state(row: RowAt) -> RowAt | None:
    """The last draw before ``row`` from the state that its generator has there, where other states came between.

    So the program has set the generator back. None: no such draw is known.
    """
    state, number = row.rows.rng(row.place), int(row.rows.generators[row.place])
    if state is None or number == Generator.UNKNOWN:
        return None
    is_last = True
    for segment in reversed(row.view.stream.segments):
        if segment.first >= row.index or segment.stop <= row.index - MAX_SEARCHED:
            continue
        try:
            rows = row.view.stream.read_segment(segment)
            drew = ((rows.column(Column.FLAGS) & np.uint32(RowFlag.RNG)) != 0) & (rows.generators == number)
            places = np.flatnonzero(drew[: row.index - rows.first])
            is_same = rows.digests[rows.digest_offsets[places] + rows.reads[places]] == state
            if is_last and len(places) and is_same[-1]:
                return None
            is_last = is_last and not len(places)
            if is_same.any():
                return row_at(row.view, rows.first + int(places[is_same][-1]))
        except HoleError:
            return None
    return None


# --- draws ------------------------------------------------------------------------------------------------------------


Key = tuple[bool, int]
"""A generator: whether it is one of A's process, and its number there."""

Ends = tuple[int, int]
"""Row numbers in A and in B."""


class Draws:
    """The draws along one pair of streams.

    ``finding``: of a one-sided draw, given whether it is A's, and its row. ``ends``: the rows of A and of B before
    which both are matched or of one side; later ones were not compared.
    """

    def __init__(self, a: StreamView, b: StreamView, finding: Callable[[bool, int], Finding]) -> None:
        self._views = {True: a, False: b}
        self._finding = finding
        self._last: dict[Key, int] = {}
        """The row of the last matched op that was read and drew from that generator."""
        self._one_sided: dict[Key, list[Indices]] = {}
        """Rows of all one-sided draws."""
        self._marked: dict[bool, list[Indices]] = {True: [], False: []}
        """Rows of matched draws that either side marks: their states are not compared."""
        self._drawn: dict[Key, DrawingRows | None] = {}
        self.any_one_sided = False
        """Whether there was any one-sided draw."""

    def add(self, a: tuple[RowRange, Indices, Indices], b: tuple[RowRange, Indices, Indices]) -> None:
        """Add (range, places of matched rows, places of one-sided rows) of both sides; ranges come in order."""
        marked = a[0].flags(RowFlag.MARKED)[a[1]] | b[0].flags(RowFlag.MARKED)[b[1]]
        for of_a, (stretch, pairs, one_sided_rows) in ((True, a), (False, b)):
            drew, numbers = stretch.flags(RowFlag.RNG), stretch.rows.generators
            self._marked[of_a].append(stretch.first + pairs[drew[pairs] & marked])
            shared = pairs[drew[pairs] & ~marked & (numbers[pairs] != Generator.UNKNOWN)]
            for number in np.unique(numbers[shared]).tolist():
                self._last[of_a, number] = stretch.first + int(shared[numbers[shared] == number].max())
            own = one_sided_rows[drew[one_sided_rows]]
            self.any_one_sided |= bool(len(own))
            for number in np.unique(numbers[own]).tolist():
                self._one_sided.setdefault((of_a, number), []).append(stretch.first + own[numbers[own] == number])

    def causing_draw(self, a: RowAt, b: RowAt, ends: Ends) -> Finding | None:
        """The one-sided draw that explains the different RNG states of a matched pair; None: there is none."""
        numbers = {True: int(a.rows.generators[a.place]), False: int(b.rows.generators[b.place])}
        known = Generator.UNKNOWN not in numbers.values()
        found = [
            self._finding(key[0], int(rows[0]))
            for key in self._one_sided
            if (not known or key[1] in (numbers[key[0]], Generator.UNKNOWN))
            and len(rows := self._left(key, ends, until=ends))
        ]
        return min(found, key=lambda f: f.identical_before, default=None)

    def unsettled(self, ends: Ends) -> Finding | None:
        """The first one-sided draw that is not proven harmless; None: there is none."""
        if not all(view.process.state in FINISHED for view in self._views.values()):
            return None  # the missing rows may restore the state
        left = []
        for key in self._one_sided:
            row = self._first_unsettled(key, ends)
            if row is not None:
                left.append(self._finding(key[0], row))
        return min(left, key=lambda f: f.identical_before, default=None)

    def are_settled(self, view: StreamView, tail: RowRange) -> bool:
        """Whether all draws in the unmatched rows at the end of a side are harmless."""
        of_a, numbers = view is self._views[True], tail.rows.generators[tail.flags(RowFlag.RNG)]
        a, b = self._views[True].rows, self._views[False].rows
        ends = (a - len(tail), b) if of_a else (a, b - len(tail))
        self.any_one_sided |= bool(len(numbers))
        return all(self._is_settled((of_a, number), ends) for number in np.unique(numbers).tolist())

    def _is_settled(self, key: Key, ends: Ends) -> bool:
        """Whether a generator ends in the state of the other side, or only one-sided ops draw from it."""
        return self._ends_equal(key) or self._is_of_one_side(key, ends)

    def _first_unsettled(self, key: Key, ends: Ends) -> int | None:
        """The first one-sided draw after which a generator is not proven to be in the same state on both sides."""
        if self._ends_equal(key):
            return None
        left = self._left(key, ends, until=None)
        return int(left[0]) if len(left) and not self._is_of_one_side(key, ends) else None

    def _left(self, key: Key, ends: Ends, until: Ends | None) -> Indices:
        """The one-sided draws after the last proof that a generator is in the same state on both sides.

        ``until``: attempts after these rows do not count; None: all do.
        """
        rows = self._rows(key)
        rows = rows[rows >= self._settled_before(key, until)]
        if not len(rows) or key[1] == Generator.UNKNOWN:
            return rows
        return rows[rows > self._last_compared(key, ends)]

    def _last_compared(self, key: Key, ends: Ends) -> int:
        """The last row that drew from a generator, and of which the states were compared; -1: none is known."""
        drawn = self._drawn_before(key, ends)
        if drawn is None:
            return self._last.get(key, -1)
        settling = np.setdiff1d(drawn.rows[~drawn.marked], np.concatenate([self._rows(key), *self._marked[key[0]]]))
        return int(settling[-1]) if len(settling) else -1

    def _ends_equal(self, key: Key) -> bool:
        return rng_ends_equal(self._views[True].process, self._views[False].process, key[1])

    def _is_of_one_side(self, key: Key, ends: Ends) -> bool:
        """Whether this is a generator that the program made, and only one-sided rows of this thread draw from it."""
        drawn, own = self._drawn_before(key, ends), self._views[key[0]]
        if drawn is None or key[1] < Generator.OWN or not recorded_throughout(own.process):
            return False
        others = [stream for stream in own.process.streams if stream.index != own.stream.index]
        return not len(np.setdiff1d(drawn.rows, self._rows(key))) and all(
            (found := draws_from(stream, key[1])) is not None and not len(found.rows) for stream in others
        )

    def _drawn_before(self, key: Key, ends: Ends) -> DrawingRows | None:
        """All rows of the stream before its end that drew from it; None: not known."""
        if key not in self._drawn:
            self._drawn[key] = draws_from(self._views[key[0]].stream, key[1])
        drawn = self._drawn[key]
        return None if drawn is None else drawn.part(drawn.rows < ends[0 if key[0] else 1])

    def _rows(self, key: Key) -> Indices:
        return np.concatenate([np.empty(0, np.int64), *self._one_sided.get(key, [])])

    def _settled_before(self, key: Key, until: Ends | None) -> int:
        """Row of the last attempt at which the state of the generator was equal on both sides; 0: there is none."""
        column = state_column(key[1])
        if column is None:
            return 0
        a, b = self._equal_attempts[column]
        count = len(a)
        if until is not None:
            count = int(min(np.searchsorted(a, until[0], "right"), np.searchsorted(b, until[1], "right")))
        return int((a if key[0] else b)[count - 1]) if count else 0

    @cached_property
    def _equal_attempts(self) -> dict[Step, tuple[Indices, Indices]]:
        """End rows, in A and B, of the matched attempts with equal RNG states, by column."""
        a, b = self._views[True], self._views[False]
        at_a, at_b = match_attempts(a, b)
        own_a, own_b = a.steps[at_a], b.steps[at_b]
        digested = (own_a[:, Step.FLAGS] & own_b[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
        found = {}
        for column in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS):
            equal = np.flatnonzero(digested & (own_a[:, column] == own_b[:, column]) & (own_a[:, column] != 0))
            ends = own_a[equal, Step.END_ROW], own_b[equal, Step.END_ROW]
            found[column] = ends[0].astype(np.int64), ends[1].astype(np.int64)
        return found


# --- RNG text ---------------------------------------------------------------------------------------------------------
#
# The RNG states around a row, in words. They are digested at every optimizer attempt: the last one before a row gives
# the states at the start of its step; in the first step, those at its end are used.


NAMES: dict[Step, str] = {
    Step.TORCH_GENERATOR: "torch",
    Step.DEVICE_GENERATORS: "device",
    Step.PYTHON_GENERATOR: "Python",
    Step.NUMPY_GENERATOR: "NumPy",
}


def generators_text(a: RowAt, b: RowAt) -> str:
    """``the torch and NumPy generator states were equal as this step began, the NumPy ones differ at its end``; empty
    where none is known."""
    began = a.view.attempt_before(a.index), b.view.attempt_before(b.index)
    ends = a.view.attempt_after(a.index), b.view.attempt_after(b.index)
    text = _text(*began, "were", "as this step began")
    if not text:
        return _text(*ends, "are", "at the end of this step")
    came_apart = [NAMES[column] for column in _states(*began)[0] if column in _states(*ends)[1]]
    return f"{text}, the {joined(came_apart)} ones differ at its end" if came_apart else text


def generators_note(a: ProcessTrace, b: ProcessTrace) -> str | None:
    """A sentence if torch's generators ended in different states though no op shows it; None: equal, or not known."""
    if a.generators is None or b.generators is None:
        return None
    states = zip(GENERATORS, a.generators, b.generators, strict=True)
    other = [NAMES[c] for c, x, y in states if c in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS) and x != y]
    if not other:
        return None
    return (
        f"the {joined(other)} generator states differ as {a.name} ends, although they were equal at every op that "
        "both ran and that drew: the next draw would differ"
    )


def _states(a: NDArray[np.uint64] | None, b: NDArray[np.uint64] | None) -> tuple[list[Step], list[Step]]:
    """The generators with equal states at two attempts, and those with others; none where they are not known."""
    if a is None or b is None or not int(a[Step.FLAGS] & b[Step.FLAGS]) & StepFlag.DIGESTED:
        return [], []
    known = [column for column in NAMES if a[column] and b[column] and not a[column] == b[column] == UNTOUCHED]
    equal = [column for column in known if a[column] == b[column]]
    return equal, [column for column in known if column not in equal]


def _text(a: NDArray[np.uint64] | None, b: NDArray[np.uint64] | None, were: str, when: str) -> str:
    equal, other = ([NAMES[column] for column in columns] for columns in _states(a, b))
    if not equal:
        return f"the {joined(other)} generator states {were} not equal {when}" if other else ""
    text = f"the {joined(equal)} generator states {were} equal {when}"
    return f"{text}, the {joined(other)} ones {were} not" if other else text
