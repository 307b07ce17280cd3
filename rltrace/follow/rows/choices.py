"""Ops that choose among what they are given. Owns which they are. No torch."""

from __future__ import annotations

from collections.abc import Mapping

CHOICES: Mapping[str, str] = {
    f"aten.{op}": "indices"
    for op in ("topk.default", "topk.values", "sort.default", "sort.stable", "max.dim", "min.dim")
}
"""By operator, the name of what it chose; what else it gives is looked up there."""
