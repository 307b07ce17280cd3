"""Every moment of a recording: a reader at that moment, or after a killed writer or a full disk, reads right.

The writer's system calls are followed one by one, each ``write`` in two halves. After each of them the trace is what a
concurrent reader sees, and what is left if the writer dies there.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory import coding_once

from rltrace.digest import digest_buffer, seed_of
from rltrace.errors import NotATraceError, RecordError
from rltrace.extensions.archive.verify import verify
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.records import ValueRequest
from rltrace.trace.format.root import create_trace, end_launch
from rltrace.trace.format.rows import StepRecord, TableEntry
from rltrace.trace.format.schema import Step, ValueKind
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.packers import NewValue, NewValues
from rltrace.trace.write.writer import ProcessWriter

SECTIONS = ("columns", "links", "integers", "floats", "digests")
BATCHES = (3, 1, 5)
ROWS = random_rows(np.random.default_rng(3), 0, sum(BATCHES))
VALUE = np.arange(1, dtype=np.float32)
DIGEST = digest_buffer(VALUE, seed_of("float32", [1]))
"""Belongs to the second commit."""
LONG = [TableEntry("modules", 8, 8, "x" * 600_000)]
"""Takes three chunks, so that one commit writes several of an array."""


class Calls:
    """The system calls that change a file system, counted; ``hook`` is called after each of them."""

    def __init__(self, hook: Callable[[], None]) -> None:
        self.count = 0
        self.failing: Callable[[int, str], bool] = lambda number, name: False
        """Whether a call, by its number and name, fails for want of space."""
        self._hook = hook
        self._inside = self._half = False

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._inside or (name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR)):
                return call(*arguments, **options)
            if name == "io.open" and not set("wxa") & set((*arguments[1:2], options.get("mode", ""))[0]):
                return call(*arguments, **options)
            if name == "write":
                self._half = not self._half and len(arguments[1]) > 1
                arguments = (arguments[0], arguments[1][: len(arguments[1]) // 2]) if self._half else arguments
            self.count += 1
            if self.failing(self.count, name):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            result = call(*arguments, **options)
            self._inside = True
            try:
                self._hook()
            finally:
                self._inside = False
            return result

        return watched


@contextmanager
def followed(hook: Callable[[], None] = lambda: None) -> Iterator[Calls]:
    calls = Calls(hook)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "write", "replace", "rename", "mkdir", "unlink", "ftruncate"):
            patch.setattr(os, name, calls.around(name, getattr(os, name)))
        patch.setattr(io, "open", calls.around("io.open", io.open))
        yield calls


class Program:
    """A process that records nine rows, one step and a second stream, in three commits."""

    def __init__(self, path: Path, alive: bool) -> None:
        self.path = path
        self.start_record: dict[str, object] = {"name": "rank0/main", **({} if alive else {"pid": 0})}
        self.rows = 0
        """Committed for certain."""
        self.at_most = 0
        self.steps = 0
        self.ended = False

    def run(self) -> None:
        create_trace(self.path, {"command": ["python"]})
        self.record()
        end_launch(self.path, {"status": 0})

    def record(self) -> None:
        start_record = {**self.start_record, "token": write_start(self.path, self.start_record)}
        writer = ProcessWriter.open(self.path, start_record)
        writer.facts("op", "testing", {"cpu": "x"})
        writer.request_values(ValueRequest(("all",), False, 1 << 20))
        stream = writer.stream("rank0/main")
        for number, size in enumerate(BATCHES):
            self.at_most = self.rows + size
            step = StepRecord(number, stream, 0, number, 0, 1, 0, self.at_most, True, 1, 2, (3, 0, 0, 0))
            try:
                rows, entries = ROWS.cut(self.rows, self.at_most), (plain_entries(), LONG, ())[number]
                value = NewValue(ValueKind.OUTPUT, DIGEST, stream, self.rows, 0, 1, VALUE.tobytes())
                writer.commit(stream, rows, entries, [step], NewValues([value]) if number == 1 else None)
            except RecordError:
                writer.close("damaged", {"why": "the recorder failed"})
                raise
            self.rows = self.at_most
            self.steps += 1
        writer.stream("rank0/main/thread:x")
        writer.close("complete", {"status": 0})
        self.ended = True

    def check(self) -> None:
        """The trace holds what was committed, as it was written, or rather more of what was being committed."""
        process = open_trace(self.path).processes[0]
        stream = process.streams[0]
        assert self.rows <= stream.rows <= self.at_most
        read = stream.read(0, stream.rows)
        whole = ROWS.cut(0, stream.rows)
        assert all(getattr(read, section).tobytes() == getattr(whole, section).tobytes() for section in SECTIONS)
        assert self.steps <= len(process.steps) <= self.steps + 1
        ends = np.cumsum(BATCHES)[: len(process.steps)]
        assert process.steps[:, Step.END_ROW].tolist() == ends.tolist()
        value = process.values.get(DIGEST)
        assert value is not None or stream.rows <= BATCHES[0]  # rows that can be read have their values
        assert value is None or value.data == VALUE.tobytes()


@pytest.fixture(autouse=True)
def chunks_once() -> Iterator[None]:
    """Most of the time would go into coding the same few chunks."""
    with coding_once():
        yield


NOT_YET = (
    "journal/log is missing",
    "journal/log is empty",
    "journal/log has no launch record",
    "process rank0/main took its name and is missing",
)
"""What may be said of a launch that was killed before its first record, and of a process before its own."""


@pytest.mark.parametrize("alive", [True, False])
def test_every_moment_reads_right(tmp_path: Path, alive: bool) -> None:
    """No moment shows rows that were not written, lacks what was committed, or looks damaged."""
    program = Program(tmp_path / "a.zarr", alive)
    states: list[str] = []

    def look() -> None:
        try:
            trace = open_trace(program.path)
        except NotATraceError:
            assert not states
            return
        said = [hole.why for hole in trace.holes]
        assert all(why.startswith(NOT_YET) for why in said), said
        if said:
            return
        found = verify(program.path)
        assert not found.damage
        if trace.processes:
            states.append(trace.processes[0].state)
        if program.at_most:
            program.check()

    with followed(look) as calls:
        program.run()
    program.check()
    assert calls.count > 150
    assert list(dict.fromkeys(states))[-2:] == ["running" if alive else "killed", "complete"]


def test_a_full_disk_at_every_moment(tmp_path: Path) -> None:
    """Whichever call fails, for once or from then on: one error, and all that was committed before reads right."""
    program = Program(tmp_path / "whole.zarr", alive=False)
    create_trace(program.path, {})
    with followed() as calls:
        program.record()
    for number in range(1, calls.count + 1):
        for once in (True, False) if number % 3 == 0 else (False,):
            program = Program(tmp_path / f"{number}{once}.zarr", alive=False)
            create_trace(program.path, {})
            with followed() as watched:
                watched.failing = lambda n, name, k=number, once=once: (  # type: ignore[misc]
                    n == k if once else n >= k and name not in ("unlink", "ftruncate")
                )
                try:
                    program.record()
                except (RecordError, OSError) as error:
                    assert error.errno == errno.ENOSPC
                else:
                    assert once
                    assert program.ended
            if program.at_most:
                program.check()
                assert not verify(program.path).damage, number
