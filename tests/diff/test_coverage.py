"""What could not be recorded is said, whatever the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.diff import compare
from rltrace.diff.base.coverage import coverage_notes
from rltrace.diff.base.model import Verdict
from rltrace.report.diff_text import render_comparison
from rltrace.report.info import describe, info_text
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
def test_workers_of_ray_that_nobody_recorded(tmp_path: Path, driver: bool, worker: bool, said: bool) -> None:
    """A note of the comparison, in info as well, with what to do about it; none where a worker is there."""
    a, b = (trace(tmp_path / name, driver, worker) for name in "ab")
    found = compare(a, b)
    assert len(found.notes) == said
    assert ("rltrace.environment()" in render_comparison(found, color=False)) is said
    assert ("missing   rank0/main uses Ray" in info_text(describe(open_trace(a)))) is said


def test_threads_that_ran_before(tmp_path: Path) -> None:
    """Told once where both sides have the same ones."""
    a, b = trace(tmp_path / "a", False, threads="work"), trace(tmp_path / "b", False, threads="work")
    (note,) = compare(a, b).notes
    assert "are not recorded (work)" in note


def forking(path: Path, ops: list[str], beside: str = "") -> Path:
    """A stream of these ops, each of what the one before gave; ``beside``: from which row on others ran beside it."""
    builder = TraceBuilder(path)
    for number, op in enumerate(ops):
        builder.op(f"aten.{op}.default", inputs=[number - 1] if number else [], outputs=[f"{op}{number}"])
    if beside:
        builder.fact("threads.beside", beside)
    return builder.finish()


def test_ops_that_ran_beside_a_stream(tmp_path: Path) -> None:
    """A difference behind the first of them may be timing's alone, so it stays open and is shown; one before it, or
    in another stream, decides as ever, and equal rows are equal."""
    plain, other = ["ones", "sin", "cos", "tan"], ["ones", "sin", "exp", "tan"]
    told = "rank0/main/thread:x from row 0, rank0/main from row {}"
    a = forking(tmp_path / "a", plain, told.format(2))
    found = compare(a, forking(tmp_path / "b", other, told.format(1)))
    assert found.verdict is Verdict.UNKNOWN and found.system == ()
    assert "beside rank0/main from row 1 on (torch.jit.fork)" in found.why
    assert found.first is not None and found.first.identical_before == 2
    assert "on separate threads" in info_text(describe(open_trace(a)))
    assert compare(a, forking(tmp_path / "c", plain, told.format(3))).verdict is Verdict.IDENTICAL
    late = [forking(tmp_path / name, ops, told.format(3)) for name, ops in (("d", plain), ("e", other))]
    assert compare(*late).verdict is Verdict.DIVERGED


def test_how_the_recorder_came_by_digests(tmp_path: Path) -> None:
    """By kernels or by torch operations, they are the same: in info, and no difference between two runs."""
    paths = []
    for name, said in (("a", "Triton 3.7.1"), ("b", "torch operations: triton is not installed")):
        builder = TraceBuilder(tmp_path / name)
        builder.op("aten.mm.default", outputs=["x"])
        builder.fact("digest.device", said)
        paths.append(builder.finish())
        assert said in info_text(describe(open_trace(paths[-1])))
    assert compare(*paths).system == ()


def test_which_engine_recorded(tmp_path: Path) -> None:
    """Rows of both are the same, so it is no difference between two runs."""
    paths = []
    for name, facts in (("a", {"native": True, "native.ops": 9}), ("b", {"native": False, "native.why_not": "none"})):
        builder = TraceBuilder(tmp_path / name)
        builder.op("aten.mm.default", outputs=["x"])
        for fact, value in facts.items():
            builder.fact(f"engine.{fact}", value)
        paths.append(builder.finish())
    found = compare(*paths)
    assert (found.verdict, found.system, found.notes) == (Verdict.IDENTICAL, (), ())


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
    assert what in " ".join(info_text(describe(open_trace(paths[0]))).split())


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
