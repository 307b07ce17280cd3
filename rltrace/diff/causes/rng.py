"""Draws that one side alone made: whether the generators they drew from stand where they would stand without them.

Owns the proof that such a draw is harmless (an evaluation inside ``fork_rng``, one with a generator of its own). Where
matched ops draw, the generator's state is the same on both sides, or the walk ends there; so it is one of these:

- a later matched op draws from the same generator;
- an attempt of both sides after it, or the end of both processes, found the generator in the same state;
- nobody draws from that generator but ops that this side alone has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

# --- putback ----------------------------------------------------------------------------------------------------------
#
# What a trace holds of a generator beyond its draws: its state as processes end, and who drew from it at all.
#
# Owns these two readings, for draws that one side alone made. A number (``schema.Generator``) names a generator within
# one process only; it means nothing on the other side.


MOST_READ = 1 << 24
"""Rows of a stream that are looked through for draws from one generator; where there are more, it stays open."""


def state_column(number: int) -> Step | None:
    """Which digest of a step, or of a process's end, tells the state of this generator; None: none does."""
    if number == Generator.TORCH:
        return Step.TORCH_GENERATOR
    return Step.DEVICE_GENERATORS if Generator.DEVICE <= number < Generator.OWN else None


def ends_alike(a: ProcessTrace, b: ProcessTrace, number: int) -> bool:
    """Whether the generator stood in the same state on both sides when the processes ended."""
    column = state_column(number)
    if column is None or a.generators is None or b.generators is None:
        return False
    place = column - Step.TORCH_GENERATOR
    return a.generators[place] == b.generators[place] != 0


def draws_from(stream: StreamTrace, number: int) -> NDArray[np.int64] | None:
    """Rows of a stream that drew from a generator; None where not all of it can be looked at."""
    if stream.rows > MOST_READ or stream.holes or stream.left_out:
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
"""(whether A alone has it, its place in the stretch) to the finding at an op."""


class Draws:
    """What was drawn along one pair of streams."""

    def __init__(self, a: StreamView, b: StreamView) -> None:
        self._views = {True: a, False: b}
        self._since: dict[Key, Finding] = {}
        """The first draw by one side alone since ops of both were last seen to draw from that generator."""
        self._alone: dict[Key, list[Indices]] = {}
        """Rows of all draws that one side alone made."""
        self.any_alone = False
        """Whether one side alone drew at all."""

    def take(
        self, a: tuple[RowRange, Indices, Indices], b: tuple[RowRange, Indices, Indices], finding: MakeFinding
    ) -> None:
        """A stretch of both sides, the places of its pairs and of its one-sided rows; stretches come in order."""
        marked = a[0].flags(RowFlag.MARKED)[a[1]] | b[0].flags(RowFlag.MARKED)[b[1]]  # their states are not compared
        for of_a, (stretch, pairs, alone) in ((True, a), (False, b)):
            drew, numbers = stretch.flags(RowFlag.RNG), stretch.rows.generators
            together = pairs[drew[pairs] & ~marked & (numbers[pairs] != Generator.UNKNOWN)]
            for number in np.unique(numbers[together]).tolist():
                self._since.pop((of_a, number), None)
            mine = alone[drew[alone]]
            for number in np.unique(numbers[mine]).tolist():
                rows, after = mine[numbers[mine] == number], together[numbers[together] == number]
                self._note(
                    (of_a, number), stretch.first, rows, rows[rows > after.max()] if len(after) else rows, finding
                )

    def _note(self, key: Key, first: int, rows: Indices, since: Indices, finding: MakeFinding) -> None:
        self.any_alone = True
        self._alone.setdefault(key, []).append(first + rows)
        if len(since) and key not in self._since:
            self._since[key] = finding(key[0], int(since[0]))

    def behind(self, a: RowAt, b: RowAt) -> Finding | None:
        """The extra draw because of which a matched pair finds its generator in two states; None: there was none."""
        numbers = {True: int(a.rows.generators[a.place]), False: int(b.rows.generators[b.place])}
        known = Generator.UNKNOWN not in numbers.values()
        found = [f for (of_a, n), f in self._since.items() if not known or n in (numbers[of_a], Generator.UNKNOWN)]
        return min(found, key=lambda f: f.identical_before, default=None)

    def unsettled(self, one_sided: tuple[Indices, Indices], trailing: tuple[int, int] = (0, 0)) -> Finding | None:
        """The first extra draw that nothing shows to be harmless.

        ``one_sided``: rows that each side alone has; ``trailing``: how many at its end are not among them.
        """
        if not all(view.process.state in FINISHED for view in self._views.values()):
            return None  # what puts it back may be what is missing
        left = []
        for key in self._alone:
            row = self._first_unsettled(key, trailing)
            if row is not None:
                left.append(self._finding(key, row, one_sided[0 if key[0] else 1]))
        return min(left, key=lambda f: f.identical_before, default=None)

    def are_settled(self, view: StreamView, tail: RowRange) -> bool:
        """Whether all draws of the last rows of a side, which have no partner, are harmless."""
        of_a, numbers = view is self._views[True], tail.rows.generators[tail.flags(RowFlag.RNG)]
        trailing = (len(tail), 0) if of_a else (0, len(tail))
        self.any_alone |= bool(len(numbers))
        return all(self._nobody_is_left((of_a, number), trailing) for number in np.unique(numbers).tolist())

    def _nobody_is_left(self, key: Key, trailing: tuple[int, int]) -> bool:
        """Whether a generator ends up as on the other side, or belongs to one-sided ops alone."""
        a, b = self._views[True].process, self._views[False].process
        if ends_alike(a, b, key[1]):
            return True
        drawn = self._drawn(key, trailing)
        return drawn is not None and not len(np.setdiff1d(drawn, self._rows(key))) and self._is_own(key)

    def _first_unsettled(self, key: Key, trailing: tuple[int, int]) -> int | None:
        """The first extra draw that leaves a generator of both sides in another state, as far as can be shown."""
        rows = self._rows(key)
        rows = rows[rows >= self._settled_before(key)]
        if not len(rows) or ends_alike(self._views[True].process, self._views[False].process, key[1]):
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
        """Whether no other thread of the process draws from a generator of the program's own."""
        own = self._views[key[0]]
        others = [stream for stream in own.process.streams if stream.index != own.stream.index]
        if key[1] < Generator.OWN or not recorded_throughout(own.process):
            return False
        return all((rows := draws_from(stream, key[1])) is not None and not len(rows) for stream in others)

    def _drawn(self, key: Key, trailing: tuple[int, int]) -> Indices | None:
        """All rows of the stream that drew from it, the trailing ones aside: those of both sides were in one state."""
        view = self._views[key[0]]
        rows = draws_from(view.stream, key[1])
        return None if rows is None else rows[rows < view.rows - trailing[0 if key[0] else 1]]

    def _rows(self, key: Key) -> Indices:
        return np.concatenate([np.empty(0, np.int64), *self._alone.get(key, [])])

    def _finding(self, key: Key, row: int, one_sided: Indices) -> Finding:
        """The finding at an extra draw; made anew where another one was kept than turns out to matter."""
        since = self._since.get(key)
        if since is not None and row == (since.a_index if key[0] else since.b_index):
            return since
        side, other = ("A", "B") if key[0] else ("B", "A")
        at = row_at(self._views[key[0]], row)
        decided, before = control_flow(side, at, other, None, DRAWS), row - int(np.sum(one_sided < row))
        return make_finding(at, None, decided, before) if key[0] else make_finding(None, at, decided, before)

    def _settled_before(self, key: Key) -> int:
        """Rows before it are followed by an attempt at which the generator stood in the same state on both sides."""
        column = state_column(key[1])
        return 0 if column is None else self._last_alike[column][0 if key[0] else 1]

    @cached_property
    def _last_alike(self) -> dict[Step, tuple[int, int]]:
        """By column: where the last attempts of both sides ended that found these generators in the same state."""
        a, b = self._views[True], self._views[False]
        at_a, at_b = match_steps(a.process, a.steps, b.process, b.steps)
        own_a, own_b = a.steps[at_a], b.steps[at_b]
        digested = (own_a[:, Step.FLAGS] & own_b[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
        found = {}
        for column in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS):
            alike = np.flatnonzero(digested & (own_a[:, column] == own_b[:, column]) & (own_a[:, column] != 0))
            last = alike[-1:]
            ends = own_a[last, Step.END_ROW], own_b[last, Step.END_ROW]
            found[column] = (int(ends[0][0]), int(ends[1][0])) if len(last) else (0, 0)
        return found


# --- generators -------------------------------------------------------------------------------------------------------
#
# What is known of a process's generators around a place: where other data came in, whose random numbers it was not.
#
# Owns the words. States are digested at every optimizer attempt: the last one before a row tells how its step began; in
# the first step the state at its end has to do.


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


def left_elsewhere(a: ProcessTrace, b: ProcessTrace) -> str | None:
    """That torch's generators ended in other states, in runs of which no op tells; None: not so, or not known."""
    if a.generators is None or b.generators is None:
        return None
    states = zip(GENERATORS, a.generators, b.generators, strict=True)
    other = [NAMES[c] for c, x, y in states if c in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS) and x != y]
    if not other:
        return None
    return (
        f"the {_and(other)} generator states differ as {a.name} ends, although they were equal at every op that "
        "both ran and that drew: the next draw would differ"
    )


def _text(a: NDArray[np.uint64] | None, b: NDArray[np.uint64] | None, were: str, when: str) -> str:
    if a is None or b is None or not int(a[Step.FLAGS] & b[Step.FLAGS]) & StepFlag.DIGESTED:
        return ""
    known = [column for column in NAMES if a[column] and b[column]]
    equal = [NAMES[column] for column in known if a[column] == b[column]]
    other = [NAMES[column] for column in known if a[column] != b[column]]
    if not equal:
        return f"the {_and(other)} generator states {were} not equal {when}" if other else ""
    text = f"the {_and(equal)} generator states {were} equal {when}"
    return f"{text}, the {_and(other)} ones {were} not" if other else text


def _and(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
