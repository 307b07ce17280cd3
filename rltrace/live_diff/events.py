"""Events of a running program compared with A's, and the event that a difference of values goes back to.

Owns what is remembered for that while the program runs. ``rltrace.diff.causes.events`` decides which event it is, and
explains it. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from rltrace.diff.base.model import Cause, Pair
from rltrace.diff.causes.events import (
    FROM_OUTSIDE,
    INPUT_EVENTS,
    MAX_ROWS_BACK,
    SEEDING_EVENTS,
    EventTracker,
    MatchedEvent,
    event_judgement,
    first_op_text,
    seeding_texts,
)
from rltrace.live_diff.reference_trace import Ids, StepRows
from rltrace.live_diff.result import LiveFinding
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.process_state import ProcessState
from rltrace.trace.format.events import COUNT, DIGEST, EVIDENCE, FLOAT, INTEGER, Cell, Event, event_of, field_values
from rltrace.trace.format.schema import Column, Kind, event_name
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace

MAX_DIFFERING = 1 << 14
"""Pairs of differing digests that are remembered with their events."""

MAX_SEEDING = 256
"""Seeding, construction and reset events that are remembered."""

COMPARED = (*INPUT_EVENTS, Kind.SEED, Kind.ENVIRONMENT_MADE)
"""Events that are compared with A's."""

LETTERS = (COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT)
"""Kinds of an event's cells, in the order of an ``EventForm``."""


@dataclass(frozen=True)
class EventPlace:
    """Place of an event in the program's stream."""

    row: int
    step: int
    site: int
    """Id of its call site, in the program's tables."""


@dataclass(frozen=True)
class EventMatch(MatchedEvent):
    """A matched event of A and the program."""

    kind: Kind
    owner: str
    row_a: int
    at: EventPlace
    event_a: Event
    event_b: Event
    line: str
    """``train.py:12``."""
    extra: Extra | None = None
    """The event of the same environment right before it that A does not have."""

    @property
    def row(self) -> int:
        return self.at.row

    @property
    def op(self) -> str:
        return event_name(self.kind)

    @property
    def module(self) -> str:
        return self.owner

    @property
    def place(self) -> str:
        return self.line

    @property
    def cells(self) -> tuple[Pair[str], ...]:
        """The cells that differ."""
        cells_a, cells_b = self.event_a.compared, self.event_b.compared
        return tuple(Pair(cells_a[name].text, cells_b[name].text) for name in self.differs)


@dataclass(frozen=True)
class Extra:
    """An event that A does not have."""

    kind: Kind
    owner: str
    at: EventPlace
    event: Event


class EventComparer:
    """Compares the events of one thread."""

    def __init__(self, process: ProcessState, a: ProcessTrace, ids: Ids) -> None:
        self._process = process
        self._a = a
        self._ids = ids
        self._tracker: EventTracker[EventMatch] = EventTracker()
        self._extra: dict[str, Extra] = {}
        """The last event of each environment, if A does not have it."""
        self._by_digests: dict[tuple[int, int], EventMatch] = {}
        self._seeding: deque[EventMatch] = deque(maxlen=MAX_SEEDING)

    def compare(
        self, rows: StepRows, form: EventForm, cells: Sequence[Sequence[float]], scalars: int, at: EventPlace
    ) -> int | None:
        """Compare an event with these cells of each kind; returns the matched row of A, or None. Raises HoleError."""
        if form.kind not in COMPARED:
            return None
        event = _event(form, cells)
        found = rows.event(self._ids.of("scalars", scalars), self._ids.of("sites", at.site))
        if found is None:
            self._extra[event.what] = Extra(form.kind, form.owner, at, event)
            return None
        entry = self._a.words.skeleton(int(found.rows.columns[found.i, Column.SCALARS]))
        line = _line(self._process.tables.words.innermost(at.site))
        event_a = event_of(found.rows, found.i, entry)
        self._add(EventMatch(form.kind, form.owner, found.row, at, event_a, event, line, self._extra.get(event.what)))
        return found.row

    def _add(self, pair: EventMatch) -> None:
        if pair.kind in SEEDING_EVENTS:
            self._seeding.appendleft(pair)
        if pair.kind not in INPUT_EVENTS:
            return
        self._extra.pop(pair.event_b.what, None)
        differs = pair.differs
        self._tracker.add(pair, differs=bool(differs))
        if differs:
            if len(self._by_digests) > MAX_DIFFERING:
                self._by_digests.clear()
            self._by_digests.update(dict.fromkeys(pair.differing_digests(differs), pair))

    def first(
        self,
        stream: str,
        cause: Cause,
        outside_digests: Iterable[tuple[int, int]],
        row: int,
        op: tuple[str, Site | None, int],
    ) -> LiveFinding | None:
        """The finding at the event that a difference at ``row`` of the program goes back to; None: there is none.

        ``outside_digests``: digests, in A and here, of outside data of the op that differs; ``op``: the op, its site
        and A's row.
        """
        if cause not in FROM_OUTSIDE:
            return None
        known = [self._by_digests[pair] for pair in outside_digests if pair in self._by_digests]
        pair, persists = max(known, key=lambda pair: pair.row, default=None), True
        if pair is None:
            pair, persists = self._tracker.origin(cause, row - MAX_ROWS_BACK + 1)
        if pair is None:
            return None
        extra = pair.extra if persists else None
        at, kind, owner, row_a = pair.at, pair.kind, pair.owner, None if extra else pair.row_a
        if extra is not None:
            at, kind, owner = extra.at, extra.kind, extra.owner
        seeding_notes = [] if extra else self.seeding_texts_before(pair)
        one = None if extra is None else ("B", extra.event)
        decided = event_judgement(pair, one, seeding_notes, [first_op_text(*op)], persists=persists)
        return LiveFinding(
            stream,
            at.row,
            row_a,
            at.step,
            event_name(kind),
            owner,
            self._process.tables.words.innermost(at.site),
            decided.cause,
            decided.inputs_match,
            decided.explanation,
            Pair[str](None, None),
            () if extra else pair.cells,
            None,
            "it is not an op",
        )

    def seeding_texts_before(self, about: EventMatch | None = None) -> list[str]:
        """Clauses on how spaces were seeded and environments constructed, before ``about`` or so far."""
        return seeding_texts([pair for pair in self._seeding if about is None or pair.row < about.row], about)


def _event(form: EventForm, cells: Sequence[Sequence[float]]) -> Event:
    names = (form.counts, form.evidence, form.digests, form.integers, form.floats)
    cells_by_letter = (
        [Cell(name, letter, value) for name, value in zip(names, values, strict=False)]
        for letter, names, values in zip(LETTERS, names, cells, strict=True)
    )
    recorded = field_values([int(cell) for cell in cells[1][len(form.evidence) :]], form.digests)
    return Event(form.what, tuple(chain.from_iterable(cells_by_letter)), dict(recorded))


def _line(site: Site | None) -> str:
    return f"{site.file}:{site.line}" if site is not None else ""
