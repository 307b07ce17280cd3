"""What two programs' routers decided for the same tokens: experts, their order, their weights, and how close it was.

Owns the comparison of decisions, and the margins; which decision of A is which of B is found elsewhere. Pure functions
of NumPy arrays.

A decision is one row of what ``topk`` gave: k experts, best first, and their weights. Its *margin* is how far the
lowest score that was chosen lies above the highest that was not: where two programs' scores differ by more than that,
another expert may come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

LISTED = 10
"""Decisions that are listed one by one."""
QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
"""Of margins: what is told of a distribution."""


class Outcome(StrEnum):
    """How one decision of A compares with B's; the first that holds."""

    FLIPPED = "flipped"
    """Another set of experts."""
    REORDERED = "reordered"
    """The same experts in another order."""
    REWEIGHTED = "reweighted"
    """The same experts in the same order, with other weights."""
    SAME = "same"
    """The same experts in the same order, with the same weights where both sides' weights are known."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """What one router decided for some tokens, one a row."""

    experts: Numbers
    """[n, k], as ``topk`` ordered them."""
    weights: Floats | None = None
    """[n, k]: the scores of those; None: their values were not kept."""
    scores: Floats | None = None
    """[n, experts]: what ``topk`` read; None: not kept."""

    def __len__(self) -> int:
        return len(self.experts)


@dataclass(frozen=True)
class Flip:
    """One decision that flipped."""

    place: str
    """Of its row in B, in words: ``token 12 of sequence 3``."""
    token: int | None
    a: tuple[int, ...]
    b: tuple[int, ...]
    """Experts on each side, as ``topk`` ordered them."""
    margin_a: float | None
    margin_b: float | None
    """None: not known."""


@dataclass(frozen=True)
class Margins:
    """Margins of some decisions, on one side."""

    known: int
    """Decisions whose margin is known."""
    quantiles: tuple[float, ...]
    """At ``QUANTILES``; empty where none is known."""


@dataclass(frozen=True)
class Routing:
    """One router's decisions on both sides."""

    module: str
    """In A."""
    module_b: str
    nth: int
    """Which ``topk`` of a call of the module, from 0."""
    experts: int | None
    """How many there were to choose from; None: not known."""
    chosen: int
    """How many are chosen."""
    n: int
    """Decisions that could be compared."""
    flipped: int
    reordered: int
    reweighted: int | None
    """None: the weights of a side are not known."""
    same: int
    margins_a: Margins
    margins_b: Margins
    """Of all decisions that were compared."""
    flipped_a: Margins
    flipped_b: Margins
    """Of those that flipped."""
    largest_flipped: float | None
    """The largest margin, on either side, at which a decision flipped; None: none flipped, or no margin is known."""
    closer: int | None
    """Decisions whose margin in A is no larger than that and that did not flip all the same."""
    largest_drift: float | None
    """The largest difference between a score of A and of B, over all decisions; None: scores are not known."""
    flips: tuple[Flip, ...]
    """Those that flipped at the largest margins first."""
    only_a: int = 0
    only_b: int = 0
    """Decisions that the other side has no counterpart of."""
    why_no_margins: str = ""
    """One sentence where margins of a side are not known."""


def outcomes(a: Decisions, b: Decisions) -> NDArray[np.object_]:
    """The ``Outcome`` of each decision."""
    ordered = (a.experts == b.experts).all(axis=1)
    same_set = (np.sort(a.experts, axis=1) == np.sort(b.experts, axis=1)).all(axis=1)
    weighted = np.ones(len(a), bool)
    if a.weights is not None and b.weights is not None:
        weighted = ((a.weights == b.weights) | (np.isnan(a.weights) & np.isnan(b.weights))).all(axis=1)
    found: NDArray[np.object_] = np.full(len(a), Outcome.SAME, object)
    found[~weighted] = Outcome.REWEIGHTED
    found[~ordered] = Outcome.REORDERED
    found[~same_set] = Outcome.FLIPPED
    return found


def margins(decisions: Decisions) -> Floats:
    """How far the chosen scores lie from those that were not chosen, the lowest from the highest.

    NaN where it is not known: no scores, all experts chosen, a NaN among the scores, or experts that are not those of
    the highest scores (nor of the lowest, for a ``topk`` of the smallest): then something else chose them.
    """
    unknown = np.full(len(decisions), np.nan)
    scores, experts = decisions.scores, decisions.experts
    if scores is None or not 0 < experts.shape[1] < scores.shape[1]:
        return unknown
    if experts.size and not (experts.min() >= 0 and experts.max() < scores.shape[1]):
        return unknown
    is_chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(is_chosen, experts, True, axis=1)
    lowest, highest = (np.where(is_chosen, scores, fill) for fill in (np.inf, -np.inf))
    others_highest, others_lowest = (np.where(is_chosen, fill, scores) for fill in (-np.inf, np.inf))
    with np.errstate(invalid="ignore"):  # two infinities have no distance: NaN, not known
        above = lowest.min(axis=1) - others_highest.max(axis=1)
        below = others_lowest.min(axis=1) - highest.max(axis=1)
    found: Floats = np.where(np.isnan(scores).any(axis=1), np.nan, np.maximum(above, below))
    return np.where(found >= 0, found, np.nan)


def compare_decisions(
    module: str,
    a: Decisions,
    b: Decisions,
    places: Sequence[str],
    tokens: Sequence[int | None],
    *,
    module_b: str | None = None,
    nth: int = 0,
    only_a: int = 0,
    only_b: int = 0,
) -> Routing:
    """Compare decisions that stand at the same index in ``a`` and ``b``; both chose as many experts."""
    outcome = outcomes(a, b)
    flipped = outcome == Outcome.FLIPPED
    margins_a, margins_b = margins(a), margins(b)
    largest = _largest(np.concatenate([margins_a[flipped], margins_b[flipped]]))
    weighed = a.weights is not None and b.weights is not None
    return Routing(
        module,
        module if module_b is None else module_b,
        nth,
        next((side.scores.shape[1] for side in (a, b) if side.scores is not None), None),
        a.experts.shape[1],
        len(a),
        int(flipped.sum()),
        int((outcome == Outcome.REORDERED).sum()),
        int((outcome == Outcome.REWEIGHTED).sum()) if weighed else None,
        int((outcome == Outcome.SAME).sum()),
        margins_of(margins_a),
        margins_of(margins_b),
        margins_of(margins_a[flipped]),
        margins_of(margins_b[flipped]),
        largest,
        None if largest is None else int((margins_a[~flipped] <= largest).sum()),
        _drift(a, b),
        _flips(np.flatnonzero(flipped), a, b, margins_a, margins_b, places, tokens),
        only_a,
        only_b,
        _why_no_margins(a, b),
    )


def margins_of(margins: Floats) -> Margins:
    """Their distribution."""
    known = margins[~np.isnan(margins)]
    if not len(known):
        return Margins(0, ())
    # an existing margin each, rather than a mean of two: one of them may be infinite
    return Margins(len(known), tuple(np.quantile(known, QUANTILES, method="inverted_cdf").tolist()))


def _flips(
    at: NDArray[np.intp],
    a: Decisions,
    b: Decisions,
    margins_a: Floats,
    margins_b: Floats,
    places: Sequence[str],
    tokens: Sequence[int | None],
) -> tuple[Flip, ...]:
    widest = np.fmax(margins_a[at], margins_b[at])  # of two, the one that is known
    order = at[np.lexsort((at, -np.where(np.isnan(widest), -np.inf, widest)))]
    return tuple(
        Flip(
            places[i],
            tokens[i],
            tuple(a.experts[i].tolist()),
            tuple(b.experts[i].tolist()),
            _known(margins_a[i]),
            _known(margins_b[i]),
        )
        for i in order[:LISTED].tolist()
    )


def _drift(a: Decisions, b: Decisions) -> float | None:
    if a.scores is None or b.scores is None or a.scores.shape != b.scores.shape:
        return None
    with np.errstate(invalid="ignore"):
        return _largest(np.abs(a.scores - b.scores).reshape(-1))


def _why_no_margins(a: Decisions, b: Decisions) -> str:
    without = [name for name, side in (("A", a), ("B", b)) if side.scores is None]
    if not without:
        return ""
    return f"no values of the inputs of topk in {' and '.join(without)}, so the margins of these decisions are unknown"


def _largest(numbers: Floats) -> float | None:
    known = numbers[~np.isnan(numbers)]
    return float(known.max()) if len(known) else None


def _known(margin: float) -> float | None:
    return None if np.isnan(margin) else float(margin)
