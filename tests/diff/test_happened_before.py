"""What happened before what in random programs that send messages, against what truly did."""

from __future__ import annotations

from pathlib import Path

import pytest
from message_programs import run

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.happened_before import HappenedBefore
from rltrace.trace.read.reader import open_trace

SEEDS = range(36)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_what_messages_order_is_ordered(tmp_path: Path, seed: int) -> None:
    """Rows of all processes, by pairs; all that is known of pipes is found, of a queue with several readers a part."""
    made = run(tmp_path / "a.zarr", seed)
    happened = HappenedBefore(open_trace(made.path))
    for second, clock in made.before.items():
        for first in made.before:
            if first[0] != second[0]:
                truly = first[1] < clock.get(first[0], 0)
                found = happened.orders(first, second)
                assert truly or not found
                assert found or not truly or made.shared


@pytest.mark.parametrize("seed", SEEDS)
def test_the_process_where_it_began_leads(tmp_path: Path, seed: int) -> None:
    """A difference is planted in one op, and goes where messages carry it; without one the runs are identical."""
    a, same = run(tmp_path / "a.zarr", seed), run(tmp_path / "same.zarr", seed)
    assert compare(a.path, same.path).verdict is Verdict.IDENTICAL
    name, row = sorted(a.computed)[seed % len(a.computed)]
    b = run(tmp_path / "b.zarr", seed, planted=(name, row))
    found = compare(a.path, b.path)
    assert found.decisive is not None
    assert (found.decisive.stream, found.decisive.a_index, found.unordered) == (name, row, ())
    assert {(finding.cause, finding.sender is not None) for finding in found.later} <= {(Cause.OUTSIDE, True)}
