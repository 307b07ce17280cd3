"""Decisions of routers compared, as plain arithmetic on arrays; properties against torch's own topk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_traces import compared, recorded
from torch import nn

from rltrace.extensions.parity.impact.routing import (
    Decisions,
    Routing,
    RoutingOutcome,
    compare_decisions,
    margins,
    outcomes,
)
from rltrace.extensions.parity.impact.summary import Effects, effects_of


def decided(scores: Any, k: int = 2, *, largest: bool = True) -> Decisions:
    """What torch's topk makes of these scores."""
    given_scores = torch.as_tensor(scores, dtype=torch.float64)
    weights, experts = given_scores.topk(k, dim=-1, largest=largest)
    return Decisions(experts.numpy(), weights.numpy(), given_scores.numpy())


def routing_of(a: Decisions, b: Decisions) -> Routing:
    return compare_decisions(("router", "router"), (a, b), [f"token {i}" for i in range(len(a))], [None] * len(a))


def test_what_can_become_of_a_decision() -> None:
    """Another set, another order, other weights, or none of these; each counted once."""
    a = decided([[0.4, 0.3, 0.2], [0.4, 0.3, 0.2], [0.4, 0.3, 0.2], [0.4, 0.3, 0.2]])
    b = decided([[0.4, 0.1, 0.2], [0.3, 0.4, 0.2], [0.5, 0.3, 0.2], [0.4, 0.3, 0.1]])
    assert outcomes(a, b).tolist() == [
        RoutingOutcome.FLIPPED,
        RoutingOutcome.REORDERED,
        RoutingOutcome.REWEIGHTED,
        RoutingOutcome.SAME,
    ]
    found = routing_of(a, b)
    assert (found.n, found.flipped, found.reordered, found.reweighted, found.same) == (4, 1, 1, 1, 1)
    assert (found.experts, found.chosen) == (3, 2)


def test_a_flip_has_its_margins() -> None:
    """Which experts on each side, how close it was on each, and how many that were as close did not flip."""
    a = decided([[0.5, 0.3, 0.25], [0.5, 0.3, 0.29], [0.5, 0.3, 0.1]])
    b = decided([[0.5, 0.25, 0.375], [0.5, 0.3, 0.29], [0.5, 0.3, 0.1]])
    found = routing_of(a, b)
    (flip,) = found.flips
    assert (flip.place, flip.a, flip.b) == ("token 0", (0, 1), (0, 2))
    assert (flip.margin_a, flip.margin_b) == (0.3 - 0.25, 0.125)
    assert (found.largest_flipped, found.closer) == (0.125, 1)
    assert found.margins_a.known == 3


def test_flips_without_scores_have_no_margins_and_say_why() -> None:
    """What flipped is known from the experts alone; how close it was is not made up."""
    a, b = Decisions(np.array([[0, 1]])), Decisions(np.array([[0, 2]]), None, np.array([[0.5, 0.2, 0.3]]))
    found = routing_of(a, b)
    assert (found.flipped, found.reweighted, found.margins_a.known) == (1, None, 0)
    assert found.flips[0].margin_a is None
    assert found.flips[0].margin_b == 0.3 - 0.2
    assert found.why_no_margins.startswith("no values of the inputs of topk in A, ")
    both = routing_of(Decisions(np.array([[0, 1]])), Decisions(np.array([[0, 2]])))
    assert both.why_no_margins.startswith("no values of the inputs of topk in A and B, ")


def test_experts_that_the_scores_do_not_choose_have_no_margin() -> None:
    """Replayed ones, or those of other scores (a bias was added): a distance there would mean nothing."""
    scores = np.array([[0.5, 0.3, 0.2, 0.1]])
    assert np.isnan(margins(Decisions(np.array([[1, 2]]), None, scores))).all()
    assert margins(Decisions(np.array([[1, 0]]), None, scores)).tolist() == [0.3 - 0.2]


def test_a_margin_that_cannot_be_is_not_known() -> None:
    """All experts chosen, a NaN, masked experts on both sides of the line, an id beyond the scores: NaN, no error."""
    everyone = Decisions(np.array([[1, 0]]), None, np.array([[0.1, 0.2]]))
    broken = Decisions(np.array([[1], [0]]), None, np.array([[0.1, np.nan], [0.4, 0.3]]))
    masked = Decisions(np.array([[0, 1]]), None, np.array([[0.1, -np.inf, -np.inf]]))
    beyond = Decisions(np.array([[7]]), None, np.array([[0.1, 0.2]]))
    assert np.isnan(margins(everyone)).all()
    assert np.isnan(margins(broken)).tolist() == [True, False]
    assert np.isnan(margins(masked)).all()
    assert np.isnan(margins(beyond)).all()


def test_no_decisions_at_all() -> None:
    """Nothing in common is no agreement and no error."""
    found = routing_of(decided(np.zeros((0, 4))), decided(np.zeros((0, 4))))
    assert (found.n, found.flipped, found.same, found.largest_flipped, found.flips) == (0, 0, 0, None, ())


@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.data())
@settings(max_examples=60, deadline=None)
def test_properties_against_torchs_topk(seed: int, experts: int, data: st.DataObject) -> None:
    """A margin is the k-th score less the next, in either direction; a flip never happens beyond twice the drift."""
    k = data.draw(st.integers(1, experts - 1))
    largest = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(12, experts, generator=generator, dtype=torch.float64)
    other = scores + data.draw(st.sampled_from([0.0, 1e-3, 0.1])) * torch.rand(scores.shape, generator=generator)
    a, b = decided(scores, k, largest=largest), decided(other, k, largest=largest)
    ranked = scores.sort(dim=-1, descending=largest).values
    np.testing.assert_array_equal(margins(a), (ranked[:, k - 1] - ranked[:, k]).abs().numpy())
    found = routing_of(a, b)
    sets = [set(x) != set(y) for x, y in zip(a.experts.tolist(), b.experts.tolist(), strict=True)]
    assert found.flipped == sum(sets)
    assert found.flipped + found.reordered + (found.reweighted or 0) + found.same == found.n == 12
    if found.flipped:
        assert found.largest_flipped <= 2 * float((scores - other).abs().max()) * (1 + 1e-12)


# --- recorded routers -------------------------------------------------------------------------------------------------


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


def effects(folder: Path, run: Run, routing: str | None = None, values: Any = ()) -> Effects:
    return effects_of(compared(recorded(folder / "t.zarr", run, values=values)), None, routing)


@pytest.mark.parametrize("values", [(), ("op=topk",)])
@pytest.mark.parametrize("routing", [None, "module=*.gate"])
def test_flips_are_those_that_torch_makes(tmp_path: Path, routing: str | None, values: tuple[str, ...]) -> None:
    """Found row by row across batch shapes, each decision once, by the operator or by all that is in the gate; experts
    are known without values of the op, as a module gave them; how close it was is known with them."""
    run = Run(0.3)
    before = run.policy.gate.weight.detach().clone()
    (one,) = effects(tmp_path, run, routing, values).routing
    a, b = run.expected(before), run.expected(run.policy.gate.weight)
    flipped = sum(set(x) != set(y) for x, y in zip(a, b, strict=True))
    reordered = sum(set(x) == set(y) and x != y for x, y in zip(a, b, strict=True))
    assert 0 < flipped < len(a) == one.n == 12
    assert (one.flipped, one.reordered) == (flipped, reordered)
    assert (one.module_a, one.chosen, one.only_a, one.only_b) == ("Policy.gate", CHOSEN, 0, 2)
    if values:
        assert (one.experts, one.margins_a.known) == (EXPERTS, 12)
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
