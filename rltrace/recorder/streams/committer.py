"""Commits the rows of the streams to the trace, in a background thread.

A commit is due when a stream has SEGMENT_ROWS rows, at the latest COMMIT_SECONDS after a row was written, and mostly
IDLE_SECONDS after the last one. Only the committer removes rows from a stream, and only finished ones, so a recording
thread never waits for it unless it is MAX_PENDING_SEGMENTS behind. After a pause it begins again with the next row or
step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rltrace.recorder.base.background_thread import CommitThread
from rltrace.recorder.base.settings import NO_SNAPSHOT
from rltrace.recorder.capture.captures import Captures
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.row_buffer import FIXED, KIND_SHIFT, NOTE_CELLS, PHASE_SHIFT, DeferredDigest, RowBuffer
from rltrace.recorder.digests.readback import ReadBack
from rltrace.recorder.streams.series import SeriesSampler
from rltrace.trace.format.rows import Rows, StepRecord
from rltrace.trace.format.schema import SEGMENT_ROWS, Column, Kind, RowFlag
from rltrace.trace.write.writer import ProcessWriter

if TYPE_CHECKING:
    from rltrace.recorder.capture.capture_queue import RowQueue, ValueQueue
    from rltrace.trace.kernels.launches import NewLaunches


# --- pending digests --------------------------------------------------------------------------------------------------
#
# Digests that were still being computed on a device when their rows were written. Waits for devices; in the thread of
# the stream only as the recording ends.


def settle_digests(stream: RowBuffer, end: int, readback: ReadBack, *, last: bool) -> tuple[int, list[DeferredDigest]]:
    """The end of the rows before ``end`` whose digests are all known, and their digests that were pending.

    ``last``: no call follows; a digest that cannot be read now is unknown.
    """
    settled: list[DeferredDigest] = []
    while stream.later and stream.later[0].row < end:
        later = stream.later.popleft()
        if not readback.settle(later.pending, last=last):
            stream.later.appendleft(later)
            end = later.row
            while settled and settled[-1].row >= end:
                stream.later.appendleft(settled.pop())
            break
        settled.append(later)
    return end, settled


def write_digests(rows: Rows, settled: list[DeferredDigest]) -> None:
    """Write the digests that were pending. A row with an unknown one is marked, as it may hold anything."""
    for row, place, pending in settled:
        i = row - rows.first
        rows.digests[rows.digest_offsets[i] + place] = pending.digest
        if pending.unread:
            rows.columns[i, Column.FLAGS] |= RowFlag.MARKED


# --- commit -----------------------------------------------------------------------------------------------------------


MAX_PENDING_SEGMENTS: Final = 4


TakeRecords = Callable[[], Iterable[Mapping[str, object]]]
"""Returns records of the journal that are new."""


class Committer:
    """Commits the rows and steps of one process."""

    def __init__(
        self,
        process: ProcessState,
        writer: ProcessWriter,
        fail: Callable[[Exception], None],
        on_resume: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_resume``: see ``CommitThread``."""
        self.on_commit: Callable[[int, Rows], None] | None = None
        """Called with a stream's number and its rows as they are committed, by the thread that commits."""
        self.on_full: Callable[[RowBuffer], None] | None = None
        """Called with a stream that has SEGMENT_ROWS rows, by its thread, inside an op."""
        self.thread = CommitThread(self._round, fail, on_resume, self._written)
        self.request_commit = self.thread.request
        self._process = process
        self._writer = writer
        self._fail = fail
        self._values: ValueQueue | None = None
        self._activations: RowQueue | None = None
        self._series: SeriesSampler | None = None
        self._take_records: TakeRecords = lambda: ()
        self._streams: list[tuple[RowBuffer, int]] = []
        self._committed: dict[int, int] = {}
        self._steps: list[StepRecord] = []
        self._commits = threading.Lock()

    def take_from(self, captures: Captures, series: SeriesSampler, records: TakeRecords) -> None:
        """Commit what these hold, too, series and records with the rows of the first stream; before the thread
        starts."""
        self._values, self._activations, self._series = captures.values, captures.activations, series
        self._take_records = lambda: chain(records(), *(take() for take in captures.records))
        for queue in (self._values, self._activations):
            if queue is not None:
                queue.request_commit, queue.wait_for_commit = self.request_commit, partial(self._wait_for, queue)

    def add(self, stream: RowBuffer) -> None:
        """Start to commit a stream."""
        number = self._writer.stream(stream.name)
        if number != stream.number:
            raise AssertionError("streams are numbered in the order in which they are opened")
        self._committed[number] = 0
        stream.limit = SEGMENT_ROWS - 1
        self._streams.append((stream, number))

    def pause(self, seconds: float) -> None:
        """Commit all finished rows and end the thread, until the next row or step; waits at most so long."""
        if self.thread.pause(seconds):
            for stream, _ in list(self._streams):
                stream.limit = 0  # its next row wakes

    def add_step(self, step: StepRecord) -> None:
        """An optimizer attempt has ended."""
        self._steps.append(step)
        self.thread.resume()

    def wake(self, stream: RowBuffer) -> None:
        """``stream`` has SEGMENT_ROWS rows, or the first after a pause; waits only when the disk is far behind."""
        self.thread.resume()
        if self.on_full is not None:
            self.on_full(stream)
        self.thread.wake()
        stream.settings = NO_SNAPSHOT  # a program without steps changes them, too
        waiting = stream.row - self._committed[stream.number]
        stream.limit = stream.row + SEGMENT_ROWS // 16
        if waiting > MAX_PENDING_SEGMENTS * SEGMENT_ROWS and not self._process.readback.gate.is_shut:
            self.thread.wait_until(lambda: stream.row - self._committed[stream.number] <= 2 * SEGMENT_ROWS)

    def _wait_for(self, queue: ValueQueue | RowQueue) -> None:
        """Block the program until the disk has caught up with a queue."""
        self.request_commit()
        self.thread.wait_until(lambda: not queue.is_behind)

    def flush(self) -> None:
        """Commit every finished row of every stream."""
        with self._commits:
            for stream, number in list(self._streams):
                while self._commit(stream, number):
                    pass

    def flush_stream(self, stream: RowBuffer, launches: Callable[[], NewLaunches | None]) -> None:
        """Commit every finished row of a stream, then the kernel launches of these rows."""
        try:
            with self._commits:
                while self._commit(stream, stream.number):
                    pass
                launched = launches()
                if launched is not None:
                    self._writer.commit_launches(self._process.tables.take(), launched)
        except Exception as error:
            self._fail(error)

    def trim(self, stream: RowBuffer) -> None:
        """Drop what an interrupted op has appended; called by the stream's own thread."""
        with self._commits:
            count = len(stream.fixed) // FIXED
            stream.row = self._committed[stream.number] + count
            counts = self._counts(np.frombuffer(stream.fixed[: count * FIXED], dtype=np.uint32).reshape(count, FIXED))
            links, integers, floats, digests = counts.sum(axis=0, dtype=np.int64).tolist()
            del stream.fixed[count * FIXED :], stream.links[links:], stream.integers[integers:]
            del stream.floats[floats:], stream.digests[digests:]
            kept = _notes_before(stream, stream.row)
            del stream.link_notes[kept.size :]
            stream.drop_deferred(stream.row)

    def _written(self) -> int:
        """A number that grows with every row and step."""
        return self._process.step + sum(stream.row for stream, _ in list(self._streams))

    def _round(self, full_only: bool) -> None:
        with self._commits:
            for stream, number in list(self._streams):
                while stream.row - self._committed[number] >= SEGMENT_ROWS:
                    self._commit(stream, number)
                if not full_only:
                    self._commit(stream, number)

    def _commit(self, stream: RowBuffer, number: int) -> bool:
        rows = self._take(stream, number)
        if rows is not None and self.on_commit is not None:
            self.on_commit(number, rows)
        steps = self._take_steps()
        values = self._values.take(number, self._committed[number]) if self._values is not None else None
        activations = self._activations.take(number, self._committed[number]) if self._activations is not None else None
        samples = self._samples() if number == 0 else None
        for record in self._take_records() if number == 0 else ():
            self._writer.append(record)
        entries = self._process.tables.take()
        beside = bool(values) or bool(activations) or (samples is not None and len(samples) > 0)
        if rows is None and not steps and not entries and not beside:
            return False
        self._writer.commit(number, rows, entries, steps, values, samples, activations)
        self.thread.progressed()
        return rows is not None

    def _samples(self) -> NDArray[np.uint64] | None:
        """Samples of series since the last call; None: none, or not now, since some may be on a device."""
        with self._process.readback.gate.inside() as may:
            return self._series.take() if self._series is not None and (may or self.thread.is_stopping) else None

    def _take_steps(self) -> list[StepRecord]:
        """Finished attempts of all streams, in the order of their end; the writer waits for the rows of each."""
        steps = self._steps[:]
        del self._steps[: len(steps)]
        return steps

    def _take(self, stream: RowBuffer, number: int) -> Rows | None:
        """Remove finished rows, at most SEGMENT_ROWS. Each slice and each deletion is one atomic operation."""
        first = self._committed[number]
        end = min(stream.row, first + SEGMENT_ROWS)
        end, settled = settle_digests(stream, end, self._process.readback, last=self.thread.is_stopping)
        count = end - first
        if count <= 0:
            return None
        fixed = np.frombuffer(stream.fixed[: count * FIXED], dtype=np.uint32).reshape(count, FIXED)
        columns = self._columns(stream, first, fixed)
        links, integers, floats, digests = (
            int(columns[:, c].sum(dtype=np.int64))
            for c in (Column.LINKS, Column.INTEGERS, Column.FLOATS, Column.DIGESTS)
        )
        rows = Rows(
            first=first,
            columns=columns,
            links=np.frombuffer(stream.links[:links], dtype=np.int64),
            integers=np.frombuffer(stream.integers[:integers], dtype=np.int64),
            floats=np.frombuffer(stream.floats[:floats], dtype=np.float64),
            digests=np.frombuffer(stream.digests[:digests], dtype=np.uint64),
        )
        notes = _notes_before(stream, end)
        if len(notes):
            row, place, kind, value = notes.T
            of_links = np.stack([rows.link_offsets[row - first] + place, kind, value], axis=1)
            rows = replace(rows, link_notes=of_links[np.lexsort(of_links[:, 1::-1].T)])
        write_digests(rows, settled)
        del stream.fixed[: count * FIXED], stream.links[:links], stream.integers[:integers]
        del stream.floats[:floats], stream.digests[:digests], stream.link_notes[: notes.size]
        self._committed[number] = first + count
        stream.limit = min(max(first + count + SEGMENT_ROWS - 1, stream.row), stream.wake_by)
        return rows

    def _columns(self, stream: RowBuffer, first: int, fixed: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """All columns of rows, from the cells that the hot path wrote."""
        count = len(fixed)
        op, structure, site, module, scalars, flags, _ = fixed.T
        columns = np.empty((count, len(Column)), dtype=np.uint32)
        columns[:, Column.KIND] = flags >> KIND_SHIFT
        columns[:, Column.OP] = op
        columns[:, Column.STRUCTURE] = structure
        columns[:, Column.SITE] = site
        columns[:, Column.MODULE] = module
        columns[:, Column.SCALARS] = scalars
        columns[:, Column.STEP] = _spread(stream.steps, first, count)
        columns[:, Column.PHASE] = (flags >> PHASE_SHIFT) & 0xFF
        settings = _spread(stream.epochs, first, count)
        columns[:, Column.KERNEL] = self._kernel_ids(op, structure, settings, flags)
        columns[:, Column.FLAGS] = flags & ((1 << PHASE_SHIFT) - 1)
        columns[:, Column.LINKS : Column.DIGESTS + 1] = self._counts(fixed)
        columns[:, Column.SETTINGS] = np.where(flags >> KIND_SHIFT == Kind.OP, settings, 0)
        return columns

    def _counts(self, fixed: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Numbers of links, integers, floats and digests of each row, shape [n, 4]."""
        _, structure, _, _, scalars, flags, digests = fixed.T
        calls = self._process.calls  # whose arrays may grow meanwhile
        known = (calls.structure_sizes, calls.integer_counts, calls.float_counts)
        sizes, of_integers, of_floats = (np.array(counts[:], dtype=np.uint32) for counts in known)
        whole = (flags & (RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER)) != 0
        real = (flags & RowFlag.VALUE_FLOAT) != 0
        pair = (flags & RowFlag.VALUE_COMPLEX) != 0
        integers, floats = of_integers[scalars] + whole, of_floats[scalars] + real + 2 * pair
        return np.stack([sizes[structure], integers, floats, digests], axis=1).astype(np.uint32)

    def _kernel_ids(
        self, op: NDArray[Any], structure: NDArray[Any], settings: NDArray[np.uint32], flags: NDArray[Any]
    ) -> NDArray[np.uint32]:
        """Kernel evidence of each row: by op, device and the threads at that time; none for views and allocations."""
        process, calls = self._process, self._process.calls
        known = process.settings.threads
        threads = np.array([known.get(number, 0) for number in range(max(known) + 1)], np.uint64)[settings]
        idle = ((flags & (RowFlag.VIEW | RowFlag.ALLOCATION)) != 0) | (flags >> KIND_SHIFT != Kind.OP)
        keys = op.astype(np.uint64) << np.uint64(40) | structure.astype(np.uint64) << np.uint64(12) | threads
        distinct, inverse = np.unique(keys, return_inverse=True)
        kernels = [
            process.kernels.of(calls.op_names[key >> 40], key & 0xFFF, calls.structure_devices[(key >> 12) & 0xFFFFFFF])
            for key in distinct.tolist()
        ]
        ids = np.array(kernels, dtype=np.uint32)[inverse]
        ids[idle] = 0
        return ids


def _notes_before(stream: RowBuffer, end: int) -> NDArray[np.int64]:
    """The notes on links of a stream's rows before ``end``, shape [n, NOTE_CELLS]."""
    notes = np.frombuffer(stream.link_notes[:], dtype=np.int64).reshape(-1, NOTE_CELLS)
    return notes[: np.searchsorted(notes[:, 0], end)]


def _spread(changes: list[tuple[int, int]], first: int, count: int) -> NDArray[np.uint32]:
    """One value per row, from (first row, value) changes; drops changes that no later row needs."""
    rows, values = np.array([(first, 0), *changes], dtype=np.int64).T
    starts = np.clip(rows - first, 0, count)
    del changes[: max(int(np.searchsorted(rows[1:], first + count, side="right")) - 1, 0)]
    return np.repeat(values.astype(np.uint32), np.diff(starts, append=count))
