"""Which curves of two compared traces come apart, and how: what ``diff`` adds to its finding.

Owns how much is read for it: what was recorded as a series in full, rows from a first difference on in places only, so
that a search stays a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rltrace.diff.model import Drift
from rltrace.diff.numbers.curves import LOOK_AHEAD
from rltrace.diff.numbers.drift import both, compare_series, drift_of, ordered
from rltrace.diff.numbers.series import ITEM, Series, chosen_segments, item_series, recorded_series
from rltrace.diff.streams import StreamResult
from rltrace.diff.view import StreamView
from rltrace.trace.reader import ProcessTrace

MOST_SEGMENTS = 8
"""Segments of a stream that are read beside those right after its first difference."""

MOST_NAMED = 3

MOST = 50
"""Curves that are told of."""


def drifts(
    pairs: Sequence[tuple[ProcessTrace, ProcessTrace]], results: Iterable[StreamResult], tolerance: float
) -> tuple[Drift, ...]:
    """The curves that differ, in the order in which one sees them part."""
    found: list[Drift] = []
    for a, b in pairs:
        found += compare_series(recorded_series(a), recorded_series(b), [(a, b)], tolerance)[0]
    for result in results:
        if result.value is not None:
            found += _read_out(result, tolerance)
    return ordered(drift for drift in found if drift.first is not None)[:MOST]


def _read_out(result: StreamResult, tolerance: float) -> Iterable[Drift]:
    """Of the numbers that a stream read out. Those before its first difference in values are equal, and not read."""
    value = result.value
    if value is None or value.a_index is None or value.b_index is None:
        return
    own = _items(result.a, value.a_index)
    others = _items(result.b, value.b_index)
    attempts = both(result.a.process, result.b.process)
    for key, series in own.items():
        if key in others and series.kind == ITEM:
            yield drift_of(series, others[key], attempts, tolerance)


def _items(view: StreamView, start: int) -> dict[object, Series]:
    stream = view.stream
    near = [n for n, s in enumerate(stream.segments) if s.stop > start and s.first < start + LOOK_AHEAD]
    chosen = sorted({*near, *chosen_segments(stream, MOST_SEGMENTS, start)})
    wanted = [n for n, segment in enumerate(stream.segments) if segment.stop > start]
    found = item_series(view, chosen, start=start, whole=chosen == wanted)
    return {series.key: series for series in found}


def logged_otherwise(found: Iterable[Drift]) -> list[str]:
    """A note where numbers that a program logged differ, and nothing that it computed."""
    names = [f"{drift.name} from step {drift.first.step:,}" for drift in found if drift.first is not None]
    if not names:
        return []
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [
        f"numbers that were logged beside the ops differ ({', '.join(names[:MOST_NAMED])}{more}), but no op does: "
        "they come from outside the ops, and do not decide the verdict"
    ]
