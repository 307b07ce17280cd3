"""Programs of several processes: the finding that none happened before leads, however the difference travelled."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from rltrace.trace.format.schema import UNTOUCHED, Step
from rltrace.trace.read.reader import open_trace

PROGRAM = """
import multiprocessing, os, sys
import numpy as np
import torch

def scaled(values):
    return torch.from_numpy(values) * float(os.environ.get("SCALE", "1"))

def learner(way):
    torch.manual_seed(0)
    weight = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    while (batch := way.receive()) is not None:
        (weight * scaled(batch)).sum().backward()
        optimizer.step()
        way.send(weight.detach().numpy().copy())

class Pipe:
    def __init__(self, context):
        self.ends = context.Pipe()

    def ended(self, place):
        self.send, self.receive = self.ends[place].send, self.ends[place].recv
        return self

class OneWay(Pipe):
    def __init__(self, context):
        (there, here), (back, away) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        self.ends = (back, here), (there, away)

    def ended(self, place):
        self.send, self.receive = self.ends[place][1].send, self.ends[place][0].recv
        return self

class File(Pipe):
    '''Weights in files; a pipe says when.'''
    def ended(self, place):
        self.end = self.ends[place]
        return self

    def send(self, values):
        if values is not None:
            torch.save(torch.from_numpy(values), f"{os.getpid()}.pt")
        self.end.send(None if values is None else os.getpid())

    def receive(self):
        number = self.end.recv()
        return None if number is None else torch.load(f"{number}.pt").numpy()

class Queue(File):
    '''Tensors, which the thread of a queue copies into shared memory.'''
    def __init__(self, context):
        one, other = context.Queue(), context.Queue()
        self.ends = (one, other), (other, one)

    def send(self, values):
        self.end[1].put(None if values is None else torch.from_numpy(values))

    def receive(self):
        values = self.end[0].get()
        return None if values is None else values.numpy()

def run_learner(way):
    learner(way.ended(1))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    way = {"pipe": Pipe, "one-way": OneWay, "queue": Queue, "file": File}[sys.argv[2]](context)
    child = context.Process(target=run_learner, args=(way,))
    child.start()
    way.ended(0)
    torch.manual_seed(1)
    actor = torch.zeros(4)
    for _ in range(3):
        noise = torch.randn(4)
        way.send((actor + noise).numpy())
        actor.copy_(torch.from_numpy(way.receive()))
    way.send(None)
    child.join()
    print(actor.sum().item())
"""


def compared(cli: Any, name: str, text: str, *arguments: str, setting: str) -> Mapping[str, Any]:
    """What ``diff`` says of a program, and the same under a setting."""
    (cli.folder / name).write_text(text)
    for trace, of_side in (("a.zarr", ""), ("b.zarr", setting)):
        done = cli.rltrace("record", "--quiet", "-o", trace, "--", sys.executable, name, *arguments, setting=of_side)
        assert done.returncode == 0, done.stderr
    document: Mapping[str, Any] = json.loads(cli.read("diff", "a.zarr", "b.zarr", "--format", "json").stdout)
    return document


@pytest.mark.parametrize(
    ("method", "way"),
    [
        ("fork", "queue"),
        ("fork", "file"),
        ("forkserver", "pipe"),
        ("spawn", "one-way"),
    ],
)
def test_the_learner_leads_and_the_driver_received_it(cli: Any, method: str, way: str) -> None:
    """A child that computes with another number comes before the process that takes its weights. Python's generator,
    which multiprocessing seeds in a forked child, is no evidence."""
    found = compared(cli, "train.py", PROGRAM, method, way, setting="SCALE=0.9")
    assert found["verdict"] == "diverged"
    assert (found["first"]["stream"], found["first"]["op"]) == ("rank0/worker:1", "aten.mul.Tensor")
    assert not found["unordered"]
    later, *copied = found["later"]
    assert (later["stream"], later["cause"]) == ("rank0/main", "outside")
    assert [each["stream"] for each in copied] == ["rank0/main/thread:QueueFeederThread"] * (way == "queue")
    assert later["sender"]["stream"] == "rank0/worker:1", later["explanation"]
    steps = open_trace(cli.folder / "a.zarr").processes[1].steps
    assert steps[:, Step.PYTHON_GENERATOR].tolist() == [UNTOUCHED] * 3
    assert {"name": "env.SCALE", "a": None, "b": "0.9"} in found["system"]
    assert "SCALE: not set in A, 0.9 in B; first difference: aten.mul" in cli.read("diff", "a.zarr", "b.zarr").stdout


CLOCK = """
import multiprocessing, os, sys
import numpy, torch

def send_times(end):
    numbers = torch.from_numpy(numpy.array([os.getpid(), id(end)], numpy.float32))
    for _ in range(3):
        numbers = numbers * 2 + 1
        end.send(numbers.numpy())

if __name__ == "__main__":
    here, there = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=send_times, args=(there,))
    child.start()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), float(os.environ.get("RATE", "0.1")))
    for _ in range(3):
        numbers = here.recv()
        if sys.argv[1] == "computes":
            torch.from_numpy(numbers) / 2
        loss = model(torch.rand(3, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    child.join()
"""


@pytest.mark.parametrize("use", ["computes", "drops"])
def test_what_a_worker_sent_to_no_use_does_not_lead(cli: Any, use: str) -> None:
    """A worker sends numbers of its process, which differ in every run and which nothing that is trained depends on."""
    found = compared(cli, "clock.py", CLOCK, use, setting="RATE=0.2")
    assert found["verdict"] == "diverged"
    learner, worker = found["unordered"]
    assert (learner["stream"], learner["cause"], learner["phase"]) == ("rank0/main", "arguments", "optimizer")
    assert (learner["unused_outside"], worker["unused_outside"]) == (int(use == "computes"), 0)
    assert (worker["stream"], worker["cause"]) == ("rank0/worker:1", "outside")
    text = cli.read("diff", "a.zarr", "b.zarr").stdout
    assert "In rank0/worker:1, which the above does not depend on" in text


MEMORY = """
import multiprocessing, os
import gymnasium, numpy, torch

def act(memory, filled, used):
    seen = numpy.frombuffer(memory, numpy.float32)
    env = gymnasium.make("Pendulum-v1")
    if os.environ.get("SPACE") is None:
        env.action_space.seed(3)
    env.reset(seed=0)
    for _ in range(3):
        seen[:3], *_ = env.step(env.action_space.sample())
        filled.release()
        used.acquire()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    memory, filled, used = context.RawArray("f", 8), context.Semaphore(0), context.Semaphore(0)
    child = context.Process(target=act, args=(memory, filled, used))
    child.start()
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        filled.acquire()
        (weight * torch.from_numpy(numpy.frombuffer(memory, numpy.float32).copy())).pow(2).sum().backward()
        optimizer.step()
        used.release()
    child.join()
"""


def test_a_space_that_one_side_seeds_leads_before_data_of_unknown_origin(cli: Any) -> None:
    """What passes through memory leaves no message, so that nothing says who wrote it; the worker's first event that
    differs is explained where events are listed."""
    found = compared(cli, "memory.py", MEMORY, setting="SPACE=none")
    lead = found["decisive"]
    assert (lead["op"], lead["cause"], lead["stream"]) == ("seed", "control-flow", "rank0/worker:1"), lead
    assert [(each["op"], each["cause"]) for each in found["unordered"] if each["stream"] == "rank0/main"] == [
        ("aten.mul.Tensor", "outside")
    ]
    explanation = found["events"]["explanation"]
    assert explanation.startswith("environment 0 (Pendulum-v1) was given another action at its step 1")


WORKERS = """
import multiprocessing, os
import gymnasium, numpy, torch

def work(end):
    env = gymnasium.make("CartPole-v1")
    while (message := end.recv()) is not None:
        name, value = message
        end.send(env.reset(seed=value)[0] if name == "reset" else env.step(value)[0])

context = multiprocessing.get_context("fork")
ends = []
for number in range(2):
    here, there = context.Pipe()
    context.Process(target=work, args=(there,), daemon=True).start()
    ends.append(here)
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, end in enumerate(ends):
    end.send(("reset", None if number == 1 and "NO_SEED" in os.environ else number))
observations = [end.recv() for end in ends]
for _ in range(3):
    logits = net(torch.as_tensor((numpy.stack(observations) - 0.1) / 2))
    logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for end, action in zip(ends, logits.argmax(1).tolist()):
        end.send(("step", action))
    observations = [end.recv() for end in ends]
for end in ends:
    end.send(None)
"""


def test_an_event_of_a_worker_leads(cli: Any) -> None:
    """An environment behind a pipe that was reset without a seed comes before the op that computes with it, and its
    site is the worker's, with no frame of multiprocessing."""
    found = compared(cli, "train.py", WORKERS, setting="NO_SEED=1")
    first = found["first"]
    assert (first["stream"], first["op"], first["cause"]) == ("rank0/worker:2", "environment-reset", "outside")
    assert "was reset with seed 1 in A and no seed in B at its reset 1" in first["explanation"]
    assert "in rank0/main, which received it, aten.addmm.default at train.py:" in first["explanation"]
    assert first["site"]["function"] == "work"
    assert {frame["file"] for frame in first["stack"]} == {"train.py"}
    assert not found["unordered"]
    assert [later["stream"] for later in found["later"]] == ["rank0/main"]


def test_two_rows_of_one_stream_are_ordered(cli: Any) -> None:
    """Whatever other streams differ: an op on one side only comes before the first difference that it makes."""
    program = PROGRAM.replace("actor.copy_(torch", "(actor.mul_(1) if 'MORE' in os.environ else actor).copy_(torch")
    found = compared(cli, "train.py", program, "fork", "pipe", setting="MORE=1")
    assert found["verdict"] == "same-values"
    assert not found["unordered"]


LOADERS = """
import os
import numpy, torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rows = (numpy.arange(4) * float(os.environ.get("SCALE", 2))).astype(numpy.float32)
    for _ in range(3):
        batch = next(iter(DataLoader(rows, batch_size=4, num_workers=1)))
        net(batch * 1.5).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_workers_that_read_the_same_bytes_received_them_from_none_of_themselves(cli: Any) -> None:
    """Each epoch's worker inherits the same rows: that another one wrote them, too, is no order, and no sender."""
    found = compared(cli, "train.py", LOADERS, setting="SCALE=3")
    assert (found["verdict"], found["decisive"]["cause"]) == ("diverged", "outside")
    assert found["decisive"]["stream"].startswith("rank0/worker:1")
    assert "sender" not in found["decisive"] or found["decisive"]["sender"] is None
    assert "rank0/main" in [later["stream"] for later in found["later"]]


def test_a_batch_that_one_side_takes_from_a_worker(cli: Any) -> None:
    """Where A collates a batch itself, B's is traced to the op of the worker that alone B starts."""
    program = LOADERS.replace("num_workers=1", "num_workers=int('SCALE' in os.environ)")
    program = program.replace("DataLoader(rows", "DataLoader(torch.from_numpy(rows)")
    found = compared(cli, "train.py", program, setting="SCALE=3")
    assert (found["decisive"]["cause"], found["decisive"]["b_index"]) == ("control-flow", None)
    assert "computes with what aten.stack.default (row " in found["decisive"]["explanation"]
    assert "; in B it is what aten.stack.out (row " in found["decisive"]["explanation"]
    assert " of rank0/worker:1 wrote" in found["decisive"]["explanation"]


COPIES = """
import os
import numpy, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Noisy(Dataset):
    noise = numpy.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.noise.normal(size=4).astype(numpy.float32), index

def seed_anew(worker):
    if "COPIED" not in os.environ:
        get_worker_info().dataset.noise = numpy.random.default_rng(worker)

torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for noise, _ in DataLoader(Noisy(), batch_size=2, num_workers=2, worker_init_fn=seed_anew):
    net(noise).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("both", [False, True])
def test_workers_that_draw_from_copies_of_one_generator(cli: Any, both: bool) -> None:
    """What two workers computed alike on one side only is said; where both sides' workers do, nothing is."""
    always = COPIES.replace('"COPIED" not in os.environ', "False").replace("lr=0.1", 'lr=1 + ("COPIED" in os.environ)')
    found = compared(cli, "train.py", always if both else COPIES, setting="COPIED=1")
    assert found["verdict"] == "diverged"
    said = [note for note in found["notes"] if " computed the same " in note]
    words = "in B, rank0/worker:1 and rank0/worker:2 computed the same 2 results of aten.stack"
    assert [note.startswith(words) for note in said] == ([] if both else [True])


SHARED = """
import os
import torch
from torch import multiprocessing

def work(net, done):
    optimizer = torch.optim.SGD(net.parameters(), lr=float(os.environ.get("LR", 0.1)))
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    done.set()

if __name__ == "__main__":
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2).share_memory()
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    child = context.Process(target=work, args=(net, done))
    child.start()
    done.wait()
    child.join()
    print(net(torch.ones(1, 4)).sum().item())
"""


def test_what_another_process_wrote_in_shared_memory(cli: Any) -> None:
    """It is named by the row that wrote it; no frame of the command that starts the child is in its stack."""
    found = compared(cli, "train.py", SHARED, setting="LR=0.2")
    assert (found["first"]["stream"], found["first"]["cause"]) == ("rank0/worker:1", "arguments")
    assert {frame["file"] for frame in found["first"]["stack"]} == {"train.py"}
    (later,) = found["later"]
    assert (later["stream"], later["cause"], later["sender"]["op"]) == ("rank0/main", "outside", "aten.add_.Tensor")
    assert later["explanation"].startswith("it reads what aten.add_.Tensor (row ")
    assert later["explanation"].endswith(
        "of rank0/worker:1 wrote, in memory that both processes share or copied past torch"
    )
