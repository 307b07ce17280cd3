"""State that a run carries in objects: gradient scalers, schedulers of learning rates, and running statistics.

Their numbers are recorded as series. Owns when one of them was not restored as a shifted comparison begins. A
checkpoint may be made anywhere between two attempts, and loaded after the first use: so running statistics are lost
where they are still behind after an attempt, or begin with a later count.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rltrace.diff.base.model import NotRestored
from rltrace.trace.format.schema import Sample, Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.wording import joined

EPOCH, COUNT = "last_epoch", "count"

Numbers = dict[str, float]
"""Of one object: ``count``, ``mean of float64``."""


class CarriedObject(NamedTuple):
    """An object of one side."""

    began: Numbers
    """Its numbers as the comparison begins; empty: not known."""
    after: Numbers
    """Those at the end of the first compared attempt."""


class _Both(NamedTuple):
    a: CarriedObject
    b: CarriedObject


def lost_objects(a: ProcessTrace, b: ProcessTrace) -> Iterator[tuple[NotRestored, str]]:
    """State, and a sentence, of each kind of object that was not restored."""
    if not len(a.steps) or not len(b.steps):
        return
    sides = _objects(a), _objects(b)
    for kind in dict.fromkeys(map(_kind, sides[0])):
        names, others = ([name for name in side if _kind(name) == kind] for side in sides)
        if names != others:
            continue
        own = [_Both(sides[0][name], sides[1][name]) for name in names]
        if COUNT in own[0].a.after:
            what, words = "statistics", f"the running statistics {kind} were"
            lost = [_lost_statistics(pair, own, a) for pair in own]
        elif EPOCH in own[0].a.after:  # a scheduler takes its step after the attempt
            what, words = "scheduler", f"the scheduler {kind} was"
            lost = [_differing(pair.a.after, pair.b.after) for pair in own]
        else:
            what, words = "scaler", f"the state of a gradient scaler ({kind}) was"
            lost = [_differing(pair.a.began, pair.b.began) for pair in own]
        found = list(filter(None, lost))
        if found:
            more = f", as {len(found) - 1:,} more of them" if len(found) > 1 else ""
            yield NotRestored(what, kind), f"{words} not restored{more}: {found[0]}"


def _differing(a: Numbers, b: Numbers) -> str:
    """``last_epoch 4 in A, 0 in B``; "" where all numbers that both have are equal."""
    texts = [f"{name} {x:g} in A, {b[name]:g} in B" for name, x in a.items() if name in b and x != b[name]]
    return joined(texts) if texts else ""


def _lost_statistics(pair: _Both, own: Sequence[_Both], a: ProcessTrace) -> str:
    """``count 129 in A, 0.0001 in B``; "" where they may have been restored, after their first use or from others of
    this kind, with this dtype."""
    wholes, part = [each.a for each in own], pair.b
    if not len(a.steps_before):
        wholes, part = [each.b for each in own], pair.a
    if not part.began or not all(whole.began for whole in wholes):
        return ""
    is_behind = part.after.get(COUNT, np.inf) < min(whole.began[COUNT] for whole in wholes)
    if not is_behind and part.began[COUNT] <= max(whole.after.get(COUNT, np.inf) for whole in wholes):
        names = [next((name for name in side.began if name != COUNT), "") for side in pair]
        return "" if names[0] == names[1] else f"{names[0]} in A, {names[1]} in B"
    return _differing(pair.a.began, pair.b.began)


def _kind(name: str) -> str:
    """Without the number of one of several."""
    return name.partition(" ")[0]


def _objects(process: ProcessTrace) -> dict[str, CarriedObject]:
    """All of a process, by name: ``LambdaLR 0``, ``VecNormalize.obs_rms``, ``VecNormalize.obs_rms 2``."""
    found: dict[str, CarriedObject] = {}
    samples, first = process.samples, process.steps[0, Step.STEP]
    for entry, payload in enumerate(process.tables["series"].payloads):
        if not isinstance(payload, dict) or payload["kind"] not in ("state", "scaler"):
            continue
        name, _, what = str(payload["name"]).rpartition("/")
        is_scaler = payload["kind"] == "scaler"
        if is_scaler and what not in ("scale", "growth"):
            continue
        own = samples[samples[:, Sample.SERIES] == entry]
        values = np.ascontiguousarray(own[:, Sample.VALUE]).view(np.float64)
        before = int(np.searchsorted(own[:, Sample.STEP], first)) if len(process.steps_before) else 0
        after = int(np.searchsorted(own[:, Sample.STEP], first, side="right"))
        numbers = found.setdefault(name, CarriedObject({}, {}))
        if before or (len(own) and (is_scaler or not len(process.steps_before))):
            numbers.began[what] = float(values[max(before - 1, 0)])
        if after:
            numbers.after[what] = float(values[after - 1])
    return found
