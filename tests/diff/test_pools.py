"""Threads of a pool: their ops are compared without an order, and what cannot be known is not called a difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.diff.processes import is_pool
from rltrace.testing import TraceBuilder

TASKS = ("one", "two", "three", "three")


def trace(path: Path, *threads: Sequence[str], main: str = "x", ops: int = 4) -> Path:
    """A main stream, and one stream a pool thread with three ops for every task that the thread took."""
    builder = TraceBuilder(path)
    for i in range(ops):
        builder.op("aten.randn.default", outputs=[f"{main if i == 2 else 'x'} {i}"], rng=f"{i}")
    for number, tasks in enumerate(threads):
        stream = builder.stream(f"rank0/main/pool:ThreadPoolExecutor-0_{number}")
        for task in tasks:
            loaded = stream.op("aten.to.dtype", inputs=[("outside", f"{task} read")], outputs=[f"{task} loaded"])
            stream.op("aten.mul.Tensor", inputs=[loaded], outputs=[f"{task} scaled"])
            stream.op("aten.view.default", inputs=[loaded])
    return builder.finish()


@pytest.mark.parametrize(
    "threads",
    [
        (("two", "three"), ("three", "one")),
        (TASKS[::-1],),
        ((), ("one",), ("three", "two", "three")),
    ],
)
def test_tasks_on_other_threads_are_no_difference(tmp_path: Path, threads: tuple[Sequence[str], ...]) -> None:
    """In another order, on other threads, on fewer or more of them: identical, and said to be without order."""
    a, b = trace(tmp_path / "a", TASKS[:2], TASKS[2:]), trace(tmp_path / "b", *threads)
    found = compare(a, b)
    assert found.verdict is Verdict.IDENTICAL
    assert found.first is None and found.unordered == ()
    assert found.compared == {"rank0/main": 4, "rank0/main/pool": 12}
    assert "all 16 ops" in found.why
    assert any("without their order" in note for note in found.notes)


@pytest.mark.parametrize(("tasks", "alone"), [(("one", "two", "three", "four"), 2), (TASKS[:3], 3), ((), 12)])
def test_another_task_leaves_the_verdict_open(tmp_path: Path, tasks: Sequence[str], alone: int) -> None:
    """Neither equal nor diverged: the rows without an equal one are counted."""
    found = compare(trace(tmp_path / "a", TASKS), trace(tmp_path / "b", tasks))
    assert found.verdict is Verdict.UNKNOWN
    assert f" {alone} of A" in found.why  # a view is the same row in every task
    assert found.first is None


def test_a_difference_outside_the_pool_is_found(tmp_path: Path) -> None:
    """Tasks on other threads do not stand beside it as findings of their own."""
    found = compare(trace(tmp_path / "a", TASKS, ()), trace(tmp_path / "b", (), TASKS, main="y"))
    assert found.verdict is Verdict.DIVERGED
    assert found.first.a_index == 2
    assert found.first_value == found.first and found.unordered == ()


def test_a_difference_outside_is_reported_beside_an_open_pool(tmp_path: Path) -> None:
    """The finding stands, and a note says that the pool's ops differ as well."""
    found = compare(trace(tmp_path / "a", TASKS), trace(tmp_path / "b", TASKS[:1], main="y"))
    assert found.verdict is Verdict.DIVERGED
    assert found.first.a_index == 2
    assert any("9 of A and 0 of B" in note for note in found.notes)


def test_the_name_of_a_stream_says_whose_it_is() -> None:
    """A thread that is merely called pool is none."""
    assert is_pool("rank0/main/pool:ThreadPoolExecutor-0_1#2")
    assert not is_pool("rank0/main/thread:pool")
