"""Events of a running program compared with A's: which of those that differed a difference of values goes back to.

Owns what has to be remembered for that while the program runs, and the way from such a row to A's. Which event it is,
and what is said of it, decides ``rltrace.diff.causes.events``. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from rltrace.diff.base.model import Cause, Pair
from rltrace.diff.causes.events import (
    FAR,
    FROM_OUTSIDE,
    KINDS,
    TOLD,
    EventTracker,
    MatchedEvent,
    because_of_it,
    event_judgement,
    sentences,
)
from rltrace.live_diff.reference_trace import Ids, StepRows
from rltrace.live_diff.result import LiveFinding
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.process_state import ProcessState
from rltrace.trace.format.events import COUNT, DIGEST, EVIDENCE, FLOAT, INTEGER, Cell, Event, event_of
from rltrace.trace.format.schema import Column, Kind, event_name
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace

MOST_TOLD = 1 << 14
"""Pairs of bytes that differ, and of which is remembered which event told them."""

MOST_BEHIND = 256
"""Events of seeds, of environments made and reset that are remembered."""

HELD = (*TOLD, Kind.SEED, Kind.ENVIRONMENT_MADE)
"""Events that are compared with A's."""

LETTERS = (COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT)
"""Of an event's cells, in the order in which a form names them."""


@dataclass(frozen=True)
class EventPlace:
    """Where an event stands in the program's stream."""

    row: int
    step: int
    site: int
    """Id of its call site, in the program's tables."""


@dataclass(frozen=True)
class EventMatch(MatchedEvent):
    """An event of the program and A's."""

    kind: Kind
    owner: str
    row_a: int
    at: EventPlace
    event_a: Event
    event_b: Event
    line: str
    """``train.py:12``."""
    extra: Extra | None = None
    """What happened to the same environment right before it, and not in A."""

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
        """What differs in it."""
        told_a, told_b = self.event_a.compared, self.event_b.compared
        return tuple(Pair(told_a[name].text, told_b[name].text) for name in self.differs)


@dataclass(frozen=True)
class Extra:
    """An event that A does not have."""

    kind: Kind
    owner: str
    at: EventPlace
    event: Event


class EventComparer:
    """The events of one thread."""

    def __init__(self, process: ProcessState, a: ProcessTrace, ids: Ids) -> None:
        self._process = process
        self._a = a
        self._ids = ids
        self._tracker: EventTracker[EventMatch] = EventTracker()
        self._extra: dict[str, Extra] = {}
        """By environment: what happened to it last, where A does not have it."""
        self._brought: dict[tuple[int, int], EventMatch] = {}
        self._behind: deque[EventMatch] = deque(maxlen=MOST_BEHIND)

    def hold(
        self, rows: StepRows, form: EventForm, cells: Sequence[Sequence[float]], scalars: int, at: EventPlace
    ) -> int | None:
        """A row of ``form`` was written, with these cells of each letter; which row of A it is, None if none.

        Raises HoleError.
        """
        if form.kind not in HELD:
            return None
        event = _event(form, cells)
        found = rows.event(self._ids.of("scalars", scalars), self._ids.of("sites", at.site))
        if found is None:
            self._extra[event.what] = Extra(form.kind, form.owner, at, event)
            return None
        entry = self._a.words.skeleton(int(found.rows.columns[found.i, Column.SCALARS]))
        line = _line(self._process.tables.words.innermost(at.site))
        told = event_of(found.rows, found.i, entry)
        self._add(EventMatch(form.kind, form.owner, found.row, at, told, event, line, self._extra.get(event.what)))
        return found.row

    def _add(self, pair: EventMatch) -> None:
        if pair.kind in KINDS:
            self._behind.appendleft(pair)
        if pair.kind not in TOLD:
            return
        self._extra.pop(pair.event_b.what, None)
        differs = pair.differs
        self._tracker.add(pair, differs=bool(differs))
        if differs:
            if len(self._brought) > MOST_TOLD:
                self._brought.clear()
            self._brought.update(dict.fromkeys(pair.brought(differs), pair))

    def first(
        self, stream: str, cause: Cause, taken_in: Iterable[tuple[int, int]], row: int, op: tuple[str, Site | None, int]
    ) -> LiveFinding | None:
        """The finding at the event that brought in what differs at ``row`` of the program; None: none did.

        ``taken_in``: digests, of A and here, of what the op took in from outside and what differs; ``op``: the op, its
        site and A's row.
        """
        if cause not in FROM_OUTSIDE:
            return None
        told = [self._brought[pair] for pair in taken_in if pair in self._brought]
        pair, lasts = max(told, key=lambda pair: pair.row, default=None), True
        if pair is None:
            pair, lasts = self._tracker.origin(cause, row - FAR + 1)
        if pair is None:
            return None
        extra = pair.extra if lasts else None
        at, kind, owner, row_a = pair.at, pair.kind, pair.owner, None if extra else pair.row_a
        if extra is not None:
            at, kind, owner = extra.at, extra.kind, extra.owner
        behind = [] if extra else self.seeds(pair)
        one = None if extra is None else ("B", extra.event)
        decided = event_judgement(pair, one, behind, [because_of_it(*op)], lasts=lasts)
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

    def seeds(self, about: EventMatch | None = None) -> list[str]:
        """What is known of how spaces were seeded and environments made, before ``about`` or at all."""
        return sentences([pair for pair in self._behind if about is None or pair.row < about.row], about)


def _event(form: EventForm, cells: Sequence[Sequence[float]]) -> Event:
    names = (form.counts, form.evidence, form.digests, form.integers, form.floats)
    told = (
        [Cell(name, letter, value) for name, value in zip(names, values, strict=False)]
        for letter, names, values in zip(LETTERS, names, cells, strict=True)
    )
    return Event(form.what, tuple(chain.from_iterable(told)))


def _line(site: Site | None) -> str:
    return f"{site.file}:{site.line}" if site is not None else ""
