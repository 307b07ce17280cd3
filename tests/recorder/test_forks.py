"""Forked children: a part of the trace of their own from their first op on, whatever the parent was just doing."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from children import forked, in_thread
from recorded import Recorded

import rltrace
from rltrace.recorder import current_session
from rltrace.recorder.base.process_names import fork_name
from rltrace.recorder.session import session
from rltrace.trace.read.reader import Trace, open_trace


def ops_of(trace: Trace) -> dict[str, list[str]]:
    """Operators by process, with numbers as they come in a process that forks for other tests too."""
    found = {}
    for number, process in enumerate(trace.processes):
        found[process.name.partition(":")[0]] = Recorded(trace.path, process=number).ops
    return found


def test_names() -> None:
    """By how many children its parent has forked."""
    assert fork_name("rank0/main", 2) == "rank0/fork:2"
    assert fork_name("rank3/fork:2", 1) == "rank3/fork:2.1"
    assert fork_name("rank0/worker:1", 1) == "rank0/worker:1/fork:1"


@pytest.mark.parametrize("level", ["op", "step"])
def test_a_child_of_a_child(tmp_path: Path, level: str) -> None:
    """Whether or not the one in between has computed anything."""

    def grandchild() -> None:
        weight = torch.ones(2, requires_grad=True)
        weight.grad = torch.ones(2)  # autograd refuses a fork of a process in which it has threads
        torch.optim.SGD([weight]).step()

    with rltrace.record(tmp_path / "a.zarr", level=level):
        torch.ones(3).sin()
        assert forked(lambda: exec("assert forked(grandchild) == 0", {"forked": forked, "grandchild": grandchild})) == 0
    trace = open_trace(tmp_path / "a.zarr")
    last = trace.processes[-1]
    assert last.name.rpartition(":")[2].count(".") == 1
    assert (last.state, len(last.steps)) == ("complete", 1)
    assert [p.state for p in trace.processes] == ["complete"] * len(trace.processes)


def test_a_child_that_runs_no_op_leaves_its_start_record(tmp_path: Path) -> None:
    """It is named; a part of the trace would hold nothing."""
    with rltrace.record(tmp_path / "a.zarr"):
        torch.ones(3)
        assert forked(lambda: None) == 0
    trace = open_trace(tmp_path / "a.zarr")
    assert [p.name for p in trace.processes] == ["rank0/main"]
    (start_record,) = trace.unrecorded
    assert start_record.record["forked"] is True
    assert start_record.why == "it is a fork that ran no op"


def test_a_fork_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """The lock is held for ever in the child, by a thread that is not there: it neither hangs nor writes there."""
    with rltrace.record(tmp_path / "a.zarr"):
        torch.ones(3).sin()
        recording = current_session()
        committer, entered, leave = recording._committer, threading.Event(), threading.Event()
        write = committer._writer.commit

        def slow(*given: Any) -> None:
            entered.set()
            leave.wait()
            write(*given)

        committer._writer.commit = slow
        thread = threading.Thread(target=committer.flush)
        thread.start()
        entered.wait()
        assert forked(lambda: torch.ones(2).cos()) == 0
        leave.set()
        thread.join()
        torch.ones(3).tan()
    ops = ops_of(open_trace(tmp_path / "a.zarr"))
    assert ops == {"rank0/main": ["ones", "sin", "ones", "tan"], "rank0/fork": ["ones", "cos"]}


def test_a_fork_within_an_op(tmp_path: Path) -> None:
    """A kernel written in Python forks: the child is recorded from its next op on."""
    library = torch.library.Library("rltrace_forks", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    status = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        status.append(forked(lambda: torch.ones(2).cos()))
        return x.clone()

    library.impl("twice", twice, "CPU")
    with rltrace.record(tmp_path / "a.zarr"):
        torch.ops.rltrace_forks.twice(torch.ones(3)).sin()
    library._destroy()
    assert status == [0]
    ops = ops_of(open_trace(tmp_path / "a.zarr"))
    assert ops["rank0/main"][-1] == "sin"
    assert ops.get("rank0/fork", ["cos"])[-1] == "cos"


def test_a_fork_of_a_thread(tmp_path: Path) -> None:
    """The thread that forked is the child's main one."""
    with rltrace.record(tmp_path / "a.zarr"):
        torch.ones(3)
        in_thread(None, lambda: forked(lambda: torch.ones(2).cos()))
    assert ops_of(open_trace(tmp_path / "a.zarr")) == {"rank0/main": ["ones"], "rank0/fork": ["ones", "cos"]}


def test_a_child_under_a_mode_of_the_program(tmp_path: Path) -> None:
    """The recorder's mode stays below the program's own, as in the parent."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(func(*args, **(kwargs or {})))

    def child() -> None:
        assert torch.equal(x.sin(), torch.tensor([2.0]).sin().sin())

    x = torch.tensor([2.0])
    with rltrace.record(tmp_path / "a.zarr"), Doubling():
        assert forked(lambda: x.sin()) == 0
    assert ops_of(open_trace(tmp_path / "a.zarr"))["rank0/fork"] == ["sin", "sin"]


def test_modules_keep_their_names(tmp_path: Path) -> None:
    """What the parent has built is called in the child as in the parent."""
    net = None

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.body(x)
            return y

    with rltrace.record(tmp_path / "a.zarr"):
        net = Policy()
        net(torch.ones(2))
        assert forked(lambda: net(torch.ones(2))) == 0
    parts = [Recorded(tmp_path / "a.zarr", process=number) for number in (0, 1)]
    assert [part.one("tanh").module for part in parts] == ["Policy.body.0"] * 2


def test_a_trace_that_is_gone(tmp_path: Path) -> None:
    """The child computes on; the parent's failure is the parent's."""
    with rltrace.record(tmp_path / "a.zarr"):
        torch.ones(3)
        (tmp_path / "a.zarr" / "starts").rename(tmp_path / "elsewhere")
        assert forked(lambda: torch.ones(2).cos()) == 0
        (tmp_path / "elsewhere").rename(tmp_path / "a.zarr" / "starts")
    assert ops_of(open_trace(tmp_path / "a.zarr")) == {"rank0/main": ["ones"]}


def test_a_part_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """The child computes on, and the trace says why it is not recorded."""
    with rltrace.record(tmp_path / "a.zarr"):
        torch.ones(3)
        session.current.session._committer.flush()  # else the parent would, before it forks
        (tmp_path / "a.zarr" / "processes").rename(tmp_path / "elsewhere")
        assert forked(lambda: torch.ones(2).cos()) == 0
        (tmp_path / "elsewhere").rename(tmp_path / "a.zarr" / "processes")
    (start_record,) = open_trace(tmp_path / "a.zarr").unrecorded
    assert start_record.why.startswith("the recorder could not start: RecordError: ")


def test_a_child_that_no_pattern_matches_is_left_out(tmp_path: Path) -> None:
    """From its first op on it runs unrecorded, and so do its own children; the trace has its name."""

    def child() -> None:
        assert torch.ones(2).sin().shape == (2,)
        assert current_session() is None
        assert forked(lambda: torch.ones(2).cos()) == 0

    with rltrace.record(tmp_path / "a.zarr"):
        session.current.session.options = replace(session.current.session.options, processes=("*/main",))
        torch.ones(3).sin()
        assert forked(child) == 0
    trace = open_trace(tmp_path / "a.zarr")
    assert len(trace.processes) == 1
    assert [(one.name.partition(":")[0], one.state) for one in trace.unrecorded] == [("rank0/fork", "left-out")]


FORKING = """
import multiprocessing, os, sys
import torch

def threads():
    return len(os.listdir("/proc/self/task"))

def look():
    print(where, threads(), flush=True)

def fork(child=lambda: None):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def steps():
    fork()
    fork()
    torch.ones(3).sin()
    weight.grad = torch.ones(2)
    optimizer.step()
    print(where, "goes on", threads(), flush=True)
    fork()

def worker():
    global where
    where = "worker"
    steps()

where = "main"
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight])
os.register_at_fork(after_in_parent=look)
steps()
process = multiprocessing.get_context("fork").Process(target=worker)
process.start()
process.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads of a process are counted in Linux's files")
def test_a_program_without_threads_forks_without_threads(tmp_path: Path) -> None:
    """Python counts threads at a fork, and may warn: the recorder's pause, and go on with what follows."""
    (tmp_path / "fork.py").write_text(FORKING)
    line = [sys.executable, "-m", "rltrace", "record", "--quiet", "-o", "a.zarr", "--"]
    result = subprocess.run(
        [*line, sys.executable, "fork.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    # the worker has a thread for its parent's request to commit, too
    main, worker = (
        [f"{where} 1", f"{where} 1", f"{where} goes on {n}", f"{where} 1"] for where, n in (("main", 2), ("worker", 3))
    )
    assert result.stdout.splitlines() == [*main, "main 1", *worker]
    trace = open_trace(tmp_path / "a.zarr")
    assert {process.state for process in trace.processes} == {"complete"}
    assert all("sin" in ops for ops in ops_of(trace).values())
    assert [(process.name, len(process.steps)) for process in trace.processes] == [
        ("rank0/main", 1),
        ("rank0/worker:1", 1),
    ]
