"""Streams: one per thread that dispatches an op, named by the thread."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
import torch
from children import in_thread, run_threads
from recorded import Record, Recorded
from torch import nn

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.coverage import coverage_notes
from rltrace.diff.base.model import Verdict
from rltrace.diff.happened_before import HappenedBefore, Instant
from rltrace.extensions.archive.verify import verify
from rltrace.trace.format.schema import Origin, Step, StepFlag
from rltrace.trace.read.reader import open_trace


def names(got: Recorded) -> list[str]:
    return [stream.name for stream in got.process.streams]


def other(got: Recorded, name: str) -> Recorded:
    return Recorded(got.path, f"rank0/main/thread:{name}")


def test_a_threads_ops_are_between_its_start_and_its_join(record: Record) -> None:
    """Those of the thread that starts it before these happened before them, those after happened after them."""
    with record.block() as got:
        torch.ones(2)
        in_thread("other", lambda: torch.ones(2))
        torch.ones(2)
    happened = HappenedBefore(open_trace(got.path))
    first, last, other_row = Instant("rank0/main", 0), Instant("rank0/main", 1), Instant("rank0/main/thread:other", 0)
    assert happened.orders(first, other_row) and happened.orders(other_row, last)
    assert not happened.orders(other_row, first) and not happened.orders(last, other_row)


def test_a_threads_ops_are_in_its_own_stream(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the thread; the main stream has none of them. One that runs no op has no stream. An exception goes
    to the thread's own hook, as unrecorded."""

    def work() -> None:
        torch.ones(2).cos()
        torch.ones(2).view(3)  # raises

    caught: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: caught.append(args.exc_type))
    with record.block() as got:
        torch.ones(2).sin()
        in_thread("actor-3", work)
        in_thread("idle", lambda: None)
        torch.ones(2).tan()
    assert caught == [RuntimeError]
    assert names(got) == ["rank0/main", "rank0/main/thread:actor-3"]
    assert got.ops == ["ones", "sin", "ones", "tan"]
    thread = other(got, "actor-3")
    assert thread.ops == ["ones", "cos", "ones"]
    assert thread.one("cos").line == "torch.ones(2).cos()"
    assert thread.one("cos").stack[-1]["function"] != "run"


def test_a_second_thread_of_one_name_has_a_number(record: Record) -> None:
    """In the order in which they were started, whichever computes first."""
    turns = [threading.Event() for _ in range(4)]
    turns[-1].set()

    def work(width: int) -> None:
        turns[width].wait()  # the last one is the first to compute
        torch.ones(width).sin()
        turns[width - 1].set()

    with record.block() as got:
        run_threads(*(threading.Thread(target=work, args=(width,), name="worker") for width in (1, 2, 3)))
    base = "rank0/main/thread:worker"
    assert sorted(names(got)) == ["rank0/main", base, f"{base}#2", f"{base}#3"]
    widths = [Recorded(got.path, name).one("sin").layouts[0][1] for name in sorted(names(got))[1:]]
    assert widths == [[1], [2], [3]]


class Learner(threading.Thread):
    def run(self) -> None:
        torch.ones(2).cos()


def act(width: int) -> None:
    torch.ones(width).sin()


def test_a_name_that_python_made_up_is_what_the_thread_runs(record: Record) -> None:
    """Its number counts threads that have nothing to do with the program, and those of an earlier recording."""

    def program() -> None:
        threads = [threading.Thread(target=act, args=(1,)), threading.Thread(target=partial(act, 2)), Learner()]
        renamed = threading.Thread(target=lambda: setattr(threading.current_thread(), "name", "own") or act(3))
        for thread in (*threads, renamed, threading.Thread(target=act, args=(4,), name="Thread-safe")):
            run_threads(thread)

    expected = ["thread:act", "thread:act#2", "thread:Learner", "thread:own", "thread:Thread-safe"]
    for _ in range(2):
        assert names(record(program)) == ["rank0/main", *(f"rank0/main/{name}" for name in expected)]
    assert threading.Thread.start.__module__ == "threading"


def test_a_pools_thread_is_distinguished_from_others(record: Record) -> None:
    """Of both kinds of pool in the standard library: which task runs on which thread is a matter of timing."""
    with record.block() as got:
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
            assert list(pool.map(lambda i: (torch.ones(1) * i).item(), range(3))) == [0.0, 1.0, 2.0]
        with ThreadPool(1) as pool:
            pool.apply(lambda: torch.ones(2).cos())
    first, second = names(got)[1:]
    assert first == "rank0/main/pool:loader_0"
    assert [row.value for row in Recorded(got.path, first).named("_local_scalar_dense")] == [0.0, 1.0, 2.0]
    assert second.startswith("rank0/main/pool:")


def test_what_another_thread_wrote_is_unknown_and_read(record: Record) -> None:
    """Nothing orders two threads: no link crosses, the bytes are digested, and a write ends what was known."""
    box: list[torch.Tensor] = []
    with record.block() as got:
        in_thread("maker", lambda: box.append(torch.ones(3).sin()))
        box[0] + 1
        box[0].mul_(2)
        box[0] + 2
        in_thread("writer", lambda: box[0].add_(5))
        box[0] + 3
    first, second, third = (row.inputs[0] for row in got.named("add"))
    assert (first.origin, first.digest) == (Origin.UNKNOWN, other(got, "maker").one("sin").outputs[0])
    assert second.row == got.one("mul_").index
    assert (third.origin, third.digest) == (Origin.UNKNOWN, other(got, "writer").one("add_").outputs[0])


def test_a_backward_in_a_thread_has_its_modules_there(record: Record) -> None:
    """Sequence numbers of autograd nodes are per thread; so are the stacks of modules."""

    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        nn.Sequential(nn.Tanh())(x).sum().backward()

    with record.block() as got:
        in_thread("learner", work)
        nn.Sequential(nn.Sigmoid())(torch.ones(2, requires_grad=True)).sum().backward()
    assert other(got, "learner").one("tanh_backward").module == "Sequential.0"
    assert got.one("sigmoid_backward").module == "Sequential#2.0"


def test_a_step_made_by_a_thread_is_that_streams(record: Record) -> None:
    """Its end counts rows of the thread's stream."""
    p = nn.Parameter(torch.ones(2))

    def work() -> None:
        p.grad = torch.ones(2)
        torch.optim.SGD([p], lr=0.1, foreach=False).step()

    got = record(lambda: in_thread("learner", work))
    (step,) = got.steps
    thread = other(got, "learner")
    assert step[Step.STREAM] == thread.stream.index
    assert step[Step.END_ROW] == sum(row.step == 0 for row in thread.rows) > 1


def test_steps_of_several_threads_are_in_the_order_of_their_end(record: Record) -> None:
    """Whichever stream they belong to; no number stands twice, and what was written is whole."""
    together = threading.Barrier(3)

    def work() -> None:
        layer = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(20):
            layer(torch.ones(2, 3)).sum().backward()
            together.wait()
            optimizer.step()
            rltrace.step()

    with record.block() as got:
        run_threads(*(threading.Thread(target=work, name=f"worker-{number}") for number in range(3)))
    assert got.process.steps[:, Step.STEP].tolist() == list(range(120))
    assert verify(got.path).damage == ()


def test_many_threads_at_once_leave_whole_streams(record: Record) -> None:
    """Each thread's rows are its own ops in order, whatever the others do at the same time."""

    def work(number: int) -> None:
        x = torch.full((4,), float(number))
        for i in range(150):
            x = x.mul(float(i)).add_(number)
            if i % 40 == 0:
                x.sum().item()

    with record.block() as got:
        run_threads(*(threading.Thread(target=work, args=(n,), name=f"t{n}") for n in range(6)))
    for number in range(6):
        thread = other(got, f"t{number}")
        assert [row.floats for row in thread.named("mul")] == [[float(i)] for i in range(150)]
        assert {tuple(row.integers) for row in thread.named("add_")} == {(number,)}
        muls = thread.named("mul")
        assert all(row.inputs[0].row is not None for row in muls)


def test_a_thread_that_outlives_the_block_computes_on(tmp_path: Path) -> None:
    """Its later ops are no rows, and nothing happens to it."""
    go, done = threading.Event(), threading.Event()
    results: list[float] = []

    def work() -> None:
        torch.ones(2).sin()
        done.set()
        go.wait()
        results.append(torch.ones(2).cos().sum().item())

    with rltrace.record(tmp_path / "a.zarr"):
        thread = threading.Thread(target=work, name="late")
        thread.start()
        done.wait()
    go.set()
    thread.join()
    assert results == [torch.ones(2).cos().sum().item()]
    assert Recorded(tmp_path / "a.zarr", "rank0/main/thread:late").ops == ["ones", "sin"]


def test_a_thread_that_runs_already_is_not_recorded(record: Record) -> None:
    """Nor disturbed; the trace says that it was there."""
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        nn.Sequential(nn.Tanh())(torch.ones(2))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with record.block() as got:
        go.set()
        done.wait()
        torch.ones(2).sin()
    thread.join()
    assert got.ops == ["ones", "sin"]
    assert names(got) == ["rank0/main"]
    assert "work" in str(got.process.facts["threads.before"]).split(", ")
    note = "threads of rank0/main that ran when its recording began are not recorded ("
    assert sum(each.startswith(note) for each in coverage_notes(got.trace)) == 1


def completed(inline: bool) -> Callable[[], None]:
    """A program with callbacks, one after the other, that run at once or in the thread that completes the future."""

    def called_back(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        nested: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        nested.then(lambda done: done.value().exp())
        nested.set_result(future.value().sin().mul_(2))
        return nested.value()

    def program() -> None:
        for width in (2, 3):
            first: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            sent = torch.ones(width)
            if inline:
                first.set_result(sent)
            second = first.then(called_back)
            if not inline:
                in_thread("completing", lambda first=first, sent=sent: first.set_result(sent))
            second.wait().cos()

    return program


def test_a_callback_is_recorded_alike_in_whatever_thread_it_runs(record: Record) -> None:
    """In a stream without an order, with its own stack alone, and one for all that do not run at once."""
    first, second = record(completed(inline=True)), record(completed(inline=False))
    callbacks = "rank0/main/pool:future"
    for got in (first, second):
        assert names(got) == ["rank0/main", callbacks]
        assert got.ops == ["ones", "cos"] * 2
        rows = Recorded(got.path, callbacks).rows
        assert [row.name for row in rows] == ["sin", "mul_", "exp"] * 2
        assert [len(row.stack) for row in rows] == [1] * 6
    assert compare(first.path, second.path).verdict is Verdict.IDENTICAL
    assert torch._C.Future.then.__module__ != "rltrace.recorder.streams.threads"


def test_what_torchscript_runs_beside_a_thread(record: Record) -> None:
    """Which ops are rows is timing's to say: no false difference, with values or without, and the trace says so."""
    program = scripted()
    program()  # its executor has measured
    for options in ({}, {"values": "all", "values_inputs": True}):
        runs = [record(program, **options) for _ in range(3)]
        for run in runs:
            assert str(run.process.facts["threads.beside"]).startswith("rank0/main from row ")
            assert run.process.state == "complete"
            assert run.rows[-1].name == "exp"
        found = [compare(runs[0].path, other.path).verdict for other in runs[1:]]
        assert Verdict.DIVERGED not in found


def test_threads_of_a_backend(tmp_path: Path) -> None:
    """Gloo's own thread runs ops of the collectives that rpc begins with: they are no threads of TorchScript."""
    program = """
import sys, torch
from torch.distributed import rpc
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[1]}")
rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
torch.ones(2).exp()
rpc.shutdown()
"""
    record = (sys.executable, "-m", "rltrace", "record", "--quiet", "-o", str(tmp_path / "a.zarr"), "--")
    subprocess.run([*record, sys.executable, "-c", program, str(tmp_path / "meeting")], check=True, capture_output=True)
    trace = open_trace(tmp_path / "a.zarr")
    [process] = trace.processes
    assert (process.state, "threads.beside" in process.facts) == ("complete", False)
    [note] = coverage_notes(trace)
    assert note.startswith("what other processes call in rank0/main by torch.distributed.rpc")


def scripted() -> Callable[[], object]:
    """A function that forks many times, then an op of the calling thread."""

    @torch.jit.script
    def part(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x.sin() + 1
        return x

    @torch.jit.script
    def whole(x: torch.Tensor) -> torch.Tensor:
        for n in range(20):
            one = torch.jit.fork(part, x, 3)
            other = torch.jit.fork(part, x * 2, n)
            x = part(x, 2) + torch.jit.wait(one) + torch.jit.wait(other)
        return x

    return lambda: (whole(torch.ones(8)), torch.ones(2).exp())


def test_an_attempt_whose_ops_a_window_did_not_reach(record: Record) -> None:
    """Of a thread that began before the window: its step is not called recorded, so that its digests are compared."""
    layer, turn = nn.Linear(2, 1), threading.Condition()
    made = [0]

    def train(number: int) -> None:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            with turn:
                turn.wait_for(lambda: made[0] % 2 == number)
                layer(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                made[0] += 1
                turn.notify_all()

    with record.block(steps=(3, 4)) as got:
        run_threads(*(threading.Thread(target=train, args=(number,), name=f"w{number}") for number in range(2)))
    flags = int(got.process.steps[3, Step.FLAGS])
    has_rows = any(stream.name.endswith("thread:w1") and stream.rows for stream in got.process.streams)
    assert (bool(flags & StepFlag.RECORDED), bool(flags & StepFlag.DIGESTED)) == (has_rows, True)
