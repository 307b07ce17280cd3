"""How far two programs' log-probabilities of the same taken tokens or actions lie apart, and which of them carry it.

Owns the numbers; whose log-probabilities they are, and which belong together, is found elsewhere
(``rltrace.parity.effects.logprobs``). Pure functions of NumPy arrays.

A is the policy that took the tokens (the generator), B the one that is trained on them. KL(A || B) is estimated from
the tokens that A took by the estimators of Schulman, "Approximating KL Divergence" (2020), with r = p_B / p_A:
k1 = -log r, which is unbiased and may come out negative, and k3 = (r - 1) - log r, which is unbiased too and never
negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

LISTED = 10
"""Tokens that are listed one by one."""
PORTIONS = (0.01, 0.1)
"""Of the tokens that lie furthest apart: how much of the whole distance they carry is told."""
BLOCK = 1 << 20
"""Logits that are widened to float64 at a time."""
SMALL = 1e-3
"""Below it, k3 of one token is summed as a series: ``expm1(d) - d`` would leave few digits."""


@dataclass(frozen=True)
class Taken:
    """One taken token or action on both sides."""

    place: str
    """Where it stands in B, in words: ``token 12 of sequence 3``, ``row 5 of call 8``."""
    token: int | None
    """Its id; None: not known, or an action that is no token."""
    a: float
    b: float
    """Log-probabilities."""


@dataclass(frozen=True)
class Portion:
    """The taken tokens that lie furthest apart."""

    of: float
    """Share of the tokens: 0.01 are those 1 % of them that lie furthest apart (rounded up)."""
    tokens: int
    carries: float
    """Share of the sum of all absolute differences that is theirs."""


@dataclass(frozen=True)
class Gap:
    """The distance between the log-probabilities of two programs."""

    source: str
    """One sentence: what the log-probabilities are and where they come from."""
    n: int
    """Taken tokens that both sides have a log-probability of."""
    equal: int
    """Those whose log-probabilities are the same number."""
    unmeasured: int
    """Those of which one is NaN or infinite, and that are not equal; in no mean and no largest below."""
    mean: float | None
    """Of the absolute differences; None: nothing could be measured."""
    largest: float | None
    k1: float | None
    k3: float | None
    """Estimates of KL(A || B): A took the tokens."""
    portions: tuple[Portion, ...] = ()
    """Empty where nothing differs."""
    furthest: tuple[Taken, ...] = ()
    """Those that lie furthest apart, what cannot be measured first; none that are equal."""
    only_a: int = 0
    only_b: int = 0
    """Log-probabilities that the other side has no counterpart of."""

    @property
    def share_equal(self) -> float | None:
        return self.equal / self.n if self.n else None


def measure(
    source: str,
    a: Floats,
    b: Floats,
    places: Sequence[str],
    tokens: Sequence[int | None],
    *,
    only_a: int = 0,
    only_b: int = 0,
) -> Gap:
    """The gap between log-probabilities that stand at the same index in ``a`` and ``b``."""
    same = a == b
    finite = np.isfinite(a) & np.isfinite(b)
    unmeasured = ~finite & ~same
    apart = np.where(finite, b, 0.0) - np.where(finite, a, 0.0)
    order = np.lexsort((np.arange(len(a)), -np.abs(apart), ~unmeasured, same))[: int((~same).sum())]
    gap = Gap(
        source,
        len(a),
        int(same.sum()),
        int(unmeasured.sum()),
        None,
        None,
        None,
        None,
        furthest=tuple(Taken(places[i], tokens[i], float(a[i]), float(b[i])) for i in order[:LISTED].tolist()),
        only_a=only_a,
        only_b=only_b,
    )
    known = apart[finite]
    if not len(known):
        return gap
    distances = np.abs(known)
    return replace(
        gap,
        mean=float(distances.mean()),
        largest=float(distances.max()),
        k1=0.0 - float(known.mean()),
        k3=float(k3_terms(known).mean()),
        portions=portions(distances),
    )


def k3_terms(apart: Floats) -> Floats:
    """``(r - 1) - log r`` of each ``log r``; infinite where a double cannot hold it."""
    with np.errstate(over="ignore"):
        terms: Floats = np.where(
            np.abs(apart) < SMALL,
            apart * apart * (0.5 + apart * (1 / 6 + apart * (1 / 24 + apart / 120))),
            np.expm1(apart) - apart,
        )
    return terms


def portions(distances: Floats) -> tuple[Portion, ...]:
    """What the tokens that lie furthest apart carry; nothing where none lies apart."""
    whole = float(distances.sum())
    if not whole > 0:
        return ()
    descending = np.sort(distances)[::-1]
    counts = [ceil(len(distances) * of) for of in PORTIONS]
    return tuple(
        Portion(of, count, float(descending[:count].sum()) / whole) for of, count in zip(PORTIONS, counts, strict=True)
    )


def log_probabilities(logits: NDArray[np.floating], tokens: Numbers) -> Floats:
    """Of one token in each row of ``logits`` [rows, vocabulary], by a log-softmax in float64.

    NaN where a token is not in the vocabulary.
    """
    rows, vocabulary = logits.shape
    found = np.full(rows, np.nan)
    step = max(1, BLOCK // max(1, vocabulary))
    for start in range(0, rows if vocabulary else 0, step):
        block = logits[start : start + step].astype(np.float64)
        own = tokens[start : start + step]
        known = (own >= 0) & (own < vocabulary)
        taken = block[np.arange(len(block)), np.where(known, own, 0)]
        highest = block.max(axis=1)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            whole = highest + np.log(np.exp(block - highest[:, None]).sum(axis=1))
            found[start : start + step] = np.where(known, taken - whole, np.nan)
    return found
