"""Draws that one side alone made: whether the generators they drew from stand where they would stand without them.

Owns the proof that such a draw is harmless (an evaluation inside ``fork_rng``, one with a generator of its own). Where
matched ops draw, the generator's state is the same on both sides, or the walk ends there; so it is one of these:

- a later matched op draws from the same generator;
- an attempt of both sides after it, or the end of both processes, found the generator in the same state;
- nobody draws from that generator but ops that this side alone has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np

from rltrace.diff.blocks import match_steps
from rltrace.diff.findings import RowAt
from rltrace.diff.lonely import recorded_throughout
from rltrace.diff.model import Finding
from rltrace.diff.putback import draws_from, ends_alike, state_column
from rltrace.diff.sequences import Indices
from rltrace.diff.view import StreamView, Stretch
from rltrace.trace.schema import Generator, RowFlag, Step, StepFlag

FINISHED = ("complete", "stopped")

Key = tuple[bool, int]
"""A generator: whether it is one of A's process, and its number there."""

MakeFinding = Callable[[bool, int], Finding]
"""(whether A alone has it, its place in the stretch) to the finding at an op."""


class Draws:
    """What was drawn along one pair of streams."""

    def __init__(self, a: StreamView, b: StreamView) -> None:
        self._views = {True: a, False: b}
        self._since: dict[Key, Finding] = {}
        """The first draw by one side alone since ops of both last drew from that generator."""
        self._open: dict[Key, Finding] = {}
        """The same, of those draws that no attempt of both sides settles."""
        self._alone: Counter[Key] = Counter()
        """Draws that one side alone made."""
        self.any_alone = False
        """Whether one side alone drew at all."""
        self._shared: set[Key] = set()
        """Generators that matched ops are seen to draw from."""

    def take(
        self, a: tuple[Stretch, Indices, Indices], b: tuple[Stretch, Indices, Indices], finding: MakeFinding
    ) -> None:
        """A stretch of both sides, the places of its pairs and of its one-sided rows; stretches come in order."""
        marked = a[0].flags(RowFlag.MARKED)[a[1]] | b[0].flags(RowFlag.MARKED)[b[1]]  # their states are not compared
        for of_a, (stretch, pairs, alone) in ((True, a), (False, b)):
            drew, numbers = stretch.flags(RowFlag.RNG), stretch.rows.generators
            together = pairs[drew[pairs] & ~marked & (numbers[pairs] != Generator.NOT_SAID)]
            for number in np.unique(numbers[together]).tolist():
                self._settle((of_a, number))
            mine = alone[drew[alone]]
            for number in np.unique(numbers[mine]).tolist():
                after = together[numbers[together] == number]
                rows = mine[numbers[mine] == number]
                self._alone[of_a, number] += len(rows)
                self.any_alone = True
                self._note((of_a, number), stretch.first, rows[rows > after.max()] if len(after) else rows, finding)

    def _settle(self, key: Key) -> None:
        self._shared.add(key)
        self._since.pop(key, None)
        self._open.pop(key, None)

    def _note(self, key: Key, first: int, rows: Indices, finding: MakeFinding) -> None:
        if not len(rows):
            return
        if key not in self._since:
            self._since[key] = finding(key[0], int(rows[0]))
        left = rows[first + rows >= self._settled_before(key)]
        if len(left) and key not in self._open:
            self._open[key] = finding(key[0], int(left[0]))

    def behind(self, a: RowAt, b: RowAt) -> Finding | None:
        """The extra draw because of which a matched pair finds its generator in two states; None: there was none."""
        numbers = {True: int(a.rows.generators[a.place]), False: int(b.rows.generators[b.place])}
        known = Generator.NOT_SAID not in numbers.values()
        found = [f for (of_a, n), f in self._since.items() if not known or n in (numbers[of_a], Generator.NOT_SAID)]
        return min(found, key=lambda f: f.identical_before, default=None)

    def unsettled(self, trailing: tuple[int, int] = (0, 0)) -> Finding | None:
        """The first extra draw that nothing shows to be harmless; ``trailing``: rows at the ends that do not count."""
        if not all(view.process.state in FINISHED for view in self._views.values()):
            return None  # what puts it back may be what is missing
        left = [finding for key, finding in self._open.items() if not self.is_settled(key, trailing)]
        return min(left, key=lambda f: f.identical_before, default=None)

    def are_settled(self, view: StreamView, tail: Stretch) -> bool:
        """Whether all draws of the last rows of a side, which have no partner, are harmless."""
        of_a, numbers = view is self._views[True], tail.rows.generators[tail.flags(RowFlag.RNG)]
        trailing = (len(tail), 0) if of_a else (0, len(tail))
        self.any_alone |= bool(len(numbers))
        return all(self.is_settled((of_a, number), trailing) for number in np.unique(numbers).tolist())

    def is_settled(self, key: Key, trailing: tuple[int, int]) -> bool:
        """Whether a generator ends up as on the other side, or belongs to one-sided ops alone."""
        of_a, number = key
        a, b = self._views[True], self._views[False]
        if ends_alike(a.process, b.process, number):
            return True
        own = self._views[of_a]
        if number < Generator.OWN or key in self._shared or not recorded_throughout(own.process):
            return False
        leave_out = own.stream.index, own.rows - trailing[0 if of_a else 1]
        return draws_from(own.process, number, leave_out) == self._alone[key]

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
