"""A program that the recorder stops, and that waits forever at its exit, is ended with all that it has started."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rltrace.launch import run as launch_run
from rltrace.launch.run import descendants, run
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.process_start import is_alive, parse_start
from rltrace.trace.format.root import create_trace
from rltrace.trace.read.reader import open_trace

PROGRAM = """
import multiprocessing, sys, threading, torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((2,), float(index))

def serve(pipe):
    total = torch.zeros(2)
    while True:
        total += pipe.recv()
        pipe.send(float(total.sum()))

def workers():
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=serve, args=(there,)).start()
    while True:
        here.send(1.0)
        yield here.recv()

def loader():
    found = torch.utils.data.DataLoader(Numbers(), num_workers=1, persistent_workers=True)
    while True:
        yield from found

def thread():
    threading.Thread(target=threading.Event().wait).start()
    while True:
        yield 1.0

def shell():
    import subprocess
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"])
    try:
        while True:
            yield 1.0
    finally:
        child.wait()

weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
source = globals()[sys.argv[1]]()
for number in source:
    (weight * number).sum().backward()
    optimizer.step()
"""


def stopped(folder: Path, text: str, *words: str) -> tuple[Any, ...]:
    """How a program ended that was stopped after its second step, and its processes, of which none is left."""
    program, trace = folder / "train.py", folder / "t.zarr"
    program.write_text(text)
    create_trace(trace, {"command": ["train.py", *words]})
    ending = run([sys.executable, str(program), *words], RecordOptions(str(trace), until=1), {})
    starts = [parse_start(path.read_bytes()) or {} for path in (trace / "starts").glob("*.json")]
    assert not any(map(is_alive, starts))
    return ending, *open_trace(trace).processes


@pytest.mark.parametrize(
    ("kind", "descendants", "others"),
    [("workers", 1, ["stopped"]), ("thread", 0, []), ("shell", 2, []), ("loader", None, ["complete", "stopped"])],
)
def test_what_was_stopped_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, descendants: int | None, others: list[str]
) -> None:
    """The trace is that of a stopped program, whole, with its workers' rows; nothing is left; and it is said. A program
    that ends by itself (``descendants`` None) is left alone."""
    monkeypatch.setattr(launch_run, "GRACE_SECONDS", 0.5 if descendants is not None else 60.0)
    ending, main, *rest = stopped(tmp_path, PROGRAM, kind)
    assert (main.state, main.why, len(main.steps)) == ("stopped", "--until 1 ended it", 2)
    assert all(process.state in others for process in rest)
    assert len(rest) == bool(others)
    assert all(process.after_op for process in rest)
    if descendants is None:
        assert (ending.stopped.ended, ending.stopped.said()) == (0, "")
    else:
        assert (ending.stopped.ended, ending.stopped.descendants) == (1, descendants)
        assert "still ran 0.5 s after it was stopped: it " in ending.stopped.said()


LEARNER = """
import multiprocessing, torch

def learn(pipe):
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    while True:
        (weight * pipe.recv()).sum().backward()
        optimizer.step()
        pipe.send(float(weight.sum()))

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()  # both stay open here: the learner's end is not noticed
    multiprocessing.get_context("fork").Process(target=learn, args=(there,)).start()
    number = torch.ones(1)
    while True:
        here.send(float(number))
        number *= here.recv()
"""


def test_what_waits_for_a_stopped_process_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner is stopped after its step, and the driver, which waits for what it would send, is ended."""
    monkeypatch.setattr(launch_run, "GRACE_SECONDS", 2.0)
    ending, main, learner = stopped(tmp_path, LEARNER)
    assert (learner.state, len(learner.steps)) == ("stopped", 2)
    assert main.after_op
    assert (ending.stopped.ended, ending.stopped.waited) == (0, 1)
    assert ending.stopped.said() == "a process was stopped, and the others did nothing for 2 s: 1 process was ended"


def test_descendants() -> None:
    """Children and theirs, by pid, each with its start time; none of those of others."""
    both = "exec 3<&0; cat <&3 & cat"  # a shell gives what is in the background an empty input otherwise
    with subprocess.Popen(["sh", "-c", both], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdin.write(b"x\n")
        child.stdin.flush()
        child.stdout.readline()
        found, of_child = descendants(os.getpid()), descendants(child.pid)
        assert of_child and set(of_child) < set(found)
        assert found[child.pid] and all(of_child.values()), "another test's process may just have ended"
