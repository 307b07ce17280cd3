"""Draws that one side alone made: whether the generators they drew from stand where they would stand without them.

Owns the proof that such a draw is harmless (an evaluation inside ``fork_rng``, one with a generator of its own). Where
matched ops draw, the generator's state is the same on both sides, or the walk ends there; so it is one of these:

- a later matched op draws from the same generator;
- an attempt of both sides after it, or the end of both processes, found the generator in the same state;
- nobody draws from that generator but ops that this side alone has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from rltrace.diff.aligning.blocks import match_steps
from rltrace.diff.aligning.sequences import Indices
from rltrace.diff.findings import RowAt, make_finding, row_at
from rltrace.diff.judging.onesided import control_flow
from rltrace.diff.judging.putback import draws_from, ends_alike, state_column
from rltrace.diff.lonely import recorded_throughout
from rltrace.diff.model import Finding
from rltrace.diff.summary import FINISHED
from rltrace.diff.view import StreamView, Stretch
from rltrace.trace.schema import Generator, RowFlag, Step, StepFlag

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
        self, a: tuple[Stretch, Indices, Indices], b: tuple[Stretch, Indices, Indices], finding: MakeFinding
    ) -> None:
        """A stretch of both sides, the places of its pairs and of its one-sided rows; stretches come in order."""
        marked = a[0].flags(RowFlag.MARKED)[a[1]] | b[0].flags(RowFlag.MARKED)[b[1]]  # their states are not compared
        for of_a, (stretch, pairs, alone) in ((True, a), (False, b)):
            drew, numbers = stretch.flags(RowFlag.RNG), stretch.rows.generators
            together = pairs[drew[pairs] & ~marked & (numbers[pairs] != Generator.NOT_SAID)]
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
        known = Generator.NOT_SAID not in numbers.values()
        found = [f for (of_a, n), f in self._since.items() if not known or n in (numbers[of_a], Generator.NOT_SAID)]
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

    def are_settled(self, view: StreamView, tail: Stretch) -> bool:
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
        if drawn is None or key[1] == Generator.NOT_SAID:
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
