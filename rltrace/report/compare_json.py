"""Two programs compared by row, as one plain object: the contract ``rltrace.compare/1`` (docs/reference/json.md).

Owns the field names and their order. Fields are added, never renamed within a schema version. Numbers that JSON has no
word for (NaN, infinities) are written as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rltrace.diff.model import Pair
from rltrace.parity.model import Distance, ModuleResult, Origin, Parity, ParityOp, Required
from rltrace.report.json import number_json

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


def _origin(origin: Origin) -> dict[str, Any]:
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
