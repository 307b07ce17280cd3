"""One stream of a trace: its rows, verified.

Owns segments, marks and holes of a stream. Rows whose chunks do not match the counts in the journal are a hole.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from rltrace.errors import HoleError
from rltrace.trace.format.arrays import CELLS, ROWS
from rltrace.trace.format.files import TraceStore, UnreadableError
from rltrace.trace.format.interleaving import Run
from rltrace.trace.format.rows import Rows, Segment, assemble, empty_rows
from rltrace.trace.format.schema import Column
from rltrace.trace.format.tables import Table
from rltrace.trace.read.chunks import Counter, missing_or_cut, read_ahead, read_chunk

AHEAD = 8
"""Segments that are asked for at once, of at most 5 MB each."""

CACHED_SEGMENTS = 2
"""Decoded segments in the cache of a stream, of at most 8 MB each."""

EMPTY = xxh3_64_intdigest(b"")
"""The prefix digests at row 0."""

TABLE_COLUMNS = {
    Column.OP: "ops",
    Column.STRUCTURE: "structures",
    Column.SITE: "sites",
    Column.MODULE: "modules",
    Column.SCALARS: "scalars",
    Column.KERNEL: "kernels",
    Column.SETTINGS: "settings",
}


class StreamTrace:
    """The ops of one thread of one process, in execution order."""

    def __init__(
        self,
        name: str,
        index: int,
        folder: TraceStore,
        base: str,
        tables: Callable[[], Mapping[str, Table]],
        finish: Callable[[Rows], Rows] = lambda rows: rows,
    ) -> None:
        """``finish`` adds to rows the facts recorded outside their arrays."""
        self.name = name
        self.index = index
        self.segments: list[Segment] = []
        """Ascending. Rows between two segments are a hole."""
        self.windows: list[tuple[int, int | None, int]] = []
        """(first step, end step or None, row at which recording of ops began)."""
        self.torch_stream: int | None = None
        """Of a stream of JAX, the number of the stream of torch ops of the same thread, in the process of one token."""
        self.interleaving: list[Run] = []
        """Where its rows are among those of that stream."""
        self.holes: list[tuple[int, int, str]] = []
        """(first row, rows, why) of all damage found so far; reading finds more."""
        self._lost_end = 0
        self.counter = Counter()
        self._folder = folder
        self._base = base
        self._tables = tables
        self._finish = finish
        self._cache: OrderedDict[int, Rows] = OrderedDict()

    @property
    def rows(self) -> int:
        """Number of rows in the journal, holes included."""
        return max(self.segments[-1].stop if self.segments else 0, self._lost_end)

    @cached_property
    def marks(self) -> NDArray[np.uint64]:
        """Prefix digests, shape [m, 4]: row, structure, values, marked; ascending, row 0 first."""
        marks = [(0, EMPTY, EMPTY, EMPTY)]
        for segment in self.segments:
            marks.extend(segment.marks)
        return np.array(marks, np.uint64)

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``. Raises HoleError."""
        if not 0 <= start <= stop <= self.rows:
            raise ValueError(f"{self.name} has rows 0 to {self.rows}, not {start} to {stop}")
        parts = []
        at = start
        segments = self._overlapping(start, stop)
        for place, segment in enumerate(segments):
            self.read_ahead(segments[place : place + AHEAD])
            if segment.first > at:
                raise HoleError(self._why_gap(at, segment.first))
            rows = self.read_segment(segment)
            end = min(stop, segment.stop)
            whole = at == segment.first and end == segment.stop
            parts.append(rows if whole else rows.cut(at - segment.first, end - segment.first))
            at = end
        if at < stop:
            raise HoleError(self._why_gap(at, stop))
        if not parts:
            return empty_rows(start)
        return parts[0] if len(parts) == 1 else Rows.join(parts)

    def read_ahead(self, segments: Iterable[Segment]) -> None:
        """These segments are read next."""
        files = [segment.files for segment in segments if segment.chunk not in self._cache]
        for place, spec in enumerate((ROWS, CELLS)):
            read_ahead(self._folder, self._base, spec, [both[place] for both in files])

    def read_rows_ahead(self, start: int, stop: int) -> None:
        """Rows ``start`` to ``stop`` are read next."""
        self.read_ahead(self._overlapping(start, stop)[:AHEAD])

    def read_segment(self, segment: Segment) -> Rows:
        """All rows of one segment. Raises HoleError."""
        self.read_ahead([segment])
        cached = self._cache.get(segment.chunk)
        if cached is not None:
            self._cache.move_to_end(segment.chunk)
            return cached
        try:
            rows = self._decode(segment)
        except UnreadableError as error:
            self.add_hole(segment.first, segment.rows, str(error))
            rows_text = f"rows {segment.first} to {segment.stop - 1} of {self.name}"
            raise HoleError(f"{rows_text} cannot be read: {error}") from None
        self._cache[segment.chunk] = rows
        if len(self._cache) > CACHED_SEGMENTS:
            self._cache.popitem(last=False)
        return rows

    def check_sizes(self) -> None:
        """Add holes for chunks that are missing or of another length, without reading any."""
        self._folder.size_ahead(f"{self._base}/{file.key}" for segment in self.segments for file in segment.files)
        for segment in self.segments:
            for file in segment.files:
                if (why := missing_or_cut(self._folder, self._base, file)) is not None:
                    self.add_hole(segment.first, segment.rows, why)

    def add_lost_rows(self, stop: int, why: str) -> None:
        """Add a hole for rows up to ``stop`` that are in no known segment."""
        self.add_hole(self.rows, stop - self.rows, why)
        self._lost_end = stop

    def add_hole(self, first: int, rows: int, why: str) -> None:
        """Add a hole, once for the same rows."""
        if not any(hole[:2] == (first, rows) for hole in self.holes):
            self.holes.append((first, rows, why))
            self.holes.sort()

    def _overlapping(self, start: int, stop: int) -> Sequence[Segment]:
        if start == stop:
            return ()
        firsts = self._firsts
        low = max(int(np.searchsorted(firsts, start, side="right")) - 1, 0)
        high = int(np.searchsorted(firsts, stop, side="left"))
        return [s for s in self.segments[low:high] if s.stop > start]

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        return np.array([s.first for s in self.segments], np.int64)

    def _decode(self, segment: Segment) -> Rows:
        tables = self._tables()  # while the chunks are on their way
        columns, cells = (
            read_chunk(self._folder, self._base, spec, file, self.counter)
            for spec, file in zip((ROWS, CELLS), segment.files, strict=True)
        )
        rows = assemble(segment, columns, cells)
        for column, name in TABLE_COLUMNS.items():
            lost = tables[name].lacks(rows.column(column))
            if lost is not None:
                raise UnreadableError(f'entry {lost} of table "{name}", which they need, is lost')
        return self._finish(rows)

    def _why_gap(self, first: int, stop: int) -> str:
        why = next((why for at, rows, why in self.holes if at <= first < at + rows), "no journal record describes them")
        return f"rows {first} to {stop - 1} of {self.name} cannot be read: {why}"
