"""Memory from ``empty`` that is filled in the order of a set: the order is no difference, what is filled in is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import recorder

from rltrace.diff import compare
from rltrace.diff.base.model import Comparison, Verdict

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
