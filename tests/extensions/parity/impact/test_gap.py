"""The gap between two programs' log-probabilities, as plain arithmetic on arrays."""

from collections.abc import Sequence
from math import exp, inf, isnan, log, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.extensions.parity.impact.logprobs import Gap, k3_terms, log_probabilities, measure

probabilities = st.floats(-30, 0)


def gap_of(a: Sequence[float], b: Sequence[float]) -> Gap:
    return measure("as given", np.array(a), np.array(b), [f"token {i}" for i in range(len(a))], list(range(len(a))))


def test_equal_log_probabilities_have_no_gap() -> None:
    """Nothing lies apart, nothing is listed, and nothing carries a distance that is not there."""
    gap = gap_of([-1.5, -0.25], [-1.5, -0.25])
    assert (gap.n, gap.equal, gap.mean, gap.largest, gap.k1, gap.k3) == (2, 2, 0.0, 0.0, 0.0, 0.0)
    assert (gap.share_equal, gap.portions, gap.furthest) == (1.0, (), ())


def test_the_tokens_that_lie_furthest_apart_come_first() -> None:
    """With their places, ids and both values; those that are equal are not among them."""
    gap = gap_of([-1.0, -2.0, -3.0], [-1.0, -2.5, -2.0])
    assert [(t.place, t.token, t.a, t.b) for t in gap.furthest] == [
        ("token 2", 2, -3.0, -2.0),
        ("token 1", 1, -2.0, -2.5),
    ]
    assert (gap.equal, gap.mean, gap.largest) == (1, 0.5, 1.0)


def test_k1_and_k3_are_schulmans() -> None:
    """r is the trained policy's probability by the sampling one's: k1 is the mean of -log r, k3 of (r - 1) - log r."""
    a, b = [-1.0, -2.0], [-1.5, -1.0]
    gap = gap_of(a, b)
    ratios = [exp(y - x) for x, y in zip(a, b, strict=True)]
    assert gap.k1 == pytest.approx(sum(-log(r) for r in ratios) / 2)
    assert gap.k3 == pytest.approx(sum(r - 1 - log(r) for r in ratios) / 2)


def test_the_estimators_come_out_at_the_divergence_of_two_distributions() -> None:
    """Weighted by how often A takes each token, both are the exact KL(A || B), and not KL(B || A)."""
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.125, 0.625, 0.25])
    taken = np.array([0] * 2 + [1] + [2])  # each as often as A takes it
    gap = measure("as given", np.log(p)[taken], np.log(q)[taken], ["a token"] * 4, [None] * 4)
    exact = float((p * np.log(p / q)).sum())
    assert gap.k1 == pytest.approx(exact)
    assert gap.k3 == pytest.approx(exact)
    assert float((q * np.log(q / p)).sum()) != pytest.approx(exact)


def test_what_cannot_be_measured_is_counted_apart_and_listed_first() -> None:
    """A NaN or an infinity is in no mean; two equal infinities are equal."""
    gap = gap_of([-1.0, nan, -inf, -inf, -1.0], [-1.5, -1.0, -inf, -3.0, -1.0])
    assert (gap.n, gap.equal, gap.unmeasured) == (5, 2, 2)
    assert (gap.mean, gap.largest) == (0.25, 0.5)
    assert [token.token for token in gap.furthest] == [1, 3, 0]


def test_nothing_measured_has_no_mean() -> None:
    """No token, or none with a finite distance: None rather than a nought that reads as agreement."""
    for gap in (gap_of([], []), gap_of([nan], [-1.0])):
        assert (gap.mean, gap.largest, gap.k1, gap.k3, gap.portions) == (None, None, None, None, ())
    assert gap_of([], []).share_equal is None


def test_how_concentrated_the_gap_is() -> None:
    """One token of a hundred that carries nearly all of it is named."""
    a = np.full(200, -1.0)
    b = a + 1e-4
    b[17] += 1.0
    one, ten = gap_of(a.tolist(), b.tolist()).portions
    assert (one.of, one.tokens, ten.tokens) == (0.01, 2, 20)
    assert one.carries == pytest.approx((1.0 + 2e-4) / (1.0 + 200e-4))
    assert one.carries < ten.carries < 1


@given(st.lists(st.tuples(probabilities, probabilities), min_size=1))
@settings(max_examples=60, deadline=None)
def test_properties_of_a_gap(pairs: list[tuple[float, float]]) -> None:
    """k3 is never negative, swapped sides change k1's sign alone, portions grow, and the listed are the furthest."""
    a, b = map(list, zip(*pairs, strict=True))
    gap, swapped = gap_of(a, b), gap_of(b, a)
    assert gap.k3 >= 0
    assert (swapped.k1, swapped.mean, swapped.equal) == (-gap.k1, gap.mean, gap.equal)
    assert 0 <= gap.mean <= gap.largest * (1 + 1e-12)
    carried = [portion.carries for portion in gap.portions]
    assert carried == sorted(carried)
    assert len(gap.furthest) == min(10, gap.n - gap.equal)
    if gap.furthest:
        assert abs(gap.furthest[0].a - gap.furthest[0].b) == gap.largest


@given(st.floats(-1, 1))
@settings(max_examples=60, deadline=None)
def test_k3_of_small_distances_keeps_its_digits(apart: float) -> None:
    """Against torch's own in twice the digits that are needed: d*d/2 is the leading term however small d is."""
    (found,) = k3_terms(np.array([apart]))
    if abs(apart) > 1e-3:
        wide = torch.tensor(apart, dtype=torch.float64)
        assert found == pytest.approx(float(wide.exp() - 1 - wide), rel=1e-9)
    else:
        assert found == pytest.approx(apart * apart / 2, rel=1e-3)


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_log_probabilities_are_torchs(seed: int, rows: int, vocabulary: int) -> None:
    """A log-softmax in float64 and a look-up, as torch does them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * 20
    tokens = torch.randint(vocabulary, (rows,), generator=generator)
    expected = logits.double().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    found = log_probabilities(logits.numpy(), tokens.numpy())
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12, atol=1e-12)


def test_log_probabilities_of_many_rows_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large logits are widened a block at a time; where the blocks end changes nothing."""
    logits = np.random.default_rng(0).normal(size=(23, 11)).astype(np.float32)
    tokens = np.arange(23) % 11
    whole = log_probabilities(logits, tokens)
    monkeypatch.setattr("rltrace.extensions.parity.impact.logprobs.BLOCK", 40)
    np.testing.assert_array_equal(log_probabilities(logits, tokens), whole)


def test_a_token_that_is_not_in_the_vocabulary_has_no_log_probability() -> None:
    """It is NaN, never another token's; masked logits (-inf) are those of tokens that cannot be taken."""
    logits = np.array([[0.0, -inf], [0.0, 0.0], [0.0, 0.0]], np.float32)
    found = log_probabilities(logits, np.array([1, 2, -100]))
    assert found[0] == -inf and isnan(found[1]) and isnan(found[2])
