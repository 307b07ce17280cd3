"""What an experiment on two runs comes to: confirmed where the cause is known and for no other reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from confirm_bench import confirm
from torch import nn

from rltrace.errors import UsageError
from rltrace.experiment.confirm.setup import ConfirmOptions, prepare
from rltrace.experiment.outcome import ArmName, ArmState, ExperimentResult, Outcome
from rltrace.testing import TraceBuilder

OFF: dict[str, float] = {}
"""How far each planted op is off; each program sets it."""


def _planted(name: str) -> torch.library.CustomOpDef:
    @torch.library.custom_op(f"confirm::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + OFF.get(name, 0.0))

    op.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)
    return op


first, second, third = map(_planted, ("first", "second", "third"))


def train(steps: int, loss_of: object, **off: float) -> None:
    """A few steps of a small model; ``loss_of`` is called with the model and the step."""
    OFF.clear()
    OFF.update(off)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss_of(model, step).backward()  # type: ignore[operator]
        optimizer.step()
        optimizer.zero_grad()


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

    def program(is_b: bool) -> None:
        train(
            3,
            lambda model, step: third(second(first(model(torch.rand(5, 4))).tanh()).exp()).mean(),
            **({"first": 0.1, "second": 0.1, "third": 0.1} if is_b else {}),
        )

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert states(outcome) == EXPECTED
    assert outcome.by_state
    assert needed(outcome) == {"confirm.first.default", "confirm.second.default"}
    assert {kind.op for kind in outcome.classes} == {f"confirm.{n}.default" for n in ("first", "second", "third")}
    # the last one scales the loss alone, and its gradient is made to be that of no scale at all


def test_one_matters_and_two_do_not(tmp_path: Path) -> None:
    """Two ops that only feed a log compute otherwise as well: they are listed, and left out of what it takes."""

    def program(is_b: bool) -> None:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            out = first(model(torch.rand(5, 4)))
            second(out.detach()).mean().item()
            third(out.detach()).std().item()
            return out.square().mean()

        train(3, loss_of, **({"first": 0.1, "second": 0.1, "third": 0.1} if is_b else {}))

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert needed(outcome) == {"confirm.first.default"}
    assert len(outcome.classes) == 3
    assert "it is all that is needed" in outcome.explanation


def test_a_log_alone(tmp_path: Path) -> None:
    """Where both leave the same state behind, every op counts: else nothing would be left to explain."""

    def program(is_b: bool) -> None:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            out = model(torch.rand(5, 4))
            second(out.detach()).mean().item()
            return out.square().mean()

        train(2, loss_of, second=0.1 * is_b)

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert outcome.by_state is False
    assert needed(outcome) == {"confirm.second.default"}


def test_data_from_outside(tmp_path: Path) -> None:
    """An environment that returns another observation, once."""

    def program(is_b: bool) -> None:
        world = np.random.default_rng(1)

        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            seen = world.random((5, 4), dtype=np.float32)
            if is_b and step == 1:
                seen[2, 1] += 0.25
            return model(torch.from_numpy(seen)).square().mean()

        train(3, loss_of)

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    (kind,) = [kind for kind in outcome.classes if kind.matters]
    assert kind.parts == ("outside",)
    assert (outcome.first_step, outcome.end_step) == (1, 3)


def test_a_generator(tmp_path: Path) -> None:
    """One that stood elsewhere when an op drew: its state is what is put in."""

    def program(is_b: bool) -> None:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            if is_b and step == 1:
                torch.manual_seed(5)
            return model(torch.rand(5, 4)).square().mean()

        train(3, loss_of)

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    (kind,) = [kind for kind in outcome.classes if kind.matters]
    assert (kind.op, kind.parts, kind.count) == ("aten.rand.default", ("generator",), 1)


def test_control_flow_that_forks_on_a_number(tmp_path: Path) -> None:
    """The op that computed the number is the cause, and with A's value there B takes A's way."""

    def program(is_b: bool) -> None:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            out = model(torch.rand(5, 4))
            if first(torch.ones(3)).sum().item() > 3.1:
                out = out.abs() + out.square()
            return out.mean()

        train(3, loss_of, first=0.1 * is_b)

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert needed(outcome) == {"confirm.first.default"}


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


def test_control_flow_that_no_op_tells(tmp_path: Path) -> None:
    """B runs an op more, for no reason that a value gives: no value undoes that, and nothing is confirmed."""

    def program(is_b: bool) -> None:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            out = model(torch.rand(5, 4))
            if is_b:
                out = out * 1.5
            return out.square().mean()

        train(2, loss_of)

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.UNRESOLVED, outcome.explanation
    assert "runs other ops than A" in outcome.explanation


def test_a_that_does_not_repeat_itself(tmp_path: Path) -> None:
    """A program that computes something else each time is no control."""
    noise = random.Random(3)

    def program(is_b: bool) -> None:
        train(2, lambda model, step: first(model(torch.rand(5, 4))).mean(), first=noise.random())

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.UNRESOLVED, outcome.explanation
    assert "A is not reproducible" in outcome.explanation
    assert states(outcome) == [ArmState.FAILED] + [ArmState.NOT_RUN] * 3


def test_threads_that_add_in_any_order(tmp_path: Path) -> None:
    """``index_put_(accumulate=True)`` on two threads gives one of several sums each time: the difference of two runs is
    real, and no experiment confirms it, for A itself does not repeat."""
    index, source = torch.arange(60_000) % 7, torch.rand(60_000, generator=torch.Generator().manual_seed(1))

    def program(is_b: bool) -> None:
        train(1, lambda model, step: model(scattered(index, source)).square().mean())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outcome = until_they_part(tmp_path, program)
    finally:
        torch.set_num_threads(before)
    if outcome is None:
        pytest.skip("the threads added in the same order every time")
    assert outcome.word is Outcome.UNRESOLVED, outcome.explanation
    assert "is not reproducible" in outcome.explanation


def until_they_part(folder: Path, program: Callable[[bool], None]) -> ExperimentResult | None:
    """The experiment on the first pair of runs that differ."""
    for number in range(12):
        (folder / str(number)).mkdir()
        try:
            return confirm(folder / str(number), program, samples=6)
        except UsageError:
            continue
    return None


def scattered(index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(8).index_put_((index,), source, accumulate=True)
    return sums[:4]


@pytest.mark.parametrize("flaky_from", [2, 3, 4, 6, 8])
def test_b_that_seldom_computes_otherwise(tmp_path: Path, flaky_from: int) -> None:
    """From some run on B has another value than it had: it is never confirmed as if the cause were known."""
    runs = [0]

    def program(is_b: bool) -> None:
        runs[0] += is_b
        off = 0.1 if runs[0] < flaky_from else 0.2
        train(2, lambda model, step: second(first(model(torch.rand(5, 4)))).square().mean(), first=off * is_b)

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
        off = {"first": 0.1 * is_b, "second": 0.1 * (is_b and runs[0] > 5 and runs[0] % 2)}
        train(2, lambda model, step: second(first(model(torch.rand(5, 4)))).square().mean(), **off)

    outcome = confirm(tmp_path, program, samples=2)
    assert outcome.word in (Outcome.UNRESOLVED, Outcome.PARTIAL), outcome.explanation


def two_origins(is_b: bool) -> None:
    """One in step 0, one in step 1."""

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        out = first(model(torch.rand(5, 4)))
        return (second(out) if step == 1 else out).square().mean()

    train(3, loss_of, **({"first": 0.1, "second": 0.1} if is_b else {}))


def test_the_wrong_cause(tmp_path: Path) -> None:
    """Values at an op that only receives the difference repair nothing, though they would cover for it."""
    outcome = confirm(tmp_path, two_origins, selectors=("op=mse_loss", "op=square", "op=pow"))
    assert outcome.word is Outcome.REFUTED, outcome.explanation
    assert "confirm.first.default" in outcome.explanation
    assert states(outcome)[2:] == [ArmState.OTHERWISE, ArmState.NOT_RUN]


def test_a_later_cause(tmp_path: Path) -> None:
    """An op that does compute otherwise, but after the difference had begun."""
    outcome = confirm(tmp_path, two_origins, selectors=("op=confirm.second",))
    assert outcome.word is Outcome.REFUTED, outcome.explanation


def test_a_part_of_the_cause(tmp_path: Path) -> None:
    """The first origin alone: B follows A further, and the next origin is named."""
    outcome = confirm(tmp_path, two_origins, selectors=("op=confirm.first",))
    assert outcome.word is Outcome.PARTIAL, outcome.explanation
    assert "confirm.second.default" in outcome.explanation


def test_the_whole_cause_by_hand(tmp_path: Path) -> None:
    """Both origins, as selectors."""
    outcome = confirm(tmp_path, two_origins, selectors=("op=confirm.first", "op=confirm.second"))
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert states(outcome) == EXPECTED


def test_an_op_that_b_does_not_come_to(tmp_path: Path) -> None:
    """Nothing can be put in where B never is: the experiment proves nothing."""

    def program(is_b: bool) -> None:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            out = first(model(torch.rand(5, 4)))
            return out.mean() if is_b else second(out).mean()

        train(2, loss_of, first=0.1 * is_b)

    outcome = confirm(tmp_path, program, selectors=("op=confirm.second",))
    assert outcome.word is Outcome.UNRESOLVED, outcome.explanation
    assert "did not happen" in outcome.explanation


def test_a_limit_on_values(tmp_path: Path) -> None:
    """Values that were left out for want of room are asked for, not passed over."""
    outcome = confirm(tmp_path, two_origins, values_limit=200)
    assert outcome.word is Outcome.UNRESOLVED
    assert "--values-limit" in outcome.explanation
    assert outcome.arms[0].name is ArmName.A0
