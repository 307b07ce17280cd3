"""What nothing trained depends on is no divergence, and every doubt whether that is so makes it one."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from views import compare_in

from rltrace.diff import Comparison
from rltrace.diff.base.model import Cause, Verdict
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import RowFlag

Facts = Mapping[str, object]
SAVED = [(1, "best"), (2, "best"), (2, "average")]
"""What both runs save, unless B saves something else: after which step, and what."""
LOGGED = ("train.py", 5, "train", "log(time.item())")
READ = ("train.py", 2, "train", "for batch in loader:")
LOSS, EVALUATE = ("train.py", 3, "train", "loss = model(x)"), ("train.py", 9, "evaluate", "model(x)")


def build(path: Path, side: str, b: Facts) -> None:
    """Two steps of training, with a time in a log line; ``b``: what is otherwise in B."""
    given = dict(b) if side == "b" else {}
    trace = TraceBuilder(path / f"{side}.zarr")
    for step in range(2):
        trace.op("aten.mean.default", inputs=[("outside", f"time {side}")], outputs=[f"mean {side}"])
        if "logs" in b:
            value = step + (0.5 if given.get("logs") else 0.0)
            trace.op("aten._local_scalar_dense.default", LOGGED, inputs=[In(0)], value=value)
        state = f"{given.get('generator', 'r')}{step}"
        trace.op(
            "aten.bernoulli.p",
            LOSS,
            rng=state,
            outputs=[f"{given.get('drawn', 'mask')}{step}"],
            flags=RowFlag(int(str(given.get("flags", 0)))),
        )
        for order in b["reads"][side][step] if "reads" in b else ():  # type: ignore[index]
            trace.op("aten.randperm.generator", READ, rng=state, outputs=[order])
        if given.get("evaluates"):
            trace.op("aten.bernoulli.p", EVALUATE, rng=state, outputs=[f"another mask {step}"])
        trace.end_step(
            "Adam",
            0,
            parameters=f"p{given.get('parameters', '')}{step}",
            gradients=f"g{given.get('gradients', '')}{step}",
            generators=state,
        )
    if given.get("more"):
        trace.end_step("Adam", 0, parameters="p1", gradients="g1", generators="r1")
    trace.finish(
        str(given.get("state", "complete")),
        {"status": 0} | ({"exception": "ValueError"} if given.get("raises") else {}),
        generators="r1",
        parameters={} if given.get("freed") else {0: f"p1{given.get('last', '')}"},
        last_state=given.get("buffers", "s"),
        saved=given.get("saved", SAVED),  # type: ignore[arg-type]
    )


def compared(path: Path, b: Facts) -> Comparison:
    for side in "ab":
        build(path, side, b)
    return compare_in(path)


@pytest.mark.parametrize(
    "b",
    [
        {},
        {"generator": "another"},
        {"generator": "another", "evaluates": True},
        {"reads": {"a": (["first", "second"], []), "b": (["first"], ["second"])}},
        {"saved": []},
        {"saved": [(1, "best"), (2, "average"), (2, "another"), (2, "best")]},
        {"saved": [(2, "average"), (3, "another")]},
    ],
    ids=[
        *("a time that is logged", "generator state that no draw shows", "an evaluation that draws", "read ahead"),
        *("nothing is saved", "more is saved", "it is saved at other steps"),
    ],
)
def test_a_difference_that_nothing_trained_depends_on(tmp_path: Path, b: Facts) -> None:
    """Same values, with what differs named; ``--strict`` still counts it."""
    comparison = compared(tmp_path, b)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert comparison.why.startswith("the runs differ only in what nothing trained depends on")
    assert comparison.agrees is True
    assert comparison.first is not None
    assert (comparison.first.cause, comparison.decisive) == (Cause.OUTSIDE, None)
    text = " ".join(document_text(verdict_document(comparison)).split())
    assert text.startswith("SAME VALUES The runs differ only in what nothing trained depends on: ")
    assert "First difference in values op aten.mean.default" in text
    assert "but no op does" not in text and "affects results" not in text


@pytest.mark.parametrize("logs", [False, True])
def test_a_curve_that_diverges(tmp_path: Path, logs: bool) -> None:
    """It is said where the runs are called the same."""
    comparison = compared(tmp_path, {"logs": logs})
    assert comparison.verdict is Verdict.SAME_VALUES
    assert comparison.why.endswith("; 1 logged curve diverges all the same, from step 0 on") is logs


@pytest.mark.parametrize(
    "b",
    [
        {"parameters": "another"},
        {"gradients": "another"},
        {"last": "another"},
        {"buffers": "another"},
        {"buffers": None},
        {"freed": True},
        {"generator": "another", "drawn": "another mask"},
        {"drawn": "another mask"},
        {"reads": {"a": (["first", "second"], []), "b": (["first"], ["another"])}},
        {"flags": RowFlag.MARKED.value},
        {"raises": True},
        {"more": True},
        {"saved": [(1, "best"), (2, "best"), (2, "another average")]},
    ],
    ids=lambda given: next(iter(given)) + (" unknown" if None in given.values() else ""),
)
def test_any_doubt_is_a_divergence(tmp_path: Path, b: Facts) -> None:
    """Another gradient, parameter, buffer, draw or file, at any step or at the end; or one of them is not known."""
    comparison = compared(tmp_path, b)
    assert (comparison.verdict, comparison.agrees) == (Verdict.DIVERGED, False)
    assert comparison.decisive is not None


def test_runs_that_are_not_complete(tmp_path: Path) -> None:
    """Of a run that was stopped it is not known what it would have trained."""
    assert compared(tmp_path, {"state": "stopped"}).verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    ("saved", "when"),
    [([(0, "start"), (1, "best")], None), ([(1, "other")], "after step 0"), ([(0, "other")], "before its first step")],
)
def test_other_files_though_all_ops_are_equal(
    tmp_path: Path, saved: list[tuple[int, object]], when: str | None
) -> None:
    """Of tensors that were written past torch: said with the verdict, which is about ops."""
    for side in "ab":
        trace = TraceBuilder(tmp_path / f"{side}.zarr")
        trace.op("aten.mul.Tensor", outputs=["x"])
        trace.end_step("Adam", 0, parameters="p", gradients="g", generators="r")
        trace.finish(last_state="s", saved=saved if side == "b" else [(0, "start"), (1, "best")])
    comparison = compare_in(tmp_path)
    assert comparison.verdict is Verdict.IDENTICAL
    said = "" if when is None else f"; but a file that rank0/main saved {when} holds other tensors in B"
    assert comparison.why == f"all 1 ops are equal{said}"
