"""A series in a line of text: ``▁▂▅█``.

Owns the glyphs and the thinning of long series. Pure functions over arrays.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.numbers.series import Values

BARS = "▁▂▃▄▅▆▇█"
ODD = "!"
"""Where a number is not finite."""


def spark(values: Values, width: int, bounds: tuple[float, float] | None = None) -> str:
    """``values`` in at most ``width`` characters, the last number of each stretch; ``!``: one is NaN or infinite.

    ``bounds``: what the lowest and the highest bar stand for; the smallest and the largest number unless given.
    """
    if not len(values) or width < 1:
        return ""
    count = min(width, len(values))
    edges = np.arange(count + 1) * len(values) // count
    low, high = bounds_of(values) if bounds is None else bounds
    odd = np.add.reduceat(~np.isfinite(values), edges[:-1]) > 0
    return "".join(ODD if odd[k] else BARS[_level(float(values[edges[k + 1] - 1]), low, high)] for k in range(count))


def bounds_of(*series: Values) -> tuple[float, float]:
    """The smallest and the largest finite number of all; (0, 0) where there is none."""
    finite = [values[np.isfinite(values)] for values in series]
    present = [values for values in finite if len(values)]
    if not present:
        return 0.0, 0.0
    return min(float(values.min()) for values in present), max(float(values.max()) for values in present)


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return len(BARS) // 2 - 1
    share = (value / 2 - low / 2) / (high / 2 - low / 2)  # the difference of two doubles may be too large for one
    return min(len(BARS) - 1, max(0, int(share * len(BARS))))
