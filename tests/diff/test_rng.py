"""What a finding of data from outside says about the generators around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Finding
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Origin

FRAME = ("train.py", 1, "train", "act(observation)")


def finding(folder: Path, observed_in: int, states: dict[str, list[dict[str, object]]]) -> Finding:
    """Two runs of two steps whose observation differs in one of them; ``states``: generators as each step ends."""
    for side in ("a", "b"):
        trace = TraceBuilder(folder / f"{side}.zarr")
        for step, generators in enumerate(states[side]):
            seen = f"observation of {side}" if step == observed_in else "observation"
            trace.op("aten.mm.default", [FRAME], inputs=[In(origin=Origin.OUTSIDE, digest=seen)], outputs=[seen])
            trace.end_step(parameters="p", gradients="g", **generators)  # type: ignore[arg-type]
        trace.finish()
    found = compare(folder / "a.zarr", folder / "b.zarr").first_value
    assert found is not None and found.cause is Cause.OUTSIDE
    return found


def states(torch: str, python: str, numpy: str) -> dict[str, object]:
    return {"generators": torch, "python": python, "numpy": numpy}


def test_equal_when_the_step_began(tmp_path: Path) -> None:
    """What the attempt before left behind is what the step began with."""
    same = [states("t", "p", "n"), states("t2", "p", "n")]
    found = finding(tmp_path, 1, {"a": same, "b": same})
    assert found.explanation.endswith("; the torch, Python and NumPy generator states were equal as this step began")


def test_one_that_nobody_seeded(tmp_path: Path) -> None:
    """A generator that stood elsewhere is told apart from those that did not."""
    a, b = [states("t", "p", "n")] * 2, [states("t", "p", "other")] * 2
    found = finding(tmp_path, 1, {"a": a, "b": b})
    assert found.explanation.endswith(
        "the torch and Python generator states were equal as this step began, the NumPy ones were not"
    )


def test_in_the_first_step(tmp_path: Path) -> None:
    """Nothing was digested before it, so the states at its end speak."""
    a, b = [states("t", "p", "n")] * 2, [states("t", "p", "n"), states("t", "p", "other")]
    found = finding(tmp_path, 0, {"a": a, "b": b})
    assert found.explanation.endswith(
        "; the torch, Python and NumPy generator states are equal at the end of this step"
    )


@pytest.mark.parametrize("generators", [None, "t"])
def test_not_known(tmp_path: Path, generators: str | None) -> None:
    """Where states were not digested, or a side had no such generator yet, nothing is said of them."""
    known: dict[str, object] = {"generators": generators, "python": 0, "numpy": 0}
    found = finding(tmp_path, 1, {"a": [known] * 2, "b": [known] * 2})
    assert "Python" not in found.explanation
    assert ("torch generator states were equal" in found.explanation) is (generators is not None)
