"""Rows on their way to disk: whole segments in the background, and never a cell of a row that was not finished."""

import inspect
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from recorded import Record, digest_of

import rltrace
from rltrace.recorder import current_session
from rltrace.recorder.core import calls, op_recorder
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.streams import committer
from rltrace.trace.format.schema import SEGMENT_ROWS


def test_rows_are_the_same_wherever_segments_end(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed in one piece at the end, or row by row behind the program's back: one trace."""

    def program() -> None:
        x = torch.ones(4)
        for i in range(300):
            x = (x * 0.5 + i).sin()
            if i % 50 == 0:
                x.sum().item()
                rltrace.step()

    chains = []
    for rows in (SEGMENT_ROWS, 64, 7):
        monkeypatch.setattr(committer, "SEGMENT_ROWS", rows)
        got = record(program)
        assert len(got.rows) == 1 + 900 + 2 * 6
        chains.append((got.chains, got.ops, [[*step.values()] for step in got.steps]))
    assert chains[0] == chains[1] == chains[2]


@pytest.mark.parametrize("place", range(4))
def test_a_commit_while_a_call_is_made_known(record: Record, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Rows are committed after one of the four things that are noted of a call, as the committing thread may do."""
    note, notes = calls._set_padded, count()

    def note_and_commit(*arguments: Any) -> None:
        note(*arguments)
        session = current_session()
        if next(notes) % 4 == place and session is not None:
            session._committer.flush()

    with record.block() as got:
        x = torch.ones(4)
        x.sum(dim=0)
        monkeypatch.setattr(calls, "_set_padded", note_and_commit)
        for dims in ((0,), (0, -1), (-1,)):  # the same op, called otherwise
            torch.ones(1, *[2] * len(dims)).sum(dim=dims)
    assert got.ops == ["ones", "sum", *["ones", "sum"] * 3]


def test_a_program_that_is_faster_than_the_disk_waits(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded: some segments wait, never more."""
    monkeypatch.setattr(committer, "SEGMENT_ROWS", 16)
    most: list[int] = []
    wake = committer.Committer.wake

    def watched(self: committer.Committer, stream: OpRecorder) -> None:
        wake(self, stream)
        most.append(stream.row - self._committed[stream.number])

    monkeypatch.setattr(committer.Committer, "wake", watched)
    with record.block() as got:
        x = torch.ones(4)
        for _ in range(2_000):
            x = x.sin()
    assert len(got.rows) == 2_001
    assert most and max(most) <= (committer.MAX_PENDING_SEGMENTS + 1) * 16


def test_values_spread_over_rows() -> None:
    """A value holds from its first row to the next one's; what no later row needs is dropped."""
    changes = [(0, 5), (3, 6), (9, 7)]
    assert committer._spread(changes, 0, 4).tolist() == [5, 5, 5, 6]
    assert changes == [(3, 6), (9, 7)]
    assert committer._spread(changes, 4, 6).tolist() == [6] * 5 + [7]
    assert committer._spread(changes, 10, 2).tolist() == [7, 7]
    assert committer._spread(changes, 12, 0).tolist() == []


# --- interrupts -------------------------------------------------------------------------------------------------------

HOT = (
    "observe",
    "_fresh",
    "_fresh_several",
    "_input",
    "_unknown_input",
    "_record_written",
    "_follow_allocated",
    "_copy_marks",
)
CODES = {f.__code__ for name, f in inspect.getmembers(OpRecorder, inspect.isfunction) if name in HOT}
SOURCE = Path(op_recorder.__file__).read_text().splitlines()


class Tracer:
    """Counts how often lines of the hot path are reached; at one of them, the given time, raises as Ctrl-C does."""

    def __init__(self, line: int = 0, time: int = 0) -> None:
        self._line, self._time = line, time
        self.counts: Counter[int] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "call":
            return self if frame.f_code in CODES else None
        if event == "line" and not SOURCE[frame.f_lineno - 1].strip().startswith(("try:", "except")):
            self.counts[frame.f_lineno] += 1
            if (frame.f_lineno, self.counts[frame.f_lineno]) == (self._line, self._time):
                raise KeyboardInterrupt
        return self


def work(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
    """A little of everything the hot path does; x, y and z are read, changed and overwritten, as wholes and in part."""
    torch._foreach_mul_([x, y], 0.5)
    x.add_(y, alpha=2)
    buffer = torch.empty(3, 4)
    buffer[1] = y * 2.0
    buffer[torch.tensor([0, 2])] = torch.rand(4)
    copy = buffer.clone()
    half = torch.empty(4)
    half[:2] = y[2:] * 0.5
    half[:2].sum()
    z[1:].add_(z[1:] * copy.sum(0)[1:])
    values, _ = torch.add(x, y, alpha=3.0).sort()
    torch.mul(values, x, out=y)
    values.sum().item()


def traced(tracer: Tracer, *tensors: torch.Tensor) -> None:
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work(*tensors)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def test_an_interrupt_at_any_line_leaves_later_rows_right(record: Record, engine: str) -> None:
    """Ctrl-C inside of the recorder: no cell of an unfinished row stays, no link leads astray, nothing is damaged."""
    looks: list[tuple[str, int, list[int]]] = []
    with record.block(engine=engine) as got:
        main = current_session()._streams.main
        tensors = torch.ones(4), torch.ones(4), torch.ones(4)
        work(*tensors)
        reached = Tracer()
        traced(reached, *tensors)
        for line, times in [(0, 1), *sorted(reached.counts.items())]:
            for time in sorted({1, times}):
                rltrace.step()  # so that the work reads what it uses first
                traced(Tracer(line, time), *tensors)
                torch.ones(1)  # has the number of the row that was interrupted
                looks.append((f"line {line}, time {time}", main.row, [*map(digest_of, tensors)]))
                torch.addcmul(*tensors)
                for number, tensor in enumerate(tensors):
                    tensor.fill_(number + 1.0)
                torch.manual_seed(2)
                work(*tensors)
    assert got.process.state == "complete"
    assert len(looks) > {"mode": 200, "native": 100}[engine]  # lines of the recorder in Python
    (_, first, _), size = looks[0], len(got.rows) - looks[-1][1]
    expected = got.rows[first : first + size]
    for place, at, seen in looks:
        look, *rows = got.rows[at : at + size]
        assert look.op == "aten.addcmul.default", place
        assert [got.said(link) for link in look.inputs] == seen, place
        for row, right in zip(rows, expected[1:], strict=True):
            for cell in ("op", "integers", "floats", "value", "outputs", "rng", "marked"):
                assert getattr(row, cell) == getattr(right, cell), place
            assert [got.said(link) for link in row.inputs] == [got.said(link) for link in right.inputs], place
