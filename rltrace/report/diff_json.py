"""A comparison as one plain object: the contract ``rltrace.diff/1`` (docs/reference/json.md).

Owns the field names and their order. Fields are added, never renamed within a schema version. Numbers that JSON has no
word for (NaN, infinities) are written as text.
"""

from __future__ import annotations

import math
from typing import Any

from rltrace.diff.base.model import Boundary, Comparison, Drift, Finding, Hunk, Received, Side
from rltrace.trace.read.names import Site

SCHEMA = "rltrace.diff/1"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """``comparison`` as JSON-able dictionaries, lists, strings, numbers and None."""
    structure, search, marked = comparison.structure, comparison.search, comparison.marked
    return {
        "schema": SCHEMA,
        "verdict": comparison.verdict.value,
        "why": comparison.why,
        "level": comparison.level,
        "strict": comparison.strict,
        "agrees": comparison.agrees,
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "system": [{"name": d.name, "a": d.a, "b": d.b} for d in comparison.environment],
        "first": finding_json(comparison.first),
        "first_value": finding_json(comparison.first_value),
        "decisive": finding_json(comparison.decisive),
        "unordered": [finding_json(finding) for finding in comparison.unordered],
        "later": [finding_json(finding) for finding in comparison.later],
        "structure": {
            "only_a": structure.only_a,
            "only_b": structure.only_b,
            "reordered": structure.reordered,
            "reordered_steps": structure.reordered_steps,
            "whole": structure.whole,
            "hunks": [_hunk(hunk) for hunk in structure.hunks],
        },
        "search": {
            "probes": [{"row": probe.row, "equal": probe.equal} for probe in search.probes],
            "chunks_read": search.chunks_read,
            "bytes_read": search.bytes_read,
        },
        "holes": [vars(hole) for hole in comparison.holes],
        "marked": vars(marked),
        "events": vars(comparison.told),
        "curves": [
            {"name": point.name, "step": point.step, "a": number_json(point.a), "b": number_json(point.b)}
            for point in comparison.curves
        ],
        "drift": [drift_json(drift) for drift in comparison.drift],
        "compared": dict(comparison.compared),
        "unfinished": list(comparison.unfinished),
        "other_kernels": [
            {**vars(other), "differences": list(other.differences)} for other in comparison.other_kernels
        ],
        "notes": list(comparison.notes),
        "advice": list(comparison.advice),
    }


def drift_json(drift: Drift) -> dict[str, Any]:
    """How one series comes apart."""
    points = {"first": drift.first, "leaves": drift.leaves}
    return {
        "kind": drift.kind,
        "name": drift.name,
        "stream": drift.stream,
        "place": drift.place,
        "a_count": drift.counts[0],
        "b_count": drift.counts[1],
        "matched": drift.matched,
        **{
            name: None if point is None else {"step": point.step, "a": number_json(point.a), "b": number_json(point.b)}
            for name, point in points.items()
        },
        "limit": number_json(drift.limit),
        "growth": [[step, number_json(distance)] for step, distance in drift.growth],
        "most": number_json(drift.most),
        "whole": drift.whole,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "level": side.level,
        "engine": side.engine,
        "ops": side.ops,
        "steps": side.steps,
        "processes": [{**vars(p), "windows": [list(window) for window in p.windows]} for p in side.processes],
    }


def finding_json(finding: Finding | None) -> dict[str, Any] | None:
    """One finding; None stays None."""
    if finding is None:
        return None
    optimizer = finding.optimizer
    return {
        "cause": finding.cause.value,
        "stream": finding.stream,
        "a_index": finding.a_index,
        "b_index": finding.b_index,
        "step": finding.step,
        "optimizer": None if optimizer is None else vars(optimizer).copy(),
        "environment_step": finding.environment_step,
        "phase": finding.phase,
        "op": finding.op,
        "module": finding.module,
        "site": _site(finding.site),
        "stack": [_site(site) for site in finding.stack],
        "kernel": vars(finding.kernel).copy(),
        "kernel_names": {side: _names(getattr(finding.kernel_names, side)) for side in ("a", "b")},
        "settings": [vars(setting).copy() for setting in finding.settings],
        "inputs_match": finding.inputs_match.value,
        "outputs": [vars(pair).copy() for pair in finding.outputs],
        "identical_before": finding.identical_before,
        "because": finding.because,
        "repeats": finding.repeats,
        "received": None if finding.received is None else _received(finding.received),
        "boundary": None if finding.boundary is None else _boundary(finding.boundary),
    }


def _names(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _boundary(boundary: Boundary) -> dict[str, Any]:
    cells = [{"name": name, "a": pair.a, "b": pair.b} for name, pair in boundary.cells]
    taken = {name: getattr(boundary.taken, name) for name in ("op", "a_index", "b_index", "step")}
    count = vars(boundary.count)
    return {"name": boundary.name, "owner": boundary.owner, "count": count, "cells": cells, "taken": taken}


def _received(received: Received) -> dict[str, Any]:
    return {**vars(received), "ranks": list(received.ranks), "origins": list(received.origins)}


def _site(site: Site | None) -> dict[str, Any] | None:
    return None if site is None else vars(site).copy()


def _hunk(hunk: Hunk) -> dict[str, Any]:
    return vars(hunk).copy()


def number_json(value: float) -> float | str:
    """A number, or the text for one that JSON has no word for."""
    return value if math.isfinite(value) else str(value)
