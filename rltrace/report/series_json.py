"""Series as one plain object: ``rltrace.series/1`` (docs/reference/json.md).

Owns the field names. Fields are added, never renamed within a schema version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rltrace.diff.numbers.series import Series
from rltrace.diff.points import points_of
from rltrace.report.html.thinning import thinned
from rltrace.report.json import drift_json, number_json
from rltrace.report.series import PairSeries, TraceSeries

SCHEMA = "rltrace.series/1"

MOST_POINTS = 240
"""Numbers of a series that are in the report: of a longer one, of each stretch the first, last, smallest, largest."""


def series_json(traces: Sequence[TraceSeries], pairs: Sequence[PairSeries]) -> dict[str, Any]:
    """What ``rltrace series --format json`` prints."""
    return {
        "schema": SCHEMA,
        "traces": [
            {
                "path": told.path,
                "series": [one_json(series) for series in told.series],
                "scalers": [_plain(asdict(scaler)) for scaler in told.scalers],
                "partings": [_plain(asdict(parting)) for parting in told.partings],
                "holes": list(told.holes),
            }
            for told in traces
        ],
        "comparisons": [
            {
                "a": pair.a,
                "b": pair.b,
                "drift": [drift_json(drift) for drift in pair.drifts],
                "only_a": [_named(series) for series in pair.only_a],
                "only_b": [_named(series) for series in pair.only_b],
            }
            for pair in pairs
        ],
    }


def one_json(series: Series) -> dict[str, Any]:
    """One series, thinned."""
    finite = series.values[np.isfinite(series.values)]
    return {
        **_named(series),
        "count": len(series),
        "whole": series.whole,
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "not_finite": len(series) - len(finite),
        "points": [[step, number_json(value)] for step, value in thinned(points_of(series), MOST_POINTS)],
    }


def _named(series: Series) -> dict[str, Any]:
    return {"kind": series.kind, "name": series.name, "stream": series.stream, "place": series.place}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return number_json(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
