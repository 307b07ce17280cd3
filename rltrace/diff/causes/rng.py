"""Random draws on one side only, and whether they left the RNG state as it would be without them.

Owns the proof that such a draw is harmless (an evaluation inside ``fork_rng``, or with a separate generator). Where
matched ops draw, the RNG state is equal on both sides, or the walk ends there. So one of these suffices:

- a later matched op draws from the same generator;
- at a later attempt of both sides, or at the end of both processes, the state of the generator is equal;
- only one-sided ops draw from that generator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import match_steps
from rltrace.diff.base.coverage import FINISHED, recorded_throughout
from rltrace.diff.base.findings import RowAt, make_finding, row_at
from rltrace.diff.base.model import Finding
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.extra_ops import control_flow
from rltrace.errors import HoleError
from rltrace.trace.format.schema import GENERATORS, Column, Generator, RowFlag, Step, StepFlag
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


def draws_from(stream: StreamTrace, number: int) -> NDArray[np.int64] | None:
    """Rows of a stream that drew from a generator; None where not all of the stream can be searched."""
    if stream.rows > MAX_SCANNED or stream.holes or stream.left_out:
        return None
    found = [np.empty(0, np.int64)]
    try:
        for segment in stream.segments:
            rows = stream.read_segment(segment)
            drew = (rows.column(Column.FLAGS) & np.uint32(RowFlag.RNG)) != 0
            found.append(rows.first + np.flatnonzero(drew & (rows.generators == number)))
    except HoleError:
        return None
    return np.concatenate(found)


# --- draws ------------------------------------------------------------------------------------------------------------


DRAWS = "it draws from a generator"

Key = tuple[bool, int]
"""A generator: whether it is one of A's process, and its number there."""

MakeFinding = Callable[[bool, int], Finding]
"""(whether it is A's, its place in the range) to the finding at a one-sided op."""


class Draws:
    """The draws along one pair of streams."""

    def __init__(self, a: StreamView, b: StreamView) -> None:
        self._views = {True: a, False: b}
        self._since: dict[Key, Finding] = {}
        """The first one-sided draw since matched ops last drew from that generator."""
        self._one_sided: dict[Key, list[Indices]] = {}
        """Rows of all one-sided draws."""
        self.any_one_sided = False
        """Whether there was any one-sided draw."""

    def add(
        self, a: tuple[RowRange, Indices, Indices], b: tuple[RowRange, Indices, Indices], finding: MakeFinding
    ) -> None:
        """Add (range, places of matched rows, places of one-sided rows) of both sides; ranges come in order."""
        marked = a[0].flags(RowFlag.MARKED)[a[1]] | b[0].flags(RowFlag.MARKED)[b[1]]  # their states are not compared
        for of_a, (stretch, pairs, one_sided_rows) in ((True, a), (False, b)):
            drew, numbers = stretch.flags(RowFlag.RNG), stretch.rows.generators
            shared = pairs[drew[pairs] & ~marked & (numbers[pairs] != Generator.UNKNOWN)]
            for number in np.unique(numbers[shared]).tolist():
                self._since.pop((of_a, number), None)
            own = one_sided_rows[drew[one_sided_rows]]
            for number in np.unique(numbers[own]).tolist():
                rows, after = own[numbers[own] == number], shared[numbers[shared] == number]
                self._note(
                    (of_a, number), stretch.first, rows, rows[rows > after.max()] if len(after) else rows, finding
                )

    def _note(self, key: Key, first: int, rows: Indices, since: Indices, finding: MakeFinding) -> None:
        self.any_one_sided = True
        self._one_sided.setdefault(key, []).append(first + rows)
        if len(since) and key not in self._since:
            self._since[key] = finding(key[0], int(since[0]))

    def causing_draw(self, a: RowAt, b: RowAt) -> Finding | None:
        """The one-sided draw that explains the different RNG states of a matched pair; None: there is none."""
        numbers = {True: int(a.rows.generators[a.place]), False: int(b.rows.generators[b.place])}
        known = Generator.UNKNOWN not in numbers.values()
        found = [f for (of_a, n), f in self._since.items() if not known or n in (numbers[of_a], Generator.UNKNOWN)]
        return min(found, key=lambda f: f.identical_before, default=None)

    def unsettled(self, one_sided: tuple[Indices, Indices], trailing: tuple[int, int] = (0, 0)) -> Finding | None:
        """The first one-sided draw that is not proven harmless; None: there is none.

        ``one_sided``: one-sided rows of A and B; ``trailing``: numbers of rows at the end that are not among them.
        """
        if not all(view.process.state in FINISHED for view in self._views.values()):
            return None  # the missing rows may restore the state
        left = []
        for key in self._one_sided:
            row = self._first_unsettled(key, trailing)
            if row is not None:
                left.append(self._finding(key, row, one_sided[0 if key[0] else 1]))
        return min(left, key=lambda f: f.identical_before, default=None)

    def are_settled(self, view: StreamView, tail: RowRange) -> bool:
        """Whether all draws in the unmatched rows at the end of a side are harmless."""
        of_a, numbers = view is self._views[True], tail.rows.generators[tail.flags(RowFlag.RNG)]
        trailing = (len(tail), 0) if of_a else (0, len(tail))
        self.any_one_sided |= bool(len(numbers))
        return all(self._is_settled((of_a, number), trailing) for number in np.unique(numbers).tolist())

    def _is_settled(self, key: Key, trailing: tuple[int, int]) -> bool:
        """Whether a generator ends in the state of the other side, or only one-sided ops draw from it."""
        a, b = self._views[True].process, self._views[False].process
        if rng_ends_equal(a, b, key[1]):
            return True
        drawn = self._drawn(key, trailing)
        return drawn is not None and not len(np.setdiff1d(drawn, self._rows(key))) and self._is_own(key)

    def _first_unsettled(self, key: Key, trailing: tuple[int, int]) -> int | None:
        """The first one-sided draw after which a generator is not proven to be in the same state on both sides."""
        rows = self._rows(key)
        rows = rows[rows >= self._settled_before(key)]
        if not len(rows) or rng_ends_equal(self._views[True].process, self._views[False].process, key[1]):
            return None
        drawn = self._drawn(key, trailing)
        if drawn is None or key[1] == Generator.UNKNOWN:
            return int(rows[0])
        shared = np.setdiff1d(drawn, self._rows(key))
        if not len(shared) and self._is_own(key):
            return None
        left = rows[rows > shared[-1]] if len(shared) else rows
        return int(left[0]) if len(left) else None

    def _is_own(self, key: Key) -> bool:
        """Whether this is a generator that the program made, and no other thread of the process draws from it."""
        own = self._views[key[0]]
        others = [stream for stream in own.process.streams if stream.index != own.stream.index]
        if key[1] < Generator.OWN or not recorded_throughout(own.process):
            return False
        return all((rows := draws_from(stream, key[1])) is not None and not len(rows) for stream in others)

    def _drawn(self, key: Key, trailing: tuple[int, int]) -> Indices | None:
        """All rows of the stream that drew from it, without the trailing ones; None: not known."""
        view = self._views[key[0]]
        rows = draws_from(view.stream, key[1])
        return None if rows is None else rows[rows < view.rows - trailing[0 if key[0] else 1]]

    def _rows(self, key: Key) -> Indices:
        return np.concatenate([np.empty(0, np.int64), *self._one_sided.get(key, [])])

    def _finding(self, key: Key, row: int, one_sided: Indices) -> Finding:
        """The finding at a one-sided draw; the stored one if it is of this row."""
        since = self._since.get(key)
        if since is not None and row == (since.a_index if key[0] else since.b_index):
            return since
        side, other = ("A", "B") if key[0] else ("B", "A")
        at = row_at(self._views[key[0]], row)
        decided, before = control_flow(side, at, other, None, DRAWS), row - int(np.sum(one_sided < row))
        return make_finding(at, None, decided, before) if key[0] else make_finding(None, at, decided, before)

    def _settled_before(self, key: Key) -> int:
        """Row of the last attempt at which the state of the generator was equal on both sides; 0: there is none."""
        column = state_column(key[1])
        return 0 if column is None else self._last_equal[column][0 if key[0] else 1]

    @cached_property
    def _last_equal(self) -> dict[Step, tuple[int, int]]:
        """End rows, in A and B, of the last matched attempts with equal RNG states, by column."""
        a, b = self._views[True], self._views[False]
        at_a, at_b = match_steps(a.process, a.steps, b.process, b.steps)
        own_a, own_b = a.steps[at_a], b.steps[at_b]
        digested = (own_a[:, Step.FLAGS] & own_b[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
        found = {}
        for column in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS):
            equal = np.flatnonzero(digested & (own_a[:, column] == own_b[:, column]) & (own_a[:, column] != 0))
            last = equal[-1:]
            ends = own_a[last, Step.END_ROW], own_b[last, Step.END_ROW]
            found[column] = (int(ends[0][0]), int(ends[1][0])) if len(last) else (0, 0)
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
    """``the torch, Python and NumPy generator states were equal as this step began``; empty where none is known."""
    began = a.view.attempt_before(a.index), b.view.attempt_before(b.index)
    ends = a.view.attempt_after(a.index), b.view.attempt_after(b.index)
    return _text(*began, "were", "as this step began") or _text(*ends, "are", "at the end of this step")


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


def _text(a: NDArray[np.uint64] | None, b: NDArray[np.uint64] | None, were: str, when: str) -> str:
    if a is None or b is None or not int(a[Step.FLAGS] & b[Step.FLAGS]) & StepFlag.DIGESTED:
        return ""
    known = [column for column in NAMES if a[column] and b[column]]
    equal = [NAMES[column] for column in known if a[column] == b[column]]
    other = [NAMES[column] for column in known if a[column] != b[column]]
    if not equal:
        return f"the {joined(other)} generator states {were} not equal {when}" if other else ""
    text = f"the {joined(equal)} generator states {were} equal {when}"
    return f"{text}, the {joined(other)} ones {were} not" if other else text
