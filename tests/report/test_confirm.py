"""What ``rltrace confirm`` prints, pinned line by line; ``UPDATE_GOLDEN=1 pytest tests/report`` writes it anew."""

from dataclasses import replace
from pathlib import Path

import pytest
from golden import pinned

from rltrace.diff.base.model import Pair
from rltrace.experiment.outcome import Arm, ArmName, ArmState, ExperimentResult, OriginClass, Outcome
from rltrace.experiment.rerun_command import Recipe
from rltrace.report.confirm import arm_line, outcome_document, plan_lines
from rltrace.report.text import document_text
from rltrace.trace.read.names import Site

GOLDEN = Path(__file__).parent / "golden"
KERNELS = Pair("ATen AVX512, 2 threads", "ATen DEFAULT, 2 threads")
SITE = Site("train.py", 9, "update", "loss.backward(); optimizer.step()")
NEEDED = OriginClass(
    "aten.lerp_.Scalar", KERNELS, SITE, 4, 0.5, True, "rank0/main", 1141, 40, 751, 5.4e-05, ("result",)
)
ATEN, PARTS = Pair("ATen", "ATen"), ("outside", "number")
OUTSIDE = OriginClass("aten.copy_.default", ATEN, None, 1, 0.25, False, "rank0/main", 1150, 40, parts=PARTS)
UNTRIED = replace(NEEDED, op="aten.silu.default", matters=None, max_ulp=None, count=1)
DONE = tuple(
    Arm(name, ArmState.AS_EXPECTED, what, result)
    for name, what, result in (
        (ArmName.A0, "A again, unchanged", "is A in 2 runs of 2"),
        (ArmName.B0, "B again, unchanged", "equals B in 2 runs of 2; it diverges from A where B did"),
        (ArmName.B_FROM_A, "B with A's values at one kind of op", "has A's state to the end of steps 40 to 41"),
        (ArmName.A_FROM_B, "A with B's values at one kind of op", "has B's state to the end of steps 40 to 41"),
    )
)
RUNNING = (
    *DONE[:2],
    Arm(ArmName.B_FROM_A, ArmState.RUNNING, "B with A's values", "in lockstep"),
    Arm(ArmName.A_FROM_B, ArmState.NOT_RUN, "A with B's values", ""),
)
CONFIRMED = ExperimentResult(
    Outcome.CONFIRMED,
    "A's values at one kind of op turn B into A, bit for bit, and B's values turn A into B,"
    " and it is all that is needed",
    "a.zarr",
    "b.zarr",
    40,
    42,
    DONE,
    (NEEDED, OUTSIDE),
    trials=5,
    flaky=1,
    advice=("rltrace repro a-b.confirm/A0.zarr --at rank0/main:1141",),
    by_state=False,
    found="environment-step at train.py:7 (play), step 40: environment 0 (Walk) returned another reward at its step 3",
)
OUTCOMES = {
    "confirmed": CONFIRMED,
    "running": replace(
        CONFIRMED, word=None, explanation="", arms=RUNNING, classes=(), trials=0, flaky=0, advice=(), by_state=None
    ),
    "untried": replace(CONFIRMED, classes=(UNTRIED,) * 50, trials=1, flaky=0, end_step=41, by_state=True),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome(name: str) -> None:
    """Word, arms, kinds of op by whether they matter, what to run next; of many kinds, how many more there are."""
    text = document_text(outcome_document(OUTCOMES[name])) + "\n"
    assert text == pinned(GOLDEN / f"confirm-{name}.txt", text)


def test_color() -> None:
    """The word alone has one; titles are bold."""
    plain, colored = (document_text(outcome_document(CONFIRMED), color=color) for color in (False, True))
    assert colored.splitlines()[0] == "\x1b[1;32mCONFIRMED\x1b[0m"
    rest = "\n".join(colored.splitlines()[1:])
    assert rest.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines() == plain.splitlines()[1:]


def test_what_is_about_to_be_run() -> None:
    """The whole command, ready to be judged; where it runs, and how often."""
    recipe = Recipe(("python", "train.py", "--seed", "1 2"), Path("/srv/my project"), {"OMP_NUM_THREADS": "1"})
    shown = "(cd '/srv/my project' && OMP_NUM_THREADS=1 python train.py --seed '1 2')"
    assert list(plan_lines({"a": recipe, "b": recipe}, "step 3", 1, in_place=False, work="runs")) == [
        "this runs, up to the end of step 3 and several times each (once per control):",
        f"  A  {shown}",
        f"  B  {shown}",
        "  each run in a copy of its folder",
        "  traces and output go to runs",
    ]
    lines = list(plan_lines({"a": recipe}, "steps 3 to 4", 2, in_place=True, work="runs"))
    assert lines[0] == "this runs, up to the end of steps 3 to 4 and several times each (2 times per control):"
    assert lines[2] == "  in its folder"


def test_an_arm_as_it_changes() -> None:
    assert arm_line(DONE[2]).startswith("B←A: B with A's values at one kind of op: has A's state")
    assert arm_line(RUNNING[3]) == "A←B: A with B's values: not run"
