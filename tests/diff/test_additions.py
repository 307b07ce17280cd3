"""Additions to a real program: those that change nothing leave it the same, the others never do.

What an addition runs has ``extra`` in its stack, so its rows can be taken out of a trace, and what is left is compared
with the unchanged run row by row: that is the truth, and takes no alignment.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Record, Recorded, Row, recorder
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict

STEPS = 3


@dataclass
class State:
    """What an addition can reach."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    observation: Tensor
    generator: torch.Generator
    """The program draws from it."""
    step: int = 0
    own: torch.Generator = field(default_factory=torch.Generator)
    """Only additions draw from it."""
    average: list[Tensor] = field(default_factory=list)

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.net.parameters())

    @property
    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]


Extra = Callable[[State], object]
Plan = Mapping[tuple[int, str], Sequence[Extra]]
"""By step and place ("begin", "loss", "before", "end"): what runs there."""


def train(plan: Plan) -> None:
    """A few updates: a forward pass with dropout and noise, a choice, a loss, a backward pass, an optimizer step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    state = State(net, optimizer, torch.zeros(4, 4), generator)
    for step in range(STEPS):
        state.step = step
        state.observation.copy_(torch.randn(4, 4, generator=generator))
        _extra(plan, state, "begin")
        out = net(state.observation)
        chosen = out.argmax(dim=1)
        _extra(plan, state, "loss")
        loss = (out + 0.1 * torch.randn(4, 4)).pow(2).mean() + chosen.sum()
        optimizer.zero_grad()
        loss.backward()
        _extra(plan, state, "before")
        optimizer.step()
        _extra(plan, state, "end")


def runs(record: Record, *plans: Plan, **options: Any) -> list[Recorded]:
    """Record the program once for each plan; from one line of code, so that its ops have the same place every time."""
    return [record(lambda plan=plan: train(plan), **options) for plan in plans]


def _extra(plan: Plan, state: State, place: str) -> None:
    for extra in plan.get((state.step, place), ()):
        with torch.no_grad():
            extra(state)


# --- what changes nothing ---------------------------------------------------------------------------------------------


def extra_forked(state: State) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        state.net(torch.randn(4, 4))


def extra_saved_state(state: State) -> None:
    saved = torch.get_rng_state()
    torch.randn(3)
    torch.set_rng_state(saved)


def extra_saved_state_of_the_program(state: State) -> None:
    if state.step == STEPS - 1:
        return  # nothing draws from it any more, and so nothing shows that it is restored
    saved = state.generator.get_state()
    torch.randn(3, generator=state.generator)
    state.generator.set_state(saved)


def extra_own_generator(state: State) -> None:
    torch.randn(3, generator=state.own)


def extra_new_generator(state: State) -> None:
    torch.randn(3, generator=torch.Generator().manual_seed(state.step))


def extra_evaluation(state: State) -> None:
    state.net.eval()
    noise = torch.randn(2, 4, generator=state.own)
    state.net(state.observation[:2] + noise).argmax(dim=1).tolist()
    state.net.train()


def extra_large_bound(state: State) -> None:
    clip_grad_norm_(state.parameters, 1e6)


def extra_large_bound_one_by_one(state: State) -> None:
    clip_grad_norm_(state.parameters, 1e6, foreach=False)


def extra_nan_check(state: State) -> None:
    assert all(bool(torch.isfinite(p).all()) for p in state.parameters)


def extra_norms(state: State) -> None:
    torch.stack([g.norm() for g in state.gradients] or [torch.zeros(1)]).norm().item()


def extra_average(state: State) -> None:
    state.average = state.average or [p.clone() for p in state.parameters]
    for mean, p in zip(state.average, state.parameters, strict=True):
        mean.lerp_(p, 0.1)


def extra_swap(state: State) -> None:
    """The weights are others for a while, and put back."""
    kept = [p.clone() for p in state.parameters]
    for p in state.parameters:
        p.zero_()
    state.net.eval()
    state.net(state.observation)
    state.net.train()
    for p, old in zip(state.parameters, kept, strict=True):
        p.copy_(old)


def extra_times_one(state: State) -> None:
    for p in state.parameters:
        p.mul_(1.0 - 1e-2 * 0.0)


def extra_onto_itself(state: State) -> None:
    for p in state.parameters:
        p.copy_(p)


def extra_within_bounds(state: State) -> None:
    state.observation.clamp_(-1e3, 1e3)


HARMLESS: tuple[Extra, ...] = (
    extra_forked,
    extra_saved_state,
    extra_saved_state_of_the_program,
    extra_own_generator,
    extra_new_generator,
    extra_evaluation,
    extra_large_bound,
    extra_large_bound_one_by_one,
    extra_nan_check,
    extra_norms,
    extra_average,
    extra_swap,
    extra_times_one,
    extra_onto_itself,
    extra_within_bounds,
)


WRITING = (extra_swap, extra_times_one, extra_onto_itself, extra_within_bounds)
"""They write what autograd has kept, so they cannot stand between a forward and its backward pass."""


# --- what changes something -------------------------------------------------------------------------------------------


def extra_draw(state: State) -> None:
    torch.randn(3)


def extra_draw_from_the_program(state: State) -> None:
    torch.randn(3, generator=state.generator)


def extra_draw_after_fork(state: State) -> None:
    extra_forked(state)
    torch.rand(1)


def extra_small_bound(state: State) -> None:
    clip_grad_norm_(state.parameters, 1e-3)


def extra_smaller_weights(state: State) -> None:
    for p in state.parameters:
        p.mul_(0.999)


def extra_one_bit(state: State) -> None:
    state.parameters[0].view(torch.int32)[1, 2].bitwise_xor_(1)


def extra_one_bit_of_a_gradient(state: State) -> None:
    state.gradients[-1].view(torch.int32)[0].bitwise_xor_(1)


def extra_one_bit_of_the_observation(state: State) -> None:
    state.observation.view(torch.int32)[0, 0].bitwise_xor_(1)


def extra_transposed(state: State) -> None:
    """The digest of what is written is that of what was there: it is the view that is another."""
    state.observation.t().copy_(state.observation.clone())


HARMFUL: tuple[tuple[Extra, str], ...] = (
    (extra_draw, "begin"),
    (extra_draw, "end"),
    (extra_draw_from_the_program, "before"),
    (extra_draw_after_fork, "before"),
    (extra_small_bound, "before"),
    (extra_smaller_weights, "begin"),
    (extra_smaller_weights, "before"),
    (extra_one_bit, "end"),
    (extra_one_bit, "before"),
    (extra_one_bit_of_a_gradient, "before"),
    (extra_one_bit_of_the_observation, "begin"),
    (extra_transposed, "begin"),
)
"""With a place in a step at which an op uses what is changed."""

DRAWS = (extra_draw, extra_draw_from_the_program, extra_draw_after_fork)
"""Each counts as an effect until a later op finds the generator in the same state."""


def first_difference(a: Recorded, b: Recorded) -> tuple[int, int] | None:
    """Rows of the first op that both ran and that drew, read, returned or wrote something else; None: there is none."""
    rows_a, rows_b = _common(a), _common(b)
    assert [(r.op, r.line) for r in rows_a] == [(r.op, r.line) for r in rows_b]
    pairs = zip(rows_a, rows_b, strict=True)
    return next(((x.index, y.index) for x, y in pairs if _differs(x, y)), None)


def _common(got: Recorded) -> list[Row]:
    return [row for row in got.rows if not any(f["function"].startswith("extra_") for f in row.stack)]


def _differs(a: Row, b: Row) -> bool:
    reads = any(
        x.digest is not None and y.digest is not None and x.digest != y.digest
        for x, y in zip(a.inputs, b.inputs, strict=True)
    )
    return reads or (a.outputs, a.rng, a.value) != (b.outputs, b.rng, b.value)


# --- comparisons ------------------------------------------------------------------------------------------------------

PLACES = ("begin", "loss", "before", "end")


def compared(plan: Plan, other: Plan | None = None) -> tuple[Comparison, Recorded, Recorded]:
    """The program without additions, or with ``other`` ones, against itself with some."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = runs(recorder(Path(folder)), other or {}, plan)
        return compare(a.path, b.path), a, b


@pytest.mark.parametrize("extra", HARMLESS, ids=lambda extra: extra.__name__)
def test_what_changes_nothing(extra: Extra) -> None:
    """In every step, an addition without effect, twice: same values, and the ops of the addition as hunks."""
    comparison, plain, other = compared(
        {(step, place): [extra] for step in range(STEPS) for place in ("begin", "before")}
    )
    assert first_difference(plain, other) is None
    assert comparison.verdict is Verdict.SAME_VALUES, comparison.decisive or comparison.why
    assert comparison.structure.only_a == 0 and comparison.structure.only_b == len(other.rows) - len(plain.rows)


@pytest.mark.parametrize(("extra", "place"), HARMFUL, ids=lambda given: getattr(given, "__name__", given))
def test_what_changes_something(extra: Extra, place: str) -> None:
    """One addition with an effect, once: diverged, at the first op that shows it."""
    comparison, plain, other = compared({(1, place): [extra]})
    assert comparison.verdict is Verdict.DIVERGED
    value, expected = comparison.first_value, first_difference(plain, other)
    assert (value and (value.a_index, value.b_index)) == expected
    decisive = comparison.decisive
    assert decisive.cause in (Cause.CONTROL_FLOW, Cause.ENDED), decisive.explanation
    assert any(frame.function.startswith("extra") for frame in decisive.stack)


@pytest.mark.parametrize("swapped", [False, True])
def test_other_draws_at_one_place(swapped: bool) -> None:
    """Each side draws and puts the state back, in its own way: two additions, and not one op with another state."""
    plans: list[Plan] = [{(0, "begin"): [extra]} for extra in (extra_saved_state, extra_forked)]
    comparison, _, _ = compared(*(reversed(plans) if swapped else plans))
    assert comparison.verdict is Verdict.SAME_VALUES, comparison.decisive or comparison.why


@pytest.mark.parametrize("extra", [extra_draw, extra_draw_after_fork])
def test_a_draw_that_stays_and_one_that_does_not(extra: Extra) -> None:
    """Where one of them is not put back, the next draw of the program shows it."""
    comparison, _, _ = compared({(0, "begin"): [extra_saved_state]}, {(0, "begin"): [extra]})
    assert comparison.verdict is Verdict.DIVERGED


NO_PLAN: Plan = {}

examples = settings(max_examples=6)


def some(random: Random, beside: Plan = NO_PLAN) -> dict[tuple[int, str], list[Extra]]:
    """A few harmless additions here and there, but not where ``beside`` has some: two would be one, edited."""
    plan: dict[tuple[int, str], list[Extra]] = {}
    for _ in range(random.randint(1, 6)):
        step, place = random.randrange(STEPS), random.choice(PLACES)
        extra = random.choice([e for e in HARMLESS if place != "loss" or e not in WRITING])
        if (step, place) not in beside:
            plan.setdefault((step, place), []).append(extra)
    return plan


@examples
@given(st.integers(0, 1 << 32))
def test_any_number_of_harmless_additions(seed: int) -> None:
    """Values are the same with additions on one side or on both, in any step and place."""
    random = Random(seed)
    plan = some(random)
    comparison, plain, other = compared(plan, some(random, plan) if random.random() < 0.3 else None)
    assert first_difference(plain, other) is None
    assert comparison.verdict in (Verdict.SAME_VALUES, Verdict.IDENTICAL), comparison.decisive or comparison.why
    assert comparison.first_value is None and comparison.decisive is None


@examples
@given(st.integers(0, 1 << 32))
def test_one_addition_with_an_effect_among_harmless_ones(seed: int) -> None:
    """Diverged, at the first op that shows it, because of an addition; same values where no op does."""
    random = Random(seed)
    plan = some(random)
    extra, place = random.choice(HARMFUL)
    is_shown = place == "begin" or (place == "before" and extra not in DRAWS)
    step = random.randrange(STEPS if is_shown else STEPS - 1)
    plan.setdefault((step, place), []).append(extra)
    comparison, plain, other = compared(plan, some(random, plan) if random.random() < 0.3 else None)
    value, expected = comparison.first_value, first_difference(plain, other)
    assert (value and (value.a_index, value.b_index)) == expected
    if expected is None:  # one bit, which rounding hides
        assert comparison.verdict is Verdict.SAME_VALUES
        return
    assert comparison.verdict is Verdict.DIVERGED, comparison.why
    decisive = comparison.decisive
    assert decisive is not None and any(frame.function.startswith("extra") for frame in decisive.stack)


# --- generators -------------------------------------------------------------------------------------------------------


def test_a_state_that_is_left_elsewhere() -> None:
    """A seed that one side sets and nothing draws from changes no op: it is reported, and is no difference."""
    comparison, *_ = compared({(STEPS - 1, "end"): [lambda _: torch.manual_seed(5)]})
    assert comparison.verdict is Verdict.IDENTICAL
    assert any("torch generator states differ as" in note for note in comparison.notes)
    unchanged, *_ = compared({})
    assert unchanged.verdict is Verdict.IDENTICAL and not unchanged.notes
