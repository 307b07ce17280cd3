"""The writer: what is committed can be read, whichever process is killed, whatever is full, whenever it happens."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from children import forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rltrace.errors import RecordError
from rltrace.extensions.archive.verify import verify
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.row_hashes import chain_digests, row_hashes
from rltrace.trace.format.rows import Rows, StepRecord, TableEntry
from rltrace.trace.format.schema import SEGMENT_CELLS, SEGMENT_ROWS, Column, Step, StepFlag
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.writer import ProcessWriter

SECTIONS = ("columns", "links", "integers", "floats", "digests")


def equal(a: Rows, b: Rows) -> bool:
    """Whether two stretches hold the same rows, floats compared as bits."""
    return a.first == b.first and all(getattr(a, s).tobytes() == getattr(b, s).tobytes() for s in SECTIONS)


def step(number: int, end_row: int) -> StepRecord:
    """A step that ends at a row."""
    return StepRecord(number, 0, 0, number, 0, 1, 10 * number, end_row, True, 1, 2, (3, 4, 5, 6))


def open_writer(trace: Path) -> ProcessWriter:
    """A writer with one stream and the entries that random rows need."""
    writer = ProcessWriter.open(trace, {"name": "rank0/main"})
    writer.stream("rank0/main")
    writer.commit(0, None, plain_entries())
    return writer


@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int]) -> None:
    """Random rows come back bit for bit, over any cuts, and every mark is the digest of its rows."""
    path = tmp_path_factory.mktemp("trace") / "a.zarr"
    create_trace(path, {})
    writer = open_writer(path)
    generator = np.random.default_rng(seed)
    parts: list[Rows] = []
    for size in sizes:
        parts.append(random_rows(generator, sum(map(len, parts)), size))
        writer.commit(0, parts[-1])
    writer.close("complete", {})
    process = open_trace(path).processes[0]
    whole, stream = Rows.join(parts), process.streams[0]
    assert equal(stream.read(0, stream.rows), whole)
    start, stop = sorted(generator.integers(0, len(whole) + 1, 2).tolist())
    assert equal(stream.read(start, stop), whole.cut(start, stop))
    marks = stream.marks.tolist()
    digests = chain_digests(row_hashes(whole, process.tables), [mark[0] for mark in marks])
    assert [tuple(mark[1:]) for mark in marks] == [tuple(d) for d in digests]


def test_a_batch_larger_than_a_segment_is_split(trace: Path) -> None:
    """Rows past SEGMENT_ROWS begin another segment; marks stand at the multiples all the same."""
    writer = open_writer(trace)
    rows = random_rows(np.random.default_rng(0), 0, SEGMENT_ROWS + 10_000)
    writer.commit(0, rows, (), [step(0, 100), step(1, SEGMENT_ROWS + 500)])
    writer.close("complete", {})
    process = open_trace(trace).processes[0]
    stream = process.streams[0]
    assert [segment.rows for segment in stream.segments] == [SEGMENT_ROWS, 10_000]
    assert equal(stream.read(0, stream.rows), rows)
    assert stream.marks[:, 0].tolist() == [*range(0, SEGMENT_ROWS + 10_000, 4096), SEGMENT_ROWS + 10_000]
    assert verify(trace).sound


def test_a_batch_with_more_cells_than_a_segment_is_split(trace: Path) -> None:
    """Wide rows fill the cells before the rows run out."""
    writer = open_writer(trace)
    columns = np.zeros((5, len(Column)), np.uint32)
    columns[:, Column.KIND] = 1
    columns[:, Column.DIGESTS] = SEGMENT_CELLS // 2
    digests = np.arange(5 * (SEGMENT_CELLS // 2), dtype=np.uint64)
    empty = np.zeros(0, np.int64)
    rows = Rows(0, columns, empty, empty, np.zeros(0), digests)
    writer.commit(0, rows)
    stream = open_trace(trace).processes[0].streams[0]
    assert [segment.rows for segment in stream.segments] == [2, 2, 1]
    assert equal(stream.read(0, 5), rows)


def test_a_row_wider_than_a_segment_is_refused(trace: Path) -> None:
    """A row that no segment could hold is an error, not a broken trace."""
    writer = open_writer(trace)
    columns = np.ones((1, len(Column)), np.uint32)
    columns[0, Column.LINKS :] = 0, 0, 0, SEGMENT_CELLS + 1
    empty = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="more than"):
        writer.commit(0, Rows(0, columns, empty, empty, np.zeros(0), np.zeros(SEGMENT_CELLS + 1, np.uint64)))
    assert verify(trace).sound


def test_steps_wait_for_their_rows(trace: Path) -> None:
    """A step may be given before its last row is; it is written with that row, in the order of ending."""
    writer = open_writer(trace)
    rows = random_rows(np.random.default_rng(0), 0, 30)
    writer.commit(0, rows.cut(0, 10), (), [step(0, 10), step(1, 25), step(2, 25)])
    assert len(open_trace(trace).processes[0].steps) == 1
    writer.commit(0, rows.cut(10, 30))
    writer.close("complete", {})
    process = open_trace(trace).processes[0]
    assert process.steps[:, Step.END_ROW].tolist() == [10, 25, 25]
    digests = chain_digests(row_hashes(rows, process.tables), [10, 25])
    assert process.steps[:2, Step.PREFIX_VALUES].tolist() == [d.values for d in digests]
    assert process.steps[1, Step.VALUES] == chain_digests(row_hashes(rows.cut(10, 25), process.tables), [15])[0].values
    assert verify(trace).sound


def test_a_step_whose_rows_never_came(trace: Path) -> None:
    """At the end it is written as not recorded, up to the rows there are."""
    writer = open_writer(trace)
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 5), (), [step(0, 99)])
    writer.close("stopped", {"why": "asked to"})
    process = open_trace(trace).processes[0]
    assert process.steps[0, [Step.END_ROW, Step.FLAGS]].tolist() == [5, StepFlag.DIGESTED]
    assert (process.state, process.why) == ("stopped", "asked to")


def test_a_step_that_comes_too_late_is_refused(trace: Path) -> None:
    """Digests at rows that are long written cannot be had any more."""
    writer = open_writer(trace)
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 5))
    with pytest.raises(ValueError, match="written already"):
        writer.commit(0, None, (), [step(0, 3)])


def test_steps_of_a_stream_without_rows(trace: Path) -> None:
    """At step level there are steps alone."""
    writer = open_writer(trace)
    steps = [StepRecord(i, 0, 0, i, 2, 1, 0, 0, False, 7, 8, (9, 9, 9, 9)) for i in range(3000)]
    writer.commit(0, None, (), steps)
    writer.close("complete", {})
    found = open_trace(trace).processes[0].steps
    assert found[:, Step.STEP].tolist() == list(range(3000))
    assert found[0, Step.STRUCTURE] == 0
    assert verify(trace).sound


def test_rows_must_follow_on(trace: Path) -> None:
    """A gap or an overlap is a mistake of the caller's and stops the recording."""
    writer = open_writer(trace)
    with pytest.raises(ValueError, match="the next is not row 3"):
        writer.commit(0, random_rows(np.random.default_rng(0), 3, 5))
    with pytest.raises(RecordError, match="stopped before"):
        writer.commit(0, random_rows(np.random.default_rng(0), 0, 5))


def test_long_table_lines_and_many_chunks(trace: Path) -> None:
    """An entry longer than a chunk, and more entries than one chunk holds, come back."""
    writer = ProcessWriter.open(trace, {"name": "main"})
    payloads = ["x" * 600_000, *(f"module.{i}.{'y' * 300}" for i in range(2000))]
    writer.stream("main")
    writer.commit(0, None, [TableEntry("modules", i, i + 1, payload) for i, payload in enumerate(payloads)])
    writer.commit(0, None, [TableEntry("modules", len(payloads), 5, "last")])
    process = open_trace(trace).processes[0]
    assert process.tables["modules"].payloads == [*payloads, "last"]
    assert process.tables["modules"].keys.tolist() == [*range(1, len(payloads) + 1), 5]
    assert verify(trace).sound


RACER = """
import sys
from pathlib import Path
from rltrace.testing import plain_entries
from rltrace.trace.write.writer import ProcessWriter
for line in sys.stdin:
    writer = ProcessWriter.open(Path(line.strip()), {"name": "rank0/main"})
    writer.stream(writer.name)
    writer.commit(0, None, plain_entries())
    writer.close("complete", {})
    print(writer.name, flush=True)
"""


def test_two_processes_open_one_trace_at_once(tmp_path: Path, script: Callable[..., object]) -> None:
    """Twenty times two processes start together: each has a name and a folder of its own."""
    racers = [script(RACER), script(RACER)]
    for i in range(20):
        path = tmp_path / f"{i}.zarr"
        create_trace(path, {})
        for racer in racers:
            racer.stdin.write(f"{path}\n")
            racer.stdin.flush()
        names = {racer.stdout.readline().strip() for racer in racers}
        assert names == {"rank0/main", "rank0/main#2"}
        trace = open_trace(path)
        assert {process.name for process in trace.processes} == names
        assert all(process.state == "complete" for process in trace.processes)
        assert verify(path).sound


ENDLESS = """
import sys
from pathlib import Path
import numpy as np
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.write.writer import ProcessWriter
writer = ProcessWriter.open(Path(sys.argv[1]), {"name": "rank0/main"})
writer.stream("rank0/main")
writer.commit(0, None, plain_entries())
first = 0
while True:
    writer.commit(0, random_rows(np.random.default_rng(first), first, 50))
    first += 50
    print(first, flush=True)
"""


@pytest.mark.parametrize("commits", [1, 9])
def test_killed_writer_leaves_a_prefix(trace: Path, script: Callable[..., object], commits: int) -> None:
    """After SIGKILL at any moment all that was committed is there, unchanged, and nothing else."""
    process = script(ENDLESS, trace)
    committed = 0
    for _ in range(commits):
        committed = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = open_trace(trace).processes[0]
    stream = found.streams[0]
    assert stream.rows >= committed
    assert stream.rows % 50 == 0
    for first in range(0, stream.rows, 50):
        assert equal(stream.read(first, first + 50), random_rows(np.random.default_rng(first), first, 50))
    assert found.state == "killed"
    assert f"after op {stream.rows}" in str(found.why)
    assert verify(trace).sound


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from rltrace.errors import RecordError
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.write.writer import ProcessWriter
writer = ProcessWriter.open(Path(sys.argv[1]), {"name": "rank0/main"})
writer.stream("rank0/main")
writer.commit(0, random_rows(np.random.default_rng(0), 0, 50), plain_entries())
first, limit = 50, 100_000
if sys.argv[2] == "journal":
    while first < 500:
        writer.commit(0, random_rows(np.random.default_rng(first), first, 50))
        first += 50
    limit = max(log.stat().st_size for log in Path(sys.argv[1]).rglob("journal/log")) + 8  # of the next frame
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    while True:
        writer.commit(0, random_rows(np.random.default_rng(first), first, 50 if sys.argv[2] == "journal" else 20_000))
        first += 50
except RecordError as error:
    print(first, error.errno, error, flush=True)
try:
    writer.commit(0, None, plain_entries())
except RecordError as error:
    print(error)
try:
    writer.close("stopped", {"why": "no room"})
    print("closed")
except RecordError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("what", ["chunk", "journal"])
def test_no_room_is_one_error_and_costs_nothing_written(trace: Path, script: Callable[..., object], what: str) -> None:
    """When a chunk or the journal cannot grow, the error says why and everything before it reads right."""
    out, err = script(FULL, trace, what).communicate()
    lines = out.splitlines()
    assert not err
    rows, number = map(int, lines[0].split()[:2])
    assert number == errno.EFBIG
    assert "stopped before" in lines[1]
    assert lines[2] == ("closed" if what == "chunk" else str(errno.EFBIG))
    found = open_trace(trace).processes[0]
    assert found.streams[0].rows == rows
    assert found.state == ("stopped" if what == "chunk" else "killed")
    assert verify(trace).sound
    assert not list(trace.rglob("*.partial"))


def test_a_trace_that_is_gone(trace: Path, tmp_path: Path) -> None:
    """A process that starts after its trace was removed gets an error that says so, as one whose folder vanishes."""
    with pytest.raises(RecordError) as missing:
        ProcessWriter.open(tmp_path / "none.zarr", {"name": "main"})
    assert missing.value.errno == errno.ENOENT
    writer = open_writer(trace)
    (trace / "processes").rename(tmp_path / "elsewhere")
    with pytest.raises(RecordError) as vanished:
        writer.commit(0, random_rows(np.random.default_rng(0), 0, 5))
    assert vanished.value.errno == errno.ENOENT


def test_a_folder_that_takes_no_files(trace: Path) -> None:
    """Where a file stands in the place of the folder, not even root can open a process."""
    (trace / "processes" / "zarr.json").unlink()
    (trace / "processes").rmdir()
    (trace / "processes").write_text("")
    with pytest.raises(RecordError, match="cannot be written") as refused:
        ProcessWriter.open(trace, {"name": "main"})
    assert refused.value.errno == errno.ENOTDIR


def test_a_forked_child_does_not_write(trace: Path) -> None:
    """A fork's copy of the writer refuses, and its end is not the parent's."""
    writer = open_writer(trace)

    def child() -> None:
        writer.close("complete", {})
        with pytest.raises(RecordError):
            writer.commit(0, random_rows(np.random.default_rng(0), 0, 5))

    assert forked(child) == 0
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 5))
    assert open_trace(trace).processes[0].state == "running"
    writer.close("complete", {})
    writer.close("stopped", {})
    assert open_trace(trace).processes[0].state == "complete"
    with pytest.raises(RecordError, match="has ended"):
        writer.commit(0, None, plain_entries())


AT_EXIT = """
import atexit, sys
from pathlib import Path
import numpy as np
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.write.writer import ProcessWriter
writer = ProcessWriter.open(Path(sys.argv[1]), {"name": "rank0/main"})
class Last:
    def __del__(self):
        writer.commit(0, random_rows(np.random.default_rng(50), 50, 50))
        writer.close("complete", {"status": 0})
def ending():
    writer.stream("rank0/main")
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 50), plain_entries())
    print(sorted({"zarr", "torch"} & set(sys.modules)))
atexit.register(ending)
last = Last()
"""


def test_writes_while_the_interpreter_shuts_down(trace: Path, script: Callable[..., object]) -> None:
    """The very first chunk may be written at exit, the last one later still; neither zarr nor torch comes in."""
    out, err = script(AT_EXIT, trace).communicate()
    assert (out.strip(), err) == ("[]", "")
    process = open_trace(trace).processes[0]
    assert (process.state, process.after_op) == ("complete", 100)
    assert verify(trace).sound


def test_threads_share_a_writer(trace: Path, batches: Callable[[int, int], Iterator[Rows]]) -> None:
    """Streams of several threads, written at the same time, don't get into each other's way."""
    import threading

    writer = open_writer(trace)
    numbers = [0, *(writer.stream(f"rank0/main/thread:{i}") for i in range(3))]

    def work(number: int) -> None:
        for rows in batches(number, 8):
            writer.commit(number, rows)

    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close("complete", {})
    for stream in open_trace(trace).processes[0].streams:
        assert equal(stream.read(0, stream.rows), Rows.join(list(batches(stream.index, 8))))
    assert verify(trace).sound


FLAT = """
import sys
from pathlib import Path
import numpy as np
from dataclasses import replace
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.writer import ProcessWriter
def resident():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS")).split()[1])
writer = ProcessWriter.open(Path(sys.argv[1]), {"name": "main"})
writer.stream("main")
writer.commit(0, None, plain_entries())
rows = random_rows(np.random.default_rng(0), 0, 20_000)
for i in range(50):
    writer.commit(0, replace(rows, first=i * len(rows)))
    if i == 4:
        early = resident()
print(early, resident())
stream = open_trace(Path(sys.argv[1])).processes[0].streams[0]
for i in range(50):
    stream.read(i * len(rows), (i + 1) * len(rows))
    if i == 4:
        early = resident()
print(early, resident())
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads resident memory from /proc")  # noqa: PTH110
def test_memory_is_flat(trace: Path, script: Callable[..., object]) -> None:
    """Ten times the rows written, or read, take the same resident memory within a tenth."""
    out, err = script(FLAT, trace).communicate()
    assert not err
    for line in out.splitlines():
        early, late = map(int, line.split())
        assert late <= early * 1.1


DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "trace-format.md"


def test_zarr_sees_every_array(written: tuple[Path, Rows]) -> None:
    """Rows, cells, tables and steps read by zarr are those read here, chunk by chunk (warnings are errors)."""
    path, _ = written
    group = zarr.open_group(str(path), mode="r")
    process = open_trace(path).processes[0]
    stream = process.streams[0]
    rows, cells = group["processes/0/streams/0/rows"], group["processes/0/streams/0/cells"]
    assert rows.shape[0] == len(stream.segments) * SEGMENT_ROWS
    for segment in stream.segments:
        own = stream.read_segment(segment)
        start = segment.chunk * SEGMENT_ROWS
        assert np.array_equal(rows[start : start + segment.rows], own.columns)
        assert not rows[start + segment.rows : start + SEGMENT_ROWS].any()
        start = segment.chunk * SEGMENT_CELLS
        found = cells[start : start + sum(segment.sections)]
        wanted = [own.links, own.integers, own.floats, own.digests]
        assert found.tobytes() == b"".join(section.tobytes() for section in wanted)
    text = bytes(group["processes/0/tables"][:]).replace(b"\0", b"")
    assert text.count(b"\n") == sum(len(table) for table in process.tables.values())


def test_zarr_sees_steps(sample: Path) -> None:
    """The rows of steps that are no padding are the steps."""
    steps = zarr.open_group(str(sample), mode="r")["processes/0/steps"][:]
    assert np.array_equal(steps[steps[:, Step.PREFIX_STRUCTURE] != 0], open_trace(sample).processes[0].steps)


def test_zarr_walks_the_whole_tree(sample: Path) -> None:
    """Listing everything in a trace warns of nothing, files that are no arrays included."""
    names = {name for name, _ in zarr.open_group(str(sample), mode="r").members(max_depth=None)}
    assert {"journal", "starts", "processes/0/tables", "processes/0/streams/1/cells"} <= names


def test_the_script_of_the_document_reads_a_trace(sample: Path) -> None:
    """The script in docs/reference/trace-format.md prints every row with nothing but zarr and NumPy."""
    text = DOCUMENT.read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script[1], str(sample)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 14
    assert lines[0].split()[:3] == ["0", "0", "aten.mm.default"]
    first = open_trace(sample).processes[0].streams[0].read(0, 1)
    assert lines[0].endswith(" ".join(f"{digest:016x}" for digest in first.digests.tolist()))
