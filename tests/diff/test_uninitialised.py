"""Memory from ``empty`` that is filled in the order of a set: the order is no difference, what is filled in is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import recorder
from views import view_of

from rltrace.diff import compare
from rltrace.diff.base.bisect import Bisection
from rltrace.diff.base.model import Comparison, Verdict
from rltrace.diff.causes.uninitialised import MarkedRows, count_marked
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Kind, RowFlag

KEYS = ("action", "done", "loc", "scale")


def replay(order: tuple[str, ...], swap: tuple[str, str] | None = None) -> None:
    """A memory of eight rows for each key, of which four are written and two read, key by key in ``order``.

    ``swap``: what is to be written under two keys is put under the other.
    """
    memory = {key: torch.empty(8, 1) for key in KEYS}
    data = {key: torch.full((4, 1), 1.0 + n) for n, key in enumerate(KEYS)}
    names = dict(zip(KEYS, KEYS, strict=True)) | (dict([swap, swap[::-1]]) if swap else {})
    rows, some = torch.arange(4), torch.arange(2) * 2
    new = {key: data[key].clone() for key in order}
    for key in order:
        memory[names[key]][rows] = new[key]
    drawn = {key: memory[key][:4][some] for key in order}
    for n, key in enumerate(KEYS):
        (drawn[key] * (n + 2)).sum()


def compared(folder: Path, *programs: Callable[[], None]) -> Comparison:
    record = recorder(folder)
    return compare(*(record(program).path for program in programs))


ORDERS = [
    ("action", "done", "scale", "loc"),
    ("scale", "loc", "done", "action"),
    ("loc", "action", "scale", "done"),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_order_in_which_memory_is_filled_is_no_difference(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Clones, writes into the memory and what is read of it change places together."""
    found = compared(tmp_path, lambda: replay(KEYS), lambda: replay(order))
    assert found.verdict is Verdict.SAME_VALUES
    assert (found.structure.only_a, found.structure.only_b) == (0, 0)


@pytest.mark.parametrize("order", [KEYS, *ORDERS], ids="-".join)
def test_what_is_filled_in_elsewhere_is_found(tmp_path: Path, order: tuple[str, ...]) -> None:
    """The same values, written under each other's key: whoever reads them computes something else."""
    found = compared(tmp_path, lambda: replay(KEYS), lambda: replay(order, swap=("loc", "scale")))
    assert found.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_who_reads_first_what_came_from_outside_is_no_difference(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Rows drawn key by key at places from outside: the first to read them has their digest, whichever key it is."""

    def program(keys: tuple[str, ...], places: list[int]) -> None:
        data = {key: torch.arange(8.0) + n for n, key in enumerate(KEYS)}
        some = torch.tensor(places)
        drawn = {key: data[key][some] for key in keys}
        for n, key in enumerate(KEYS):
            (drawn[key] * (n + 2)).sum()

    record = recorder(tmp_path)
    one, same, other = (
        record(lambda keys=keys, places=places: program(keys, places)).path
        for keys, places in ((KEYS, [2, 0]), (order, [2, 0]), (order, [0, 2]))
    )
    assert compare(one, same).verdict is Verdict.SAME_VALUES
    assert compare(one, other).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("told", [False, True])
def test_marked_rows_are_counted(tmp_path: Path, told: bool) -> None:
    """Those up to a row are added to those found behind it; the first of each kind is named."""

    def build(trace: TraceBuilder, side: str) -> None:
        for number in range(6):
            junk = side if number in (2, 4) else ""
            trace.op("aten.clone.default", outputs=[f"{number} {junk}"], flags=RowFlag.MARKED)
        for number in (1, 2, 3):
            seen = {"observation": f"{number} {side if number > 1 else ''}"}
            trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": number}, digests=seen)
        trace.op("aten.mm.default", outputs=["y"])

    views = [view_of(tmp_path / f"{side}.zarr", lambda trace, side=side: build(trace, side)) for side in "ab"]
    later = MarkedRows(5, 1, "first op", 4, "first event") if told else MarkedRows()
    found = count_marked(Bisection(*views), 10, later)
    site = "aten.clone.default at train.py:12 (train), row 2"
    assert (found.ops, found.unequal_ops, found.unequal_events) == ((9, 3, 6) if told else (4, 2, 2))
    assert (found.first_op, found.first_event) == (site, "environment step of environment 0, row 7")
    assert found.whole is not told
    assert (found.marked.whole, found.events.differing) == (found.whole, found.unequal_events)
    assert count_marked(Bisection(*views), 2, later) is later
