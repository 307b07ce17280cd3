"""The search against a scan of every row."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import lose_rows, opened

from rltrace.diff.base.bisect import STRUCTURE, VALUES, Bisection
from rltrace.diff.base.view import StreamView
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import MARK_ROWS, Column
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.write.writer import ProcessWriter


def stream(path: Path, rows: int, cuts: set[int], edits: dict[int, str]) -> StreamView:
    """A stream of plain rows, segments cut at ``cuts``; ``edits``: another value or another op at a row."""
    create_trace(path, {"command": ["python", "train.py"], "options": {"level": "op"}})
    writer = ProcessWriter.open(path, {"name": "rank0/main"})
    writer.commit(writer.stream("rank0/main"), None, plain_entries())
    whole = one_digest_each(random_rows(np.random.default_rng(0), 0, rows))
    for row, edit in edits.items():
        if row < rows and edit == "op":
            whole.columns[row, Column.OP] ^= 1
        elif row < rows:
            whole.digests[whole.digest_offsets[row] : whole.digest_offsets[row + 1]] ^= np.uint64(1)
    for start, stop in pairwise(sorted({0, rows} | {cut for cut in cuts if cut < rows})):
        writer.commit(0, whole.cut(start, stop))
    writer.close("complete", {})
    return opened(path)


def one_digest_each(rows: Rows) -> Rows:
    """The same ops with one digest each and nothing else."""
    columns = rows.columns.copy()
    columns[:, Column.FLAGS :] = 0
    columns[:, Column.DIGESTS] = 1
    empty = np.empty(0, np.int64)
    return Rows(0, columns, empty, empty, np.empty(0), np.arange(len(rows), dtype=np.uint64))


def scanned(a: StreamView, b: StreamView, column: int) -> int | None:
    """The slow, obvious search."""
    rows = min(a.rows, b.rows)
    unequal = np.flatnonzero(a.read(0, rows).hashes[column - 1] != b.read(0, rows).hashes[column - 1])
    return int(unequal[0]) if len(unequal) else None


LONG = 2 * MARK_ROWS + 900

cuts = st.sets(st.integers(0, LONG), max_size=4)
edits = st.dictionaries(st.integers(0, LONG), st.sampled_from(["op", "value"]), max_size=3)


@settings(max_examples=20)
@given(st.integers(1, LONG), st.integers(1, LONG), cuts, cuts, edits)
def test_search_equals_a_scan(
    rows_a: int, rows_b: int, cuts_a: set[int], cuts_b: set[int], edit: dict[int, str]
) -> None:
    """Any lengths, any segments, any edits: the search names the row that a scan names."""
    with tempfile.TemporaryDirectory() as folder:
        a = stream(Path(folder) / "a.zarr", rows_a, cuts_a, {})
        b = stream(Path(folder) / "b.zarr", rows_b, cuts_b, edit)
        search = Bisection(a, b)
        structure = search.first(STRUCTURE)
        assert structure.row == scanned(a, b, STRUCTURE) and structure.hole is None
        values = search.first(VALUES, before=structure.row)
        expected = scanned(a, b, VALUES)
        limit = structure.row if structure.row is not None else min(rows_a, rows_b)
        assert values.row == (expected if expected is not None and expected < limit else None)


def test_equal_streams_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One probe of the last digest settles it, and no store is asked for tables."""
    monkeypatch.delattr(ProcessTrace, "read_ahead")
    a, b = (stream(tmp_path / f"{name}.zarr", 9_000, {5_000}, {}) for name in "ab")
    search = Bisection(a, b)
    assert search.first(VALUES).row is None
    assert len(search.probes) == 1 and a.stream.counter.chunks == b.stream.counter.chunks == 0


def test_few_probes_and_few_reads(tmp_path: Path) -> None:
    """About log2 of the digests are looked at, and one window is read, over at most two segments of a side."""
    rows = 20 * MARK_ROWS
    cuts = set(range(1_000, rows, 3_000))
    a = stream(tmp_path / "a.zarr", rows, cuts, {})
    b = stream(tmp_path / "b.zarr", rows, cuts, {50_123: "value", 60_000: "value"})
    search = Bisection(a, b)
    assert search.first(VALUES).row == 50_123
    assert len(search.probes) <= 2 + np.log2(len(a.stream.marks))
    assert a.stream.counter.chunks <= 4 and b.stream.counter.chunks <= 4


@pytest.mark.parametrize("first", [300, 600])
def test_rows_that_contradict_their_digests(tmp_path: Path, first: int) -> None:
    """Where digests differ and no row does, the rows are what cannot be read."""
    a, b = (stream(tmp_path / f"{name}.zarr", 900, {300, 600}, {}) for name in "ab")
    for mark in b.stream.marks:
        mark[VALUES] ^= np.uint64(mark[0] > first)
    found = Bisection(a, b).first(VALUES)
    assert found.row is None and found.hole is not None
    assert (found.hole.side, found.hole.first, found.hole.rows) == ("a", first, 300)
    assert found.hole.why == "its rows contradict its prefix digests"


def test_the_first_hole_of_both_sides(tmp_path: Path) -> None:
    """Where both have one before the difference is found, the earlier one is why it is not."""
    for first, cuts in (("b", {"a": 500, "b": 300}), ("a", {"a": 300, "b": 500})):
        views = {}
        for name in "ab":
            path = tmp_path / f"{name}{first}.zarr"
            stream(path, 900, {cuts[name]}, {899: "value"} if name == "b" else {})
            views[name] = lose_rows(path, 1)
            views[name].readable(0, 900)
        hole = Bisection(views["a"], views["b"]).first(VALUES).hole
        assert (hole.side, hole.first) == (first, 300)
