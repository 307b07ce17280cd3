"""Start records are small, checked, and know their process again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.trace.format.process_start import is_alive, parse_start, this_process, write_start


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A folder that can take start records."""
    (tmp_path / "starts").mkdir()
    return tmp_path


def test_round_trip(trace: Path) -> None:
    """What was said comes back, with the process's own marks."""
    token = write_start(trace, {"argv": ["train.py"], "name": "rank0/main"})
    record = parse_start((trace / "starts" / f"{token}.json").read_bytes())
    assert record["argv"] == ["train.py"]
    assert record["pid"] == os.getpid()


def test_tokens_are_distinct(trace: Path) -> None:
    """One process may be born many times."""
    assert len({write_start(trace, {}) for _ in range(50)}) == 50


def test_any_flipped_byte_is_noticed_or_changes_nothing(trace: Path) -> None:
    """A damaged start record is no start record."""
    token = write_start(trace, {"argv": ["train.py"]})
    data = (trace / "starts" / f"{token}.json").read_bytes()
    whole = parse_start(data)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x04
        assert parse_start(bytes(flipped)) in (None, whole)


def test_this_process_is_alive() -> None:
    """A record of a living process says so; elsewhere, or since another moment, it is another one."""
    record = this_process()
    assert is_alive(record)
    assert not is_alive({**record, "host": "elsewhere"})
    assert not is_alive({**record, "boot": "before"})
    if record["started"] is not None:
        assert not is_alive({**record, "started": 1})


def test_asking_leaves_a_process_alone() -> None:
    """Where no start time is known, it is asked for by a signal that does nothing."""
    sent: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: sent.append(number))
    try:
        assert is_alive({**this_process(), "started": None})
    finally:
        signal.signal(signal.SIGHUP, before)
    assert sent == []


@pytest.mark.parametrize("pid", [0, -1, None, "7", 1 << 30, 1 << 70])
def test_nonsense_is_not_alive(pid: object) -> None:
    """No process has such a number."""
    assert not is_alive({**this_process(), "started": None, "pid": pid})


def test_ended_process_is_not_alive() -> None:
    """A process that has ended is not alive, whatever process has its number now."""
    code = "import json; from rltrace.trace.format.process_start import this_process; print(json.dumps(this_process()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not is_alive(json.loads(done.stdout))


def test_needs_the_standard_library_alone(trace: Path) -> None:
    """The bootstrap can use it before anything of the program is imported."""
    code = (
        "import sys; from rltrace.trace.format.process_start import write_start; write_start(sys.argv[1], {});"
        "print([m for m in ('numpy', 'xxhash', 'torch', 'zarr', 'numcodecs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(trace)], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
