"""The gap between two programs' log-probabilities, and what their routers decided, as plain objects.

Owns the field names of these parts of ``rltrace.compare/1`` (docs/reference/json.md). Fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rltrace.parity.effects.effects import Effects
from rltrace.parity.effects.gap import Gap
from rltrace.parity.effects.routing import QUANTILES, Margins, Routing
from rltrace.report.contribution import contributions_json
from rltrace.report.json import number_json


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
