"""Two programs compared by row, as one plain object: the contract ``rltrace.compare/1`` (docs/reference/json.md).

Owns the field names and their order. Fields are added, never renamed within a schema version. Numbers that JSON has no
word for (NaN, infinities) are written as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rltrace.diff.base.model import Pair
from rltrace.parity.impact.logprobs import Gap
from rltrace.parity.impact.routing import QUANTILES, Margins, Routing
from rltrace.parity.impact.summary import Effects
from rltrace.parity.model import Distance, ModuleOrigin, ModuleResult, Parity, ParityOp, Required
from rltrace.parity.report.attribution import contributions_json
from rltrace.report.diff_json import number_json

SCHEMA = "rltrace.compare/1"


def parity_json(
    parity: Parity, required: Sequence[Required], agrees: bool | None, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """``more``: sections of others, by name: the gap, the routing, the contributions."""
    return {
        "schema": SCHEMA,
        "verdict": parity.verdict.value,
        "why": parity.why,
        "agrees": agrees,
        "required": [vars(one) for one in required],
        "a": vars(parity.a),
        "b": vars(parity.b),
        "rows_by": parity.rows_by.value,
        "how": parity.how,
        "first": None if parity.first is None else _origin(parity.first),
        "origins": [_origin(origin) for origin in parity.origins],
        "modules": [_module(module) for module in parity.modules],
        "only_a": list(parity.only_a),
        "only_b": list(parity.only_b),
        "renamed": [vars(pair) for pair in parity.renamed],
        "disagreements": [vars(one) for one in parity.disagreements],
        **(more or {}),
        "holes": list(parity.holes),
        "notes": list(parity.notes),
        "advice": list(parity.advice),
    }


def _origin(origin: ModuleOrigin) -> dict[str, Any]:
    return {
        "path": vars(origin.path),
        "rows": origin.rows,
        "of": origin.of,
        "call": vars(origin.call),
        "row": origin.row,
        "own": origin.own,
        "op": _ops(origin.op),
        "several": [_ops(pair) for pair in origin.several],
        "reason": origin.reason.value,
        "because": origin.because,
    }


def _ops(pair: Pair[ParityOp]) -> dict[str, Any]:
    return {
        side: None if op is None else {**asdict(op), "layouts": list(op.layouts)}
        for side, op in (("a", pair.a), ("b", pair.b))
    }


def _module(module: ModuleResult) -> dict[str, Any]:
    return {
        "path": vars(module.path),
        "kind": vars(module.kind),
        "calls": vars(module.calls),
        "rows": module.rows,
        "equal": module.equal,
        "differing": module.differing,
        "inputs_differing": module.inputs_differing,
        "missing": {"a": module.missing_a, "b": module.missing_b},
        "dtype": None if module.dtype is None else vars(module.dtype),
        "distance": _distance(module.distance),
        "tensors": [
            {
                **vars(tensor),
                "name": vars(tensor.name),
                "dtype": vars(tensor.dtype),
                "distance": _distance(tensor.distance),
            }
            for tensor in module.tensors
        ],
        "apart": [vars(one) for one in module.apart],
    }


def _distance(distance: Distance | None) -> dict[str, Any] | None:
    if distance is None:
        return None
    numbers = {"absolute": distance.absolute, "relative": distance.relative, "share": distance.share}
    return {
        **{name: None if number is None else number_json(number) for name, number in numbers.items()},
        "ulp": distance.ulp,
        "measured": distance.measured,
        "worst": distance.worst,
    }


# --- gap json ---------------------------------------------------------------------------------------------------------
#
# The gap between two programs' log-probabilities, and what their routers decided, as plain objects.
#
# Owns the field names of these parts of ``rltrace.compare/1`` (docs/reference/json.md). Fields are added, never
# renamed.


def effects_json(effects: Effects) -> dict[str, Any]:
    """The parts by name: ``gap``, ``routing``, ``contributions``."""
    gap = effects.gap
    return {
        "gap": {"why": gap} if isinstance(gap, str) else gap_json(gap),
        "routing": [_routing(one) for one in effects.routing],
        "routing_notes": list(effects.notes),
        "contributions": None if effects.contributions is None else contributions_json(effects.contributions),
    }


def gap_json(gap: Gap) -> dict[str, Any]:
    return {
        "why": None,
        "source": gap.source,
        "n": gap.n,
        "equal": gap.equal,
        "share_equal": gap.share_equal,
        "unmeasured": gap.unmeasured,
        "mean": _number(gap.mean),
        "largest": _number(gap.largest),
        "k1": _number(gap.k1),
        "k3": _number(gap.k3),
        "portions": [vars(portion) for portion in gap.portions],
        "furthest": [
            {"place": taken.place, "token": taken.token, "a": number_json(taken.a), "b": number_json(taken.b)}
            for taken in gap.furthest
        ],
        "only_a": gap.only_a,
        "only_b": gap.only_b,
    }


def _routing(one: Routing) -> dict[str, Any]:
    return {
        "module": {"a": one.module, "b": one.module_b},
        "nth": one.nth,
        "experts": one.experts,
        "chosen": one.chosen,
        "n": one.n,
        "flipped": one.flipped,
        "reordered": one.reordered,
        "reweighted": one.reweighted,
        "same": one.same,
        "margins": {"a": _margins(one.margins_a), "b": _margins(one.margins_b)},
        "margins_flipped": {"a": _margins(one.flipped_a), "b": _margins(one.flipped_b)},
        "largest_flipped": _number(one.largest_flipped),
        "closer": one.closer,
        "largest_drift": _number(one.largest_drift),
        "flips": [
            {
                "place": flip.place,
                "token": flip.token,
                "a": list(flip.a),
                "b": list(flip.b),
                "margin": {"a": _number(flip.margin_a), "b": _number(flip.margin_b)},
            }
            for flip in one.flips
        ],
        "only_a": one.only_a,
        "only_b": one.only_b,
        "why_no_margins": one.why_no_margins or None,
    }


def _margins(margins: Margins) -> dict[str, Any]:
    return {"known": margins.known, "quantiles": _quantiles(margins.quantiles)}


def _quantiles(found: Sequence[float]) -> list[dict[str, Any]]:
    """Empty where no margin is known."""
    return [{"at": at, "margin": number_json(margin)} for at, margin in zip(QUANTILES, found, strict=False)]


def _number(number: float | None) -> Any:
    return None if number is None else number_json(number)
