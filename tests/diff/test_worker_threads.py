"""Threads of a pool, or of a queue of the program's own, are compared without order, actors each by itself.

What cannot be known is not called a difference.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rltrace.diff import compare, processes, unpaired_streams
from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.base.view import StreamView
from rltrace.diff.processes import is_pool, results
from rltrace.diff.unpaired_streams import worker_group_name
from rltrace.testing import TraceBuilder

TASKS = ("one", "two", "three", "four")
WORKER, POOL = "rank0/main/thread:worker", "rank0/main/pool"


def trace(path: Path, *threads: Sequence[str], group: str = WORKER, trains: bool = False, main: str = "x") -> Path:
    """A main stream, and one stream a thread with three ops for each of its tasks."""
    builder = TraceBuilder(path)
    for i in range(4):
        builder.op("aten.randn.default", outputs=[f"{main} {i}" if i == 2 else f"{i}"], rng=f"{i}")
    for number, tasks in enumerate(threads):
        end = f":ThreadPoolExecutor-0_{number}" if group == POOL else f"#{number + 1}" if number else ""
        stream = builder.stream(group + end)
        for task in tasks:
            taken = stream.op("aten.select.int", inputs=[("outside", "tasks")])
            loaded = stream.op("aten.to.dtype", inputs=[taken, ("outside", f"{task} read")], outputs=[f"{task} loaded"])
            stream.op("aten.mul.Tensor", inputs=[loaded], outputs=[f"{task} scaled"])
        if trains:
            stream.end_step()
    return builder.finish()


@pytest.mark.parametrize("group", [WORKER, POOL])
@pytest.mark.parametrize(
    "threads",
    [(("two", "three"), ("four", "one")), (TASKS[::-1],), (("one",), ("three", "two"), ("four",)), (TASKS, ())],
)
def test_tasks_that_another_thread_took_are_no_difference(
    tmp_path: Path, threads: tuple[Sequence[str], ...], group: str
) -> None:
    """Runs whose tasks are in another order or on other threads are identical, and said to be without order."""
    a, b = (trace(tmp_path / k, *of, group=group) for k, of in (("a", (TASKS[:2], TASKS[2:])), ("b", threads)))
    found = compare(a, b)
    assert found.verdict is Verdict.IDENTICAL
    assert found.first is None and found.unordered == ()
    assert found.compared == {"rank0/main": 4, group: 12} and "all 16 ops" in found.why
    (note,) = found.notes
    assert f"threads of {group} runs a task depends on timing" in note and "without their order" in note


@pytest.mark.parametrize(
    ("group", "threads", "unmatched"),
    [
        (WORKER, [("two", "three"), ("one", "5")], "2 of A and 2 of B"),
        (POOL, [("one", "two", "three", "5")], "2 of A and 2 of B"),
        (POOL, [TASKS[:3]], "3 of A and 0 of B"),
        (POOL, [()], "12 of A and 0 of B"),
    ],
)
def test_another_result_of_a_task_is_not_explained(
    tmp_path: Path, group: str, threads: list[Sequence[str]], unmatched: str
) -> None:
    """Whose task it is cannot be known: neither equal nor diverged, and no thread is blamed."""
    a = trace(tmp_path / "a", TASKS[:2], TASKS[2:], group=group)
    found = compare(a, trace(tmp_path / "b", *threads, group=group))
    assert found.verdict is Verdict.UNKNOWN
    assert unmatched in found.why
    assert found.first is None and found.unordered == ()


@pytest.mark.parametrize("group", [WORKER, POOL])
def test_a_difference_elsewhere_is_found_beside_them(tmp_path: Path, group: str) -> None:
    """Tasks on other threads are no findings of their own beside it."""
    a = trace(tmp_path / "a", TASKS[:2], TASKS[2:], group=group)
    found = compare(a, trace(tmp_path / "b", TASKS[2:], TASKS[:2], group=group, main="y"))
    assert found.verdict is Verdict.DIVERGED
    assert (found.first.stream, found.first.a_index) == ("rank0/main", 2)
    assert found.unordered == ()


def test_a_difference_elsewhere_is_found_beside_an_open_pool(tmp_path: Path) -> None:
    """A note says that the pool's ops differ as well."""
    a, b = trace(tmp_path / "a", TASKS, group=POOL), trace(tmp_path / "b", TASKS[:1], group=POOL, main="y")
    found = compare(a, b)
    assert (found.verdict, found.first.a_index) == (Verdict.DIVERGED, 2)
    assert any("9 of A and 0 of B" in note for note in found.notes)


def test_the_name_of_a_stream_says_whose_it_is() -> None:
    """A thread that is merely called pool is none."""
    assert is_pool("rank0/main/pool:ThreadPoolExecutor-0_1#2")
    assert not is_pool("rank0/main/thread:pool")


def test_an_actor_that_differs_is_named(tmp_path: Path) -> None:
    """Each thread's own work is where it was, but for one: the difference is found in that one."""
    threads = TASKS[:2], TASKS[2:], ("five", "six")
    changed = TASKS[:2], ("three", "other"), ("five", "six")
    found = compare(trace(tmp_path / "a", *threads), trace(tmp_path / "b", *changed))
    assert found.verdict is Verdict.DIVERGED
    first = found.first_value
    assert (first.stream, first.a_index, first.cause) == ("rank0/main/thread:worker#2", 4, Cause.OUTSIDE)
    assert found.compared["rank0/main/thread:worker"] == 6


def test_threads_that_train_keep_their_order(tmp_path: Path) -> None:
    """An optimizer's steps come one after the other: what another thread did instead is a difference."""
    a = trace(tmp_path / "a", TASKS[:2], TASKS[2:], trains=True)
    assert compare(a, trace(tmp_path / "b", TASKS[2:], TASKS[:2], trains=True)).verdict is Verdict.DIVERGED


def test_a_thread_alone_keeps_its_order(tmp_path: Path) -> None:
    """No other worker could have taken its tasks: those missing are unmatched, and another one is a difference."""
    a = trace(tmp_path / "a", TASKS)
    fewer = compare(a, trace(tmp_path / "b", ("one", "three")))
    assert (fewer.verdict, fewer.structure.only_a) == (Verdict.SAME_VALUES, 6)
    assert compare(a, trace(tmp_path / "c", (*TASKS[:3], "five"))).verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    ("stream", "crew"),
    [
        ("rank0/main/thread:actor-3#2", "rank0/main/thread:actor"),
        ("rank1/main/thread:actor", "rank1/main/thread:actor"),
        ("rank0/worker:1/thread:env_12_step", "rank0/worker:1/thread:env_step"),
        ("rank0/main", None),
        ("rank0/main/pool:Pool_1", None),
    ],
)
def test_the_name_of_a_crew(stream: str, crew: str | None) -> None:
    """A thread's name without numbers; processes and pools are none."""
    assert worker_group_name(stream) == crew


def watched(path: Path, rounds: int, *, trains: bool = True, draws: bool = False) -> Path:
    """A main stream that may train, and a thread that looks at something again and again until it is over."""
    builder = TraceBuilder(path)
    builder.op("aten.mm.default", inputs=[("outside", "x")], outputs=["y"])
    if trains:
        builder.end_step()
    thread = builder.stream("rank0/main/thread:watch")
    for number in range(rounds):
        thread.op("aten.mean.default", inputs=[("outside", "z")], outputs=["mean"])
        if draws:
            thread.op("aten.rand.default", outputs=[f"{number}"], rng=f"{number}")
    return builder.finish()


def test_a_thread_that_went_round_more_often(tmp_path: Path) -> None:
    """A watcher runs until the training is over, however often that is: its last rounds are ops of one side alone."""
    found = compare(watched(tmp_path / "a", 5), watched(tmp_path / "b", 3))
    assert found.verdict is Verdict.SAME_VALUES
    assert (found.structure.only_a, found.structure.only_b, found.first_value) == (2, 0, None)


@pytest.mark.parametrize("changed", [{"trains": False}, {"draws": True}])
def test_a_thread_that_ended_early(tmp_path: Path, changed: dict[str, bool]) -> None:
    """Where nothing goes on beside it, or where it draws numbers that others would have had, it is a difference."""
    found = compare(watched(tmp_path / "a", 5, **changed), watched(tmp_path / "b", 3, **changed))
    assert found.verdict is Verdict.DIVERGED
    assert found.first.stream == "rank0/main/thread:watch"


def test_threads_are_read_as_often_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors that all differ: each is compared with all others together, not against each of them."""
    asked = []

    def counted(view: StreamView, start: int, stop: int) -> NDArray[np.uint64]:
        asked.append(view.name)
        return results(view, start, stop)

    for module in (processes, unpaired_streams):
        monkeypatch.setattr(module, "results", counted)
    reads = []
    for count in (5, 20):
        a, b = (trace(tmp_path / f"{side}{count}", *([f"{side} {k}"] for k in range(count))) for side in "ab")
        assert len(compare(a, b).unordered) == count
        reads.append(len(asked) / count)
        asked.clear()
    assert reads[0] == reads[1] > 0
