"""Real programs with threads, recorded twice: what timing decides is no difference, what a thread computes is."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import recorder
from torch import nn

from rltrace.diff import Comparison, compare
from rltrace.diff.model import Verdict

Compare = Callable[[Callable[[], object], Callable[[], object]], Comparison]


@pytest.fixture
def twice(tmp_path: Path) -> Compare:
    """Record two programs in this process and compare them."""
    record = recorder(tmp_path)
    return lambda a, b: compare(record(a).path, record(b).path)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def evaluating(taken_by: list[int], changed: int | None = None) -> Callable[[], None]:
    """Three threads score twelve batches; who takes which is timing's to say in a real queue."""

    def program() -> None:
        torch.manual_seed(0)
        model, batches = net(), torch.randn(12, 8, 4)
        queues = [queue.SimpleQueue[int | None]() for _ in range(3)]
        scores: dict[int, torch.Tensor] = {}

        def score(own: queue.SimpleQueue[int | None]) -> None:
            while (task := own.get()) is not None:
                with torch.no_grad():
                    scores[task] = model(batches[task]).mean() + (1e-3 if task == changed else 0.0)

        threads = [threading.Thread(target=score, args=(own,)) for own in queues]
        for thread in threads:
            thread.start()
        for task, taker in enumerate(taken_by):
            queues[taker].put(task)
        for own in queues:
            own.put(None)
        for thread in threads:
            thread.join()
        torch.stack([scores[task] for task in range(12)]).sum().item()

    return program


def acting(changed: tuple[int, int] | None = None) -> Callable[[], None]:
    """Actors with environments of their own fill trajectories, a learner updates the model they share."""

    def program() -> None:
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
        begins, ready = threading.Barrier(4), queue.SimpleQueue[tuple[int, torch.Tensor]]()

        def act(number: int) -> None:
            generator, state = torch.Generator().manual_seed(number), torch.zeros(2, 4)
            for update in range(4):
                begins.wait()
                states = []
                for _ in range(3):
                    with torch.no_grad():
                        action = torch.multinomial(model(state).softmax(-1), 1, generator=generator)
                        state = torch.randn(2, 4, generator=generator) + action
                    if (number, update) == changed:
                        state = state * 1.001
                    states.append(state)
                ready.put((number, torch.stack(states)))

        threads = [threading.Thread(target=act, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            begins.wait()
            came = dict(ready.get() for _ in threads)
            loss = model(torch.cat([came[number] for number in range(3)])).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for thread in threads:
            thread.join()

    return program


def test_tasks_taken_by_other_threads(twice: Compare) -> None:
    """A queue and some threads: identical, whoever took which task, and how many tasks."""
    found = twice(evaluating([0, 1, 2] * 4), evaluating([2, 2, 1, 0, 2, 2, 1, 2, 2, 0, 1, 2]))
    assert found.verdict is Verdict.IDENTICAL
    assert found.compared["rank0/main/thread:score"] == 12 * 8


def test_another_result_of_a_task(twice: Compare) -> None:
    """The number that the main thread reads is the finding; no thread is blamed for a task it may not have had."""
    found = twice(evaluating([0, 1, 2] * 4), evaluating([2, 0, 1] * 4, changed=7))
    assert found.verdict is Verdict.DIVERGED
    assert found.first is not None and (found.first.stream, found.first.op) == ("rank0/main", "aten.stack.default")


def test_actors_and_a_learner(twice: Compare) -> None:
    """Which actor is the first to act, or to be done, is no difference."""
    assert twice(acting(), acting()).verdict is Verdict.IDENTICAL


def test_one_actor_differs(twice: Compare) -> None:
    """The finding is in that actor's stream, in the others there is none before the learner has learned from it."""
    found = twice(acting(), acting(changed=(1, 2)))
    assert found.verdict is Verdict.DIVERGED
    streams = {finding.stream: finding for finding in found.unordered}
    assert set(streams) >= {"rank0/main/thread:act#2"}
    first = streams["rank0/main/thread:act#2"]
    assert first.site is not None and first.site.source == "state = state * 1.001"
    assert "rank0/main/thread:act" in found.compared and "rank0/main/thread:act#3" in found.compared
