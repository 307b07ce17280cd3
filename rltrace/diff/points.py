"""The points of a series, for a chart: few of a long one, and none of its spikes lost.

Owns the thinning within arrays, before there is an object for each number. Pure functions.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.numbers.series import Series, Steps, Values

MOST_POINTS = 1 << 14
"""Of one series in a chart."""


def points_of(series: Series, *, last: bool = False) -> list[tuple[int, float]]:
    """(step, number) of a series, for a chart; ``last``: the last number of each step alone.

    A very long one is thinned in the array, before there is an object for each: of each stretch the first, last,
    smallest and largest number and one that is not finite.
    """
    at = np.arange(len(series))
    if last and len(series):
        at = np.flatnonzero(np.append(series.steps[1:] != series.steps[:-1], True))
    if len(at) > MOST_POINTS:
        edges = np.linspace(0, len(at), MOST_POINTS // 4 + 1).astype(np.int64)
        parts = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        values = series.values[at]
        at = at[np.unique(np.concatenate([_extremes(values, first, stop) for first, stop in parts]))]
    return list(zip(series.steps[at].tolist(), series.values[at].tolist(), strict=True))


def _extremes(values: Values, first: int, stop: int) -> Steps:
    """Places of the first, last, smallest and largest number of a stretch, and of one that is not finite."""
    own = values[first:stop]
    finite = np.isfinite(own)
    found = [first, stop - 1]
    if finite.any():
        found.append(first + int(np.where(finite, own, np.inf).argmin()))
        found.append(first + int(np.where(finite, own, -np.inf).argmax()))
    if not finite.all():
        found.append(first + int(finite.argmin()))
    return np.array(found, np.int64)
