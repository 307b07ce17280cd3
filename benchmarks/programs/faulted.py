"""Trains a tiny model in forked children, each recorded while one fault of the system waits for its recorder.

LD_PRELOAD=faults.so python faulted.py OUT < CASES

CASES: a JSON list of objects; see ``Fault`` in benchmarks/faults.py. OUT/NAME, which exists, then holds the trace
``t.zarr``, what the child printed (``out``, ``err``), its wait status and its counts (``status``, ``counts``), and why
the launcher could not write the end (``launcher``).
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.util
import json
import os
import random
import sys
from pathlib import Path
from typing import NoReturn

import torch

import rltrace
from rltrace.errors import RecordError
from rltrace.extension import recorders
from rltrace.launch.command import BOOTSTRAP, RECORDERS, STARTS_VARIABLE
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session import session  # noqa: F401  imported once, for all children
from rltrace.recorder.streams import committer
from rltrace.trace.format import chunk_codec
from rltrace.trace.format.root import create_trace, end_launch

FAULTS = ctypes.CDLL(None)
STATUS = 3


def train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        loss = (model(torch.randn(8, 4)) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rltrace.watch("loss", loss.item())
        print(f"{loss.item():.17g}", flush=True)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(weights).hexdigest(), flush=True)


def child(folder: Path, case: dict[str, int]) -> NoReturn:
    """Be a program under the recorder, of which the bootstrap has just seen torch."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    trace = os.fspath(folder / "t.zarr")
    allocations = Allocations(case["allocation"])
    atexit.register(lambda: (folder / "counts").write_text(f"{FAULTS.faults_counted()} {allocations.seen}"))
    draw = random.Random(case["seed"])
    committer.SEGMENT_ROWS = draw.choice((7, 24, 100, 1 << 16))  # type: ignore[misc]
    committer.MAX_PENDING_SEGMENTS = draw.choice((0, 1, 4))  # type: ignore[misc]
    options = RecordOptions(trace, values=("all",) if draw.random() < 0.5 else ())
    options.to_environment(os.environ)
    os.environ[STARTS_VARIABLE] = f"{trace}/starts"
    os.environ[RECORDERS] = " ".join(f"{library}={start}" for library, start in recorders(options).items())
    FAULTS.faults_calls(trace.encode(), case["call"], case["error"], case["ever"])
    FAULTS.faults_short(case["call"] if case["short"] else 0)
    FAULTS.faults_log(os.fspath(folder / "log").encode() if case["log"] else None)
    if case["allocation"] >= 0:
        committer.Committer._commit = allocations.around(committer.Committer._commit)  # type: ignore[method-assign]
    spec = importlib.util.spec_from_file_location("sitecustomize", BOOTSTRAP / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    sys.modules["sitecustomize"] = bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    train()
    sys.exit(STATUS)


class Allocations:
    """Lets an allocation of the commits fail, counted over all of them."""

    def __init__(self, nth: int) -> None:
        self.left, self.seen = max(nth, 0), 0

    def around(self, commit):  # type: ignore[no-untyped-def]
        def watched(*arguments):  # type: ignore[no-untyped-def]
            FAULTS.faults_allocations(self.left)
            try:
                return commit(*arguments)
            finally:
                count = FAULTS.faults_allocated()
                FAULTS.faults_allocations(0)
                self.seen += count
                self.left = max(self.left - count, 0)

        return watched


def begin(trace: Path, case: dict[str, int]) -> None:
    """Begin a launch, as the launcher does."""
    FAULTS.faults_calls(os.fspath(trace).encode(), 0, 0, 0)
    FAULTS.faults_log(os.fspath(trace.with_name("log")).encode() if case["log"] else None)
    create_trace(trace, {"command": ["python", "faulted.py"], "options": {"level": "op"}})
    FAULTS.faults_log(None)


def end(trace: Path, case: dict[str, int]) -> str:
    """End the launch, as the launcher does, on the same disk; why that failed, "" where it did not."""
    FAULTS.faults_calls(os.fspath(trace).encode(), 1 if case["ever"] else 0, case["error"], case["ever"])
    FAULTS.faults_log(os.fspath(trace.with_name("log")).encode() if case["log"] else None)
    try:
        end_launch(trace, {"status": STATUS})
    except RecordError as error:
        return str(error)
    finally:
        FAULTS.faults_calls(b"", 0, 0, 0)
        FAULTS.faults_log(None)
    return ""


def main() -> None:
    out, cases = Path(sys.argv[1]), json.load(sys.stdin)
    for name in ("RLTRACE_RECORD", STARTS_VARIABLE, RECORDERS):
        os.environ.pop(name, None)
    FAULTS.faults_allocated.restype = FAULTS.faults_counted.restype = ctypes.c_long
    FAULTS.faults_calls.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int)
    chunk_codec.load()
    sys.stdout.flush()
    for case in cases:
        folder = out / case["name"]
        begin(folder / "t.zarr", case)
        pid = os.fork()
        if pid == 0:
            child(folder, case)
        (folder / "status").write_text(str(os.waitpid(pid, 0)[1]))
        (folder / "launcher").write_text(end(folder / "t.zarr", case))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        sys.stdout, printed = nowhere, sys.stdout
        train()  # what a first optimizer imports
        sys.stdout = printed
    main()
