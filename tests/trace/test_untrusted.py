"""A trace from another person: what is made to exhaust, to mislead or to reach out of its folder is refused."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from samples import small_trace

from rltrace.commands.main import main
from rltrace.errors import RltraceError
from rltrace.testing import TraceBuilder
from rltrace.trace.format.files import MAX_VALUES_AT_ONCE, Folder, UnreadableError, ValueBudget, has_control, printable
from rltrace.trace.format.journal import HEAD, MAGIC, MAX_PAYLOAD_BYTES, chain, frame, parse_journal
from rltrace.trace.format.process_start import note_failure, write_start
from rltrace.trace.format.root import is_trace
from rltrace.trace.format.tables import parse_tables
from rltrace.trace.read.reader import open_trace


def framed(payload: bytes) -> bytes:
    """A frame with the right digest, whatever it holds."""
    return MAGIC + len(payload).to_bytes(4, "little") + payload + chain(0, payload).to_bytes(8, "little")


@contextmanager
def at_most(limit: float) -> Iterator[None]:
    """No more memory is taken than so many bytes beyond what was there."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before < limit


# --- too much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bomb", [b"[],", b"0,", b'{"a":[]},', b'"",'])
def test_a_record_of_millions_of_values(bomb: bytes) -> None:
    """Small on disk, large in memory: counted before it is parsed."""
    data = framed(b'{"type":"facts","facts":[' + bomb * (4 * MAX_VALUES_AT_ONCE) + b"0]}")
    with at_most(2.5 * len(data) + 1e6):
        journal = parse_journal(data)
    assert journal.records == []
    assert f"holds more than {MAX_VALUES_AT_ONCE:,} values" in journal.damage[0]


def test_many_large_records() -> None:
    """Each is small enough; of all of them so many are taken."""
    budget = ValueBudget(1000)
    assert [len(budget.load(b"[" + b"0," * 98 + b"0]")) for _ in range(9)] == [99] * 9
    with pytest.raises(ValueError, match="exceeds the limit of a reader"):
        [budget.load(b"[" + b"0," * 98 + b"0]") for _ in range(9)]


def test_records_nested_without_end() -> None:
    """A record that is nested without end is no record, and no crash."""
    data = framed(b'{"type":' + b"[" * 500_000)
    assert "is not a record" in parse_journal(data).damage[0]
    with pytest.raises(ValueError, match="is nested too deep"):
        ValueBudget().load(b"[" * 500_000)


def test_a_table_of_millions_of_values() -> None:
    """The line is lost, as a damaged one is; the others are there."""
    lines = b'["ops",0,"00000000000000ff","aten.mm.default"]\n["ops",1,"00000000000000fe",[' + b"[]," * (
        2 * MAX_VALUES_AT_ONCE
    )
    with at_most(3.5 * len(lines)):
        table = parse_tables(lines + b"0]]\n", {"ops": 2})["ops"]
    assert table.payloads == ["aten.mm.default"]


def test_a_journal_that_takes_for_ever_to_take_up() -> None:
    """Damage before a hundred thousand frames that all seem to be long: the search for the next good one has an end."""
    claims = (MAGIC + (1 << 20).to_bytes(4, "little")) * 200_000
    data = framed(b'{"type":"x"}') + b"damage" + claims
    journal = parse_journal(data)
    assert [record["type"] for record in journal.records] == ["x"]
    assert journal.damage


def test_a_journal_of_a_terabyte(tmp_path: Path) -> None:
    """A sparse file takes no disk to send; it is refused by its length."""
    path = small_trace(tmp_path / "t")
    os.truncate(path / "processes/0/journal/log", 1 << 40)
    with at_most(50e6):
        holes = open_trace(path).holes
    assert any("is longer than the limit of" in hole.why for hole in holes)


def test_zeros_are_not_copied() -> None:
    """A journal of zeros, as a power failure leaves, reads as a torn tail, without a second and a third copy of it."""
    data = bytes(50_000_000)
    with at_most(1e6):
        assert parse_journal(data).torn


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), -1))
from rltrace.commands.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_all_together_under_a_limit(tmp_path: Path) -> None:
    """A real process with 1.5 GiB of addresses reads a trace whose journals all are as long as they may be."""
    path = small_trace(tmp_path / "t")
    for number in range(30):
        folder = path / "processes" / str(number) / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("wb") as file:
            file.write(MAGIC + (1 << 26).to_bytes(4, "little"))
            file.truncate((1 << 28) - 1)
    line = [sys.executable, "-c", LIMITED, str(3 << 29), "info", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "is longer than the limit of" in result.stdout


# --- elsewhere --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["../secret", "starts/../../secret", "starts/../starts/x", "/etc/passwd", "link/secret"]
)
def test_no_key_leads_out(tmp_path: Path, key: str) -> None:
    """Neither what stands elsewhere nor whether it does can be asked for."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "t" / "starts").mkdir(parents=True)
    (tmp_path / "t" / "link").symlink_to(tmp_path)
    folder = Folder(tmp_path / "t")
    assert not folder.holds(key)
    assert folder.names(os.path.dirname(key)) == [] or "secret" not in folder.names(os.path.dirname(key))  # noqa: PTH120
    with pytest.raises(UnreadableError):
        folder.read(key, 100)
    with pytest.raises(UnreadableError, match=r"cannot be read \(File name too long\)"):
        folder.size("x" * 300)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_that_is_replaced_as_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A link or a pipe that replaces a file after it was found to be one is not followed, nor waited for."""
    (tmp_path / "secret").write_text("x")
    file = tmp_path / "t" / "file"
    file.parent.mkdir()
    file.write_text("12")
    look = os.lstat

    def look_and_replace(path: str) -> os.stat_result:
        found = look(path)
        if path == str(file):
            file.unlink()
            file.symlink_to(tmp_path / "secret") if kind == "link" else os.mkfifo(file)
        return found

    monkeypatch.setattr(os, "lstat", look_and_replace)
    with pytest.raises(UnreadableError, match="cannot be read") if kind == "link" else nullcontext():
        assert Folder(tmp_path / "t").read("file", 100) == b""


def test_a_pipe_is_no_trace(tmp_path: Path) -> None:
    """``--force`` looks before it replaces; a pipe in the place of the journal does not hold it up."""
    (tmp_path / "t" / "journal").mkdir(parents=True)
    os.mkfifo(tmp_path / "t" / "journal" / "log")
    assert not is_trace(tmp_path / "t")


# --- misleading -------------------------------------------------------------------------------------------------------


BELL = "\x1b]0;title\x07\x9b31m"


def test_no_name_holds_what_a_terminal_acts_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in records, start_records and tables are shown as marks; a letter with an accent is a letter."""
    builder = TraceBuilder(tmp_path / "t")
    builder.op("aten.mm.default", site=(f"Zoë{BELL}.py", 3, f"run{BELL}", f"loss{BELL}()"), module=f"net{BELL}")
    builder.fact(f"cpu.{BELL}", BELL)
    builder.process(f"rank0/{BELL}").stream().op("aten.mm.default")
    path = builder.finish(ending={"why": BELL})
    token = write_start(path, {"pid": 0, "argv": ["python", BELL]})
    note_failure(path, token, BELL)
    for verb in (["info"], ["ops"], ["verify"], ["info", "--format", "json"]):
        main([verb[0], str(path), *verb[1:]])
    main(["diff", str(path), str(small_trace(tmp_path / "other"))])
    shown = capsys.readouterr()
    assert "Zoë" in shown.out
    assert "\ufffd]0;title\ufffd\ufffd31m" in shown.out
    assert not set("\x1b\x07\x9b") & set(shown.out + shown.err)


def test_raw_control_characters() -> None:
    """JSON may hold some of them as they are."""
    assert has_control('{"x":"\x7f\x9b\x85"}'.encode())
    assert printable({"x\x7f": ["\x9b\x85", 1]}) == {"x\ufffd": ["\ufffd\ufffd", 1]}
    assert not has_control('{"x":"Zoë \\n \\t"}'.encode())


def test_a_longest_record_can_be_read() -> None:
    """What a writer writes is within what a reader takes."""
    heads = [[number, 1 << 40, "f" * 16] for number in range(200_000)]
    data, _ = frame(0, {"type": "journals", "heads": heads})
    assert len(data) < MAX_PAYLOAD_BYTES + HEAD
    assert parse_journal(data).damage == []


def test_what_is_refused_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal is one line, with status 2."""
    path = tmp_path / "t"
    (path / "journal").mkdir(parents=True)
    (path / "journal" / "log").symlink_to("/dev/zero")
    assert main(["info", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(RltraceError):
        open_trace(path)
