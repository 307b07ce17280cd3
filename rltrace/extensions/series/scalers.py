"""The gradient scalers of one trace: a summary of each, and where scalers with equal scales diverge.

Owns what a divergence is (another scale after as many updates), its cause, and its effect on the learning rates. Works
on the series of one process; reads no row.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rltrace.diff.metrics.series import EFFECTIVE, RATE, SCALER, Series, StepNumbers, Values
from rltrace.trace.read.process import ProcessTrace

MAX_DIVERGENCES = 64
"""Divergences that are reported."""

_NAME = re.compile(r"scaler:(\d+)/(scale|growth|found_inf|skipped:(\d+))")


class ScalerDivergenceCause(StrEnum):
    START = "start"  # they began with different scales
    FOUND_INF = "found_inf"  # infinities in the gradients of only some of them
    GROWTH = "growth"  # as many updates, but more of them in a row without infinities: tracker, factor or interval
    SET = "set"  # none of these: the program set the scale


@dataclass(frozen=True)
class ScaledOptimizer:
    """The effect of a scaler on one optimizer."""

    ordinal: int
    name: str
    """Its class."""
    owner: str
    """Path of the module whose parameters it has, or ""."""
    attempts: int
    """Through this scaler."""
    skipped: int
    rate: float | None
    """The learning rate of its first group at the end; None: not known."""
    effective: float | None
    """The mean over its attempts, with 0 for skipped ones."""


@dataclass(frozen=True)
class Scaler:
    """One gradient scaler."""

    process: str
    number: int
    """In the order of construction."""
    updates: int
    overflows: int
    """Updates before which infinities were found."""
    first: float
    last: float
    """Its scale before the first update (``first``) and after the last one."""
    optimizers: tuple[ScaledOptimizer, ...]


@dataclass(frozen=True)
class ScalerGroup:
    """Scalers that stay equal at a divergence."""

    scalers: tuple[int, ...]
    step: int
    """Of the attempt before the update, for the first of them."""
    before: float
    after: float
    """Their scale before and after the update."""
    found_inf: bool
    growth: int
    """The growth tracker before that update."""


@dataclass(frozen=True)
class ScalerDivergence:
    """The update after which scalers with equal scales have different ones."""

    process: str
    update: int
    """Number of updates of each; 0: they started with different scales."""
    cause: ScalerDivergenceCause
    sides: tuple[ScalerGroup, ...]


@dataclass(frozen=True, eq=False)
class _History:
    """The series of one scaler."""

    number: int
    scale: Values
    """Before the first update and after each."""
    growth: Values
    found: Values
    """At each update."""
    steps: StepNumbers
    """Of each number of ``scale``."""


def scalers_of(process: ProcessTrace, series: Sequence[Series]) -> tuple[Scaler, ...]:
    """Every scaler of a process with at least one update, from its recorded series."""
    return tuple(
        Scaler(
            process.name,
            history.number,
            len(history.found),
            int((history.found > 0).sum()),
            float(history.scale[0]),
            float(history.scale[-1]),
            tuple(_optimizers(process, series, history.number)),
        )
        for history in _histories(process.name, series)
    )


def scaler_divergences(process: str, series: Sequence[Series]) -> tuple[ScalerDivergence, ...]:
    """Where scalers of a process diverge, ordered by update. They are compared by update, not by step."""
    found: list[ScalerDivergence] = []
    queue = [(list(_histories(process, series)), 0)]
    while queue and len(found) < MAX_DIVERGENCES:
        group, start = queue.pop(0)
        if len(group) < 2:
            continue
        split = _split(group, start)
        if split is None:
            continue
        at, parts = split
        found.append(_divergence(process, at, parts))
        queue += [(part, at + 1) for part in parts]
    return tuple(sorted(found, key=lambda divergence: divergence.update))


def _split(group: list[_History], start: int) -> tuple[int, list[list[_History]]] | None:
    """The first update at which the scales of a group differ, and the groups after it; None: they stay equal."""
    while len(group) > 1:
        stop = min(len(history.scale) for history in group)
        scales = np.stack([history.scale[start:stop] for history in group])
        unequal = np.flatnonzero((_bits(scales) != _bits(scales[:1])).any(axis=0))
        if len(unequal):
            at = start + int(unequal[0])
            parts: dict[int, list[_History]] = {}
            for history in group:
                parts.setdefault(int(_bits(history.scale[at : at + 1])[0]), []).append(history)
            return at, list(parts.values())
        group, start = [history for history in group if len(history.scale) > stop], stop  # some made more updates
    return None


def _bits(values: Values) -> StepNumbers:
    found: StepNumbers = np.ascontiguousarray(values).view(np.int64)
    return found


def _divergence(process: str, at: int, parts: list[list[_History]]) -> ScalerDivergence:
    sides = tuple(_side(part, at) for part in parts)
    if at == 0:
        cause = ScalerDivergenceCause.START
    elif len({side.found_inf for side in sides}) > 1:
        cause = ScalerDivergenceCause.FOUND_INF
    elif len({(side.growth, side.after > side.before) for side in sides}) > 1:
        cause = ScalerDivergenceCause.GROWTH
    else:
        cause = ScalerDivergenceCause.SET
    return ScalerDivergence(process, at, cause, sides)


def _side(part: list[_History], at: int) -> ScalerGroup:
    first, before = part[0], max(at - 1, 0)
    return ScalerGroup(
        scalers=tuple(history.number for history in part),
        step=int(first.steps[at]),
        before=float(first.scale[before]),
        after=float(first.scale[at]),
        found_inf=at > 0 and bool(first.found[at - 1] > 0),
        growth=int(first.growth[before]),
    )


def _histories(process: str, series: Iterable[Series]) -> Iterator[_History]:
    parts: dict[int, dict[str, Series]] = {}
    for one in series:
        match = _NAME.fullmatch(one.name) if one.kind == SCALER and one.stream == process else None
        if match is not None and match[3] is None:
            parts.setdefault(int(match[1]), {})[match[2]] = one
    for number, own in sorted(parts.items()):
        if set(own) != {"scale", "growth", "found_inf"} or not all(one.whole for one in own.values()):
            continue  # with numbers missing, updates cannot be counted
        updates = min(len(own["scale"]) - 1, len(own["growth"]) - 1, len(own["found_inf"]))
        if updates < 1:
            continue
        scale = own["scale"]
        yield _History(
            number,
            scale.values[: updates + 1],
            own["growth"].values[: updates + 1],
            own["found_inf"].values[:updates],
            scale.steps[: updates + 1],
        )


def _optimizers(process: ProcessTrace, series: Sequence[Series], number: int) -> Iterator[ScaledOptimizer]:
    payloads = {p["ordinal"]: p for p in process.tables["optimizers"].payloads if isinstance(p, dict)}
    own = {(one.kind, one.name): one for one in series if one.stream == process.name}
    for kind, name in own:
        match = _NAME.fullmatch(name) if kind == SCALER else None
        if match is None or match[3] is None or int(match[1]) != number:
            continue
        attempts, ordinal = own[kind, name], int(match[3])
        payload = payloads.get(ordinal, {})
        rate = own.get((RATE, f"optimizer:{ordinal}/group:0/lr"))
        effective = own.get((EFFECTIVE, f"optimizer:{ordinal}/group:0/effective-lr"))
        yield ScaledOptimizer(
            ordinal=ordinal,
            name=str(payload.get("class", "optimizer")),
            owner=str(payload.get("owner") or ""),
            attempts=len(attempts),
            skipped=int((attempts.values > 0).sum()),
            rate=float(rate.values[-1]) if rate is not None and len(rate) else None,
            effective=_mean(attempts, effective, rate),
        )


def _mean(attempts: Series, effective: Series | None, rate: Series | None) -> float | None:
    """Mean learning rate of these attempts; None: not known."""
    if effective is not None:
        values = effective.values[np.isin(effective.steps, attempts.steps)]
    elif rate is not None and len(rate) and len(attempts):
        at = np.searchsorted(rate.steps, attempts.steps, side="right") - 1
        values = rate.values[np.maximum(at, 0)]
    else:
        return None
    return float(values.mean()) if len(values) else None
