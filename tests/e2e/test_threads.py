"""Real programs with threads, recorded twice: what timing decides is no difference, what a thread computes is."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from recorded import recorder
from shortcuts import compare_checked
from torch import nn

from rltrace.diff import Comparison
from rltrace.diff.base.model import Verdict

Compare = Callable[[Callable[[], object], Callable[[], object]], Comparison]


@pytest.fixture
def twice(tmp_path: Path) -> Compare:
    """Record two programs in this process and compare them, with shortcuts and without."""
    record = recorder(tmp_path)
    return lambda a, b: compare_checked(record(a).path, record(b).path)


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
    """Runs are identical whichever thread took which task from a queue, and how many."""
    found = twice(evaluating([0, 1, 2] * 4), evaluating([2, 2, 1, 0, 2, 2, 1, 2, 2, 0, 1, 2]))
    assert found.verdict is Verdict.IDENTICAL
    assert found.compared["rank0/main/thread:score"] == 12 * 8


def test_another_result_of_a_task(twice: Compare) -> None:
    """The number that the main thread reads is the finding; no thread is blamed for a task it may not have had."""
    found = twice(evaluating([0, 1, 2] * 4), evaluating([2, 0, 1] * 4, changed=7))
    assert found.verdict is Verdict.DIVERGED
    assert (found.first.stream, found.first.op) == ("rank0/main", "aten.stack.default")


def test_one_actor_differs(twice: Compare) -> None:
    """The finding is in that actor's stream, in the others there is none before the learner has learned from it; which
    actor is the first to act, or to be done, is no difference."""
    assert twice(acting(), acting()).verdict is Verdict.IDENTICAL
    found = twice(acting(), acting(changed=(1, 2)))
    assert found.verdict is Verdict.DIVERGED
    streams = {finding.stream: finding for finding in found.unordered}
    assert set(streams) >= {"rank0/main/thread:act#2"}
    first = streams["rank0/main/thread:act#2"]
    assert first.site.source == "state = state * 1.001"
    assert "rank0/main/thread:act" in found.compared and "rank0/main/thread:act#3" in found.compared


def pooled(busy: int) -> Callable[[], None]:
    """Eight tasks for a pool of three threads, the first ``busy`` of which are kept waiting until all are done."""

    def program() -> None:
        torch.manual_seed(0)
        model, batches = net(), torch.randn(8, 8, 4)
        release, waiting = threading.Event(), threading.Barrier(busy + 1)

        def keep() -> None:
            waiting.wait()
            release.wait()

        def score(task: int) -> torch.Tensor:
            with torch.no_grad():
                return model(batches[task]).mean()

        with ThreadPoolExecutor(3) as pool:
            for _ in range(busy):
                pool.submit(keep)
            waiting.wait()
            scores = list(pool.map(score, range(8)))
            release.set()
        torch.stack(scores).sum().item()

    return program


def test_tasks_of_a_pool_that_land_on_other_threads(twice: Compare) -> None:
    """Runs are identical with tasks on any of three threads, or all on one."""
    found = twice(pooled(busy=0), pooled(busy=2))
    assert found.verdict is Verdict.IDENTICAL
    assert found.compared["rank0/main/pool"] == 8 * 7


def learning(changed: bool = False) -> Callable[[], None]:
    """Two learners with models of their own train at the same time, while the main thread does."""

    def learn(seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        with lock:
            torch.manual_seed(seed)
            model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            loss = (model(torch.randn(8, 4, generator=generator)) * scale).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    lock = threading.Lock()

    def program() -> None:
        threads = [
            threading.Thread(target=learn, name=f"learner-{seed}", args=(seed, 1.01 if changed and seed == 2 else 1.0))
            for seed in (1, 2)
        ]
        for thread in threads:
            thread.start()
        learn(0, 1.0)
        for thread in threads:
            thread.join()

    return program


def test_one_of_several_learners_differs(twice: Compare) -> None:
    """It alone has a finding. Each backward pass is in the stream of the thread that asked for it."""
    unchanged = twice(learning(), learning())
    assert unchanged.verdict in (Verdict.IDENTICAL, Verdict.SAME_VALUES), unchanged.why
    assert len(unchanged.compared) == 3 and len(set(unchanged.compared.values())) == 1
    found = twice(learning(), learning(changed=True))
    assert found.verdict is Verdict.DIVERGED
    assert found.first is not None and found.unordered == () and found.later == ()
    assert (found.first.stream, found.first.op) == ("rank0/main/thread:learner-2", "aten.mul.Tensor")
