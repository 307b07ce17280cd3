"""Every way to end: the program's own ending is what it was, and the trace says how far it is known.

One program forks a child for each way, which computes and then ends so; starting torch once is what makes this fast.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rltrace.trace.read.reader import Trace, open_trace

RLTRACE = Path(sys.executable).parent / "rltrace"

WORK = """
import hashlib, torch

def work():
    torch.manual_seed(7)
    weight = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        weight.mul(2).sum().backward()
        optimizer.step()
    return hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()
"""

PROGRAM = """
import ctypes, gc, os, resource, signal, sys, threading

def die_of(number):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

def handled():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    os.kill(os.getpid(), signal.SIGTERM)

def handled_and_went_on():
    signal.signal(signal.SIGTERM, lambda *_: torch.ones(2).cos())
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(6)

def crash():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)

def abort():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()

def no_memory():
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), -1))
    bytearray(1 << 33)

def exec_nothing():
    try:
        os.execv("/no/such/program", ["program"])
    except FileNotFoundError:
        torch.ones(2).cos()
    sys.exit(8)

def full_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, -1))
    work()
    sys.exit(9)

def exit_of_a_thread():
    threading.Thread(target=lambda: os._exit(10)).start()
    threading.Event().wait()

def exit_in_a_handler():
    signal.signal(signal.SIGALRM, lambda *_: os._exit(11))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while True:
        torch.ones(2)

def uncaught():
    raise ValueError("this is not caught")

WAYS = {
    "normal": lambda: None,
    "status": lambda: sys.exit(3),
    "exception": uncaught,
    "_exit": lambda: os._exit(4),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
    "terminate": lambda: die_of(signal.SIGTERM),
    "handled": handled,
    "handled and went on": handled_and_went_on,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": crash,
    "abort": abort,
    "no memory": no_memory,
    "exec": lambda: os.execv("/bin/sh", ["sh", "-c", "exit 7"]),
    "exec of what is recorded": lambda: os.execv(sys.executable, [sys.executable, "other.py"]),
    "exec of nothing": exec_nothing,
    "full disk": full_disk,
    "_exit of a thread": exit_of_a_thread,
    "_exit in a handler": exit_in_a_handler,
}

def main():
    gc.freeze()  # a child that ends does not go through all that torch has made
    for name, end in WAYS.items():
        child = os.fork()
        if child == 0:
            assert work() == expected
            end()
            sys.exit()
        print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

expected = work()
print(expected, flush=True)
main()
print(work(), flush=True)
"""

OTHER = "import torch\ntorch.ones(2).tan()\n"

OPS = 36
"""What ``work`` runs in a child."""


@dataclass(frozen=True)
class Way:
    """One way to end, and what it leaves."""

    status: int
    """The exit status, or minus the signal."""
    state: str = "complete"
    ops: int = OPS
    exit: Mapping[str, object] | None = field(default_factory=dict)


WAYS = {
    "normal": Way(0),
    "status": Way(3),
    "exception": Way(1, exit={"exception": "ValueError"}),
    "_exit": Way(4),
    "interrupt": Way(-signal.SIGINT, exit={"exception": "KeyboardInterrupt"}),
    "terminate": Way(-signal.SIGTERM, "killed", 0, None),
    "handled": Way(5),
    "handled and went on": Way(6, ops=OPS + 2),
    "kill": Way(-signal.SIGKILL, "killed", 0, None),
    "crash": Way(-signal.SIGSEGV, "killed", 0, None),
    "abort": Way(-signal.SIGABRT, "killed", 0, None),
    "no memory": Way(1, exit={"exception": "MemoryError"}),
    "exec": Way(7, exit={"exec": "sh"}),
    "exec of what is recorded": Way(0, exit={"exec": Path(sys.executable).name}),
    "exec of nothing": Way(8, ops=OPS + 2),
    "full disk": Way(9, "damaged", 0),
    "_exit of a thread": Way(10),
}
"""In the order of the program, which numbers its children. Rows are lost where nothing of Python's runs any more: those
since the last commit, which is all of them in so short a program."""


def test_every_ending(tmp_path: Path) -> None:
    """Weights, output and statuses are those without a recorder; the trace has state, ops and ending of each."""
    (tmp_path / "program.py").write_text(WORK + PROGRAM)
    (tmp_path / "other.py").write_text(OTHER)
    command = [RLTRACE, "record", "--quiet", "-o", "t.zarr", "--", sys.executable, "program.py"]
    # a forked child has whatever its parent has not written yet
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    the_programs_own(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True))
    every_child_is_in_the_trace(open_trace(tmp_path / "t.zarr"))


def the_programs_own(result: subprocess.CompletedProcess[str]) -> None:
    """Weights, output, and the status or signal of each child are those of the program without a recorder."""
    scope: dict[str, Any] = {}
    exec(WORK, scope)
    weights = scope["work"]()
    lines = [weights, *(f"{name} {way.status}" for name, way in WAYS.items()), "_exit in a handler 11", weights]
    assert result.stdout.splitlines() == lines
    errors = [line for line in result.stderr.splitlines() if line and line[0] != " "]
    assert errors[:-1] == [
        "Traceback (most recent call last):",
        "ValueError: this is not caught",
        "Traceback (most recent call last):",
        "KeyboardInterrupt",
        "Traceback (most recent call last):",
        "MemoryError",
    ]
    assert errors[-1].startswith("rltrace: error: not everything was recorded: the recorder failed: RecordError: ")
    assert result.returncode == 125  # for the full disk's sake


def every_child_is_in_the_trace(trace: Trace) -> None:
    """State, ops and what is known of the ending, of every child under its own name."""
    parts = {process.name: process for process in trace.processes}
    found = {}
    for number, (name, way) in enumerate(WAYS.items(), 1):
        process = parts.pop(f"rank0/fork:{number}")
        ending = {"why": process.exit["why"]} if process.exit and way.state == "damaged" else process.exit
        found[name] = Way(way.status, process.state, process.after_op, ending)
        if way.state == "damaged":
            assert "File too large" in str(ending.pop("why"))
    assert found == WAYS
    assert trace.unrecorded == ()
    assert trace.holes == ()
    in_a_handler = parts.pop(f"rank0/fork:{len(WAYS) + 1}")
    assert in_a_handler.state == "complete"
    assert in_a_handler.after_op >= OPS
    assert {name: (process.state, process.after_op) for name, process in parts.items()} == {
        "rank0/main": ("complete", 2 * OPS),
        "rank0/child:other.py": ("complete", 2),
    }


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> object:
    """The benchmark of that name, which does the same 200 times."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "kills", raising=False)
    return __import__("kills")


def test_twenty_kills(kills: object, tmp_path: Path) -> None:
    """With commits every few milliseconds, so that many fall into the middle of one; none is damaged or runs ahead."""
    found = kills.run(tmp_path, kills=20, at_once=20, longest=0.6, pause=0.0, commit=0.005, seed=7)
    assert len(found) == 20
    assert len({killed.rows for killed in found}) > 5
