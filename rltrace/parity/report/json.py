"""Two programs compared by row, and what that amounts to, as one object: the contract ``rltrace.compare/1``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rltrace.json import to_json
from rltrace.parity.impact.attribution import Contributions, PatchTrial
from rltrace.parity.impact.summary import Effects
from rltrace.parity.model import Parity, Required

SCHEMA = "rltrace.compare/1"


def parity_json(
    parity: Parity, required: Sequence[Required], agrees: bool | None, effects: Effects | None = None
) -> dict[str, Any]:
    more = {} if effects is None else effects_json(effects)
    return {"schema": SCHEMA, "agrees": agrees, "required": to_json(required), **to_json(parity), **more}


def effects_json(effects: Effects) -> dict[str, Any]:
    found: dict[str, Any] = to_json(effects)
    if isinstance(effects.gap, str):
        found["gap"] = {"why": effects.gap}
    if effects.contributions is not None:
        found["contributions"] |= _removed(effects.contributions)
    return found


def _removed(found: Contributions) -> dict[str, Any]:
    """The runs, and what each removes of the gap."""

    def trial(one: PatchTrial) -> dict[str, Any]:
        return {**to_json(one), "removed": found.removed(one)}

    routing, shares = found.routing, enumerate(found.shares)
    return {
        "shares": [
            {
                "module": share.module,
                "single": trial(share.single),
                "in_turn": {**to_json(share.in_turn), "removed": found.own(number)},
            }
            for number, share in shares
        ],
        "together": trial(found.together),
        "routing": None if routing is None else {"experts": trial(routing.experts), "weights": trial(routing.weights)},
    }
