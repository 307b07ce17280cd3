"""Ops that write memory which they also read are flagged, and no others are."""

from __future__ import annotations

from collections.abc import Callable

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


def flagged(record: Record, changes: dict[str, Callable[[torch.Tensor], object]]) -> list[bool]:
    """Of the row before each ``rand`` and of the last one, whether it has the flag; no other row has it."""
    got = record(lambda: [change(torch.rand(3, 8)) for change in changes.values()])
    flags = [bool(row.flags & RowFlag.OVERLAPPING) for row in got.rows]
    ends = [*(row.index for row in got.named("rand")[1:]), len(flags)]
    found = [flags[end - 1] for end in ends]
    assert sum(found) == sum(flags)
    return found


def test_overlapping(record: Record) -> None:
    """The last op of each writes elements that it reads at another place: that row alone has the flag."""
    assert flagged(record, OVERLAPPING) == [True] * len(OVERLAPPING)


def test_apart(record: Record) -> None:
    """Element by element in place, or between parts that share nothing: any order gives the same."""
    assert flagged(record, APART) == [False] * len(APART)
