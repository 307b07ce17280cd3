"""Which processes take part in a collective, and how what they send is put together: what c10d hands over as an object.

Owns what becomes of these objects in a row: a part of the call's signature, and an entry of table "scalars". Only
collectives pass here; whatever cannot be asked is no more than an object.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

GROUP_ARGUMENT = "group_name"
"""Argument in which a functional collective has its group, by name."""

ScriptObject = torch.ScriptObject


def signature_of(value: Any) -> object:
    """What tells one process group or reduction from another; None for other objects."""
    try:
        kind = value._type().name()
        if kind == "ProcessGroup":
            return str(torch.distributed.ProcessGroup.unbox(value).group_name)
        return int(value._get_method("op")()) if kind == "ReduceOp" else None
    except Exception:  # of a build or version that has nothing of the kind
        return None


def payload_of(value: Any) -> dict[str, object] | None:
    """The same for table "scalars": ``{"group": "0", "rank": 1, "ranks": [0, 1]}``, ``{"reduce": "SUM"}``."""
    try:
        kind = value._type().name()
        if kind == "ProcessGroup":
            return _group(torch.distributed.ProcessGroup.unbox(value))
        if kind == "ReduceOp":
            number = int(value._get_method("op")())
            return {"reduce": torch.distributed.ReduceOp.RedOpType(number).name}
    except Exception:
        return None
    return None


def named_group(name: object) -> dict[str, object] | None:
    """The entry of a group that a functional collective names."""
    try:
        if not isinstance(name, str):
            return None
        return _group(torch._C._distributed_c10d._resolve_process_group(name))  # type: ignore[arg-type]
    except Exception:
        return None


def _group(group: Any) -> dict[str, object]:
    """``rank`` is this process's own, and ``ranks`` are all members', counted over the whole program."""
    name = str(group.group_name)
    members = sys.modules["torch.distributed.distributed_c10d"]._world.pg_group_ranks.get(group)
    if not members:
        return {"group": name}
    ranks = [rank for rank, _ in sorted(members.items(), key=lambda member: member[1])]
    return {"group": name, "rank": ranks[group.rank()], "ranks": ranks}
