"""Programs of several processes: the finding that none happened before leads, however the difference travelled."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

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

class Queue(Pipe):
    def __init__(self, context):
        one, other = context.Queue(), context.Queue()
        self.ends = (one, other), (other, one)

    def ended(self, place):
        self.send, self.receive = self.ends[place][1].put, self.ends[place][0].get
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
        ("fork", "pipe"),
        ("fork", "queue"),
        ("fork", "file"),
        ("spawn", "pipe"),
        ("forkserver", "queue"),
        ("spawn", "one-way"),
    ],
)
def test_the_learner_leads_and_the_driver_received_it(cli: Any, method: str, way: str) -> None:
    """A child that computes with another number comes before the process that takes its weights."""
    found = compared(cli, "train.py", PROGRAM, method, way, setting="SCALE=0.9")
    assert found["verdict"] == "diverged"
    assert (found["first"]["stream"], found["first"]["op"]) == ("rank0/worker:1", "aten.mul.Tensor")
    assert not found["unordered"]
    (later,) = found["later"]
    assert (later["stream"], later["cause"]) == ("rank0/main", "outside")
    assert later["sender"]["stream"] == "rank0/worker:1", later["explanation"]
