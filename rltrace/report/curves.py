"""How curves come apart, in words: the story in one line, and a line for each curve.

Owns words, not how they are laid out. Pure functions over the objects of ``rltrace.diff.base.model``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from rltrace.diff.base.model import Cause, Comparison, Drift, Finding
from rltrace.diff.metrics.series import Values
from rltrace.report.phrases import cut, sentence, shown_finding

NAMED = 3
"""Curves that are named in the story."""

GROWTH_SHOWN = 6

NOT_OF_VALUES = (Cause.CONTROL_FLOW, Cause.ARGUMENTS, Cause.ENDED)
"""What parts without a bit that differs: an op that one side alone runs, or calls otherwise."""

LONGEST_NAME = 40

_READ_OUT = re.compile(r"([A-Za-z_][\w.]*)\.(?:mean\(\)\.|detach\(\)\.|cpu\(\)\.)*item\(\)")


def short_name(drift: Drift) -> str:
    """``value_loss`` of ``value_losses.append(value_loss.item())``; else the name, cut."""
    found = _READ_OUT.findall(drift.name) if drift.kind == "item" else []
    return str(found[0]) if len(found) == 1 else cut(drift.name, LONGEST_NAME)


def story(comparison: Comparison) -> str:
    """``First bit at step 0 (critic's gelu), value_loss visibly apart from step 212.``; "" where no curve differs."""
    if not comparison.drift:
        return ""
    seen = [drift for drift in comparison.drift if drift.exceeds is not None]
    parts = [
        f"{short_name(drift)} {'exceeds the threshold ' * (not n)}from {at(drift)}"
        for n, drift in enumerate(seen[:NAMED])
    ]
    finding = shown_finding(comparison)
    if finding is not None and finding.step is not None:
        what = "difference" if finding.cause in NOT_OF_VALUES else "bit"
        parts.insert(0, f"first {what} at step {finding.step:,}{_which(finding)}")
    if len(seen) > NAMED:
        parts.append(f"{len(seen) - NAMED} more later")
    text = ", ".join(parts)
    if not seen:
        many = (
            "none of the curves that differ exceeds"
            if len(comparison.drift) > 1
            else "the curve that differs does not exceed"
        )
        read = "" if all(drift.whole for drift in comparison.drift) else " where they were read"
        text += f"{'; ' if text else ''}{many} the threshold{read}"
    return sentence(text)


def at(drift: Drift) -> str:
    """``step 212``, or ``step 212 at the latest`` where it was read in places."""
    point = drift.exceeds or drift.first
    assert point is not None
    return f"step {point.step:,}{'' if drift.whole else ' at the latest'}"


def _which(finding: Finding) -> str:
    """`` (critic's gelu)``."""
    if not finding.op:
        return ""
    op = finding.op.split(".")[1] if "." in finding.op else finding.op
    return f" ({finding.module}'s {op})" if finding.module else f" ({op})"


def account(drift: Drift) -> str:
    """``differs from step 4, visibly (by more than 0.65) from step 212``."""
    assert drift.first is not None
    late = "" if drift.whole else " at the latest"
    told = f"differs from step {drift.first.step:,}{late}"
    if drift.exceeds is None:
        return f"{told}; the difference stays below the threshold ({drift.threshold:.3g})"
    if drift.exceeds.step == drift.first.step:
        return f"{told}; the difference exceeds the threshold ({drift.threshold:.3g}) at once"
    return (
        f"{told}; the difference exceeds the threshold ({drift.threshold:.3g}) from step {drift.exceeds.step:,}{late}"
    )


def growing(drift: Drift) -> str:
    """``2.4e-07 at step 6, 1e-05 at step 96, … 0.1 at step 212``."""
    shown: list[tuple[int, float] | None] = list(_some(drift.growth))
    return ", ".join("…" if point is None else f"{_distance(point[1])} at step {point[0]:,}" for point in shown)


def _some(growth: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float] | None]:
    if len(growth) <= GROWTH_SHOWN:
        yield from growth
        return
    half = GROWTH_SHOWN // 2
    yield from growth[:half]
    yield None
    yield from growth[-half:]


def _distance(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "not finite on one side"


# --- bars -------------------------------------------------------------------------------------------------------------


BARS = " ▁▂▃▄▅▆▇█"
ODD = "!"
"""Where a number is not finite."""


def spark(values: Values, width: int, bounds: tuple[float, float] | None = None) -> str:
    """``values`` in at most ``width`` characters, the last number of each stretch; ``!``: one is NaN or infinite.

    ``bounds``: what the lowest and the highest bar stand for; the smallest and the largest number unless given.
    """
    if not len(values) or width < 1:
        return ""
    edges = np.arange(min(width, len(values)) + 1) * len(values) // min(width, len(values))
    odd = np.add.reduceat(~np.isfinite(values), edges[:-1]) > 0
    shown = np.where(odd, np.nan, values[edges[1:] - 1])
    return bars(shown.tolist(), *(bounds or bounds_of(values)))[0]


def bars(values: Sequence[float | None], low: float, high: float, height: int = 1) -> list[str]:
    """A character for each of ``values`` in ``height`` lines, the lowest last; eight levels in each. None: a space."""
    levels = [None if value is None else _level(value, low, high, 8 * height) for value in values]
    return ["".join(_bar(level, line) for level in levels) for line in range(height - 1, -1, -1)]


def _bar(level: int | None, line: int) -> str:
    """What a column of ``level`` eighths shows in a line, counted from the bottom."""
    if level == 0:
        return " " if line else ODD
    return BARS[max(0, min(8, (level or 0) - 8 * line))]


def _level(value: float, low: float, high: float, most: int) -> int:
    """From 1 to ``most``; 0: it is not finite."""
    if not math.isfinite(value):
        return 0
    if high <= low:
        return most // 2
    scale = max(abs(low), abs(high))  # the difference of two doubles may be too large for one
    return 1 + min(most - 1, max(0, int((value / scale - low / scale) / (high / scale - low / scale) * most)))


def bounds_of(*series: Values) -> tuple[float, float]:
    """The smallest and the largest finite number of all; (0, 0) where there is none."""
    finite = [values[np.isfinite(values)] for values in series]
    present = [values for values in finite if len(values)]
    if not present:
        return 0.0, 0.0
    return min(float(values.min()) for values in present), max(float(values.max()) for values in present)
