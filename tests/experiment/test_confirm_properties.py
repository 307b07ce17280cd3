"""Random small programs with random differences planted: what an experiment calls needed is, and the rest is not.

The oracle is the program itself, run without a recorder and with some of its planted ops as they are in A.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from confirm_bench import confirm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rltrace.errors import UsageError
from rltrace.experiment.outcome import Outcome

OFF: set[int] = set()
"""Planted ops that compute otherwise; each run sets it."""

MOST = 4


def _planted(number: int) -> torch.library.CustomOpDef:
    @torch.library.custom_op(f"planted::op{number}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x + 0.25 * (number in OFF)

    op.register_autograd(lambda ctx, grad: grad.clone(), setup_context=lambda ctx, inputs, output: None)
    return op


PLANTED = [_planted(number) for number in range(MOST)]
PLAIN = [torch.tanh, torch.square, torch.relu, torch.neg, lambda x: x.clamp(min=-0.1, max=0.1)]


@dataclass(frozen=True)
class Script:
    """Ops on the way to the loss, and on the way to a number that is only logged: planted ones by number, plain ones by
    -1 - number."""

    loss: tuple[int, ...]
    log: tuple[int, ...]
    off: frozenset[int]
    """Planted ops that are off in B."""


def scripts() -> st.SearchStrategy[Script]:
    op = st.integers(-len(PLAIN), MOST - 1)
    chain = st.lists(op, min_size=1, max_size=5).map(tuple)
    return st.builds(Script, chain, chain, st.frozensets(st.integers(0, MOST - 1), min_size=1))


def train(script: Script, off: frozenset[int]) -> list[torch.Tensor]:
    """Two steps; the weights after them."""
    OFF.clear()
    OFF.update(off)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        out = model(torch.rand(4, 3))
        apply(script.log, out.detach()).sum().item()
        (apply(script.loss, out) * out).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def apply(ops: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    for number in ops:
        x = PLANTED[number](x) if number >= 0 else PLAIN[-1 - number](x)
    return x


def weights(script: Script, off: frozenset[int]) -> list[bytes]:
    torch.manual_seed(0)
    return [p.numpy().tobytes() for p in train(script, off)]


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts())
def test_what_it_takes(script: Script) -> None:
    """With the needed ops as they are in A the weights are A's; with any one of them off they are not. Where it takes
    none, the weights do not differ at all."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = confirm(Path(folder), lambda is_b: train(script, script.off if is_b else frozenset()))
        except UsageError:  # nothing that B ran was off
            used = {number for number in (*script.loss, *script.log) if number in script.off}
            assert not used
            return
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert {kind.op for kind in outcome.classes} == {
        f"planted.op{number}.default" for number in {*script.loss, *script.log} & script.off
    }
    a = weights(script, frozenset())
    if not outcome.by_state:
        assert weights(script, script.off) == a
        return
    needed = {number for number in script.off if f"planted.op{number}.default" in matter(outcome)}
    assert weights(script, script.off - needed) == a
    for number in needed:
        assert weights(script, script.off - needed | {number}) != a


def matter(outcome: object) -> set[str]:
    return {kind.op for kind in outcome.classes if kind.matters}
