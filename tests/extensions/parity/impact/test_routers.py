"""What routers of two programs decided, recorded for real, against what torch computes beside the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import recorder
from torch import nn

from rltrace.extensions.parity.compare import compare
from rltrace.extensions.parity.impact.summary import Effects, effects_of
from rltrace.extensions.parity.inputs import open_ranges, parse_given

PROMPTS = torch.tensor([[3, 4, 5], [6, 7, 8]])
EXPERTS, CHOSEN = 6, 2


class Gate(nn.Module):
    """Chooses experts for each token, as a mixture of experts does: over all tokens of the batch, flat."""

    def __init__(self, shows: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, 8))
        self.shows = shows

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights, experts = (hidden @ self.weight.T).softmax(-1).topk(CHOSEN, dim=-1)
        return weights, experts if self.shows else None


class Policy(nn.Module):
    """Looks only at the token itself, so that a cache changes nothing; logits at the last tokens where asked."""

    def __init__(self, shows: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.gate = Gate(shows)
        self.head = nn.Linear(8, 12)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, keep: int = 0) -> dict[str, torch.Tensor]:
        hidden = self.embed(input_ids)
        weights, _ = self.gate(hidden.flatten(0, 1))
        mixed = hidden * weights.sum(-1).view(*input_ids.shape, 1)
        return {"logits": self.head(mixed[:, -keep:])}


class Run:
    """A rollout and an update on it; the gate changes in between, by ``shift`` of its weights."""

    def __init__(self, shift: float, *, shows: bool = True) -> None:
        torch.manual_seed(1)
        self.policy = Policy(shows)
        self.shift = shift

    def __call__(self) -> None:
        ids = PROMPTS
        with torch.no_grad():
            tokens, start = ids, 0
            for _ in range(4):
                positions = torch.arange(start, ids.shape[1]).expand(2, -1)
                logits = self.policy(tokens, positions, keep=1)["logits"]
                tokens, start = logits[:, -1].argmax(-1, keepdim=True), ids.shape[1]
                ids = torch.cat([ids, tokens], 1)
            self.policy.gate.weight.add_(self.shift * torch.randn(EXPERTS, 8))
        self.ids = ids
        self.policy(ids, torch.arange(ids.shape[1]).expand(2, -1))["logits"].sum().backward()

    def expected(self, weight: torch.Tensor) -> list[Any]:
        """What topk makes of these weights, for the tokens that both sides computed."""
        hidden = self.policy.embed(self.ids[:, :-1])
        return list((hidden @ weight.T).softmax(-1).topk(CHOSEN, dim=-1).indices.flatten(0, 1).tolist())


def effects(folder: Path, run: Run, routing: str | None = None, **options: Any) -> Effects:
    path = recorder(folder)(run, rows="all", **options).path
    return effects_of(compare(*open_ranges(*(parse_given(str(path), [], side) for side in "ab"))), None, routing)


@pytest.mark.parametrize("values", [(), ("op=topk",)])
@pytest.mark.parametrize("routing", [None, "module=*.gate"])
def test_flips_are_those_that_torch_makes(tmp_path: Path, routing: str | None, values: tuple[str, ...]) -> None:
    """Found row by row across batch shapes, each decision once, by the operator or by all that is in the gate; experts
    are known without values of the op, as a module gave them; how close it was is known with them."""
    run = Run(0.3)
    before = run.policy.gate.weight.detach().clone()
    found = effects(tmp_path, run, routing, **({"values": values} if values else {}))
    (one,) = found.routing
    a, b = run.expected(before), run.expected(run.policy.gate.weight)
    flipped = sum(set(x) != set(y) for x, y in zip(a, b, strict=True))
    reordered = sum(set(x) == set(y) and x != y for x, y in zip(a, b, strict=True))
    assert 0 < flipped < len(a) == one.n == 12
    assert (one.flipped, one.reordered) == (flipped, reordered)
    assert (one.module_a, one.chosen, one.only_a, one.only_b) == ("Policy.gate", CHOSEN, 0, 2)
    if values:
        assert (one.experts, one.margins_a.known, one.margins_b.known) == (EXPERTS, 12, 12)
        assert one.largest_flipped is not None
    else:
        assert (one.experts, one.margins_a.known, one.largest_flipped) == (None, 0, None)
        assert "so the margins of these decisions are unknown" in one.why_no_margins


def test_programs_that_route_alike_have_no_flips(tmp_path: Path) -> None:
    """The same weights: every decision is the same, its weights too, though 2 rows stand against 14."""
    (one,) = effects(tmp_path, Run(0.0), values="op=topk").routing
    assert (one.n, one.flipped, one.reordered, one.largest_flipped) == (12, 0, 0, None)
    assert one.same + (one.reweighted or 0) == 12


def test_without_values_of_the_experts_what_flipped_is_not_known(tmp_path: Path) -> None:
    """The digests show how many are equal; which of the others flipped is not made up."""
    found = effects(tmp_path, Run(0.3, shows=False))
    assert found.routing == ()
    (note,) = found.routing_notes
    assert note.startswith("Policy.gate: ") and "of 12 decisions are equal" in note
    assert "record it with --values as well" in note
