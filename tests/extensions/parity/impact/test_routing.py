"""Decisions of routers compared, as plain arithmetic on arrays; properties against torch's own topk."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.extensions.parity.impact.routing import (
    Decisions,
    Routing,
    RoutingOutcome,
    compare_decisions,
    margins,
    outcomes,
)


def decided(scores: Any, k: int = 2, *, largest: bool = True) -> Decisions:
    """What torch's topk makes of these scores."""
    given_scores = torch.as_tensor(scores, dtype=torch.float64)
    weights, experts = given_scores.topk(k, dim=-1, largest=largest)
    return Decisions(experts.numpy(), weights.numpy(), given_scores.numpy())


def compared(a: Decisions, b: Decisions) -> Routing:
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
    found = compared(a, b)
    assert (found.n, found.flipped, found.reordered, found.reweighted, found.same) == (4, 1, 1, 1, 1)
    assert (found.experts, found.chosen) == (3, 2)


def test_a_flip_has_its_margins() -> None:
    """Which experts on each side, how close it was on each, and how many that were as close did not flip."""
    a = decided([[0.5, 0.3, 0.25], [0.5, 0.3, 0.29], [0.5, 0.3, 0.1]])
    b = decided([[0.5, 0.25, 0.375], [0.5, 0.3, 0.29], [0.5, 0.3, 0.1]])
    found = compared(a, b)
    (flip,) = found.flips
    assert (flip.place, flip.a, flip.b) == ("token 0", (0, 1), (0, 2))
    assert (flip.margin_a, flip.margin_b) == (0.3 - 0.25, 0.125)
    assert (found.largest_flipped, found.closer) == (0.125, 1)
    assert found.largest_drift == 0.125
    assert found.margins_flipped_a.quantiles == (0.3 - 0.25,) * 6
    assert found.margins_a.known == 3


def test_flips_without_scores_have_no_margins_and_say_why() -> None:
    """What flipped is known from the experts alone; how close it was is not made up."""
    a, b = Decisions(np.array([[0, 1]])), Decisions(np.array([[0, 2]]), None, np.array([[0.5, 0.2, 0.3]]))
    found = compared(a, b)
    assert (found.flipped, found.reweighted, found.margins_a.known, found.largest_drift) == (1, None, 0, None)
    assert found.flips[0].margin_a is None
    assert found.flips[0].margin_b == 0.3 - 0.2
    assert found.why_no_margins.startswith("no values of the inputs of topk in A, ")
    both = compared(Decisions(np.array([[0, 1]])), Decisions(np.array([[0, 2]])))
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
    found = compared(decided(np.zeros((0, 4))), decided(np.zeros((0, 4))))
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
    found = compared(a, b)
    sets = [set(x) != set(y) for x, y in zip(a.experts.tolist(), b.experts.tolist(), strict=True)]
    assert found.flipped == sum(sets)
    assert found.flipped + found.reordered + (found.reweighted or 0) + found.same == found.n == 12
    if found.flipped:
        assert found.largest_flipped is not None and found.largest_drift is not None
        assert found.largest_flipped <= 2 * found.largest_drift * (1 + 1e-12)
