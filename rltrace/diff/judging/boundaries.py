"""Events that differ, and which of them a difference of values goes back to.

What an environment returned matters where an op takes it in: an environment that is reset once without a seed, so as to
ask for the shape of an observation, differs in every run and changes nothing. So events decide nothing by themselves.
Owns the way back from a difference that came in from outside to the event that brought it in: the one that tells the
very bytes that the op took in; else the one from which on everything differs that this environment tells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rltrace.diff.findings import Decided, RowAt, make_finding, row_at
from rltrace.diff.judging.boundary_words import because, because_of_it, one_sided_because
from rltrace.diff.judging.event_pairs import FAR, TOLD, EventPair, event_at, events_before
from rltrace.diff.judging.scene import Scene
from rltrace.diff.judging.seeded import behind
from rltrace.diff.model import Boundary, Cause, Finding, InputsMatch, Pair
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.events import Event
from rltrace.trace.schema import Column, Origin

FROM_OUTSIDE = {Cause.OUTSIDE, Cause.CONTROL_FLOW, Cause.ARGUMENTS, Cause.UNTRACKED_WRITE, Cause.ENDED}
"""Causes that what came in at an event can be behind."""


def came_in(scene: Scene, finding: Finding, looked_at: int, first: int | None) -> Finding | None:
    """The finding at the event that ``finding`` goes back to; None where there is none.

    ``looked_at``: rows of A up to which the matching is known. ``first``: the first marked row that differs, where the
    streams are in step up to the finding.
    """
    if finding.cause not in FROM_OUTSIDE:
        return None
    try:
        way = _WayBack(scene, finding, looked_at)
        if way.found is None and finding.cause is Cause.OUTSIDE:
            way.consider_far(first)
        return None if way.found is None else _finding(scene, way.found, finding, lasts=way.lasts)
    except HoleError:
        return None


def with_what_is_behind(scene: Scene, finding: Finding) -> Finding:
    """A difference that came in from outside, and through no event: with how the spaces were seeded before it."""
    if finding.cause is not Cause.OUTSIDE or finding.a_index is None:
        return finding
    told = behind(scene, finding.a_index, finding.b_index, None)
    return replace(finding, because="; ".join([finding.because, *told])) if told else finding


class _WayBack:
    """From a difference back over the events before it, the last first.

    What differs in all that an environment tells from some event on, up to the difference, has its origin there. A
    single event that differs may have been put into a replay buffer and taken out much later; but not one that a seeded
    reset came after, before which nobody cared, nor where NumPy's or Python's generator stood elsewhere: then other
    parts of the same data may have been taken out.
    """

    def __init__(self, scene: Scene, finding: Finding, looked_at: int) -> None:
        self._scene = scene
        self.lasts = True
        self.found: EventPair | None = None
        self._open: dict[str, EventPair] = {}
        self._closed: set[str] = set()
        self._begun_anew: set[str] = set()
        """Environments that a seed was given to later on."""
        self._passing: EventPair | None = None
        self._others_alike: bool | None = None
        """Python's and NumPy's generators, at the last event."""
        self._end = looked_at if finding.a_index is None else min(looked_at, finding.a_index)
        self._end_b = finding.b_index
        taken_in = _taken_in(scene, finding)
        for pair in events_before(scene, self._end, self._end_b, lambda: bool(self._open.keys() - self._closed)):
            differs = pair.differs
            if differs and taken_in & pair.brought(differs):
                self.found = pair
                return
            self._pass(pair, bool(differs))
        self.found = min(self._open.values(), key=lambda pair: pair.a.index, default=None)
        if self.found is None and self._passing is not None and finding.cause is Cause.OUTSIDE and self._others_alike:
            self.found, self.lasts = self._passing, False

    def _pass(self, pair: EventPair, differs: bool) -> None:
        what = pair.event_a.what
        if self._others_alike is None:
            self._others_alike = pair.others_alike
        if what not in self._closed:
            if differs:
                self._open[what] = pair
            else:
                self._closed.add(what)
        elif differs and what not in self._begun_anew:
            self._passing = pair
        if pair.is_seeded:
            self._begun_anew.add(what)

    def consider_far(self, first: int | None) -> None:
        """The first row that differs at all, further back than was looked: an event that no seed undid later."""
        if first is None or first >= self._end - FAR or self._others_alike is False:
            return
        stop = min(first + FAR, self._end)
        later = list(events_before(self._scene, stop, self._end_b, bool, down_to=first))
        pair = next((p for p in later if p.a.index == first), None)
        if pair is not None and not any(p.is_seeded and p.event_a.what == pair.event_a.what for p in later):
            self.found, self.lasts = pair, False


def _taken_in(scene: Scene, finding: Finding) -> set[tuple[int, int]]:
    """Digests, of A and B, of what the op took in from outside and what differs."""
    if finding.a_index is None or finding.b_index is None:
        return set()
    a, b = row_at(scene.a, finding.a_index), row_at(scene.b, finding.b_index)
    pairs = zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False)
    return {
        (x.digest, y.digest)
        for x, y in pairs
        if x.digest is not None and y.digest is not None and x.digest != y.digest
        if Origin.OUTSIDE in (x.distance, y.distance)
    }


def _finding(scene: Scene, pair: EventPair, later: Finding, *, lasts: bool) -> Finding:
    alone = _extra_event(scene, pair) if lasts else None
    count = Pair(_count(pair.event_a), _count(pair.event_b))
    boundary = Boundary(pair.event_a.what, pair.a.module or None, count, (), later)
    if alone is not None:
        side, row = alone
        decided = Decided(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, one_sided_because(side, event_at(row), pair))
        a, b = (row, None) if side == "A" else (None, row)
        return make_finding(a, b, decided, min(later.identical_before, row.index), boundary=boundary)
    told = behind(scene, pair.a.index, pair.b.index, pair)
    why = "; ".join([*because(pair, told, lasts=lasts), *_first_op(later)])
    decided = Decided(Cause.OUTSIDE, InputsMatch.UNKNOWN, why)
    events = pair.event_a, pair.event_b
    cells = tuple((name, Pair(*(_text(event, name) for event in events))) for name in pair.differs)
    before = min(later.identical_before, pair.a.index)
    return make_finding(pair.a, pair.b, decided, before, boundary=replace(boundary, cells=cells))


def _first_op(later: Finding) -> list[str]:
    row = later.a_index if later.a_index is not None else later.b_index
    return [] if later.op is None or row is None else [because_of_it(later.op, later.site, row)]


def _extra_event(scene: Scene, pair: EventPair) -> tuple[str, RowAt] | None:
    """An event of this environment that one side alone has, right before the first that differs."""
    before = next((p for p in events_before(scene, pair.a.index, pair.b.index, bool) if _is_of(p, pair)), None)
    if before is None:
        return None
    for side, view, start, stop in (
        ("A", scene.a, before.a.index + 1, pair.a.index),
        ("B", scene.b, before.b.index + 1, pair.b.index),
    ):
        row = _event_between(view, start, stop, pair.event_a.what)
        if row is not None:
            return side, row
    return None


def _is_of(other: EventPair, pair: EventPair) -> bool:
    return other.event_a.what == pair.event_a.what


def _event_between(view: StreamView, start: int, stop: int, what: str) -> RowAt | None:
    if start >= stop or stop - start > FAR:
        return None
    rows = view.read(start, stop).rows
    for place in np.flatnonzero(np.isin(rows.column(Column.KIND), TOLD)).tolist():
        row = RowAt(view, rows, place)
        if event_at(row).what == what:
            return row
    return None


def _count(event: Event) -> int | None:
    return event.evidence("step") or event.evidence("reset")


def _text(event: Event, name: str) -> str | None:
    cell = event.told.get(name)
    return None if cell is None else cell.text
