"""Rows that are no ops, held against A's while a program runs, and the finding where one of them is the origin.

Owns the way from such a row to A's, and back from the first op that differs to the event that brought it in. Which
event that is decides ``happened``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from rltrace.diff.judging.boundary_words import because_of_it
from rltrace.diff.model import Cause, InputsMatch, Pair, Site
from rltrace.follow.finding import First
from rltrace.follow.happened import HELD, Extra, Happenings, Met, Origin, Place
from rltrace.follow.judging import Here
from rltrace.follow.kinds import innermost
from rltrace.follow.reference import Found, Ids, StepRows
from rltrace.record.events import EventForm
from rltrace.record.process import ProcessState
from rltrace.trace.events import COUNT, DIGEST, EVIDENCE, FLOAT, INTEGER, Cell, Event, event_of
from rltrace.trace.reader import ProcessTrace
from rltrace.trace.schema import Column, event_name
from rltrace.trace.schema import Origin as From

LETTERS = (COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT)
"""Of an event's cells, in the order in which a form names them."""


class HeldEvents:
    """The events of one thread."""

    def __init__(self, process: ProcessState, a: ProcessTrace, ids: Ids) -> None:
        self._process = process
        self._a = a
        self._ids = ids
        self._happened = Happenings()

    def hold(
        self, rows: StepRows, form: EventForm, cells: Sequence[Sequence[float]], scalars: int, at: Place
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
        self._happened.met(Met(form.kind, form.owner, found.row, at, told, event, line, before))
        return found.row

    def first(self, stream: str, cause: Cause, found: Found, here: Here, op: str, site: Site | None) -> First | None:
        """The finding at the event that brought in what differs at an op, row ``found`` of A; None: none did."""
        origin = self._happened.behind(cause, set(_taken_in(found, here)), here.row)
        if origin is None:
            return None
        because = "; ".join([*origin.because, because_of_it(op, site, found.row)])
        return self._finding(stream, origin, because)

    def seeds(self) -> list[str]:
        """What is known of how spaces were seeded, where an op took in what differs and no event told it."""
        return self._happened.seeds(None)

    def _finding(self, stream: str, origin: Origin, because: str) -> First:
        pair = origin.pair
        at, kind, owner = pair.at, pair.kind, pair.owner
        row_a: int | None = pair.row_a
        if origin.cause is Cause.CONTROL_FLOW and pair.extra is not None:
            at, kind, owner, row_a = pair.extra.at, pair.extra.kind, pair.extra.owner, None
        return First(
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


def _taken_in(found: Found, here: Here) -> Iterator[tuple[int, int]]:
    """Digests, of A and here, of what an op took in from outside and what differs."""
    for a, b in zip(found.rows.inputs(found.i), here.inputs(), strict=False):
        if None in (a.digest, b.digest) or From.OUTSIDE not in (a.distance, b.distance):
            continue
        if a.digest is not None and b.digest is not None and a.digest != b.digest:
            yield a.digest, b.digest


def _line(site: Site | None) -> str:
    return f"{site.file}:{site.line}" if site is not None else ""
