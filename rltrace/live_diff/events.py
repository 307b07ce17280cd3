"""Events of a running program held against A's: which of those that differed a difference of values goes back to.

Owns what has to be remembered for that while the program runs. The rule is that of a comparison
(``rltrace.diff.causes.events``): an event decides nothing by itself. Where an op took in other data, the event
that told the very bytes brought it in; else the first from which on all that its environment tells differs; else one
that differed alone, if no seed was given to that environment after it. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from rltrace.diff.base.model import Cause, InputsMatch, Pair, Site
from rltrace.diff.causes.events import (
    FAR,
    FROM_OUTSIDE,
    KINDS,
    TOLD,
    MatchedEvent,
    because,
    because_of_it,
    one_sided_because,
    sentences,
)
from rltrace.live_diff.classify import LiveRow
from rltrace.live_diff.reference_trace import Ids, MatchedRow, StepRows
from rltrace.live_diff.result import LiveFinding
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.process_state import ProcessState
from rltrace.replay.op_kinds import innermost
from rltrace.trace.format.events import COUNT, DIGEST, EVIDENCE, FLOAT, INTEGER, Cell, Event, event_of
from rltrace.trace.format.schema import Column, Kind, event_name
from rltrace.trace.format.schema import Origin as From
from rltrace.trace.read.process import ProcessTrace

MOST_TOLD = 1 << 14
"""Pairs of bytes that differ, and of which is remembered which event told them."""

MOST_BEHIND = 256
"""Events of seeds, of environments made and reset that are remembered."""

HELD = (*TOLD, Kind.SEED, Kind.ENVIRONMENT_MADE)
"""Events that are held against A's."""


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


@dataclass
class _Environment:
    """What is known of the events of one environment."""

    open: EventMatch | None = None
    """The first from which on all events differ so far."""
    passing: EventMatch | None = None
    """The first that differed before they were equal again, since a seed was given last."""
    extra: Extra | None = None
    """What happened last, where A does not have it."""


@dataclass(frozen=True)
class EventOrigin:
    """The event that a difference goes back to."""

    pair: EventMatch
    cause: Cause
    because: tuple[str, ...]


@dataclass
class EventTracker:
    """The events of one thread."""

    _environments: dict[str, _Environment] = field(default_factory=dict)
    _brought: dict[tuple[int, int], EventMatch] = field(default_factory=dict)
    _behind: deque[EventMatch] = field(default_factory=lambda: deque(maxlen=MOST_BEHIND))
    _others_alike = True
    """Python's and NumPy's generators, at the last event."""

    def alone(self, extra: Extra) -> None:
        """Something happened that did not happen in A."""
        self._of(extra.event.what).extra = extra

    def extra(self, what: str) -> Extra | None:
        """The same, where nothing has happened to that environment since."""
        return self._of(what).extra

    def met(self, pair: EventMatch) -> None:
        """Something happened that happened in A."""
        if pair.kind in KINDS:
            self._behind.appendleft(pair)
        if pair.kind not in TOLD:
            return
        known, differs = self._of(pair.event_b.what), pair.differs
        known.extra = None
        self._others_alike = pair.others_alike
        if pair.is_seeded:
            known.passing = None
        if differs:
            known.open = known.open or pair
            if len(self._brought) > MOST_TOLD:
                self._brought.clear()
            self._brought.update(dict.fromkeys(pair.brought(differs), pair))
        elif known.open is not None:
            known.passing = known.passing or (None if pair.is_seeded else known.open)
            known.open = None

    def behind(self, cause: Cause, taken_in: Collection[tuple[int, int]], row: int) -> EventOrigin | None:
        """Where what differs at ``row`` of the program came in; None: with no event that is known.

        ``taken_in``: digests, of A and here, of what the op took in from outside and what differs.
        """
        if cause not in FROM_OUTSIDE:
            return None
        told = [self._brought[pair] for pair in taken_in if pair in self._brought]
        open_ = [known.open for known in self._environments.values() if known.open is not None]
        pair = max(told, key=_row, default=None) or min(open_, key=_row, default=None)
        lasts = True
        if pair is None and cause is Cause.OUTSIDE and self._others_alike:
            passed = (known.passing for known in self._environments.values())
            pair = min((p for p in passed if p is not None and row - p.at.row < FAR), key=_row, default=None)
            lasts = False
        if pair is None:
            return None
        if pair.extra is not None and lasts:
            return EventOrigin(pair, Cause.CONTROL_FLOW, (one_sided_because("B", pair.extra.event, pair),))
        return EventOrigin(pair, Cause.OUTSIDE, tuple(because(pair, self.seeds(pair), lasts=lasts)))

    def seeds(self, about: EventMatch | None) -> list[str]:
        """What is known of how spaces were seeded and environments made, before ``about`` or at all."""
        return sentences([pair for pair in self._behind if about is None or pair.at.row < about.at.row], about)

    def _of(self, what: str) -> _Environment:
        return self._environments.setdefault(what, _Environment())


def _row(pair: EventMatch) -> int:
    return pair.at.row


# --- held events ------------------------------------------------------------------------------------------------------
#
# Rows that are no ops, held against A's while a program runs, and the finding where one of them is the origin.
#
# Owns the way from such a row to A's, and back from the first op that differs to the event that brought it in. Which
# event that is decides ``happened``.


LETTERS = (COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT)
"""Of an event's cells, in the order in which a form names them."""


class EventComparer:
    """The events of one thread."""

    def __init__(self, process: ProcessState, a: ProcessTrace, ids: Ids) -> None:
        self._process = process
        self._a = a
        self._ids = ids
        self._happened = EventTracker()

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
            self._happened.alone(Extra(form.kind, form.owner, at, event))
            return None
        entry = self._a.tables["scalars"].payloads[int(found.rows.columns[found.i, Column.SCALARS])]
        line = _line(innermost(self._process.tables.remembered, at.site))
        before = self._happened.extra(form.what)
        told = event_of(found.rows, found.i, entry)
        self._happened.met(EventMatch(form.kind, form.owner, found.row, at, told, event, line, before))
        return found.row

    def first(
        self, stream: str, cause: Cause, found: MatchedRow, here: LiveRow, op: str, site: Site | None
    ) -> LiveFinding | None:
        """The finding at the event that brought in what differs at an op, row ``found`` of A; None: none did."""
        origin = self._happened.behind(cause, set(_taken_in(found, here)), here.row)
        if origin is None:
            return None
        because = "; ".join([*origin.because, because_of_it(op, site, found.row)])
        return self._finding(stream, origin, because)

    def seeds(self) -> list[str]:
        """What is known of how spaces were seeded, where an op took in what differs and no event told it."""
        return self._happened.seeds(None)

    def _finding(self, stream: str, origin: EventOrigin, because: str) -> LiveFinding:
        pair = origin.pair
        at, kind, owner = pair.at, pair.kind, pair.owner
        row_a: int | None = pair.row_a
        if origin.cause is Cause.CONTROL_FLOW and pair.extra is not None:
            at, kind, owner, row_a = pair.extra.at, pair.extra.kind, pair.extra.owner, None
        return LiveFinding(
            stream,
            at.row,
            row_a,
            at.step,
            event_name(kind),
            owner,
            innermost(self._process.tables.remembered, at.site),
            origin.cause,
            InputsMatch.UNKNOWN,
            because,
            Pair[str](None, None),
            () if row_a is None else pair.cells,
            None,
            "it is not an op",
        )


def _event(form: EventForm, cells: Sequence[Sequence[float]]) -> Event:
    names = (form.counts, form.evidence, form.digests, form.integers, form.floats)
    told = (
        [Cell(name, letter, value) for name, value in zip(names, values, strict=False)]
        for letter, names, values in zip(LETTERS, names, cells, strict=True)
    )
    return Event(form.what, tuple(chain.from_iterable(told)))


def _taken_in(found: MatchedRow, here: LiveRow) -> Iterator[tuple[int, int]]:
    """Digests, of A and here, of what an op took in from outside and what differs."""
    for a, b in zip(found.rows.inputs(found.i), here.inputs(), strict=False):
        if None in (a.digest, b.digest) or From.OUTSIDE not in (a.distance, b.distance):
            continue
        if a.digest is not None and b.digest is not None and a.digest != b.digest:
            yield a.digest, b.digest


def _line(site: Site | None) -> str:
    return f"{site.file}:{site.line}" if site is not None else ""
