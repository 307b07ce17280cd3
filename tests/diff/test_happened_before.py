"""What happened before what in random programs that send messages, against what truly did."""

from __future__ import annotations

from pathlib import Path

import pytest
from message_programs import run

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.diff.happened_before import HappenedBefore
from rltrace.trace.read.reader import open_trace

SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_messages_order(tmp_path: Path, seed: int) -> None:
    """Rows of all processes, by pairs; all that is known of pipes is found, of a queue with several readers a part. A
    difference that is planted in one op leads, and goes where messages carry it."""
    a = run(tmp_path / "a.zarr", seed)
    happened = HappenedBefore(open_trace(a.path))
    for second, clock in a.before.items():
        for first in a.before:
            if first[0] != second[0]:
                truly = first[1] < clock.get(first[0], 0)
                found = happened.orders(first, second)
                assert truly or not found
                assert found or not truly or a.shared
    name, row = sorted(a.computed)[seed % len(a.computed)]
    b = run(tmp_path / "b.zarr", seed, planted=(name, row))
    compared = compare(a.path, b.path)
    assert (compared.decisive.stream, compared.decisive.a_index, compared.unordered) == (name, row, ())
    assert {(finding.cause, finding.sender is not None) for finding in compared.later} <= {(Cause.OUTSIDE, True)}
