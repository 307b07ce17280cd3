"""The slow, obvious comparison: every row of two traces, position by position, in plain Python.

Uses nothing of ``rltrace.diff``, no prefix digest, no step digest and no hash: only what the reader says is in a row.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.stream import StreamTrace

Row = tuple[object, ...]


def rows_of(path: Path) -> list[Row]:
    """All rows of the only stream of the only process, what ids stand for in place of ids."""
    process = open_trace(path).processes[0]
    return [row for part in _parts(process.streams[0]) for row in _plain(process, part)]


def _parts(stream: StreamTrace) -> list[Rows]:
    return [stream.read_segment(segment) for segment in stream.segments]


def _plain(process: ProcessTrace, rows: Rows) -> list[Row]:
    def entry(table: str, column: Column, i: int) -> object:
        return process.tables[table].payloads[int(rows.columns[i, column])]

    def site(i: int) -> list[object]:
        frames = [process.tables["frames"].payloads[n] for n in entry("sites", Column.SITE, i)]  # type: ignore[attr-defined]
        return [(f["file"], f["function"], f["source"]) for f in frames if not f["internal"]]

    def layouts(i: int) -> list[object]:
        return [process.tables["layouts"].payloads[n] for n in entry("structures", Column.STRUCTURE, i)]  # type: ignore[attr-defined]

    return [
        (
            int(rows.columns[i, Column.KIND]),
            entry("ops", Column.OP, i),
            layouts(i),
            site(i),
            entry("modules", Column.MODULE, i),
            entry("scalars", Column.SCALARS, i),
            rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist(),
            [x.hex() for x in rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()],
            rows.digests[rows.digest_offsets[i] : rows.digest_offsets[i + 1]].tolist(),
        )
        for i in range(len(rows))
    ]


def first_difference(a: list[Row], b: list[Row]) -> int | None:
    """The first place at which rows differ; the end of the shorter list is none."""
    missing = object()
    places = enumerate(zip_longest(a, b, fillvalue=missing))
    return next((k for k, (x, y) in places if missing not in (x, y) and x != y), None)
