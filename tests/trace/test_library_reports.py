"""What libraries said that they ran: written behind the launch's end, read back as the kernels of rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format.journal import parse_journal
from rltrace.trace.format.root import JOURNAL, add_to_launch
from rltrace.trace.format.schema import Column
from rltrace.trace.kernels.library_reports import ReportedCall, call_keys, library_reports_record
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

MKL = {"library": "MKL", "isa": "auto", "threads": 1}


def build(path: Path) -> Path:
    """Five rows: two calls of one kind, the same with another number, on other threads, and an op of its own."""
    builder = TraceBuilder(path)
    for threads, integers in ((1, [1]), (1, [1]), (1, [2]), (2, [1])):
        builder.op("aten.mm.default", outputs=["x"], integers=integers, kernel={**MKL, "threads": threads})
    builder.op("aten.add.Tensor", outputs=["y"], kernel={"library": "ATen"})
    builder.end_step()
    return builder.finish()


def call_of(process: ProcessTrace, row: int, *names: str) -> ReportedCall:
    rows = process.streams[0].read(0, process.streams[0].rows)
    key, kernel = int(call_keys(rows, process.tables)[row]), int(rows.columns[row, Column.KERNEL])
    return ReportedCall(key, kernel, 0, row, 1, names, tuple(f"{name} in full" for name in names))


def kernels(path: Path) -> list[object]:
    """Names of what ran for each row; None: its library was not asked."""
    process = open_trace(path).processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    found = [process.tables["kernels"].payloads[number] for number in rows.column(Column.KERNEL)]
    return [each.get("names") for each in found if isinstance(each, dict)]


def test_rows_of_a_call_get_what_was_said_of_it(tmp_path: Path) -> None:
    """Those with the same operator, numbers and threads; the others keep what was written."""
    path = build(tmp_path / "a.zarr")
    process = open_trace(path).processes[0]
    calls = [call_of(process, 0, "SGEMM"), call_of(process, 4)]
    add_to_launch(path, [library_reports_record(0, {"MKL": "2024"}, calls, [("too large", 2)])])
    assert kernels(path) == [["SGEMM"], ["SGEMM"], None, None, []]
    process = open_trace(path).processes[0]
    assert list(process.library_reports.calls.values()) == calls
    assert (process.library_reports.libraries, process.library_reports.unknown) == ({"MKL": "2024"}, [("too large", 2)])
    rows = process.streams[0].read(0, 1)
    written = process.tables["kernels"].payloads[rows.columns[0, Column.KERNEL]]
    assert written == {**MKL, "names": ["SGEMM"], "reported": ["SGEMM in full"]}
    assert verify(path).sound


def test_asked_again_the_later_answer_counts(tmp_path: Path) -> None:
    """The later answer counts, and what was said of other calls stays."""
    path = build(tmp_path / "a.zarr")
    process = open_trace(path).processes[0]
    add_to_launch(path, [library_reports_record(0, {}, [call_of(process, 0, "one"), call_of(process, 2, "two")], [])])
    add_to_launch(path, [library_reports_record(0, {}, [replace(call_of(process, 0, "three"))], [])])
    assert kernels(path) == [["three"], ["three"], ["two"], None, None]


def test_a_call_has_one_key_in_every_trace(tmp_path: Path) -> None:
    """Whatever order things were interned in; another operator has another one."""
    one, two = build(tmp_path / "a.zarr"), tmp_path / "b.zarr"
    builder = TraceBuilder(two)
    builder.op("aten.add.Tensor", outputs=["z"], kernel={"library": "ATen"})
    builder.op("aten.mm.default", outputs=["w"], integers=[1], kernel=MKL)
    builder.finish()
    a, b = (open_trace(path).processes[0] for path in (one, two))
    assert [call_of(b, 0).key, call_of(b, 1).key] == [call_of(a, 4).key, call_of(a, 0).key]
    assert len({call_of(a, row).key for row in range(5)}) == 3


def test_a_record_that_makes_no_sense_is_damage(tmp_path: Path) -> None:
    """It is said, nothing of it is taken, and the rows read as they were written."""
    path = build(tmp_path / "a.zarr")
    good = library_reports_record(0, {}, [call_of(open_trace(path).processes[0], 0, "SGEMM")], [])
    for number, change in enumerate(
        (
            {"process": -1},
            {"calls": [["f" * 16, 0, 0, 0, 1, 7]]},
            {"calls": [[3, 0, 0, 0, 1, 0]]},
            {"said": 3},
            {"unknown": [["x", float("inf")]]},
        )
    ):
        other = build(tmp_path / f"{number}.zarr")
        add_to_launch(other, [{**good, **change}])
        assert "is inconsistent" in str(open_trace(other).holes), change
        assert kernels(other) == [None] * 5


def test_nothing_is_added_to_a_damaged_journal(tmp_path: Path) -> None:
    """Who knows what would be lost."""
    path = build(tmp_path / "a.zarr")
    log = path / JOURNAL
    data = bytearray(log.read_bytes())
    data[20] ^= 1
    log.write_bytes(data)
    with pytest.raises(Exception, match="damaged"):
        add_to_launch(path, [{"type": "library_reports"}])
    assert log.read_bytes() == data


def test_what_is_added_is_chained_to_what_was_there(tmp_path: Path) -> None:
    """A reader that does not know the new record still sees a whole journal."""
    path = build(tmp_path / "a.zarr")
    add_to_launch(path, [library_reports_record(0, {}, [], [])])
    journal = parse_journal((path / JOURNAL).read_bytes())
    assert (journal.damage, journal.torn) == ([], None)
    assert [record["type"] for record in journal.records][-2:] == ["exit", "library_reports"]
