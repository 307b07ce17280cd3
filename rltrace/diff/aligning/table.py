"""The best alignment of two short sequences, by a full table: what linear space cannot do, choosing among the longest.

Pure functions of NumPy arrays; knows nothing of traces. The recurrence is that of the longest common subsequence
(Needleman and Wunsch, 1970, without a price for gaps), with a score of several levels instead of a count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rltrace.diff.aligning.sequences import EMPTY, Indices, Tokens

MOST_CELLS = 1 << 20
"""Of a table: 8 MiB, about twenty milliseconds."""

LEVEL_BITS = 12
"""More pairs than this many bits count cannot be in a table of ``MOST_CELLS``: its shorter side is too short."""


def is_small(box: tuple[int, int, int, int]) -> bool:
    """Whether rows [0:1] of one side and [2:3] of the other fit a table."""
    return (box[1] - box[0] + 1) * (box[3] - box[2] + 1) <= MOST_CELLS


def best_pairs(levels: Sequence[tuple[Tokens, Tokens]]) -> tuple[Indices, Indices]:
    """Pairs in order on both sides with the most equal tokens of the first level, of these the most of the next, ….

    At most five levels. Where several alignments are equally good, rows are matched as early as possible.
    """
    n, m = len(levels[0][0]), len(levels[0][1])
    if not n or not m:
        return EMPTY, EMPTY
    score = np.zeros((n + 1, m + 1), np.int64)
    for i in range(n):
        worth = np.zeros(m, np.int64)
        for k, (a, b) in enumerate(reversed(levels)):
            worth += (a[i] == b).astype(np.int64) << (LEVEL_BITS * k)
        taken = np.where(worth > 0, score[i, :-1] + worth, 0)
        np.maximum.accumulate(np.maximum(score[i, 1:], taken), out=score[i + 1, 1:])
    return _path(score)


def _path(score: np.ndarray) -> tuple[Indices, Indices]:
    i, j = score.shape[0] - 1, score.shape[1] - 1
    pairs = []
    while i and j:
        here = score[i, j]
        if score[i - 1, j] == here:
            i -= 1
        elif score[i, j - 1] == here:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    at = np.array(pairs[::-1], np.int64).reshape(-1, 2)
    return at[:, 0], at[:, 1]
