"""Ops that write some elements of an argument and leave the others as they were: which ones, exactly.

Owns the table of such ops and what each does to a tensor of booleans in place of the numbers: indexing by all rows
fills a buffer, by some rows it does not. Only asked about memory that is not known to be written as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from rltrace.record.memory import storages as storage_rules

Touch = Callable[[torch.Tensor, Mapping[str, Any]], object]


def _index_put(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    if given.get("accumulate"):
        return None
    return torch.ops.aten.index_put_.default(touched, given["indices"], torch.tensor(True))  # None among the indices


def _put(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    index = given["index"]
    return None if given.get("accumulate") else touched.put_(index, torch.ones_like(index, dtype=torch.bool))


def _scatter(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return None if "reduce" in given else touched.scatter_(given["dim"], given["index"], True)


def _reduced(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return None if given.get("include_self", True) else touched.scatter_(given["dim"], given["index"], True)


def _reduced_along(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return None if given.get("include_self", True) else _along(touched, given)


def _along(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return touched.index_fill_(given["dim"], given["index"], True)


def _masked(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return touched.masked_fill_(given["mask"], True)


def _diagonal(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return touched.fill_diagonal_(True, given.get("wrap", False))


def _nothing(_touched: torch.Tensor, _given: Mapping[str, Any]) -> object:
    """Adds to what is there: what nobody wrote stays unwritten."""
    return None


TOUCH: Mapping[str, Touch] = MappingProxyType(
    {
        "aten::index_put_": _index_put,
        "aten::_index_put_impl_": _index_put,
        "aten::put_": _put,
        "aten::scatter_": _scatter,
        "aten::index_copy_": _along,
        "aten::index_fill_": _along,
        "aten::masked_fill_": _masked,
        "aten::masked_scatter_": _masked,
        "aten::fill_diagonal_": _diagonal,
        "aten::index_add_": _nothing,
        "aten::index_reduce_": _reduced_along,
        "aten::scatter_add_": _nothing,
        "aten::scatter_reduce_": _reduced,
    }
)
"""By schema name."""


def mark_touched(storage: storage_rules.Storage, tensor: torch.Tensor, schema: str, given: Mapping[str, Any]) -> bool:
    """Note which elements of ``tensor`` an op called with ``given`` has written; whether all of them have been by now.

    Where the op's indices are on a device, asking them would make the program wait: nothing is noted.
    """
    mask = storage_rules.elements_of(storage, tensor)
    if mask is None or not tensor.is_cpu:
        return False
    touched = torch.from_numpy(mask).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    TOUCH[schema](touched, given)
    storage.mask = True if bool(mask.all()) else mask
    return bool(touched.all())
