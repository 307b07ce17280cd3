"""Steps of a real program that ran independent ops in another order: recorded, and matched by their digest alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from recorded import Record, Recorded

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.trace.format.schema import Step

HEADS = ("actor", "critic", "value")


def program(orders: Sequence[Sequence[int]], extra: float = 0.0) -> Callable[[], None]:
    """A trunk and a few heads that are gone through in each step's own order, forward and backward."""

    def run() -> None:
        torch.manual_seed(1)
        trunk = torch.nn.Linear(4, 8)
        heads = torch.nn.ModuleDict({name: torch.nn.Linear(8, 2) for name in HEADS})
        optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()])
        x = torch.randn(5, 4)
        for order in orders:
            losses = {}
            hidden = torch.tanh(trunk(x))
            detached = hidden.detach()
            for place in order:
                name = HEADS[place]
                losses[name] = (heads[name](detached) ** 2).mean() + extra * trunk.weight.sum()
            loss = hidden.pow(2).mean()
            for name in HEADS:
                loss = loss + losses[name]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def column(got: Recorded, name: Step) -> list[int]:
    return [step[name] for step in got.steps]


STRAIGHT = [(0, 1, 2)] * 4
OTHER = [(2, 0, 1), (1, 0, 2), (0, 1, 2), (2, 1, 0)]


def test_another_order_has_the_same_digest_and_other_numbers_have_another(record: Record) -> None:
    """The rows differ in every step that has another order; what they computed, in any order, does not."""
    a, b, other = (record(program(order, extra)) for order, extra in ((STRAIGHT, 0.0), (OTHER, 0.0), (OTHER, 1e-3)))
    differ = [x != y for x, y in zip(column(a, Step.VALUES), column(b, Step.VALUES), strict=True)]
    assert differ == [True, True, False, True]
    assert column(a, Step.ANY_ORDER) == column(b, Step.ANY_ORDER)
    assert all(column(a, Step.ANY_ORDER))
    assert not set(column(a, Step.ANY_ORDER)) & set(column(other, Step.ANY_ORDER))
    comparison = compare(a.path, b.path)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert comparison.first_value is None and comparison.structure.reordered
