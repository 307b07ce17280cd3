"""The search against a full scan that uses none of it: values that diverge and meet again, holes, unfinished traces."""

import tempfile
from itertools import zip_longest
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Do, in_parts, pieces
from random_scripts import Editor, Writer

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

# --- the scan ---------------------------------------------------------------------------------------------------------
#
# Every row of two traces, position by position: it uses nothing of ``rltrace.diff``, no prefix digest, no step digest
# and no hash, only what the reader says is in a row.

Row = tuple[object, ...]


def rows_of(path: Path) -> list[Row]:
    """All rows of the only stream of the only process, what ids stand for in place of ids."""
    process = open_trace(path).processes[0]
    stream = process.streams[0]
    return [row for segment in stream.segments for row in _plain(process, stream.read_segment(segment))]


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


# --- the search -------------------------------------------------------------------------------------------------------

IN_PLACE = ("value", "argument", "shape", "outside", "alias", "seed")
examples = settings(max_examples=12)


def damage(path: Path, random: Random) -> list[tuple[int, int]]:
    """Flip a bit in some chunks of rows; (first row, rows) of what cannot be read then."""
    segments = open_trace(path).processes[0].streams[0].segments
    lost = random.sample(segments, random.randint(0, min(2, len(segments))))
    for segment in lost:
        file = path / "processes" / "0" / segment.files[random.randint(0, 1)].key
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    return [(int(segment.first), int(segment.rows)) for segment in lost]


def edited(random: Random) -> tuple[list[Do], list[Do]]:
    """A script, and the same with values changed in place: rows stay where they are."""
    ran = Writer(random).script().run()
    editor = Editor(random, ran)
    for _ in range(random.randint(0, 3)):
        editor.edit(IN_PLACE)
    return ran, [item.do for item in editor.items]


def places(comparison: Comparison) -> set[int | None]:
    """Rows that the comparison names, the end of a trace aside."""
    found = (comparison.first, comparison.first_value, comparison.decisive)
    return {f.a_index for f in found if f is not None and f.cause is not Cause.ENDED}


@examples
@given(st.integers(0, 1 << 32))
def test_the_search_equals_a_full_scan(seed: int) -> None:
    """Finished or not, cut anywhere: the row that a scan finds first, and none where it finds none."""
    random = Random(seed)
    ran, other = edited(random)
    state = random.choice(["complete", "killed", "running"])
    if state != "complete":
        other = other[: random.randint(1, len(other))]
    with tempfile.TemporaryDirectory() as folder:
        a = in_parts(Path(folder) / "a.zarr", pieces(ran, random.randint(20, 120)))
        b = in_parts(Path(folder) / "b.zarr", pieces(other, random.randint(20, 120)), state)
        wanted = first_difference(rows_of(a), rows_of(b))
        comparison = compare(a, b)
    assert places(comparison) == (set() if wanted is None else {wanted})
    if wanted is not None:
        assert comparison.verdict is Verdict.DIVERGED
    else:
        assert comparison.verdict is (Verdict.IDENTICAL if state == "complete" else Verdict.UNKNOWN)


def comes_again(a: list[Row], b: list[Row], row: int) -> bool:
    """Whether what one side did there, and never before, is done by the other later: in another order, maybe."""
    a, b = ([(*cells[:-1], outputs_of(cells)) for cells in rows] for rows in (a, b))
    pairs = ((a, b[row + 1 :]), (b, a[row + 1 :]))
    return any(own[row] not in own[:row] and own[row] in later for own, later in pairs)


def outputs_of(row: Row) -> list[object]:
    digests = row[-1]
    assert isinstance(digests, list)
    return digests[-1:]


@examples
@given(st.integers(0, 1 << 32))
def test_a_difference_before_a_hole_is_named_and_none_past_one(seed: int) -> None:
    """With chunks unreadable on either side: the row that a scan of the whole traces finds, however near the hole
    comes; past a hole that row or that it is unknown."""
    random = Random(seed)
    ran, other = edited(random)
    with tempfile.TemporaryDirectory() as folder:
        a = in_parts(Path(folder) / "a.zarr", pieces(ran, random.randint(20, 120)))
        b = in_parts(Path(folder) / "b.zarr", pieces(other, random.randint(20, 120)))
        rows = rows_of(a), rows_of(b)
        wanted = first_difference(*rows)
        holes = damage(a, random) + damage(b, random)
        comparison = compare(a, b)
    named = places(comparison)
    assert named <= {wanted}, comparison.why
    first = min((first for first, _ in holes), default=1 << 32)
    if wanted is not None and (first > 2 * wanted or (first > wanted and not comes_again(*rows, wanted))):
        assert named == {wanted} and comparison.verdict is Verdict.DIVERGED
    elif wanted is not None and not named:
        assert comparison.verdict is Verdict.UNKNOWN and comparison.holes
    elif wanted is None:
        assert comparison.verdict in (Verdict.IDENTICAL, Verdict.UNKNOWN)
