"""Many steps aligned at once, where all that tells two sides apart is rows of a kind that one side alone has.

A log line in the training loop is in every step; to align each step by itself would cost a millisecond for each. Owns
the one case that can be seen from all rows together: without the rows whose structure the other side lacks, both sides
are equal, step by step. Everything else is for the aligner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.aligning.align import Alignment
from rltrace.diff.aligning.sequences import Indices, Tokens
from rltrace.diff.view import Stretch

BUCKETS = 1 << 20
"""A token whose bucket holds none of the other side is lacking there; few distinct tokens make few clashes."""


def without_extra_rows(a: Stretch, b: Stretch, ends_a: Indices, ends_b: Indices) -> Alignment | None:
    """Every row that both sides have, matched in order; None where that is not all there is to it.

    ``ends_a``, ``ends_b``: where the steps within the stretches end. No step may have extra rows on both sides: these
    could be one op that is called from another place.
    """
    structure_a, structure_b = a.hashes.structure, b.hashes.structure
    at_a, at_b = np.flatnonzero(_there(structure_a, structure_b)), np.flatnonzero(_there(structure_b, structure_a))
    if len(at_a) != len(at_b) or not np.array_equal(structure_a[at_a], structure_b[at_b]):
        return None
    kept_a, kept_b = np.searchsorted(at_a, ends_a), np.searchsorted(at_b, ends_b)
    if not np.array_equal(kept_a, kept_b):
        return None
    extra_a, extra_b = _per_step(ends_a) - _per_step(kept_a), _per_step(ends_b) - _per_step(kept_b)
    if (extra_a.astype(bool) & extra_b.astype(bool)).any():
        return None
    return Alignment(len(a), len(b), at_a, at_b, np.zeros(len(at_a), dtype=bool), None)


def crosses_steps(stretch: Stretch, rows: Indices, ends: Indices) -> bool:
    """Whether a row computes with what one of ``rows`` wrote in an earlier step: no step can then be judged alone."""
    links = stretch.rows.links
    if not len(rows) or not len(links):
        return False
    owner = np.repeat(np.arange(len(stretch)), np.diff(stretch.rows.link_offsets))
    target = owner - (links >> 12)
    found = np.flatnonzero((links >> 12 > 0) & (target >= 0))
    wanted = np.zeros(len(stretch), dtype=bool)
    wanted[rows] = True
    found = found[wanted[target[found]]]
    steps = np.searchsorted(ends, target[found], side="right"), np.searchsorted(ends, owner[found], side="right")
    return bool((steps[0] != steps[1]).any())


def _there(tokens: Tokens, others: Tokens) -> NDArray[np.bool_]:
    """Which tokens the other side has, as far as buckets tell."""
    buckets = np.zeros(BUCKETS, dtype=bool)
    buckets[others & np.uint64(BUCKETS - 1)] = True
    there: NDArray[np.bool_] = buckets[tokens & np.uint64(BUCKETS - 1)]
    return there


def _per_step(ends: Indices) -> Indices:
    return np.diff(np.concatenate([[0], ends]))
