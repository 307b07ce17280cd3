"""Data from outside that nothing trained depends on does not hide what training differs by, and is said with it."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded import recorder

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Finding, Verdict

STEPS = 4


def program(
    clock: float,
    *,
    rate: float = 0.1,
    scale: float = 1.0,
    logs: bool = False,
    weight: float = 0.0,
    seed: int = 0,
    draws_late: bool = False,
) -> Callable[[], None]:
    """Training beside a clock from outside, of which a running mean is taken, as a logger does.

    ``rate`` of learning and ``scale`` of the outputs apply from the third step on; ``logs``: Python reads the mean;
    ``weight`` with which the mean is added to the loss; ``seed``: of what is drawn last.
    """

    def run() -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        mean = torch.zeros(1)
        for step in range(STEPS):
            mean = mean * 0.9 + torch.from_numpy(np.array([clock + step], np.float32)) * 0.1
            if logs:
                mean.item()
            is_late = step >= 2
            if is_late:
                optimizer.param_groups[0]["lr"] = rate
            if is_late and draws_late:
                torch.manual_seed(seed)
            outputs = model(torch.rand(5, 3)) * (scale if is_late else 1.0)
            loss = outputs.pow(2).mean() + mean.sum() * weight * outputs.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def compared(folder: Path, a: Callable[[], None], b: Callable[[], None]) -> Comparison:
    record = recorder(folder)
    return compare(record(a).path, record(b).path)


def finding_of(folder: Path, a: Callable[[], None], b: Callable[[], None]) -> Finding:
    found = compared(folder, a, b)
    assert found.verdict is Verdict.DIVERGED
    assert found.decisive is not None
    return found.decisive


def test_a_learning_rate_leads_before_a_clock(tmp_path: Path) -> None:
    """The clock, though it differs from the first op on, is said after what the optimizer was called with; ops that
    compute with it are not counted as identical."""
    found = finding_of(tmp_path, program(1.0), program(2.0, rate=0.2))
    assert (found.cause, found.phase, found.step) == (Cause.ARGUMENTS, "optimizer", 2)
    assert "computed with other data from outside" in found.explanation
    assert "no op of this optimizer step depends on it" in found.explanation
    assert "Python read" not in found.explanation
    # rows before the finding are identical or compute with the clock: three in the first step, four in each later
    assert found.a_index == found.identical_before + 3 + 4 + 4
    assert "before it, 11 ops, the first of them aten.mul.Tensor" in found.explanation


@pytest.mark.parametrize(
    ("logs", "changed", "phase", "said"),
    [
        (True, {"rate": 0.2}, "optimizer", "of which Python read a number (row "),
        (False, {"scale": 1.5}, "forward", "in A, 1.5 in B"),
    ],
)
def test_an_argument_leads(tmp_path: Path, logs: bool, changed: dict[str, float], phase: str, said: str) -> None:
    """Where Python read nothing; or a number, which is said: a rate might follow from it, which no trace shows."""
    found = finding_of(tmp_path, program(1.0, logs=logs), program(2.0, logs=logs, **changed))
    assert (found.cause, found.step, found.phase) == (Cause.ARGUMENTS, 2, phase)
    assert said in found.explanation


@pytest.mark.parametrize(
    "changed",
    [{"scale": 1.5, "logs": True}, {"seed": 1}],
    ids=["an argument of the model", "a seed"],
)
def test_what_may_follow_from_the_clock_is_said_after_it(tmp_path: Path, changed: dict[str, float]) -> None:
    """A program may scale or seed by what it read: the earlier difference leads, and the other one is named."""
    both = {"draws_late": "seed" in changed, "logs": "logs" in changed}
    found = finding_of(tmp_path, program(1.0, **both), program(2.0, **both | changed))
    assert (found.cause, found.step) == (Cause.OUTSIDE, 0)
    assert "which computes with none of it, differs too: " in found.explanation


@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_data_that_training_uses_leads(tmp_path: Path, rate: float) -> None:
    """The clock is a part of the loss: whatever else differs comes after it."""
    found = finding_of(tmp_path, program(1.0, weight=0.1), program(2.0, weight=0.1, rate=rate))
    assert (found.cause, found.step) == (Cause.OUTSIDE, 0)
    assert "differs too" not in found.explanation


def trained_by_hand(clock: float, scale: float) -> None:
    """A clock is a part of what is trained without an optimizer, beside what one trains."""
    torch.manual_seed(0)
    weight, other = torch.ones(3), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([other], 0.1 * scale)
    for _ in range(STEPS):
        time = torch.from_numpy(np.array([clock], np.float32)) * 0.1
        weight.sub_((weight * torch.rand(3) * scale + time) * 0.1)
        rltrace.step()
        other.sum().backward()
        optimizer.step()


def test_without_an_optimizer_nothing_is_known_to_be_unused(tmp_path: Path) -> None:
    """What is trained by hand is not distinguished from what is logged."""
    found = finding_of(tmp_path, lambda: trained_by_hand(1.0, 1.0), lambda: trained_by_hand(2.0, 1.5))
    assert (found.cause, found.unused_outside) == (Cause.OUTSIDE, 0)


# --- random programs --------------------------------------------------------------------------------------------------


def written_into(x: torch.Tensor, y: torch.Tensor, k: float) -> torch.Tensor:
    made = x.detach().clone()
    made.view(2, 3)[1].add_(y.detach()[:3] * k)
    return made * 1.0


def put_by_index(x: torch.Tensor, y: torch.Tensor, k: float) -> torch.Tensor:
    made = x.detach().clone()
    made[torch.tensor([0, 2])] = y.detach()[[1, 1]] * k
    return made


def written_by_numpy(x: torch.Tensor, y: torch.Tensor, k: float) -> torch.Tensor:
    made = x.detach().clone()
    made.numpy()[:2] = y.detach().numpy()[:2]
    return made * k


def as_data(x: torch.Tensor, y: torch.Tensor, k: float) -> torch.Tensor:
    made = torch.zeros(6)
    made.data = torch.mul(x.detach(), k, out=torch.zeros(6))
    return made * 2.0


def normalised(x: torch.Tensor, y: torch.Tensor, k: float) -> torch.Tensor:
    mean, variance = torch.zeros(3), torch.ones(3)
    torch.nn.functional.batch_norm(x.detach().reshape(2, 3), mean, variance, training=True)
    return torch.cat([mean, variance]) * k


def scaled_and_read(x: torch.Tensor, y: torch.Tensor, k: float) -> torch.Tensor:
    x.sum().item()
    return x * k


OPS: tuple[Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor], ...] = (
    lambda x, y, k: x + y * k,
    lambda x, y, k: x * k,
    lambda x, y, k: torch.cat([x[:3], y[3:]]) * k,
    lambda x, y, k: torch.where(x > k, x, y),
    lambda x, y, k: x * 0 + k,
    lambda x, y, k: torch._foreach_mul([x, y], k)[0],
    written_into,
    put_by_index,
    written_by_numpy,
    as_data,
    normalised,
    scaled_and_read,
)


def random_program(seed: int, outside: float, *, is_changed: bool, trained: list[torch.Tensor]) -> Callable[[], None]:
    """Three steps of random ops on what is drawn, trained, kept and read from outside, of which the loss takes one
    result; one argument of one step is another where it is changed. ``trained``: gradients and parameters."""

    def run() -> None:
        numbers = random.Random(seed)
        changed_step, of_rate = numbers.randrange(1, 3), numbers.random() < 0.4
        torch.manual_seed(0)
        weight = torch.ones(6, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        kept = torch.zeros(6)
        for step in range(3):
            is_other = is_changed and step == changed_step
            optimizer.param_groups[0]["lr"] = 0.2 if is_other and of_rate else 0.1
            seen = torch.from_numpy(np.arange(outside + step, outside + step + 6, dtype=np.float32))
            pool = [weight * 1.5, seen * 0.5, kept + 1, torch.rand(6)]
            count = numbers.randint(4, 12)
            changed = numbers.randrange(count)
            for n in range(count):
                op, x, y = numbers.choice(OPS), numbers.choice(pool), numbers.choice(pool)
                k = (0.5 + numbers.random()) * (1.25 if is_other and not of_rate and n == changed else 1.0)
                pool.append(op(x, y, k))
            kept.mul_(0.5).add_(numbers.choice(pool).detach())
            loss = (weight * 0.1).sum() + numbers.choice(pool).mean() * weight.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert weight.grad is not None
            trained.extend([weight.grad.clone(), weight.detach().clone()])

    return run


@pytest.mark.parametrize("first", [90, 105])
def test_a_difference_leads_only_where_the_data_has_no_effect(tmp_path: Path, first: int) -> None:
    """A change that leads and calls the data from outside unused trains the same with other data, to the end of its
    step."""
    leads = 0
    for seed in range(first, first + 15):
        (tmp_path / str(seed)).mkdir()
        with_other_data: list[torch.Tensor] = []
        with_same_data: list[torch.Tensor] = []
        a = random_program(seed, 1.0, is_changed=False, trained=[])
        b = random_program(seed, 2.0, is_changed=True, trained=with_other_data)
        finding = compared(tmp_path / str(seed), a, b).decisive
        random_program(seed, 1.0, is_changed=True, trained=with_same_data)()
        if finding is None or not finding.unused_outside:
            continue
        leads += 1
        assert finding.step is not None
        until = 2 * (finding.step + 1)
        for x, y in zip(with_other_data[:until], with_same_data[:until], strict=True):
            assert torch.equal(x, y), f"program {seed}: {finding.explanation}"
    assert leads
