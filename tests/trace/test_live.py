"""A trace that is still being written: what is read is its beginning, and says that it is."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.commands.main import main
from rltrace.extensions.archive import verify as verification
from rltrace.extensions.archive.verify import verify
from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format.files import Folder
from rltrace.trace.format.journal import Journal
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.rows import Rows
from rltrace.trace.read import reader
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.writer import ProcessWriter

ROWS = 40


@contextmanager
def recording(trace: Path) -> Iterator[Callable[[str], None]]:
    """A process that commits, and obeys commands: "commit", "end" (and exits), "die"."""
    create_trace(trace, {"command": ["train"]})
    orders, order = os.pipe()
    answers, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _record(trace, orders, answer)
        finally:
            os._exit(1)
    os.close(answer)
    gone = []

    def command(what: str) -> None:
        os.write(order, what[:1].encode())
        if what == "commit":
            assert os.read(answers, 1) == b"!"
        else:
            gone.append(os.waitpid(child, 0))

    try:
        assert os.read(answers, 1) == b"!"
        yield command
    finally:
        if not gone:
            command("die")
        for end in (orders, order, answers):
            os.close(end)


def opened(trace: Path, **more: object) -> ProcessWriter:
    """The writer of a process that has left its start record."""
    start_record = {"name": "rank0/main", **more}
    return ProcessWriter.open(trace, {**start_record, "token": write_start(trace, start_record)})


def _record(trace: Path, orders: int, answer: int) -> None:
    writer = opened(trace)
    writer.facts("op", "dispatch", {})
    stream, generator, row = writer.stream("rank0/main"), np.random.default_rng(0), 0
    entries = plain_entries()
    while True:
        writer.commit(stream, random_rows(generator, row, ROWS), entries)
        row, entries = row + ROWS, []
        os.write(answer, b"!")
        match os.read(orders, 1):
            case b"e":
                writer.close("complete", {})
                os._exit(0)
            case b"d":
                os._exit(0)


def test_a_reader_stays_where_it_was(tmp_path: Path) -> None:
    """What is committed later, and that the process ends, a trace that was opened before does not show."""
    with recording(tmp_path / "t") as command:
        first = open_trace(tmp_path / "t")
        command("commit")
        second = open_trace(tmp_path / "t")
        command("end")
        for trace, commits in ((first, 1), (second, 2)):
            (process,) = trace.processes
            assert (process.state, process.after_op) == ("running", commits * ROWS)
            assert len(process.streams[0].read(0, commits * ROWS)) == commits * ROWS
            assert "is still recording" in (process.why or "")
            assert trace.holes == ()
    (process,) = open_trace(tmp_path / "t").processes
    assert (process.state, process.after_op) == ("complete", 2 * ROWS)


@pytest.mark.parametrize(("end", "state"), [("end", "complete"), ("die", "killed")])
def test_a_process_that_ends_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, state: str
) -> None:
    """Its end is seen where it was written; it is not taken for a death."""
    with recording(tmp_path / "t") as command:
        parse, parsed = reader.parse_journal, 0

        def parse_and_end(data: bytes) -> Journal:
            nonlocal parsed
            parsed += 1
            if parsed == 2:  # the first is the launch's
                command("commit")
                command(end)
            return parse(data)

        monkeypatch.setattr(reader, "parse_journal", parse_and_end)
        (process,) = open_trace(tmp_path / "t").processes
    assert (process.state, process.after_op) == (state, 2 * ROWS)


def test_every_verb_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``ops`` lists a beginning and says that it is one; ``info`` and ``verify`` name the state, and see no damage."""
    path = tmp_path / "t"
    with recording(path) as command:
        command("commit")
        assert main(["ops", str(path)]) == 0
        shown = capsys.readouterr()
        assert len(shown.out.splitlines()) == 2 * ROWS
        assert shown.err == f"rltrace: rank0/main is still being recorded; these were its ops up to op {2 * ROWS}\n"
        assert main(["info", str(path)]) == 0
        assert f"rank0/main, running after op {2 * ROWS}" in capsys.readouterr().out
        assert main(["verify", str(path)]) == 0
        assert "running" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["open_trace", "holds", "read"])
def test_verify_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """What is committed while the trace is checked, at any moment of it, is neither damage nor a leftover."""
    with recording(tmp_path / "t") as command:
        whose = verification if place == "open_trace" else Folder
        as_ever, left, each = getattr(whose, place), [3], 3 if place == "open_trace" else 1

        def go_on(*args: Any, **kwargs: Any) -> Any:
            found = as_ever(*args, **kwargs)
            if left[0] and (place == "open_trace" or "/streams/" in args[1]):
                left[0] -= each
                for _ in range(each):
                    command("commit")
            return found

        monkeypatch.setattr(whose, place, go_on)
        found = verify(tmp_path / "t")
        assert left == [0]
    assert found.damage == ()
    assert not [note for note in found.notes if "never committed" in note]
    assert any("still being recorded" in note for note in found.notes)


@pytest.mark.parametrize(
    ("then", "state"),
    [("", "stopped"), ("facts", "stopped"), ("commit", "killed"), ("taken back", "killed"), ("end", "complete")],
)
def test_an_ending_for_now(tmp_path: Path, then: str, state: str) -> None:
    """What was said before an ``exec`` or a termination holds unless the process went on."""
    create_trace(tmp_path / "t", {"command": ["train"]})
    writer = opened(tmp_path / "t", pid=0)
    stream, generator = writer.stream("rank0/main"), np.random.default_rng(0)
    writer.commit(stream, random_rows(generator, 0, ROWS), plain_entries())
    writer.append({"type": "provisional_end", "state": "stopped", "exit": {"why": "its parent terminated it"}})
    match then:
        case "facts":
            writer.facts("op", "dispatch", {"more": 1})
        case "commit":
            writer.commit(stream, random_rows(generator, ROWS, ROWS))
        case "taken back":
            writer.append({"type": "provisional_end", "state": None, "exit": {"exec": None}})
        case "end":
            writer.close("complete", {})
    (process,) = open_trace(tmp_path / "t").processes
    assert process.state == state
    assert (process.exit is None) == (state == "killed")


def test_stopped_and_killed_at_any_moment(tmp_path: Path) -> None:
    """A process that commits without a pause, stopped by SIGSTOP wherever it is, and at last killed: a reader finds a
    beginning, without damage, of a process that runs until it is killed."""
    path = tmp_path / "t"
    create_trace(path, {"command": ["train"]})
    child = os.fork()
    if child == 0:
        try:
            _commit_on(path)
        finally:
            os._exit(1)
    generator, written, rows = np.random.default_rng(0), [], 0
    try:
        for _ in range(20):
            while committed(path) <= rows:  # it has gone on
                pass
            os.kill(child, signal.SIGSTOP)
            os.waitpid(child, os.WUNTRACED)
            (process,) = open_trace(path).processes
            assert process.state == "running"
            assert verify(path).damage == ()
            rows = process.after_op
            while sum(map(len, written)) < rows:
                written.append(random_rows(generator, sum(map(len, written)), ROWS))
            whole = Rows.join(written)
            assert process.streams[0].read(0, rows).digests.tobytes() == whole.cut(0, rows).digests.tobytes()
            os.kill(child, signal.SIGCONT)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (process,) = open_trace(path).processes
    assert process.state == "killed" and process.after_op >= rows
    assert verify(path).damage == ()


def _commit_on(trace: Path) -> None:
    writer = opened(trace)
    stream, generator, row = writer.stream("rank0/main"), np.random.default_rng(0), 0
    while True:
        writer.commit(stream, random_rows(generator, row, ROWS), () if row else plain_entries())
        row += ROWS


def committed(path: Path) -> int:
    """Rows of the process, 0 where it has not begun."""
    processes = open_trace(path).processes
    return processes[0].after_op if processes else 0
