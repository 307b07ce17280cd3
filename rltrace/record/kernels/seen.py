"""What the profiler saw of a stretch of rows of the first stream, and what could not be seen: from there to the trace.

Owns which rows a stretch has, and that they are committed before anything is told of them. A row whose launches are
known gets the evidence that it was written with (what it ran on) and the launches; all others keep what they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rltrace.identity import portable_key
from rltrace.record.kernels.profiled import Event, Joined, Launch, join
from rltrace.trace.evidence import LAUNCHES
from rltrace.trace.launched import NewLaunched, Unknown
from rltrace.trace.rows import Rows
from rltrace.trace.schema import Column, Kind

if TYPE_CHECKING:
    from rltrace.record.commit import Committer
    from rltrace.record.process import ProcessState
    from rltrace.record.streams import Streams

OTHER_THREADS = "they ran in other threads, which the profiler does not see"
NOT_SEEN = "what they launched was not seen on the device: it was captured into a CUDA graph, or lost"
BLIND = "the profiler saw nothing of the device: another tool may have its place (nsys, ncu), or it is not allowed to"

MOST_STRAYS: Final = 200
"""Of what was launched for no row, so many kinds are told of one stretch; the others together."""

MOST_RUNS: Final = 64
"""Of a stretch, so many runs of unknown rows are told by their places; of more how many rows, from the first on."""

MOST_KNOWN: Final = 1 << 16

NEEDED: Final = [Column.OP, Column.KERNEL, Column.KIND]


class Seen:
    """One process's."""

    def __init__(self, process: ProcessState, streams: Streams, committer: Committer) -> None:
        self._process = process
        self._streams = streams
        self._committer = committer
        self.first = 0
        """Row with which the stretch begins that nothing is told of yet."""
        self._rows: list[NDArray[np.uint32]] | None = None
        """What the join needs of the rows of this stretch that are committed; None: nothing is to be joined."""
        self._others: dict[int, int] = {}
        self._unknown: list[Unknown] = []
        self._raised: list[int] = []
        self._known: dict[tuple[int, tuple[Launch, ...]], int] = {}

    def begin(self) -> None:
        """Rows are being written from now on."""
        self.first = self._streams.main.row
        self._others = {stream.number: stream.row for stream in self._streams.others}
        self._committer.taken = self._taken

    def collect(self) -> None:
        """The profiler runs from now on."""
        self._rows = []
        self._raised.clear()
        self._streams.main.raised = self._raised

    def tell(self, events: Sequence[Event], why: str | None) -> None:
        """Commit the rows so far, and what events tell of those since ``collect``; ``why``: nothing can be told."""
        self._streams.main.raised = None
        self._committer.settle(self._streams.main, lambda: self._told(events, why))
        self._rows = None

    def drop(self, why: str) -> None:
        """Nothing is known of the rows since, nor what the profiler saw."""
        self._rows = self._streams.main.raised = None
        self.miss(why)

    def miss(self, why: str) -> None:
        """Nothing is known of the rows up to here."""
        main = self._streams.main
        if main.row > self.first:
            self._unknown.append(Unknown(why, main.number, self.first, main.row - self.first))
            self.first = main.row

    def end(self, why: str | None) -> None:
        """Rows are not written any more. ``why``: of those nothing is told of yet; None: nobody needs to know."""
        if why is not None:
            self.miss(why)
            if self._unknown:
                self._committer.settle(self._streams.main, lambda: self._told((), None))
        self.abandon()

    def abandon(self) -> None:
        self._committer.taken = None
        self._rows = self._streams.main.raised = None
        self._unknown.clear()

    def _taken(self, stream: int, rows: Rows) -> None:
        """Rows are being committed. Called by whoever does it, one at a time; the first stream waits, or goes on."""
        if self._rows is not None and stream == self._streams.main.number and rows.first + len(rows) > self.first:
            self._rows.append(rows.columns[max(self.first - rows.first, 0) :, NEEDED])

    def _told(self, events: Sequence[Event], why: str | None) -> NewLaunched | None:
        main = self._streams.main
        rows = np.concatenate([np.zeros((0, len(NEEDED)), np.uint32), *(self._rows or ())])
        first, self.first = self.first, main.row
        unknown, self._unknown = [*self._unknown, *self._of_other_threads()], []
        try:
            ids, strays, reasons = self._joined(rows, events, why)
        except Exception as error:  # whatever it is, it is no failure of the recording
            ids, strays = np.zeros(0, np.uint32), ()
            reasons = [(f"{type(error).__name__}: {error}", 0, len(rows))] if len(rows) else []
        unknown += [Unknown(reason, main.number, first + at, count) for reason, at, count in reasons]
        return NewLaunched(main.number, first, ids, tuple(unknown), strays) if len(ids) or unknown or strays else None

    def _joined(
        self, rows: NDArray[np.uint32], events: Sequence[Event], why: str | None
    ) -> tuple[NDArray[np.uint32], tuple[tuple[str, str, int], ...], list[tuple[str, int, int]]]:
        """Ids of evidence, what was launched for no row, and (why, place, rows) of what cannot be told."""
        ids = np.zeros(len(rows), np.uint32)
        if why is not None or not len(rows):
            return ids[:0], (), [(why, 0, len(rows))] if why is not None and len(rows) else []
        ops = rows[:, 2] == Kind.OP
        places = np.flatnonzero(ops)
        names = self._process.calls.op_names
        found = join(events, [names[op] for op in rows[ops, 0].tolist()], self._places_of_raised(ops))
        reason = found.why or (BLIND if self._is_blind(rows, found) else "")
        if reason:
            return ids[:0], found.strays, [(reason, 0, len(rows))]
        evidence = zip(places.tolist(), rows[ops, 1].tolist(), found.launches, strict=True)
        ids[places] = [self._evidence(kernel, launches) for _, kernel, launches in evidence]
        lost = places[sorted(found.lost)] if found.lost else places[:0]
        ids[lost] = 0
        runs = list(_runs(lost))
        if len(runs) > MOST_RUNS:
            runs = [(runs[0][0], len(lost))]
        return ids, _most(found.strays), [(NOT_SEEN, first, count) for first, count in runs]

    def _is_blind(self, rows: NDArray[np.uint32], found: Joined) -> bool:
        """Whether ops ran on a device and nothing at all is known to have been launched."""
        if found.strays or found.lost or any(found.launches):
            return False
        payloads = self._process.kernels.payloads
        return any("device" in payloads.get(kernel, {}) for kernel in np.unique(rows[:, 1]).tolist())

    def _evidence(self, kernel: int, launches: tuple[Launch, ...]) -> int:
        """Id of what is known of a row that was written with evidence ``kernel``; 0: nothing more than that."""
        found = self._known.get((kernel, launches))
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[kernel, launches] = self._made(kernel, launches)
        return found

    def _made(self, kernel: int, launches: tuple[Launch, ...]) -> int:
        plain = self._process.kernels.payloads.get(kernel, {})
        if not launches and "device" not in plain:
            return 0
        told: dict[str, Any] = {"names": [launch.name for launch in launches]}
        told[LAUNCHES] = [[list(launch.grid), list(launch.block)] for launch in launches]
        payload = {**plain, **told}
        return self._process.tables.intern("kernels", portable_key("kernel", payload), payload)

    def _places_of_raised(self, ops: NDArray[np.bool_]) -> list[int]:
        """Of the calls that raised: how many ops of the stretch came before each."""
        before = np.concatenate([[0], np.cumsum(ops)])
        start = self.first - len(ops)
        return [int(before[min(max(row - start, 0), len(ops))]) for row in self._raised]

    def _of_other_threads(self) -> Iterator[Unknown]:
        """Rows that other streams got since the last time."""
        for stream in self._streams.others:
            before, now = self._others.get(stream.number, 0), stream.row
            if now > before:
                self._others[stream.number] = now
                yield Unknown(OTHER_THREADS, stream.number, before, now - before)


def _most(strays: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    if len(strays) <= MOST_STRAYS:
        return strays
    rest = strays[MOST_STRAYS:]
    return (*strays[:MOST_STRAYS], (f"{len(rest):,} others", "", sum(count for *_, count in rest)))


def _runs(rows: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, how many) of those that follow each other."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            yield int(run[0]), len(run)
