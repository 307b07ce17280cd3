"""Ops that write memory which they also read are flagged, and no others are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recorded import Record

from rltrace.trace.format.schema import RowFlag

OVERLAPPING: dict[str, Callable[[torch.Tensor], object]] = {
    "a window moved on by one": lambda t: t[:, :-1].copy_(t[:, 1:]),
    "every other one to the front": lambda t: t[0, :4].copy_(t[0, ::2]),
    "minus its own first column": lambda t: t.sub_(t[:, :1]),
    "one step down and right": lambda t: t[1:, 1:].add_(t[:-1, :-1]),
    "a view of other width": lambda t: t.view(torch.int32)[:, 1:].copy_(t[:, :-1].view(torch.int32)),
    "among three": lambda t: t[:, 1:].addcmul_(t[:, :-1], torch.ones(3, 7)),
}
APART: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda t: t.add_(1.0),
    "with itself": lambda t: t.add_(t),
    "with another wrapper of itself": lambda t: t.add_(t[:]),
    "one row from another": lambda t: t[0].copy_(t[2]),
    "interleaved": lambda t: t[:, ::2].copy_(t[:, 1::2]),
    "from a copy": lambda t: t[:, :-1].copy_(t[:, 1:].clone()),
    "from other memory": lambda t: t.copy_(torch.ones(8)),
    "nothing at all": lambda t: t[:0].copy_(t[:0]),
}


def flags(record: Record, change: Callable[[torch.Tensor], object]) -> list[bool]:
    got = record(lambda: change(torch.rand(3, 8)))
    return [bool(row.flags & RowFlag.OVERLAPPING) for row in got.rows]


@pytest.mark.parametrize("change", OVERLAPPING.values(), ids=list(OVERLAPPING))
def test_overlapping(record: Record, change: Callable[[torch.Tensor], object]) -> None:
    """The last op of each writes elements that it reads at another place: that row alone has the flag."""
    found = flags(record, change)
    assert found[-1] and sum(found) == 1


@pytest.mark.parametrize("change", APART.values(), ids=list(APART))
def test_apart(record: Record, change: Callable[[torch.Tensor], object]) -> None:
    """Element by element in place, or between parts that share nothing: any order gives the same."""
    assert not any(flags(record, change))
