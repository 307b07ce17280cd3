"""What could not be recorded is said, whatever the verdict."""

from pathlib import Path

import pytest

from rltrace.diff import compare
from rltrace.diff.base.coverage import (
    coverage_notes,
    is_finished,
    merge_events,
    merge_marked,
    merge_structures,
    process_of,
    recorded_throughout,
    unfinished_text,
)
from rltrace.diff.base.model import EventSummary, Hunk, Structure, UninitialisedCount, Verdict
from rltrace.errors import HoleError
from rltrace.report.diff import verdict_document
from rltrace.report.info import describe, info_document
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace


def trace(path: Path, driver: bool = True, worker: bool = False, threads: str = "") -> Path:
    """A process that uses Ray, with a worker of Ray's or without, and threads that were there before."""
    builder = TraceBuilder(path)
    builder.op("aten.mm.default", outputs=["x"])
    if driver:
        builder.fact("ray.role", "driver")
    if threads:
        builder.fact("threads.before", threads)
    if worker:
        actor = builder.process("rank0/ray:Actor")
        actor.stream().op("aten.mm.default", outputs=["y"])
        actor.fact("ray.role", "worker")
    return builder.finish()


@pytest.mark.parametrize(
    ("driver", "worker", "said"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_workers_of_ray_that_were_not_recorded(tmp_path: Path, driver: bool, worker: bool, said: bool) -> None:
    """A note of the comparison, in info as well, with what to do about it; none where a worker is there."""
    a, b = (trace(tmp_path / name, driver, worker) for name in "ab")
    found = compare(a, b)
    assert len(found.notes) == said
    assert ("rltrace.environment()" in document_text(verdict_document(found))) is said
    assert ("missing  rank0/main uses Ray" in document_text(info_document(describe(open_trace(a))))) is said


def test_threads_that_ran_before(tmp_path: Path) -> None:
    """Reported once where both sides have the same ones."""
    a, b = trace(tmp_path / "a", False, threads="work"), trace(tmp_path / "b", False, threads="work")
    (note,) = compare(a, b).notes
    assert "are not recorded (work)" in note


def forking(path: Path, ops: list[str], beside: str = "") -> Path:
    """A stream of these ops, each of what the one before gave; ``beside``: from which row on others ran beside it."""
    builder = TraceBuilder(path)
    for number, op in enumerate(ops):
        given = [number - 1] if number else []
        builder.op(f"aten.{op}.default", inputs=given, outputs=[" ".join(ops[: number + 1])])
    if beside:
        builder.fact("threads.beside", beside)
    return builder.finish()


def test_ops_that_ran_beside_a_stream(tmp_path: Path) -> None:
    """A difference behind the first of them may be timing's alone, so it stays open and is shown; one before it, or
    in another stream, decides as ever, and equal rows are equal."""
    plain, other = ["ones", "sin", "cos", "tan"], ["ones", "sin", "exp", "tan"]
    note = "rank0/main/thread:x from row 0, rank0/main from row {}"
    a = forking(tmp_path / "a", plain, note.format(2))
    found = compare(a, forking(tmp_path / "b", other, note.format(1)))
    assert found.verdict is Verdict.UNKNOWN and found.system == ()
    assert "beside rank0/main from row 1 on (torch.jit.fork)" in found.why
    assert found.first.identical_before == 2
    assert "on separate threads" in document_text(info_document(describe(open_trace(a))))
    assert compare(a, forking(tmp_path / "c", plain, note.format(3))).verdict is Verdict.IDENTICAL
    late = [forking(tmp_path / name, ops, note.format(3)) for name, ops in (("d", plain), ("e", other))]
    assert compare(*late).verdict is Verdict.DIVERGED


def test_how_the_recorder_came_by_digests(tmp_path: Path) -> None:
    """By kernels or by torch operations, they are the same: in info, and no difference between two runs."""
    paths = []
    for name, said in (("a", "Triton 3.7.1"), ("b", "torch operations: triton is not installed")):
        builder = TraceBuilder(tmp_path / name)
        builder.op("aten.mm.default", outputs=["x"])
        builder.fact("digest.device", said)
        paths.append(builder.finish())
        assert said in document_text(info_document(describe(open_trace(paths[-1]))))
    assert compare(*paths).system == ()


@pytest.mark.parametrize(
    ("fact", "what"), [("modules.unknown", "Net (LookupError)"), ("stack.full", "rank0/main at row 7")]
)
def test_what_the_recorder_could_not_follow(tmp_path: Path, fact: str, what: str) -> None:
    """Said of the process, and no difference of the environment where one run has it and the other has not."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        builder = TraceBuilder(path)
        builder.op("aten.mm.default", outputs=["x"])
        if path is paths[0]:
            builder.fact(fact, what)
        builder.finish()
    found = compare(*paths)
    assert found.verdict is Verdict.IDENTICAL and found.system == ()
    (note,) = found.notes
    assert what in note
    assert what in " ".join(document_text(info_document(describe(open_trace(paths[0])))).split())


@pytest.mark.parametrize("spans", [0, 1, 4, 5, 7])
def test_steps_that_no_one_armed_the_run_for(tmp_path: Path, spans: int) -> None:
    """The first few spans of them by number, and how many more there are."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for number in range(spans):
        record = {"type": "asleep", "first_step": 10 * number, "end_step": 10 * number + 4}
        builder.main.writer.append(record)
    notes = list(coverage_notes(open_trace(builder.finish())))
    named = ", ".join(f"{10 * number}:{10 * number + 4}" for number in range(min(spans, 4)))
    more = {5: " and 1 more", 7: " and 3 more"}.get(spans, "")
    why = "of rank0/main are not recorded, as the run was not armed for them"
    assert notes == ([f"asleep: steps {named}{more} {why}"] if spans else [])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_that_never_woke(tmp_path: Path, processes: int) -> None:
    """Those without an op in a run that was asleep: the first by name, and how many more there are."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for number in range(1, processes):
        builder.process(f"rank0/worker:{number}")
    awake = builder.process("rank0/worker:awake")
    awake.stream().op("aten.mm.default", outputs=["x"])
    trace = open_trace(builder.finish())
    assert not list(coverage_notes(trace))
    trace.launch = {**trace.launch, "options": {"asleep": True}}
    more = f" and {processes - 1} more" if processes > 1 else ""
    why = "is recorded, as a process wakes when an optimizer step of it ends"
    assert list(coverage_notes(trace)) == [f"asleep: no op of rank0/main{more} {why}"]


@pytest.mark.parametrize("state", ["complete", "stopped", "killed"])
def test_how_a_process_ended(tmp_path: Path, state: str) -> None:
    """Whether its recording came to its end, and why a comparison ends with it otherwise."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["x"])
    process = open_trace(builder.finish(state)).processes[0]
    assert is_finished(process, "op") is is_finished(process, "step") is (state in ("complete", "stopped"))
    why = f" ({process.why})" if process.why else ""
    assert unfinished_text("B", process) == f"equal so far, but B is {process.state}{why}"
    assert recorded_throughout(process)


@pytest.mark.parametrize(("window", "throughout"), [((0, None), True), ((1, None), False), ((0, 3), False)])
def test_a_window_of_all_steps(tmp_path: Path, window: tuple[int, int | None], throughout: bool) -> None:
    """A window of all steps is a recording from beginning to end."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.window(*window)
    builder.op("aten.mm.default", outputs=["x"])
    assert recorded_throughout(open_trace(builder.finish()).processes[0]) is throughout


def test_a_damaged_process_that_ended(tmp_path: Path) -> None:
    """Its digests are all there, where the recorder did not give up; how it ended is said in words."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["x"])
    path = builder.finish(ending={"status": 1, "signal": "none"})
    process = open_trace(path).processes[0]
    assert process_of(process).exit == "status 1, signal none"
    for file in process.streams[0].segments[0].files:
        (path / "processes" / "0" / file.key).unlink()
    damaged = open_trace(path).processes[0]
    with pytest.raises(HoleError):
        damaged.streams[0].read(0, 1)
    assert damaged.state == "damaged"
    assert (is_finished(damaged, "op"), is_finished(damaged, "step")) == (True, False)
    damaged.mark_failed("the disk is full")
    assert not is_finished(damaged, "op")


def test_parts_add_up() -> None:
    """Counts of all streams, the first of their texts, and whether every one was read as a whole."""
    parts = [Structure(1, 2, 3, (), True, 4), Structure(10, 20, 30, (), False, 40)]
    assert merge_structures(parts) == Structure(11, 22, 33, (), False, 44)
    assert merge_structures(parts[:1]) == parts[0]
    hunks = tuple(Hunk("only-a", "rank0/main", 0, number, 1, 0, 0, "op") for number in range(70))
    assert merge_structures([Structure(70, 0, 0, hunks)] * 2).hunks == (*hunks, *hunks[:30])
    marked = [UninitialisedCount(1, 2, None, True, 3), UninitialisedCount(10, 20, "later", False, 30)]
    assert merge_marked(marked) == UninitialisedCount(11, 22, "later", False, 33)
    events = [EventSummary(0, None, False), EventSummary(2, "first"), EventSummary(3, "second")]
    assert merge_events(events) == EventSummary(5, "first", True)
    assert merge_events([*events, EventSummary(1, None, False)]) == EventSummary(6, "first", False)
