"""What a profiler saw launched: packed behind the rows, read back as their kernels, compared, and damaged."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rltrace.commands.ops import command as ops_command
from rltrace.diff.compare import compare
from rltrace.extensions.archive.verify import verify
from rltrace.extensions.kernels.command import command
from rltrace.portable_keys import portable_key
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import create_trace, end_launch
from rltrace.trace.format.rows import Rows, TableEntry, empty_rows
from rltrace.trace.format.schema import FIRST_ENTRIES, TABLES, Column, Kind
from rltrace.trace.format.tables import Table
from rltrace.trace.kernels.evidence import LAUNCHES
from rltrace.trace.kernels.launches import NewLaunches, RecordedLaunches, Unknown, launches_record
from rltrace.trace.read import launched_calls
from rltrace.trace.read.launched_calls import seen_calls
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.writer import ProcessWriter

CUDA = {"device": "cuda"}


def evidence(*names: str) -> dict[str, Any]:
    return {**CUDA, "names": list(names), LAUNCHES: [[[8, 1, 1], [128, 1, 1]] for _ in names]}


def rows_of(count: int, kernel: int = 0, digests: Sequence[int] = ()) -> Rows:
    """So many ops, each with this kernel and these digests."""
    plain, columns = empty_rows(0), np.zeros((count, len(Column)), np.uint32)
    columns[:, Column.KIND], columns[:, Column.KERNEL], columns[:, Column.DIGESTS] = Kind.OP, kernel, len(digests)
    return Rows(0, columns, plain.links, plain.integers, plain.floats, np.array([*digests] * count, np.uint64))


def build(path: Path, kernels: Sequence[tuple[str, ...] | None], *, digest: int = 7, closed: bool = True) -> Path:
    """A trace of as many rows of one op; of each what it launched, None: not known. Written as the recorder does."""
    create_trace(path, {"command": ["program"], "options": {}})
    writer = ProcessWriter.open(path, {"name": "main", "token": write_start(path, {})})
    writer.facts("op", "dispatch", {"digest": "x"})
    number = writer.stream("main")
    writer.window(number, 0, None, 0)
    counts = dict.fromkeys(TABLES, 0)

    def entry(table: str, payload: object) -> TableEntry:
        counts[table] += 1
        return TableEntry(table, counts[table] - 1, portable_key(table.removesuffix("s"), payload), payload)

    first = [entry(*each) for each in FIRST_ENTRIES.items()]
    first += [entry("ops", "aten.mm.default"), entry("kernels", CUDA)]
    writer.commit(number, rows_of(len(kernels), kernel=1, digests=[digest]), first)
    known = {names: entry("kernels", evidence(*names)) for names in dict.fromkeys(filter(None, kernels))}
    ids = np.array([known[names].id if names else 0 for names in kernels], np.uint32)
    unknown = tuple(Unknown("not looked at", number, row, 1) for row, names in enumerate(kernels) if names is None)
    new = NewLaunches(number, 0, ids, unknown, (("lone", "cudaGraphLaunch", 3),))
    writer.commit_launches(list(known.values()), new)
    if closed:
        writer.close("complete", {})
        end_launch(path, {"status": 0})
    return path


def names(path: Path) -> list[Any]:
    process = open_trace(path).processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    payloads = process.tables["kernels"].payloads
    return [payloads[kernel].get("names") for kernel in rows.column(Column.KERNEL)]  # type: ignore[attr-defined]


def test_rows_get_what_was_launched_for_them(tmp_path: Path) -> None:
    """Row by row, whatever its kind of call; others keep what they were written with. The whole trace is sound."""
    path = build(tmp_path / "a.zarr", [("gemm",), ("gemm", "splitK"), None, ("gemm",)])
    assert names(path) == [["gemm"], ["gemm", "splitK"], None, ["gemm"]]
    assert verify(path).sound
    assert open_trace(path).processes[0].launches.strays == {("lone", "cudaGraphLaunch"): 3}


def test_ids_are_packed() -> None:
    """A loop's worth of rows takes less than a byte each, and is read piece by piece."""
    ids = np.tile(np.arange(1, 75, dtype=np.uint32), 111)
    record = launches_record(NewLaunches(0, 5, ids))
    assert len(json.dumps(record)) < len(ids) // 10
    launched = RecordedLaunches()
    launched.add(record)
    launched.add(launches_record(NewLaunches(0, 5 + len(ids), ids[:10])))
    table = Table("kernels", 100)
    table.present[:] = True
    rows = rows_of(len(ids) + 20)
    found = launched.apply(0, rows, table).column(Column.KERNEL)
    assert found.tolist() == [0] * 5 + ids.tolist() + ids[:10].tolist() + [0] * 5
    assert launched.apply(1, rows, table) is rows
    assert (launched.rows, launched.parts(0)) == (len(ids) + 10, [(5, len(ids)), (5 + len(ids), 10)])


def test_a_killed_recorder_leaves_rows_without_names(tmp_path: Path) -> None:
    """The record of names is the last: cut off, the rows are what they were."""
    path = build(tmp_path / "a.zarr", [("gemm",)], closed=False)
    journal = path / "processes" / "0" / "journal" / "log"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert names(path) == [None]
    assert not open_trace(path).holes


@pytest.mark.parametrize(
    "change",
    [{"rows": -1}, {"rows": 1 << 40}, {"stream": "0"}, {"unknown": [["why", 0, 1]]}, {"strays": [1]}, {"rows": 0}],
)
def test_a_record_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    """What it says is bounded before anything is made."""
    record = launches_record(NewLaunches(0, 0, np.ones(3, np.uint32)))
    with pytest.raises((ValueError, KeyError, TypeError)):
        RecordedLaunches().add({**record, **change})


def test_ids_that_lie_are_none() -> None:
    """Rows keep their kernels where ids are of entries that do not exist or of fewer rows than given."""
    launched = RecordedLaunches()
    launched.add({**launches_record(NewLaunches(0, 0, np.full(3, 99, np.uint32))), "rows": 3})
    launched.add({**launches_record(NewLaunches(0, 3, np.ones(3, np.uint32))), "rows": 4})
    table = Table("kernels", 2)
    assert not launched.apply(0, rows_of(7), table).column(Column.KERNEL).any()


def test_another_kernel_with_equal_bits_is_a_note(tmp_path: Path) -> None:
    """No difference; reported, listed by ``rltrace kernels A B``, with both names."""
    a = build(tmp_path / "a.zarr", [("ampere_sgemm_128x64_tn",)] * 3)
    b = build(tmp_path / "b.zarr", [("cutlass_80_tensorop_s1688gemm_128x128",)] * 3)
    found = compare(open_trace(a), open_trace(b))
    assert found.verdict == "identical"
    [other] = found.other_kernels
    assert (other.op, other.same_bits, other.a_index) == ("aten.mm.default", True, 0)
    text = CliRunner().invoke(command, [str(a), str(b)]).output
    assert "same bits" in text and "cutlass" in text


def test_one_that_ran_on_both_sides_is_none(tmp_path: Path) -> None:
    """Where one kind of call ran several kernels, one in common will do."""
    a = build(tmp_path / "a.zarr", [("one",), ("other",)])
    b = build(tmp_path / "b.zarr", [("other",), ("other",)])
    assert compare(open_trace(a), open_trace(b)).other_kernels == ()


def test_another_kernel_with_other_bits_is_the_cause(tmp_path: Path) -> None:
    """``kernel``, with both names."""
    a = build(tmp_path / "a.zarr", [("ampere_sgemm_128x64_tn",)] * 3)
    b = build(tmp_path / "b.zarr", [("cutlass_80_tensorop_s1688gemm_128x128",)] * 3, digest=8)
    first = compare(open_trace(a), open_trace(b)).first
    assert (first.cause, first.a_index) == ("kernel", 0)
    assert "ampere" in str(first.kernel) or "cuBLAS" in str(first.kernel)


def test_a_selector_finds_them_by_their_whole_names(tmp_path: Path) -> None:
    """``kernel=`` is compared with every name of a row; rows that are not known by name are not found."""
    path = build(tmp_path / "a.zarr", [("gemm", "splitKreduce_kernel"), ("gemm",), None])
    text = CliRunner().invoke(ops_command, [str(path), "kernel=splitK*"]).output
    assert text.count("aten.mm.default") == 1
    assert CliRunner().invoke(ops_command, [str(path), "kernel=gemm"]).output.count("aten.mm.default") == 2


def test_they_are_listed(tmp_path: Path) -> None:
    """Launches are listed by kind of call, with those of no row and those that are unknown."""
    path = build(tmp_path / "a.zarr", [("gemm",), ("gemm",), ("other",), None])
    text = CliRunner().invoke(command, [str(path)]).output
    assert "profiled: 4 rows" in text
    assert "gemm  (2 times)" in text and "other  (1 times)" in text
    assert "launched outside any row: 3" in text and "lone ×3, by cudaGraphLaunch" in text
    assert "Unknown for 1 row: not looked at" in text
    (process,) = json.loads(CliRunner().invoke(command, [str(path), "--format", "json"]).output)["processes"]
    assert process["launched"]["calls"][0]["ran"][0]["launches"] == [{"grid": [8, 1, 1], "block": [128, 1, 1]}]
    assert process["launched"]["unknown"] == [{"why": "not looked at", "stream": 0, "first": 3, "rows": 1}]


def test_calls_that_a_profiler_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distinct one with its first row and what ran, the most frequent first; in so many rows at most."""
    process = open_trace(build(tmp_path / "a.zarr", [None, ("j",), ("k",), ("k",)])).processes[0]
    [call] = seen_calls(process)
    assert (call.stream, call.row, call.times) == (0, 1, 3)
    assert [evidence["names"] for evidence in call.evidence(process)] == [["k"], ["j"]]
    process.launches.add(launches_record(NewLaunches(0, 9, np.ones(3, np.uint32))))  # of rows that are not there
    assert [call.times for call in seen_calls(process)] == [3]
    monkeypatch.setattr(launched_calls, "MAX_ROWS_READ", 2)
    assert [call.times for call in seen_calls(process)] == [1]


def test_calls_in_rows_that_are_lost(tmp_path: Path) -> None:
    """Calls in rows that are lost are not listed."""
    path = build(tmp_path / "a.zarr", [("k",)])
    process = open_trace(path).processes[0]
    (path / "processes/0/streams/0/cells/c.0").unlink()
    assert seen_calls(process) == []
