"""What an op of the running program gave, by the names that recordings have; and what goes with another choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.record.arguments import op_tensors
from rltrace.record.plans import OpPlan
from rltrace.record.results import results_of
from rltrace.record.rows.walk import named_tensors

Tensor = torch.Tensor


def named_results(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Iterator[tuple[str, Tensor]]:
    """What an op wrote and returned, each named as a recording names it."""
    tensors = op_tensors(args, kwargs)
    written, returned = results_of(plan, args, kwargs, tensors, out)
    given = {id(tensor): name for name, tensor in named_tensors(plan.named(args, kwargs))}
    yield from ((given.get(id(tensor), ""), tensor) for tensor in written)
    names = {id(tensor): name for name, tensor in _returned_names(plan.func, out)}
    yield from ((names.get(id(tensor), ""), tensor) for tensor in returned)


def _returned_names(func: OpOverload, out: Any) -> Iterator[tuple[str, Tensor]]:
    """Where each of several tensors stands, as the operator's schema says, or by its place."""
    if not isinstance(out, (tuple, list)):
        return
    returns = getattr(getattr(func, "_schema", None), "returns", ())
    said = [returned.name or str(i) for i, returned in enumerate(returns)] if len(returns) > 1 else []
    for i, item in enumerate(out):
        yield from named_tensors(item, said[i] if i < len(said) else str(i))


# --- ops that choose --------------------------------------------------------------------------------------------------


def _chosen_from(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, int]:
    """What an op chose from, and along which axis."""
    named = plan.named(args, kwargs)
    source: Tensor = named["self"]
    dim: Any = named.get("dim", -1)
    return source, dim


def candidates(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Among how many an op chose."""
    source, dim = _chosen_from(plan, args, kwargs)
    return int(source.shape[dim]) if source.dim() else 1


def look_up(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], results: dict[str, Tensor]) -> None:
    """What goes with another choice: the program's own numbers at the places that were chosen."""
    source, dim = _chosen_from(plan, args, kwargs)
    chosen, values = results["indices"], results.get("values")
    if values is None or not source.dim():
        return
    if chosen.dim() < source.dim():  # of the largest alone
        chosen, values = chosen.unsqueeze(dim), values.unsqueeze(dim)
    values.copy_(source.gather(dim, chosen))
