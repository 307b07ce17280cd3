"""Two programs compared by row, and what that amounts to, as one object: the contract ``rltrace.compare/1``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rltrace.extensions.parity.impact.summary import Effects
from rltrace.extensions.parity.model import Parity, Required
from rltrace.json import to_json

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
    return found
