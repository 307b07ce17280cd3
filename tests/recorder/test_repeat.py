"""One program recorded twice is one trace; a window of it is a stretch of it; both levels see the same steps."""

from typing import Any

import numpy as np
import pytest
import torch
from recorded import Record, Recorded
from torch import nn

import rltrace
from rltrace.trace.format.schema import GENERATORS, Kind, Step, StepFlag


class Agent(nn.Module):
    """An actor and a critic with dropout and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1))
        self.actor, self.critic = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(x)
        return self.actor(hidden), self.critic(hidden)


def training(steps: int = 4) -> list[torch.Tensor]:
    """A little of reinforcement learning: a simulator in NumPy, a buffer filled row by row, two optimizers."""
    torch.manual_seed(3)
    simulator = np.random.default_rng(3)
    agent = Agent()
    optimizers = [torch.optim.Adam(agent.parameters(), lr=1e-2), torch.optim.SGD(agent.critic.parameters(), lr=1e-2)]
    observation = np.zeros(4, dtype=np.float32)
    for step in range(steps):
        buffer = torch.empty(6, 4)
        for i in range(6):
            observation[:] = simulator.normal(size=4)
            buffer[i] = torch.from_numpy(observation)
        logits, values = agent(buffer)
        actions = torch.multinomial(logits.softmax(1), 1)
        loss = values.pow(2).mean() - logits.gather(1, actions).mean() * (1.0 / (step + 1))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        optimizers[step % 2].step()
        loss.item()
    return [p.detach().clone() for p in agent.parameters()]


def test_two_recordings_are_identical(record: Record) -> None:
    """All three prefix chains, every mark, every hash of every row, every digest of every step."""
    a, b = (record(training) for _ in range(2))
    assert a.chains == b.chains
    assert a.hashes() == b.hashes()
    marks = [{row: rest for row, *rest in got.stream.marks.tolist()} for got in (a, b)]
    both = marks[0].keys() & marks[1].keys()  # a commit on a slow machine leaves one more
    assert len(both) >= 2
    assert [marks[0][row] for row in both] == [marks[1][row] for row in both]
    assert a.steps == b.steps
    assert np.array_equal(a.raw.columns, b.raw.columns)
    assert np.array_equal(a.raw.links, b.raw.links)
    plain = training()
    assert all(torch.equal(x, y) for got in (a, b) for x, y in zip(got.returned, plain, strict=True))


def signature(got: Recorded, rows: list[Any]) -> list[Any]:
    return [(row.op, row.module, row.phase, row.site_key, row.floats, row.outputs, row.rng, row.value) for row in rows]


@pytest.mark.parametrize("window", [(1, 3), (0, 2), (3, None)])
def test_a_window_is_a_stretch_of_the_whole(record: Record, window: tuple[int, int | None]) -> None:
    """Exactly the rows of its steps, after rows of what there was when it began; every step keeps its digests."""
    first, end = window
    whole, part = (record(training, steps=steps) for steps in (None, window))
    wanted = [row for row in whole.rows if first <= row.step and (end is None or row.step < end)]
    states = [row for row in part.rows if row.kind is Kind.WINDOW]
    ops = [row for row in part.rows if row.kind is not Kind.WINDOW]
    assert signature(part, ops) == signature(whole, wanted)
    assert bool(states) == (first > 0)
    assert part.rows == states + ops
    for column in (Step.PARAMETERS, Step.GRADIENTS, *GENERATORS, Step.COUNT, Step.BACKWARDS):
        assert [s[column] for s in part.steps] == [s[column] for s in whole.steps]
    for column in (Step.STRUCTURE, Step.VALUES):
        if first == 0:
            assert [s[column] for s in part.steps[:end]] == [s[column] for s in whole.steps[:end]]
    recorded = [bool(s[Step.FLAGS] & StepFlag.RECORDED) for s in part.steps]
    assert recorded == [first <= i and (end is None or i < end) for i in range(4)]


def test_a_window_says_what_it_starts_from(record: Record) -> None:
    """Parameters, buffers, gradients, optimizer state by their names, generators last; digests of their bytes."""
    got = record(training, steps=(2, 3))
    states = [row for row in got.rows if row.kind is Kind.WINDOW]
    names = [(row.module, row.scalars[0]) for row in states]
    assert ("Agent", "body.0.weight") in names
    assert ("Agent", "body.1.running_mean") in names
    assert ("Agent", "critic.bias.grad") in names
    assert ("Adam#0", "Agent.actor.weight: exp_avg") in names
    assert names[-4:] == [("", f"generator {name}") for name in ("torch", "devices", "python", "numpy")]
    assert len(set(names)) == len(names)
    digests = {name: row.inputs[0].digest for name, row in zip(names[:-4], states, strict=False)}
    again = [row for row in record(training, steps=(2, 3)).rows if row.kind is Kind.WINDOW]
    assert list(digests.values()) == [row.inputs[0].digest for row in again[:-4]]
    first_use = next(row for row in got.rows if row.name == "addmm")
    assert first_use.inputs[0].digest == digests["Agent", "body.0.bias"]


def test_the_step_level_sees_the_same_steps(record: Record) -> None:
    """No rows, and the same digests at every attempt."""
    op, step = (record(training, level=level) for level in ("op", "step"))
    assert step.rows == []
    assert step.trace.level == "step"
    for column in (Step.STEP, Step.COUNT, Step.SKIPPED, Step.BACKWARDS, Step.PARAMETERS, Step.GRADIENTS, *GENERATORS):
        assert [s[column] for s in step.steps] == [s[column] for s in op.steps]
    assert step.optimizers == op.optimizers
    assert {s[Step.FLAGS] for s in step.steps} == {StepFlag.DIGESTED}


def test_an_optimizer_keeps_its_number_when_one_before_it_has_died(record: Record) -> None:
    """Rows of a window name it as its steps do, whichever others still live."""

    def program(keep: bool) -> None:
        kept = []
        for _ in range(3):
            weight = torch.ones(2, requires_grad=True)
            optimizer = torch.optim.Adam([weight])
            weight.sum().backward()
            optimizer.step()
            if keep:
                kept.append(optimizer)
        optimizer.step()

    alone, all_of_them = (record(lambda keep=keep: program(keep), steps=(3, 4)) for keep in (False, True))
    assert [name for name, _, _ in alone.optimizers] == ["Adam#0", "Adam#1", "Adam#2", "Adam#2"]
    owners = [{row.module for row in got.rows if row.kind is Kind.WINDOW} for got in (alone, all_of_them)]
    assert owners == [{"", "Adam#2"}, {"", "Adam#0", "Adam#1", "Adam#2"}]


def test_a_window_that_the_program_never_reaches_has_no_rows(record: Record) -> None:
    """Steps all the same; nor has a program that does nothing, which has no steps either."""
    for program, steps in ((training, 4), (lambda: None, 0)):
        got = record(program, steps=(10, 20) if steps else None)
        assert (got.rows, len(got.steps), got.process.state) == ([], steps, "complete")


def test_nothing_before_a_window_is_taken_for_known(record: Record) -> None:
    """What the window's first ops read was written unseen: read, from outside."""
    weight = torch.ones(3)
    with record.block(steps=(2, 3)) as got:
        x = weight * 2
        rltrace.step()
        x.add_(1)
        rltrace.step()
        x + weight
        rltrace.step()
    row = got.one("add")
    assert [link.origin.name for link in row.inputs if link.origin is not None] == ["OUTSIDE", "OUTSIDE"]
    assert all(link.digest is not None for link in row.inputs)
