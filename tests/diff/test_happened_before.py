"""What happened before what in random programs that send messages, against what truly did."""

from pathlib import Path

import pytest
from message_programs import run

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.diff.happened_before import HappenedBefore, Instant
from rltrace.testing import TraceBuilder, digest
from rltrace.trace.format.messages import MessageEnds
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
                found = happened.orders(Instant(*first), Instant(*second))
                assert truly or not found
                assert found or not truly or a.shared
    name, row = sorted(a.computed)[seed % len(a.computed)]
    b = run(tmp_path / "b.zarr", seed, planted=(name, row))
    compared = compare(a.path, b.path)
    assert (compared.decisive.stream, compared.decisive.a_index, compared.unordered) == (name, row, ())
    assert {(finding.cause, finding.sender is not None) for finding in compared.later} <= {(Cause.OUTSIDE, True)}


def test_steps_of_threads_and_messages_are_one_order(tmp_path: Path) -> None:
    """What a thread ran in a step happened before what another process receives that the next step sent; where it was
    within that step is not known."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    process = trace.process("rank0/main")
    main, thread, other = process.stream(), process.stream("rank0/main/thread:t"), trace.process("rank1/main").stream()
    for stream, sends in ((main, True), (other, False)):
        for _ in range(2):
            (thread if sends else other).op("aten.add.Tensor")
            stream.op("aten.add.Tensor")
            stream.end_step()
        ends = MessageEnds("pipe", sends, stream.index, [2 if sends else 3], [0], [digest("content")])
        stream.process.writer.append(ends.record())
    happened = HappenedBefore(open_trace(trace.finish()))
    assert [happened.first_row(thread.name, step) for step in range(4)] == [0, 1, 2, 2]
    of_thread, of_main, last = (
        [Instant(name, row) for row in range(n)] for name, n in ((thread.name, 2), (main.name, 2), (other.name, 4))
    )
    assert happened.orders(of_thread[0], of_main[1]) and happened.orders(of_main[0], of_thread[1])
    assert not happened.orders(of_thread[0], of_main[0]) and not happened.orders(of_main[0], of_thread[0])
    assert [happened.orders(of_thread[0], row) for row in last] == [False, False, False, True]
    assert not happened.orders(of_thread[1], last[3])
