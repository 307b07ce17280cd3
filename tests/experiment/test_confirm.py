"""What an experiment on two runs comes to: confirmed where the cause is known and for no other reason."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from confirm_bench import confirm
from torch import nn
from toy_environments import Walk

from rltrace.errors import UsageError
from rltrace.experiment.confirm.setup import ConfirmOptions, prepare
from rltrace.experiment.outcome import ArmName, ArmState, ExperimentResult, Outcome
from rltrace.testing import TraceBuilder

Program = Callable[[bool], None]
"""Is called with whether it is B."""

OFF: dict[str, float] = {}
"""How far each planted op is off; each program sets it."""


def _planted(name: str) -> torch.library.CustomOpDef:
    @torch.library.custom_op(f"confirm::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + OFF.get(name, 0.0))

    op.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)
    return op


first, second, third = map(_planted, ("first", "second", "third"))


def training(loss_of: Callable[[nn.Module, int, bool], torch.Tensor], steps: int = 3, **off: float) -> Program:
    """A program that trains a small model; ``off``: how far the planted ops are off in B."""

    def program(is_b: bool) -> None:
        OFF.clear()
        OFF.update(off if is_b else {})
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            loss_of(model, step, is_b).backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def needed(outcome: ExperimentResult) -> set[str]:
    return {kind.op for kind in outcome.classes if kind.matters}


def states(outcome: ExperimentResult) -> list[ArmState]:
    return [arm.state for arm in outcome.arms]


EXPECTED = [ArmState.AS_EXPECTED] * 4


# --- refused --------------------------------------------------------------------------------------------------------


def test_numbers_that_an_edit_changed_are_not_to_be_confirmed(tmp_path: Path) -> None:
    """The programs say so themselves: that is said before anything runs. A suspicion is tested all the same."""
    for name in "ab":
        trace = TraceBuilder(tmp_path / name)
        trace.fact("source.train.py", name)
        trace.op("aten.mul.Scalar", outputs=[name], floats=[0.5 if name == "a" else 0.6])
        trace.end_step()
        trace.finish()
    request = ConfirmOptions(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError, match=r"^there is nothing to confirm: aten\.mul\.Scalar .*\(train\.py was edited\)"):
        prepare(request)
    assert prepare(replace(request, selectors=("op=mul",))).question.selectors == ("op=mul",)


# --- confirmed ------------------------------------------------------------------------------------------------------


def test_masked_origins(tmp_path: Path) -> None:
    """Three ops that compute otherwise, each of which hides the next: all of them are found, and each is needed."""

    def loss_of(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
        return third(second(first(model(torch.rand(5, 4))).tanh()).exp()).mean()

    outcome = confirm(tmp_path, training(loss_of, first=0.1, second=0.1, third=0.1))
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert states(outcome) == EXPECTED
    assert outcome.by_state
    assert needed(outcome) == {"confirm.first.default", "confirm.second.default"}
    assert {kind.op for kind in outcome.classes} == {f"confirm.{n}.default" for n in ("first", "second", "third")}
    # the last one scales the loss alone, and its gradient is made to be that of no scale at all


def beside_a_log(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
    """The second and the third op only feed a log."""
    out = first(model(torch.rand(5, 4)))
    second(out.detach()).mean().item()
    third(out.detach()).std().item()
    return out.square().mean()


def forking_on_a_number(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
    out = model(torch.rand(5, 4))
    if first(torch.ones(3)).sum().item() > 3.1:
        out = out.abs() + out.square()
    return out.mean()


@pytest.mark.parametrize(
    ("loss_of", "off", "op", "by_state"),
    [
        (beside_a_log, ("first", "second", "third"), "first", True),
        (beside_a_log, ("second",), "second", False),
        (forking_on_a_number, ("first",), "first", True),
    ],
    ids=["one matters and two do not", "a log alone", "control flow that forks on a number"],
)
def test_what_it_takes(tmp_path: Path, loss_of: Any, off: tuple[str, ...], op: str, by_state: bool) -> None:
    """Ops that only feed a log are listed and left out, unless both leave the same state behind: else nothing would be
    left to explain. Where an op computed the number that decides, B takes A's way with A's value there."""
    outcome = confirm(tmp_path, training(loss_of, 2, **dict.fromkeys(off, 0.1)))
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert (outcome.by_state, needed(outcome)) == (by_state, {f"confirm.{op}.default"})
    assert len(outcome.classes) == len(off)
    assert "it is all that is needed" in outcome.explanation


def test_data_from_outside(tmp_path: Path) -> None:
    """An environment that returns another observation, once."""

    def loss_of(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
        seen = np.random.default_rng(step).random((5, 4), dtype=np.float32)
        if is_b and step == 1:
            seen[2, 1] += 0.25
        return model(torch.from_numpy(seen)).square().mean()

    outcome = confirm(tmp_path, training(loss_of))
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    (kind,) = [kind for kind in outcome.classes if kind.matters]
    assert kind.parts == ("outside",)
    assert outcome.found.endswith(
        ", step 1: input 1 (float32[5,4]) came from outside (no recorded op wrote it) and differs"
    )
    assert (outcome.first_step, outcome.end_step) == (1, 3)


def test_a_generator(tmp_path: Path) -> None:
    """One that stood elsewhere when an op drew: its state is what is injected."""

    def loss_of(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
        if is_b and step == 1:
            torch.manual_seed(5)
        return model(torch.rand(5, 4)).square().mean()

    outcome = confirm(tmp_path, training(loss_of))
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    (kind,) = [kind for kind in outcome.classes if kind.matters]
    assert (kind.op, kind.parts, kind.count) == ("aten.rand.default", ("generator",), 1)


def test_other_arguments(tmp_path: Path) -> None:
    """Another learning rate: the ops that got it are the cause."""

    def program(is_b: bool) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2 if is_b else 0.1)
        for _ in range(3):
            model(torch.rand(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert all("add" in op for op in needed(outcome))


# --- not confirmed --------------------------------------------------------------------------------------------------


def test_a_that_does_not_repeat_itself(tmp_path: Path) -> None:
    """A program that computes something else each time is no control."""
    noise = random.Random(3)

    def program(is_b: bool) -> None:
        training(lambda model, *_: first(model(torch.rand(5, 4))).square().mean(), 2, first=noise.random())(True)

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.UNRESOLVED, outcome.explanation
    assert "A is not reproducible" in outcome.explanation
    assert states(outcome) == [ArmState.FAILED] + [ArmState.NOT_RUN] * 3


@pytest.mark.parametrize("used_in", [0, 2])
def test_a_number_that_is_another_in_each_run_and_only_logged(tmp_path: Path, used_in: int) -> None:
    """The controls hold for the state, where A and B have another; where they have the same, A is not reproducible."""
    clock, kept = itertools.count(), [torch.ones(())]

    def with_log(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
        torch.tensor(float(next(clock))).mul(2)
        if step == 0:
            kept[0] = first(torch.ones(()))
        loss = model(torch.rand(5, 4)).square().mean()
        return loss * kept[0] if step == used_in else loss

    outcome = confirm(tmp_path, training(with_log, 3, first=0.1), samples=2)
    if used_in == 0:
        assert outcome.word is Outcome.CONFIRMED, outcome.explanation
        assert states(outcome) == EXPECTED
        assert needed(outcome) == {"confirm.first.default"}
        assert "though run 1 of 2 of the same command diverges from A at aten.mul.Tensor" in outcome.arms[0].result
    else:  # after the steps covered
        assert outcome.word is Outcome.UNRESOLVED
        assert "A is not reproducible" in outcome.explanation


def twice(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
    return second(first(model(torch.rand(5, 4)))).square().mean()


@pytest.mark.parametrize("flaky_from", [3, 6])
def test_b_that_seldom_computes_otherwise(tmp_path: Path, flaky_from: int) -> None:
    """From some run on B has another value than it had: it is never confirmed as if the cause were known."""
    runs = [0]

    def program(is_b: bool) -> None:
        runs[0] += is_b
        off = 0.1 if runs[0] < flaky_from else 0.2
        training(twice, 2, first=off)(is_b)

    outcome = confirm(tmp_path, program, samples=2)
    if flaky_from <= 3:  # B, B0 and B0 again
        assert outcome.word is Outcome.UNRESOLVED
        assert "B is not reproducible" in outcome.explanation
    else:  # A's values cover for whatever B computes there
        assert outcome.word is Outcome.CONFIRMED


def test_a_repair_that_comes_and_goes(tmp_path: Path) -> None:
    """Another op computes otherwise in every other run of B: what repairs it in some does not in others."""
    runs = [0]

    def program(is_b: bool) -> None:
        runs[0] += is_b
        training(twice, 2, first=0.1, second=0.1 * (runs[0] > 5 and runs[0] % 2))(is_b)

    outcome = confirm(tmp_path, program, samples=2)
    assert outcome.word in (Outcome.UNRESOLVED, Outcome.PARTIAL), outcome.explanation


def of_two_origins(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
    """One in step 0, one in step 1."""
    out = first(model(torch.rand(5, 4)))
    return (second(out) if step == 1 else out).square().mean()


two_origins = training(of_two_origins, first=0.1, second=0.1)


def test_the_wrong_cause(tmp_path: Path) -> None:
    """Values at an op that only receives the difference repair nothing, though they would cover for it."""
    outcome = confirm(tmp_path, two_origins, selectors=("op=mse_loss", "op=square", "op=pow"))
    assert outcome.word is Outcome.REFUTED, outcome.explanation
    assert "confirm.first.default" in outcome.explanation
    assert states(outcome)[2:] == [ArmState.OTHERWISE, ArmState.NOT_RUN]


@pytest.mark.parametrize(
    ("selectors", "word", "explained"),
    [
        pytest.param(["second"], Outcome.REFUTED, "", id="an origin after the difference has begun"),
        pytest.param(["first"], Outcome.PARTIAL, "confirm.second.default", id="the first origin alone"),
        pytest.param(["first", "second"], Outcome.CONFIRMED, "", id="both origins"),
    ],
)
def test_a_cause_by_hand(tmp_path: Path, selectors: list[str], word: Outcome, explained: str) -> None:
    """Of two origins: with the first alone B follows A further, and the next origin is named."""
    outcome = confirm(tmp_path, two_origins, selectors=tuple(f"op=confirm.{name}" for name in selectors))
    assert outcome.word is word, outcome.explanation
    assert explained in outcome.explanation
    assert (states(outcome) == EXPECTED) == (word is Outcome.CONFIRMED)


def one_op_more(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
    out = model(torch.rand(5, 4))
    return (out * 1.5 if is_b else out).square().mean()


def another_way(model: nn.Module, step: int, is_b: bool) -> torch.Tensor:
    out = first(model(torch.rand(5, 4)))
    return out.mean() if is_b else second(out).mean()


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        (training(one_op_more, 2), {}, "runs other ops than A"),
        (training(another_way, 2, first=0.1), {"selectors": ("op=confirm.second",)}, "did not happen"),
        (two_origins, {"values_limit": 200}, "--values-limit"),
    ],
    ids=["control flow that no op shows", "an op that B does not come to", "a limit on values"],
)
def test_what_proves_nothing(tmp_path: Path, program: Program, options: dict[str, Any], words: str) -> None:
    """No value undoes an op more for no reason that a value gives, nor can be injected where B never is; values that
    were left out for want of room are asked for, not passed over."""
    outcome = confirm(tmp_path, program, **options)
    assert outcome.word is Outcome.UNRESOLVED, outcome.explanation
    assert words in outcome.explanation
    assert outcome.arms[0].name is ArmName.A0


class Off(Walk):
    """One observation is off, at its second step."""

    off = 0.0
    steps = 0

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        self.steps += 1
        return (seen + np.float32(self.off) if self.steps == 2 else seen, *rest)


def test_what_an_environment_returned(tmp_path: Path) -> None:
    """The finding is at the environment's event; the experiment is made at the op that takes the observation in."""

    def program(is_b: bool) -> None:
        env, model = Off(length=99), nn.Linear(1, 3)
        env.off = 0.25 if is_b else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        env.reset(seed=0)
        for step in range(3):
            seen, *_ = env.step(step % 2)
            model(torch.from_numpy(seen)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert (outcome.first_step, outcome.end_step) == (1, 3)
    (kind,) = [kind for kind in outcome.classes if kind.matters]
    assert kind.parts == ("outside",)
