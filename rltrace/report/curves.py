"""How curves diverge, in words: a summary, and a line for each curve; curves as characters.

Owns words, not their layout. Pure functions over the objects of ``rltrace.diff.base.model``.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from rltrace.diff.base.model import Comparison, Drift, Finding
from rltrace.diff.metrics.series import ITEM, RATE, Values
from rltrace.wording import cut, sentence

MAX_NAMED = 3
"""Curves that the summary names."""

MAX_GROWTH_POINTS = 6

"""Causes without a differing bit: an op on one side only, or with other arguments."""

MAX_NAME = 40

_RATE = re.compile(r"optimizer:\d+/group:(\d+)/lr")
_ITEM_CALL = re.compile(r"([A-Za-z_][\w.]*)\.(?:mean\(\)\.|detach\(\)\.|cpu\(\)\.)*item\(\)")


def curve_name(drift: Drift) -> str:
    """``learning rate of Agent's Adam, group 1`` for ``optimizer:0/group:1/lr``; otherwise the name."""
    group = _RATE.fullmatch(drift.name) if drift.kind == RATE and drift.place else None
    if group is None:
        return drift.name
    return f"learning rate of {drift.place}" + (f", group {group[1]}" if group[1] != "0" else "")


def short_name(drift: Drift) -> str:
    """``value_loss`` for ``value_losses.append(value_loss.item())``; otherwise the name, shortened."""
    found = _ITEM_CALL.findall(drift.name) if drift.kind == ITEM else []
    return str(found[0]) if len(found) == 1 else cut(curve_name(drift), MAX_NAME)


def drift_summary(comparison: Comparison) -> str:
    """``First difference at step 0 (gelu), loss exceeds the threshold from step 212.``; "" if no curve differs."""
    if not comparison.drift:
        return ""
    exceeding = [drift for drift in comparison.drift if drift.exceeds is not None]
    clauses = [
        f"{short_name(drift)} {'exceeds the threshold ' * (not n)}from {step_text(drift)}"
        for n, drift in enumerate(exceeding[:MAX_NAMED])
    ]
    finding = comparison.shown
    if finding is not None and finding.step is not None:
        clauses.insert(0, f"first difference at step {finding.step:,}{_op_text(finding)}")
    elif clauses:
        clauses[0] = f"the curve of {clauses[0]}"  # a sentence has a capital letter, and a name stays as it is
    if len(exceeding) > MAX_NAMED:
        clauses.append(f"{len(exceeding) - MAX_NAMED} more later")
    text = ", ".join(clauses)
    if not exceeding:
        many = (
            "none of the curves that differ exceeds"
            if len(comparison.drift) > 1
            else "the curve that differs does not exceed"
        )
        read = "" if all(drift.whole for drift in comparison.drift) else " where they were read"
        text += f"{'; ' if text else ''}{many} the threshold{read}"
    return sentence(text)


def step_text(drift: Drift) -> str:
    """``step 212``, or ``step 212 at the latest`` for a sampled curve."""
    point = drift.exceeds or drift.first
    assert point is not None
    return f"step {point.step:,}{'' if drift.whole else ' at the latest'}"


def _op_text(finding: Finding) -> str:
    """`` (critic's gelu)``."""
    if not finding.op:
        return ""
    op = finding.op.split(".")[1] if "." in finding.op else finding.op
    return f" ({finding.module}'s {op})" if finding.module else f" ({op})"


def drift_text(drift: Drift) -> str:
    """``differs from step 4; the difference exceeds the threshold (0.65) from step 212``."""
    assert drift.first is not None
    late = "" if drift.whole else " at the latest"
    start = f"differs from step {drift.first.step:,}{late} ({drift.first.a!r} | {drift.first.b!r})"
    if drift.exceeds is None:
        return f"{start}; the difference stays below the threshold ({drift.threshold:.3g})"
    if drift.exceeds.step == drift.first.step:
        return f"{start}; the difference exceeds the threshold ({drift.threshold:.3g}) at once"
    return (
        f"{start}; the difference exceeds the threshold ({drift.threshold:.3g}) from step {drift.exceeds.step:,}{late}"
    )


def growth_text(drift: Drift) -> str:
    """``2.4e-07 at step 6, 1e-05 at step 96, … 0.1 at step 212``."""
    shown = _ends(drift.growth)
    return ", ".join("…" if point is None else f"{_distance(point[1])} at step {point[0]:,}" for point in shown)


def _ends(growth: Sequence[tuple[int, float]]) -> list[tuple[int, float] | None]:
    """Its first and last points, with None for those in between."""
    half = MAX_GROWTH_POINTS // 2
    return [*growth] if len(growth) <= MAX_GROWTH_POINTS else [*growth[:half], None, *growth[-half:]]


def _distance(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "not finite on one side"


# --- bars -------------------------------------------------------------------------------------------------------------


BARS = " ▁▂▃▄▅▆▇█"
NOT_FINITE = "!"


def spark(values: Values, width: int, bounds: tuple[float, float] | None = None) -> str:
    """``values`` in at most ``width`` characters; ``!`` for numbers that include a NaN or an infinity.

    ``bounds``: the values of the lowest and the highest bar; by default the smallest and the largest number.
    """
    if not len(values) or width < 1:
        return ""
    edges = np.arange(min(width, len(values)) + 1) * len(values) // min(width, len(values))
    not_finite = np.add.reduceat(~np.isfinite(values), edges[:-1]) > 0
    shown = np.where(not_finite, np.nan, values[edges[1:] - 1])
    return bars(shown.tolist(), *(bounds or bounds_of(values)))[0]


def bars(values: Sequence[float | None], low: float, high: float, height: int = 1) -> list[str]:
    """One character for each value (None: a space) in ``height`` lines, the lowest last, of eight levels each."""
    levels = [None if value is None else _level(value, low, high, 8 * height) for value in values]
    return ["".join(_bar(level, line) for level in levels) for line in range(height - 1, -1, -1)]


def _bar(level: int | None, line: int) -> str:
    """The character of a column of ``level`` eighths in a line, counted from the bottom."""
    if level == 0:
        return " " if line else NOT_FINITE
    return BARS[max(0, min(8, (level or 0) - 8 * line))]


def _level(value: float, low: float, high: float, levels: int) -> int:
    """From 1 to ``levels``; 0 if the value is not finite."""
    if not math.isfinite(value):
        return 0
    if high <= low:
        return levels // 2
    scale = max(abs(low), abs(high))  # high - low may overflow
    return 1 + min(levels - 1, max(0, int((value / scale - low / scale) / (high / scale - low / scale) * levels)))


def bounds_of(*series: Values) -> tuple[float, float]:
    """The smallest and the largest finite number; (0, 0) if there is none."""
    finite = [values[np.isfinite(values)] for values in series]
    present = [values for values in finite if len(values)]
    if not present:
        return 0.0, 0.0
    return min(float(values.min()) for values in present), max(float(values.max()) for values in present)
