"""Real process trees, recorded: every process under the name that it has in every run, with all that it computed."""

import sys
from typing import Any

import pytest

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.trace.read.reader import Trace, open_trace

PARENT = """
import os, subprocess, sys, torch
torch.ones(2).sin()
names = ["evaluate.py", "plot.py", "evaluate.py"]
started = [subprocess.Popen([sys.executable, name, str(n)]) for n, name in enumerate(names)]
assert [child.wait() for child in started] == [0, 0, 0]
subprocess.run(f"RANK=1 {sys.executable} evaluate.py 3", shell=True, check=True)
"""

CHILD = """
import os, sys
if sys.argv[1] == "0":
    open("third is there").read()
import torch
if sys.argv[1] == "2":
    open("third is there", "w").write("go on")
torch.ones(3).{op}()
if sys.argv[1] == "2":
    torch.ones(3).exp()
"""


def ops_of(trace: Trace) -> dict[str, list[str]]:
    """What each process ran, all its streams together."""
    return {
        process.name: [
            process.tables["ops"].payloads[row[1]].split(".")[1]
            for stream in process.streams
            for row in stream.read(0, stream.rows).columns
        ]
        for process in trace.processes
    }


def test_children_are_named_by_what_they_run(cli: Any) -> None:
    """Three at once, numbered as they were started, not as they came; one with a rank of its own, by way of a shell."""
    for name, code in (("train.py", PARENT), ("evaluate.py", CHILD), ("plot.py", CHILD)):
        (cli.folder / name).write_text(code.replace("{op}", "cos" if name == "plot.py" else "tan"))
    cli.run("mkfifo", "third is there")
    result = cli.rltrace("record", "--quiet", "-o", "a.zarr", "--", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    trace = open_trace(cli.folder / "a.zarr")
    assert ops_of(trace) == {
        "rank0/main": ["ones", "sin"],
        "rank0/child:evaluate.py": ["ones", "tan"],
        "rank0/child:evaluate.py#2": ["ones", "tan", "ones", "exp"],
        "rank0/child:plot.py": ["ones", "cos"],
        "rank1/main": ["ones", "tan"],
    }
    assert all(process.start_record["requested"] == process.name for process in trace.processes)


KINDS = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
import torch

def work(seed):
    torch.manual_seed(seed)
    weight = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        weight.mul(2).sum().backward()
        optimizer.step()
    return weight.detach().tolist()

def work_and_wait(ready):
    work(8)
    ready.set()
    time.sleep(1000)

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        return torch.tensor(float(n)).square()

def load(context, workers):
    generator = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Squares(), 2, num_workers=workers, multiprocessing_context=context, generator=generator
    )
    print([batch.tolist() for batch in loader])

def start(context, **named):
    child = context.Process(**named)
    child.start()
    return child

if __name__ == "__main__":
    import torch._dynamo  # an optimizer loads it: here once, and not in each child
    torch.manual_seed(0)
    if "spawn" in sys.argv:
        load("spawn", 1)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # terminates its worker
            pool.map(work, range(2))
        sys.exit()
    fork = multiprocessing.get_context("fork")
    start(fork, target=work, args=(1,)).join()
    with fork.Pool(3) as pool:  # terminates its workers
        print(pool.map(work, range(7), chunksize=1))
    with ProcessPoolExecutor(2, mp_context=fork) as pool:
        print(list(pool.map(work, range(5))))
    load("fork", 1)  # of two, timing decides whose batch the program takes in first
    ready = fork.Event()
    start(fork, target=work_and_wait, args=(ready,), daemon=True)
    ready.wait()
    print(work(2), flush=True)
"""
"""Every way in which multiprocessing starts processes; the last one is a daemon that ends with its parent."""

WORK = 35
TASKS = 12


@pytest.fixture
def run(cli: Any) -> Any:
    """``run(name, *methods)``: record KINDS; returns the trace and what it printed."""
    (cli.folder / "kinds.py").write_text(KINDS)

    def recorded(name: str, *methods: str) -> tuple[Trace, str]:
        result = cli.rltrace("record", "--quiet", "-o", name, "--", sys.executable, "kinds.py", *methods)
        assert (result.returncode, result.stderr) == (0, "")
        return open_trace(cli.folder / name), result.stdout

    return recorded


def sizes(trace: Trace) -> dict[str, int]:
    """Ops of each process, those of a pool's processes together."""
    found: dict[str, int] = {}
    for process in trace.processes:
        name = process.name.partition("/pool:")[0] + "/pool" if "/pool:" in process.name else process.name
        found[name] = found.get(name, 0) + process.after_op
    return found


def states(trace: Trace) -> dict[str, set[str]]:
    return {p.name: {p.state} for p in trace.processes if "/pool:" not in p.name}


FORKED = {
    "rank0/main": 56,
    "rank0/worker:1": WORK,
    "rank0/pool": TASKS * WORK,
    "rank0/worker:7": 32,
    "rank0/worker:8": WORK,
}


def test_forked_workers(run: Any) -> None:
    """Names, ops and states; what it computes is unchanged; two recordings are identical, whichever worker ran it."""
    trace, shown = run("a.zarr")
    again, shown_again = run("b.zarr")
    scope: dict[str, Any] = {"__name__": "kinds"}
    exec(KINDS, scope)
    results = [scope["work"](seed) for seed in range(7)]
    squares = [[0.0, 1.0], [4.0, 9.0], [16.0, 25.0], [36.0, 49.0]]
    assert shown == shown_again == "".join(f"{line}\n" for line in (results, results[:5], squares, results[2]))
    assert sizes(trace) == sizes(again) == FORKED
    assert states(trace) == {name: {"complete"} for name in FORKED if name not in ("rank0/pool", "rank0/worker:8")} | {
        "rank0/worker:8": {"stopped"}
    }
    assert trace.unrecorded == ()
    found = compare(trace, again)
    assert found.verdict is Verdict.IDENTICAL
    assert found.compared["rank0/pool"] == TASKS * WORK


def test_spawned_workers(run: Any) -> None:
    """Fresh interpreters. Those of a fork server: ``test_vectors.py`` and ``test_messages.py``."""
    trace, _ = run("a.zarr", "spawn")
    found = sizes(trace)
    alike = {"rank0/worker:1": 32, "rank0/pool": 2 * WORK}
    assert {name: found[name] for name in alike} == alike
    assert {name: state for name, state in states(trace).items() if name in alike} == {
        name: {"complete"} for name in alike if name != "rank0/pool"
    }
    helpers = sorted(str(start_record.record["argv"][-1]) for start_record in trace.unrecorded)
    assert helpers == ["multiprocessing.resource_tracker"]  # without torch
