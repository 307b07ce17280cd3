"""Shifted comparisons: where one run begins at a step of the other, how that is found, and when it is not."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from views import both, compare_in

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Comparison, NotRestored, Pair, Shift, Verdict
from rltrace.errors import UsageError
from rltrace.testing import TraceBuilder

STATE = ("exp_avg", "step")


@pytest.mark.parametrize("restored", [False, True])
def test_a_gradient_scaler_that_was_not_restored(tmp_path: Path, restored: bool) -> None:
    """It is named with its scale and its growth tracker on both sides, and leads where the loss is first scaled."""
    held: dict[str, Any] = {}

    def train(resumes: bool) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        if resumes:
            model.load_state_dict(held["model"])
            optimizer.load_state_dict(held["optimizer"])
            if restored:
                scaler.load_state_dict(held["scaler"])
        for step in range(3 * resumes, 6):
            if step == 3 and not resumes:
                parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
                held.update(copy.deepcopy({name: part.state_dict() for name, part in parts.items()}))
            torch.manual_seed(step)
            optimizer.zero_grad()
            scaler.scale(model(torch.rand(2, 4)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    for side, resumes in (("a", False), ("b", True)):
        with rltrace.record(tmp_path / f"{side}.zarr"):
            train(resumes)
    found = compare_in(tmp_path)
    assert steps(found) == (3, 0)
    named = [note for note in found.notes if "gradient scaler" in note]
    expected = (
        "the state of a gradient scaler (scaler:0) was not restored: scale 16 in A, 8 in B and growth 1 in A, 0 in B"
    )
    assert named == ([] if restored else [expected])
    if not restored:
        assert found.shown is not None
        assert found.shown.not_restored == NotRestored("scaler", "the gradient scaler")
        assert "is 16.0 in A, 8.0 in B at its first use" in found.shown.explanation


def trace(
    path: Path,
    parameters: Sequence[object],
    first: int = 0,
    state: Sequence[str] = (),
    optimizers: Sequence[int] = (0,),
    level: str = "step",
    caller: tuple[tuple[str, int, str, str], ...] = (),
    **changes: object,
) -> Path:
    """A run that begins with ``parameters[0]`` and has each of the others after an attempt.

    ``first``: the number that its first step has in an uninterrupted run, on which gradients and generators depend.
    ``optimizers``: those that make the attempts, in turn; ``changes``: another gradient or generator from the start on.
    """
    builder = TraceBuilder(path, level=level, engine="none" if level == "step" else "testing")
    for ordinal in dict.fromkeys(optimizers):
        builder.optimizer(parameters[0], ordinal, state=state, kept=STATE)
    if level == "op" and first:
        builder.op("aten.copy_.default", ("train.py", 3, "main", "load()"), [("outside", "file")], [parameters[0]])
    for step, after in enumerate(parameters[1:], first):
        if level == "op":
            loop = [("train.py", 9, "main", "step()"), *caller]
            if caller:
                loop[0] = ("library/agent.py", 9, "learn", "step()")
            builder.op("aten.mm.default", loop, [("outside", f"batch {step}")], [changes.get("output", f"out {step}")])
        taken = {name: f"{name} {step} {changes.get(name, '')}" for name in ("gradients", "generators")}
        ordinal = optimizers[(step - first) % len(optimizers)]
        builder.end_step(ordinal=ordinal, parameters=after, recorded=level == "op", **taken)
    return builder.finish()


FROM_BEGINNINGS: Pair[int] = Pair(None, 0)


def steps(comparison: Comparison) -> tuple[int, int] | None:
    return None if comparison.shift is None else (comparison.shift.a_step, comparison.shift.b_step)


@pytest.mark.parametrize("level", ["step", "op"])
def test_a_run_that_begins_where_the_other_stood(tmp_path: Path, level: str) -> None:
    """Equal from that step on, in either order of the two; what it loaded is no difference."""
    a = trace(tmp_path / "a.zarr", "pqrstu", level=level)
    b = trace(tmp_path / "b.zarr", "stu", first=3, state=STATE, level=level)
    found = compare(a, b)
    assert (found.verdict, found.level, steps(found)) == (Verdict.IDENTICAL, level, (3, 0))
    assert found.why.startswith("from step 3 on (B's step 0), all 2 ")
    swapped = compare(b, a)
    assert (swapped.verdict, steps(swapped)) == (Verdict.IDENTICAL, (0, 3))


@pytest.mark.parametrize("changes", [{}, {"output": "other"}])
def test_a_program_of_its_own_may_resume(tmp_path: Path, changes: dict[str, str]) -> None:
    """What it calls of a library is what the other program called of it, from another file and function."""
    train = (("train.py", 5, "<module>", "agent.learn(1_000)"),)
    resume = (("resume.py", 3, "main", "agent.learn(500)"), ("resume.py", 9, "<module>", "main()"))
    a = trace(tmp_path / "a.zarr", "pqrstu", level="op", caller=train)
    b = trace(tmp_path / "b.zarr", "stu", first=3, state=STATE, level="op", caller=resume, **changes)
    found = compare(a, b)
    if changes:
        assert (found.verdict, found.decisive.step, found.decisive.identical_before) == (Verdict.DIVERGED, 3, 0)
    else:
        assert (found.verdict, steps(found)) == (Verdict.SAME_VALUES, (3, 0))


def test_a_difference_after_it_has_the_steps_of_both_sides(tmp_path: Path) -> None:
    """In an op, counted from the step at which B begins."""
    a = trace(tmp_path / "a.zarr", "pqrstu", level="op")
    b = trace(tmp_path / "b.zarr", "stu", first=3, state=STATE, level="op", output="other")
    found = compare(a, b).decisive
    assert (found.step, found.b_step, found.a_index, found.b_index, found.identical_before) == (3, 0, 3, 1, 0)


@pytest.mark.parametrize(
    ("a", "b"),
    [("ppqr", "pqrs"), ("pqrs", "wxyz")],
    ids=["they begin alike, and a scaler skips a step", "another seed"],
)
def test_runs_that_are_never_shifted(tmp_path: Path, a: str, b: str) -> None:
    """The whole result is that of the comparison from the beginnings."""
    paths = trace(tmp_path / "a.zarr", a), trace(tmp_path / "b.zarr", b)
    found = compare(*paths)
    assert (found.verdict, steps(found), found.notes) == (Verdict.DIVERGED, None, ())
    assert found.decisive.step == 0
    assert found == compare(*paths, starts=FROM_BEGINNINGS)


def test_traces_that_do_not_say_what_they_began_with(tmp_path: Path) -> None:
    """Those of older versions are compared from their beginnings."""
    for builder, parameters in both(tmp_path, "qrs", "s", level="step", engine="none"):
        for after in parameters:
            builder.end_step(parameters=after, gradients=after, generators=after, recorded=False)
    found = compare_in(tmp_path)
    assert (steps(found), found.notes) == (None, ())


def test_several_steps_with_these_parameters_are_not_guessed_between(tmp_path: Path) -> None:
    """After steps that changed nothing, it is said which steps they are, and how to name one."""
    a = trace(tmp_path / "a.zarr", "pqqqr")
    b = trace(tmp_path / "b.zarr", "qqr", first=2, state=STATE)
    found = compare(a, b)
    assert (found.verdict, steps(found)) == (Verdict.DIVERGED, None)
    (note,) = found.notes
    assert "before several of its steps (1, 2, 3)" in note and "--b-starts-at" in note
    named = compare(a, b, starts=Pair(None, 2))
    assert (named.verdict, steps(named)) == (Verdict.IDENTICAL, (2, 0))


def test_two_optimizers_decide_together(tmp_path: Path) -> None:
    """Either alone would fit two steps; both fit one."""
    straight = "kp", [(0, "l"), (1, "q"), (0, "m"), (1, "r"), (0, "n"), (1, "s")]
    resumed = "mr", [(0, "n"), (1, "s")]
    for builder, (began, attempts) in both(tmp_path, straight, resumed, level="step", engine="none"):
        for ordinal, parameters in enumerate(began):
            builder.optimizer(parameters, ordinal, state=STATE if began == "mr" else ())
        for ordinal, after in attempts:
            builder.end_step(ordinal=ordinal, parameters=after, gradients=after, generators=after, recorded=False)
    found = compare_in(tmp_path)
    assert (found.verdict, steps(found)) == (Verdict.IDENTICAL, (4, 0))


def test_a_run_that_begins_where_the_other_ends(tmp_path: Path) -> None:
    """There is nothing to compare, which a note says."""
    a = trace(tmp_path / "a.zarr", "pqr")
    b = trace(tmp_path / "b.zarr", "rst", first=2, state=STATE)
    found = compare(a, b)
    assert steps(found) is None
    assert any("with which A ends" in note for note in found.notes)


def test_a_repetition_after_a_warm_up(tmp_path: Path) -> None:
    """B makes two steps with another optimizer, then everything from the start: A begins at B's step 2."""
    a = trace(tmp_path / "a.zarr", "pqrs")
    builder = TraceBuilder(tmp_path / "b.zarr", level="step", engine="none")
    for after in "vw":
        builder.end_step(parameters=after, gradients=after, generators=after, recorded=False)
    for step, after in enumerate("qrs"):
        taken = {name: f"{name} {step} " for name in ("gradients", "generators")}
        builder.end_step(ordinal=1, parameters=after, recorded=False, **taken)
    found = compare(a, builder.finish(), starts=Pair(2, None))
    assert (found.verdict, steps(found)) == (Verdict.IDENTICAL, (0, 2))


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    """The error says which steps there are; both options at once are an error, too."""
    a = trace(tmp_path / "a.zarr", "pqrs")
    b = trace(tmp_path / "b.zarr", "rs", first=2)
    with pytest.raises(UsageError, match="--b-starts-at 3: A's rank0/main has no such step; it has steps 0 to 2"):
        compare(a, b, starts=Pair(None, 3))
    with pytest.raises(UsageError, match="--a-starts-at 7: B's rank0/main has no such step; it has steps 0 to 0"):
        compare(a, b, starts=Pair(7, None))
    with pytest.raises(UsageError, match="exclude each other"):
        compare(a, b, starts=Pair(1, 1))


@pytest.mark.parametrize(
    ("changes", "state", "expected"),
    [
        ({"generators": "x"}, STATE, NotRestored("generator", "torch's generator on the CPU")),
        ({"gradients": "x"}, STATE, NotRestored("data", "data of a loader or an environment")),
        ({"parameters": "xy"}, (), NotRestored("optimizer", "Adam: exp_avg, step")),
        ({"parameters": "xy"}, ("step",), NotRestored("optimizer", "Adam: exp_avg")),
        ({"parameters": "xy"}, STATE, NotRestored("optimizer", "Adam")),
    ],
)
def test_what_was_not_restored(
    tmp_path: Path, changes: dict[str, str], state: Sequence[str], expected: NotRestored
) -> None:
    """By what differs at the end of the first common step, and by the state that the optimizer began with."""
    a = trace(tmp_path / "a.zarr", "pqrstu")
    after = changes.pop("parameters", "tu")
    b = trace(tmp_path / "b.zarr", f"s{after}", first=3, state=state, **changes)
    found = compare(a, b)
    assert found.decisive is not None and steps(found) == (3, 0)
    assert (found.decisive.step, found.decisive.b_step, found.decisive.not_restored) == (3, 0, expected)
    record_a, record_b, diff = found.advice
    assert "--steps 3:4" in record_a and "--steps 0:1" in record_b and diff.endswith(" --b-starts-at 3")


def test_lost_state_is_noted_beside_an_earlier_difference(tmp_path: Path) -> None:
    """Where other gradients hide it, the optimizer that began without its state is named all the same."""
    a = trace(tmp_path / "a.zarr", "pqrstu")
    b = trace(tmp_path / "b.zarr", "sxy", first=3, gradients="x")
    assert any("B's Adam begins without exp_avg and step" in note for note in compare(a, b).notes)


def test_a_process_without_steps_is_left_out(tmp_path: Path) -> None:
    """A loader's worker has no step to begin at: it is not compared, and a note says so."""
    for builder, (parameters, first) in both(tmp_path, ("pqrs", 0), ("rs", 2)):
        builder.optimizer(parameters[0], state=STATE if first else (), kept=STATE)
        builder.process("rank0/worker:0").stream().op("aten.stack.default", outputs=[f"{first}"])
        for step, after in enumerate(parameters[1:], first):
            builder.op("aten.mm.default", outputs=[f"out {step}"])
            builder.end_step(parameters=after, gradients=after, generators=f"generator {step}")
    found = compare_in(tmp_path)
    assert (found.verdict, steps(found)) == (Verdict.IDENTICAL, (2, 0))
    assert any("not compared: rank0/worker:0" in note for note in found.notes)


def test_steps_of_one_side_on_the_other() -> None:
    """Steps are converted by the steps at which both begin."""
    shift = Shift(7, 2, "why")
    assert (shift.step_of_a(2), shift.step_of_a(5), shift.step_of_b(7), shift.step_of_b(10)) == (7, 10, 2, 5)
