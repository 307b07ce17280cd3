"""What an op gives: the arguments that it wrote and the tensors that it returned, in the order of its row's digests.

Owns that order for whoever has to find a recorded result again. The hot path goes the same way step by step
(``stream.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rltrace.record.plans import OpPlan, written_places


def results_of(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], out: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(written, returned): tensors with a digest in the op's row, in its order.

    ``tensors`` are those among its arguments, ``out`` is what it returned.
    """
    if not plan.computes or plan.arrives:
        return [], []
    written = [tensors[place] for place in written_places(plan, args, kwargs).all]
    if not plan.returns_new:
        return written, []
    if plan.aliased and isinstance(out, tuple):
        out = [item for item, aliased in zip(out, plan.aliased, strict=True) if not aliased]
    return written, list(_flat(out))


def _flat(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (tuple, list)):
        for item in out:
            yield from _flat(item)
