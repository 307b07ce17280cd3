"""Cells of a row are found by the counts of the rows before it, and mean what its flags and links say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.errors import HoleError
from rltrace.testing import In, TraceBuilder, digest
from rltrace.trace.format.events import COUNT, NONE, Cell, Event, event_of
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Generator, Kind, Origin, RowFlag
from rltrace.trace.read.reader import open_trace

EVENT: Any = {
    "counts": {"n": 5},
    "evidence": {"e": "e"},
    "digests": {"d": "d", "f": "f"},
    "integers": {"x": 6},
    "floats": {"y": 0.75},
}

VALUES = (None, True, False, 7, 0.5, 2 - 3j, None, -1)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Ops that return numbers; one that reads, draws and returns tensors; an event with evidence; an op after it."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for number, value in enumerate(VALUES):
        builder.op("aten.item.default", integers=[90, 91], floats=[0.25] * (number % 3), value=value, outputs=["x"])
    last = len(VALUES) - 1
    inputs = [("outside", "o"), In(last, slot=3), In(last, "r", known=True), In(last, slot=1023), "overwritten"]
    builder.op("aten.mm.default", inputs=inputs, rng="g", generator=Generator.OWN + 1, outputs=["p", "q"])
    builder.event(Kind.ENVIRONMENT_STEP, "step", **EVENT)
    builder.op(
        "aten.mm.default", integers=[95], floats=[9.5], inputs=[("mixed", "m")], outputs=["y"], flags=RowFlag.MARKED
    )
    return open_trace(builder.finish()).processes[0].streams[0].read(0, len(VALUES) + 3)


@pytest.fixture
def noted(tmp_path: Path) -> Rows:
    """Rows whose inputs are parts of memory, written by several ops in part."""
    builder = TraceBuilder(tmp_path / "notes.zarr")
    first = builder.op("aten.mm.default", outputs=["x"])
    builder.op("aten.mm.default", inputs=["unknown", In(first, offset=16)], outputs=["y"])
    builder.op("aten.mm.default", outputs=["z"])
    mixed = In(origin=Origin.MIXED, offset=3, last_writer=first, from_outside=True)
    builder.op("aten.mm.default", inputs=[first, "unknown", mixed, In(first, offset=(1 << 40) - 1)], outputs=["w"])
    return open_trace(builder.finish()).processes[0].streams[0].read(0, 4)


def seen(rows: Rows, i: int) -> list[tuple[int, int, bool]]:
    return [(link.offset, link.last_writer, link.from_outside) for link in rows.inputs(i)]


def test_notes_on_links(noted: Rows) -> None:
    """They are read back with their inputs, also in rows that are cut and joined again."""
    wanted = [
        [],
        [(0, 0, False), (16, 0, False)],
        [],
        [(0,) * 2 + (False,)] * 2 + [(3, 3, True), ((1 << 40) - 1, 0, False)],
    ]
    assert [seen(noted, i) for i in range(4)] == wanted
    for cut in range(1, 4):
        parts = [noted.cut(0, cut), noted.cut(cut, 4)]
        assert [seen(part, i) for part in parts for i in range(len(part))] == wanted
        joined = Rows.join(parts)
        assert np.array_equal(joined.link_notes, noted.link_notes)


def test_notes_are_no_part_of_a_row(noted: Rows) -> None:
    """A note of a newer format is passed over."""
    newer = replace(noted, link_notes=noted.link_notes + np.array([0, 2, 0]))
    assert seen(newer, 1) == [(0, 0, False)] * 2


def test_numbers(rows: Rows) -> None:
    """A number that an op returned is the last of its cells, with its type."""
    found = [rows.value(i) for i in range(len(rows))]
    assert list(map(repr, found)) == list(map(repr, [*VALUES, None, None, None]))


def test_inputs(rows: Rows) -> None:
    """Each link is unpacked, and has its digest where the row read the bytes; those of other rows are not counted."""
    at = len(VALUES)
    assert list(rows.inputs(at)) == [
        Link(Origin.OUTSIDE, None, False, digest("o")),
        Link(1, 3, False, None),
        Link(1, 0, True, digest("r")),
        Link(1, None, False, None),
        Link(Origin.OVERWRITTEN, None, False, None),
    ]
    assert list(rows.inputs(at - 1)) == []
    assert list(rows.inputs(at + 2)) == [Link(Origin.MIXED, None, False, digest("m"))]
    assert rows.reads.tolist() == [0] * at + [2, 0, 1]


def test_digests(rows: Rows) -> None:
    """After the reads the generator's state, then outputs; an event's evidence is neither output nor hashed."""
    at = len(VALUES)
    assert [rows.rng(i) for i in range(at - 1, at + 3)] == [None, digest("g"), None, None]
    assert rows.generators[at] == Generator.OWN + 1
    texts = [["x"], ["p", "q"], ["d", "f"], ["y"]]
    assert [rows.outputs(i) for i in range(at - 1, at + 3)] == [[digest(text) for text in row] for row in texts]
    evidence = rows.evidence
    assert evidence.tolist() == [0] * at + [0, 2, 0]
    hashed, offsets = rows.hashed
    assert hashed[at:].tolist() == [digest(text) for text in "orgpqdfmy"]
    assert np.diff(offsets).tolist() == [1] * at + [5, 2, 2]
    assert (rows.has(at + 2, RowFlag.MARKED), rows.has(at, RowFlag.MARKED)) == (True, False)
    assert rows.flags(at) == RowFlag.RNG


def test_events(rows: Rows) -> None:
    """The cells of an event by name, those of other rows left alone; evidence apart from what is compared."""
    skeleton = ["CartPole", *([f"{name}=", letter] for name, letter in zip("nedfxy", "neddif", strict=True))]
    event = event_of(rows, len(VALUES) + 1, skeleton)
    assert event.what == "CartPole"
    assert event.context == {"n": 5, "e": f"{digest('e'):016x}"}
    assert event.fields == {"d": f"{digest('d'):016x}", "f": f"{digest('f'):016x}", "x": 6, "y": 0.75}
    assert list(event.compared) == list(event.fields)
    assert [event.evidence(name) for name in ("n", "e", "d")] == [5, digest("e"), None]
    assert [cell.text for cell in event.cells[:1]] == ["5"] and Cell("n", COUNT, NONE).text == "none"
    assert event_of(rows, len(VALUES) + 1, [*skeleton, 5, ["z="], ["z=", "q"], [None, "i"]]) == event
    assert event_of(rows, len(VALUES) + 1, None) == event_of(rows, len(VALUES) + 1, []) == Event("", ())


@pytest.mark.parametrize(
    "row",
    [
        {"flags": RowFlag.RNG},
        {"flags": RowFlag.RNG, "inputs": [("outside", "o")]},
        {"flags": RowFlag.VALUE_BOOL},
        {"flags": RowFlag.VALUE_INTEGER},
        {"flags": RowFlag.VALUE_FLOAT},
        {"flags": RowFlag.VALUE_COMPLEX, "floats": [1.0]},
        {"inputs": [In(-1)]},
        {"inputs": [In(origin=min(Origin) - 1)]},  # type: ignore[arg-type]
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, row: dict[str, Any]) -> None:
    """A flag without its cell, or a link to before the first row: none of the rows is read."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", **row)
    with pytest.raises(HoleError, match="its rows are inconsistent"):
        open_trace(builder.finish()).processes[0].streams[0].read(0, 1)


def test_rows_without_events_are_hashed_whole(rows: Rows) -> None:
    """Where no row has evidence, every digest is."""
    ops = rows.cut(0, len(VALUES) + 1)
    assert ops.evidence is None
    assert ops.is_hashed.all()
    assert np.array_equal(ops.hashed[0], ops.digests)
    assert np.array_equal(ops.hashed[1], ops.digest_offsets)


def test_cut_and_joined(rows: Rows) -> None:
    """Rows cut anywhere and joined again are the same; a part's cells are its own."""
    for cut in range(len(rows) + 1):
        parts = [rows.cut(0, cut), rows.cut(cut, len(rows))]
        assert [part.first for part in parts] == [0, cut]
        joined = Rows.join(parts)
        assert joined.first == 0
        for name in ("columns", "links", "integers", "floats", "digests"):
            assert np.array_equal(getattr(joined, name), getattr(rows, name))
        assert [parts[1].outputs(i) for i in range(len(parts[1]))] == [rows.outputs(i) for i in range(cut, len(rows))]
