"""An entry of a table is what its readers rely on, or it counts as lost."""

from typing import Any

import numpy as np
import pytest

from rltrace.trace.format.rows import TableEntry
from rltrace.trace.format.schema import TABLE_CHUNK
from rltrace.trace.format.tables import MAX_GAPS, KeyTables, fits, pack_lines, parse_tables, table_line

FRAME = {"file": "train.py", "line": 3, "function": "main", "source": "x()"}


@pytest.mark.parametrize(
    ("table", "payload"),
    [
        ("ops", "aten.mm.default"),
        ("layouts", ["float32", [2], [1], "cpu"]),
        ("layouts", ["float32", [2], "sparse_coo", "cpu", {"of": "later"}]),
        ("structures", []),
        ("frames", {**FRAME, "path": "/src/train.py"}),
        ("kernels", {}),
        ("kernels", {"names": ["gemm"]}),
        ("optimizers", {"ordinal": 0, "class": "Adam"}),
        ("series", {"kind": "item", "name": "loss"}),
        ("settings", 5),
        ("of a newer format", None),
    ],
)
def test_what_fits(table: str, payload: Any) -> None:
    """Entries that a writer writes, those with more in them, and those of tables that are not known."""
    assert fits(table, payload)


@pytest.mark.parametrize(
    ("table", "payload"),
    [
        ("ops", 5),
        ("modules", None),
        ("names", ["x"]),
        ("layouts", "float32"),
        ("layouts", ["float32", [2], [1]]),
        ("layouts", [32, [2], [1], "cpu"]),
        ("layouts", ["float32", 2, [1], "cpu"]),
        ("layouts", ["float32", [2], 1, "cpu"]),
        ("layouts", ["float32", [2], [1], 0]),
        ("structures", {}),
        ("sites", 0),
        ("scalars", "T"),
        ("frames", [FRAME]),
        *(("frames", {**FRAME, name: None}) for name in FRAME),
        ("kernels", []),
        ("kernels", {"names": "gemm"}),
        ("optimizers", {"ordinal": "0", "class": "Adam"}),
        ("optimizers", {"ordinal": 0}),
        ("series", {"kind": "item"}),
        ("series", {"kind": 1, "name": "loss"}),
    ],
)
def test_what_does_not(table: str, payload: Any) -> None:
    """Another type, or a field that is missing or of another type."""
    assert not fits(table, payload)


def lines(*entries: tuple[str, int, int, Any]) -> bytes:
    return b"".join(table_line(TableEntry(*entry)) for entry in entries)


def test_lost_entries() -> None:
    """A damaged line is one entry less; lists of ids that need it are lost with it."""
    data = lines(
        ("frames", 0, 11, FRAME),
        ("frames", 2, 12, FRAME),
        ("sites", 0, 21, [0, 2]),
        ("sites", 1, 22, [0, 1]),
        ("sites", 2, 23, [3]),
        ("sites", 3, 24, []),
        ("sites", 4, 11, [-1]),
        ("sites", 9, 25, []),
    )
    tables = parse_tables(
        data + b'["frames",1,\n["ops",0,"-1","x"]\n["ops",0,"%x","x"]\n["ops",0,"1","x"]\n' % (1 << 64),
        {"frames": 3, "sites": 9, "ops": 1},
    )
    frames, sites = tables["frames"], tables["sites"]
    assert frames.present.tolist() == [True, False, True]
    assert frames.ids == {11: 0, 12: 2}
    assert sites.present.tolist() == [True, False, False, True, False]
    assert sites.payloads == [[0, 2], None, None, [], None]
    assert [frames.lacks(np.array(ids, np.uint32)) for ids in ([0, 2], [0, 1], [2, 3], [])] == [None, 1, 3, None]
    assert (tables["ops"].payloads, tables["ops"].keys.tolist()) == (["x"], [1])
    assert tables["modules"].lacks(np.array([0], np.uint32)) == 0
    assert parse_tables(data, {})["frames"].payloads == []


def test_ids_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries have a limit for each line, lost ones included, so a false count or id takes no memory."""
    monkeypatch.setattr("rltrace.trace.format.tables.MAX_LOST", 5)
    data = lines(*(("ops", number, 7, "x") for number in (5 + MAX_GAPS * 4, 4 + MAX_GAPS * 4, 0)))
    assert len(parse_tables(data, {"ops": 1 << 40})["ops"]) == 5 + MAX_GAPS * 4


@pytest.mark.parametrize(
    ("sizes", "packed"),
    [
        ([], []),
        ([10], [10]),
        ([TABLE_CHUNK], [TABLE_CHUNK]),
        ([TABLE_CHUNK - 1, 1], [TABLE_CHUNK]),
        ([TABLE_CHUNK - 1, 2], [TABLE_CHUNK - 1, 2]),
        ([5, 2 * TABLE_CHUNK + 3, 7], [5, TABLE_CHUNK, TABLE_CHUNK, 10]),
        ([2 * TABLE_CHUNK + 3, TABLE_CHUNK - 3, 1], [TABLE_CHUNK, TABLE_CHUNK, TABLE_CHUNK, 1]),
    ],
)
def test_lines_are_packed_whole(sizes: list[int], packed: list[int]) -> None:
    """A chunk ends where the next line would not fit; only a line longer than a chunk is split."""
    given = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
    chunks = pack_lines(given)
    assert b"".join(chunks) == b"".join(given)
    assert list(map(len, chunks)) == packed


def test_ids_are_consecutive() -> None:
    """Keys are kept in the order of ids, however many; an id out of turn is refused."""
    tables = KeyTables()
    tables.extend(TableEntry("ops", number, 7 * number, None) for number in range(200))
    assert tables["ops"].keys.tolist() == [7 * number for number in range(200)]
    assert (tables.counts()["ops"], tables.counts()["sites"]) == (200, 0)
    with pytest.raises(ValueError, match="the next id of table ops is 200, not 5"):
        tables.extend([TableEntry("ops", 5, 1, None)])
