"""Additions to a real program: those that change nothing leave it the same, the others never do."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from extras import (
    HARMFUL,
    HARMLESS,
    STEPS,
    WRITING,
    Extra,
    Plan,
    extra_draw,
    extra_draw_after_fork,
    extra_forked,
    extra_saved_state,
    first_difference,
    runs,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import Recorded, recorder
from torch import Tensor

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.testing import TraceBuilder

PLACES = ("begin", "loss", "before", "end")


def compared(plan: Plan, other: Plan | None = None) -> tuple[Comparison, Recorded, Recorded]:
    """The program without additions, or with ``other`` ones, against itself with some."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = runs(recorder(Path(folder)), other or {}, plan)
        return compare(a.path, b.path), a, b


@pytest.mark.parametrize("extra", HARMLESS, ids=lambda extra: extra.__name__)
@pytest.mark.parametrize("place", ["begin", "before"])
def test_what_changes_nothing(extra: Extra, place: str) -> None:
    """In every step, one addition that has no effect: same values, and the ops of the addition as hunks."""
    comparison, plain, other = compared({(step, place): [extra] for step in range(STEPS)})
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


examples = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def some(random: Random) -> dict[tuple[int, str], list[Extra]]:
    """A few harmless additions here and there."""
    plan: dict[tuple[int, str], list[Extra]] = {}
    for _ in range(random.randint(1, 6)):
        place = random.choice(PLACES)
        extra = random.choice([e for e in HARMLESS if place != "loss" or e not in WRITING])
        plan.setdefault((random.randrange(STEPS), place), []).append(extra)
    return plan


@examples
@given(st.randoms(use_true_random=False))
def test_any_number_of_harmless_additions(random: Random) -> None:
    """On one side or on both, in any step and place: the same values."""
    comparison, plain, other = compared(some(random), some(random) if random.random() < 0.3 else None)
    assert first_difference(plain, other) is None
    assert comparison.verdict in (Verdict.SAME_VALUES, Verdict.IDENTICAL), comparison.decisive or comparison.why
    assert comparison.first_value is None and comparison.decisive is None


@examples
@given(st.randoms(use_true_random=False))
def test_one_addition_with_an_effect_among_harmless_ones(random: Random) -> None:
    """Diverged, at the first op that shows it, because of an addition."""
    plan = some(random)
    extra, place = random.choice(HARMFUL)
    step = random.randrange(STEPS if place != "end" else STEPS - 1)
    plan.setdefault((step, place), []).append(extra)
    comparison, plain, other = compared(plan, some(random) if random.random() < 0.3 else None)
    assert comparison.verdict is Verdict.DIVERGED, comparison.why
    value, expected = comparison.first_value, first_difference(plain, other)
    assert (value and (value.a_index, value.b_index)) == expected
    decisive = comparison.decisive
    assert decisive is not None and any(frame.function.startswith("extra") for frame in decisive.stack)


# --- generators -------------------------------------------------------------------------------------------------------


def extra_thread(own: bool) -> None:
    """A thread that draws, from a generator of its own or from everybody's."""

    def draw() -> None:
        torch.rand(3, generator=torch.Generator() if own else None)

    thread = threading.Thread(target=draw, name="extra")
    thread.start()
    thread.join()


@pytest.mark.parametrize(("own", "verdict"), [(True, Verdict.SAME_VALUES), (False, Verdict.DIVERGED)])
def test_a_thread_that_draws(own: bool, verdict: Verdict) -> None:
    """One that only one run starts is harmless while nothing else draws from its generator."""
    comparison, *_ = compared({(STEPS - 1, "end"): [lambda _: extra_thread(own)]})
    assert comparison.verdict is verdict, comparison.decisive or comparison.why


def test_a_state_that_is_left_elsewhere() -> None:
    """A seed that one side sets and nothing draws from changes no op: it is reported, and is no difference."""
    comparison, *_ = compared({(STEPS - 1, "end"): [lambda _: torch.manual_seed(5)]})
    assert comparison.verdict is Verdict.IDENTICAL
    assert any("torch generator states differ as" in note for note in comparison.notes)
    unchanged, *_ = compared({})
    assert unchanged.verdict is Verdict.IDENTICAL and not unchanged.notes


@pytest.mark.parametrize(("seed", "verdict"), [(0, Verdict.IDENTICAL), (5, Verdict.DIVERGED)])
def test_a_seed_that_is_set_again(seed: int, verdict: Verdict) -> None:
    """Set where the program sets it anyway it changes nothing; else the next draw differs, with cause rng."""

    def program(again: bool) -> None:
        torch.manual_seed(0)
        if again:
            torch.manual_seed(seed)
        torch.rand(3)

    with tempfile.TemporaryDirectory() as folder:
        record = recorder(Path(folder))
        a, b = [record(lambda again=again: program(again)) for again in (False, True)]
        comparison = compare(a.path, b.path)
    assert comparison.verdict is verdict
    assert comparison.first_value is None or comparison.first_value.cause is Cause.RNG


def test_a_killed_run_may_have_put_it_back(tmp_path: Path) -> None:
    """What puts a draw back may be what is missing: an unfinished trace leaves it open, a whole one does not."""
    for state, verdict in (("killed", Verdict.UNKNOWN), ("complete", Verdict.DIVERGED)):
        paths = []
        for side in "ab":
            trace = TraceBuilder(tmp_path / f"{state}.{side}.zarr")
            rows = [
                trace.op("aten.mul.Tensor", ("train.py", k, "train", f"line {k}"), outputs=[f"m{k}"]) for k in range(9)
            ]
            if side == "b":
                trace.op("aten.rand.default", ("train.py", 50, "log", "extra"), outputs=["x"], rng="state")
            trace.op("aten.add.Tensor", ("train.py", len(rows), "train", "last"), outputs=["y"])
            paths.append(trace.finish(state if side == "b" else "complete"))
        assert compare(*paths).verdict is verdict


# --- effects that no digest of a matched op shows ---------------------------------------------------------------------


def extra_part(x: Tensor) -> None:
    x[1].add_(1e-3)


def extra_bit(x: Tensor) -> None:
    x.view(torch.int32)[2, 3].bitwise_xor_(1)


def extra_as_an_earlier_reader_returned(x: Tensor) -> None:
    x.relu_()


def extra_turned(x: Tensor) -> None:
    x.t().copy_(x.clone())


def extra_times(x: Tensor) -> None:
    x.mul_(torch.full((), 1.5))


def extra_out(x: Tensor) -> None:
    torch.add(x, 1.0, out=x)


def extra_flipped(x: Tensor) -> None:
    x.copy_(x.flip(0))


def extra_sign_of_zero(x: Tensor) -> None:
    x.diagonal().add_(0.0)


HIDDEN = (
    extra_part,
    extra_bit,
    extra_as_an_earlier_reader_returned,
    extra_turned,
    extra_times,
    extra_out,
    extra_flipped,
    extra_sign_of_zero,
)


def compares_only(made: str, extra: Callable[[Tensor], None] | None) -> None:
    """A tensor of which matched ops read all, and whose results are the same whatever is in it."""
    torch.manual_seed(5)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32))
    if made != "outside":
        x = x + 0.0
    if made == "written in part":
        x[0] = 1.0
    x.diagonal().fill_(-0.0)
    if made == "earlier step":
        rltrace.step()
    x.relu()
    if extra is not None:
        extra(x)
    (x > -1e9).all().item()
    (x.t() > -1e9).all().item()


@pytest.mark.parametrize("extra", HIDDEN, ids=lambda extra: extra.__name__)
@pytest.mark.parametrize("made", ["outside", "same step", "earlier step", "written in part"])
def test_an_effect_that_nothing_shows(tmp_path: Path, made: str, extra: Callable[[Tensor], None]) -> None:
    """Other bytes went into an op of both sides, whose result happens to be the same: an op of one side alone, which
    is not known to affect results; where both sides digested the other bytes, they are a difference."""
    record = recorder(tmp_path)
    a, b = [record(lambda e=e: compares_only(made, e)) for e in (None, extra)]
    found = compare(a.path, b.path)
    assert found.verdict is (Verdict.SAME_VALUES if found.first_value is None else Verdict.DIVERGED)
    assert (found.first_value is None) == (first_difference(a, b) is None)
    if found.first_value is None:
        assert "affects results" not in found.first.explanation
