"""Events: rows that are no ops, at their place among them, with cells that are compared and evidence that is not."""

from functools import partial

import pytest
import torch
from children import in_thread
from recorded import PassingMode, Record

import rltrace
from rltrace.recorder import current_session
from rltrace.recorder.core.events import EventForm
from rltrace.trace.format.schema import Kind, Phase

FORM = EventForm(
    Kind.VALUE,
    "thermometer 0",
    owner="house",
    counts=("reading",),
    evidence=("clock",),
    digests=("picture",),
    integers=("rooms",),
    floats=("warmth",),
)


def read(warmth: float = 20.5, clock: int = 7, rooms: int = 3, picture: int = 11, count: int = 0) -> bool:
    events = current_session().events
    return events.write(FORM, evidence=[count, clock], digests=[picture], integers=[rooms], floats=[warmth])


def test_an_event_is_a_row_at_its_place_among_the_ops(record: Record) -> None:
    """Kind, cells by name, who it belongs to, where it happened: between the ops around it, whose links are right."""
    with record.block() as found:
        x = torch.ones(3)
        assert read()
        _ = x + 1
    assert [row.kind for row in found.rows] == [Kind.OP, Kind.VALUE, Kind.OP]
    event = found.rows[1]
    fields = [["reading=", "n"], ["clock=", "e"], ["picture=", "d"], ["rooms=", "i"], ["warmth=", "f"]]
    assert event.scalars == ["thermometer 0", *fields]
    assert (event.integers, event.floats, event.outputs, event.module) == ([3], [20.5], [11], "house")
    assert event.line.startswith("return events.write(FORM")
    assert event.settings == {}  # it ran under nothing
    assert found.rows[2].inputs[0].row == 0


def test_what_an_event_compares_is_in_the_chain_of_marked_rows_alone_and_evidence_in_none(record: Record) -> None:
    """Structure and values of the ops around it are chained as if it had no fields."""
    cells = ({}, {"clock": 8, "count": 4}, {"picture": 12}, {"rooms": 4}, {"warmth": 20.25})
    plain, later, *others = [record(partial(read, **cell)).chains for cell in cells]
    assert later == plain
    assert [other[:2] for other in others] == [plain[:2]] * 3
    assert len({other[2] for other in (plain, *others)}) == 4


def test_an_event_has_the_phase_that_the_program_is_in(record: Record) -> None:
    """Also under a mode of the program's own."""
    with record.block() as got, rltrace.phase("rollout"):
        read()
        with PassingMode():
            assert read()
    assert [(row.kind, row.phase) for row in got.rows] == [(Kind.VALUE, Phase.ROLLOUT)] * 2


def test_a_thread_without_an_op_yet_writes_its_events_into_a_stream_of_its_own(record: Record) -> None:
    with record.block(stream="rank0/main/thread:reader") as found:
        in_thread("reader", read)
    assert [row.kind for row in found.rows] == [Kind.VALUE]


def test_within_an_op_and_outside_of_a_recording_of_ops_no_event_is_written(record: Record) -> None:
    """An op that runs the program's own code is in the middle of its row: an event then would split that row."""
    written: list[bool] = []

    @torch.library.custom_op("rltrace_test_events::observing", mutates_args=())
    def observing(x: torch.Tensor) -> torch.Tensor:
        written.append(read())
        return x.clone()

    found = record(lambda: observing(torch.ones(2)))
    assert written == [False]
    assert all(row.kind is Kind.OP for row in found.rows)
    record(lambda: written.append(read()), level="step")
    assert written == [False, False]


def test_an_interrupted_event_leaves_nothing_behind(record: Record) -> None:
    """Ctrl-C between two cells: the row will never be, and the next one has its own cells."""

    class Interrupting(list[int]):
        def __iter__(self):
            raise KeyboardInterrupt

    with record.block() as found:
        with pytest.raises(KeyboardInterrupt):
            current_session().events.write(FORM, evidence=[0, 1], digests=[2], integers=Interrupting([3]), floats=[4.0])
        read()
    assert len(found.rows) == 1
    assert (found.rows[0].integers, found.rows[0].outputs) == ([3], [11])
