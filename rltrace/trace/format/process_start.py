"""Process starts: a small file that every process of the program writes when it starts.

Owns the facts of a process before it records anything, and whether it is still alive. Imports the standard library
only, and nothing of rltrace: it runs at the start of every interpreter under the recorder.
"""

import contextlib
import json
import os
import platform
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

LAUNCHER = "launcher:"
"""Start of the name of a process that starts the ranks."""

STARTS = "starts"
MAX_START_BYTES = 1 << 20


def write_start(path: str | os.PathLike[str], facts: Mapping[str, object]) -> str:
    """Write the start of this process to the trace ``path``; returns its token. Raises OSError."""
    token = f"{os.getpid()}-{time.time_ns():x}-{os.urandom(4).hex()}"
    payload = json.dumps({**this_process(), **facts, "token": token}, default=str).encode()
    partial = Path(path, STARTS, f"{token}.partial")
    with partial.open("xb") as file:
        file.write(checked(payload))
    partial.rename(partial.with_suffix(".json"))
    return token


def note_failure(path: str | os.PathLike[str], token: str, reason: str) -> None:
    """Write to the trace why the process with this token could not be recorded."""
    payload = json.dumps({"token": token, "pid": os.getpid(), "why": " ".join(reason.split())}).encode()
    with contextlib.suppress(OSError):  # the trace cannot be written: the parent reports that
        Path(path, STARTS, f"{token}.failed").write_bytes(checked(payload))


def note_left_out(path: str | os.PathLike[str], token: str, name: str, patterns: Sequence[str]) -> None:
    """Write to the trace that the process with this token, called ``name``, was left out: no pattern matches it."""
    note = {"token": token, "pid": os.getpid(), "name": name, "why": f"not among --processes {','.join(patterns)}"}
    with contextlib.suppress(OSError):  # the trace cannot be written: the parent reports that
        Path(path, STARTS, f"{token}.left-out").write_bytes(checked(json.dumps(note).encode()))


STOPPED_ENDING = "stopped"
"""Ending of the note of a process that the recorder has stopped."""


def note_stopped(path: str | os.PathLike[str], token: str) -> None:
    """Write to the trace that the recorder has stopped this process, so that the launcher sees to its end."""
    partial = Path(path, STARTS, f"{token}.{STOPPED_ENDING}.partial")
    with contextlib.suppress(OSError):  # nothing more can be recorded
        partial.write_bytes(checked(json.dumps(this_process()).encode()))
        partial.rename(partial.with_suffix(""))


def checked(payload: bytes) -> bytes:
    """The content of the file: JSON and, on a second line, its CRC-32."""
    return b"%s\n%08x\n" % (payload, zlib.crc32(payload))


def parse_start(data: bytes) -> dict[str, object] | None:
    """The JSON object of the file; None: it is damaged."""
    payload = data.partition(b"\n")[0]
    try:
        record = json.loads(payload) if data == checked(payload) else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def this_process() -> dict[str, object]:
    """Facts that identify this process among all processes of all hosts, at any time."""
    pid = os.getpid()
    return {
        "pid": pid,
        "parent": os.getppid(),
        "host": platform.node(),
        "boot": _boot(),
        "started": start_ticks(pid),
        "time": time.time(),
    }


def is_alive(start: Mapping[str, object]) -> bool:
    """Whether the process is known to run still: on this host, with the same start time."""
    pid, started = start.get("pid"), start.get("started")
    if not isinstance(pid, int) or pid <= 0 or start.get("host") != platform.node() or start.get("boot") != _boot():
        return False
    if started is not None:
        return start_ticks(pid) == started
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None: no such process, or a system without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
