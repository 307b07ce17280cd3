"""Arming: requests to a run that is asleep, and what its processes answer.

Owns two kinds of files in ``starts/``: ``N.request``, the Nth request to all processes of the trace, and
``TOKEN.asleep`` of one process, with the step that it is in and its answer to the last request that it has read. A
process maps that file into memory, so that a step costs it no call of the system. Imports the standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from rltrace.trace.format.process_start import MAX_START_BYTES, STARTS, checked, is_alive, parse_start, this_process

VERSION = 1
"""Of requests; a process answers REFUSED to one of another version."""

REQUEST, ASLEEP = "request", "asleep"
"""Endings of the files."""


class ArmRequest(NamedTuple):
    """What ``rltrace arm`` requests of every process of a run."""

    first: int
    """First step to record."""
    end: int | None
    """First step after them; None: to the end."""
    relative: bool = False
    """A process that is past ``first`` records as many steps from where it is; else those that are left."""
    level: str = "op"
    values: tuple[str, ...] = ()
    values_inputs: bool = False
    values_limit: int = 1 << 30
    disarm: bool = False
    """Record nothing more, of earlier requests too."""

    def window_at(self, step: int) -> tuple[int, int | None] | None:
        """The steps that a process records which is about to begin ``step``, half open; None: they have passed."""
        first = max(self.first, step)
        if self.relative and self.end is not None:
            return first, first + self.end - self.first
        return None if self.end is not None and first >= self.end else (first, self.end)


def request_path(trace: str | os.PathLike[str], number: int) -> str:
    return f"{os.fspath(trace)}/{STARTS}/{number}.{REQUEST}"


def write_request(trace: Path, request: ArmRequest) -> int:
    """Write a request for all processes of the trace; returns its number. Raises OSError."""
    payload = checked(json.dumps({"version": VERSION, **request._asdict()}).encode())
    partial = Path(trace, STARTS, f"{os.getpid()}.partial")
    partial.write_bytes(payload)
    try:
        number = 1
        while True:
            try:
                os.link(partial, request_path(trace, number))  # whole or not at all, and never over another
            except FileExistsError:
                number += 1
            else:
                return number
    finally:
        partial.unlink()


def read_request(trace: str | os.PathLike[str], number: int) -> ArmRequest | None:
    """The ``number``th request; None where it is of another version or user, or damaged. Raises OSError."""
    descriptor = os.open(request_path(trace, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return None
        fields: Any = parse_start(os.read(descriptor, MAX_START_BYTES))
    finally:
        os.close(descriptor)
    if fields is None or fields.pop("version", None) != VERSION:
        return None
    return ArmRequest(**{**fields, "values": tuple(fields["values"])})


# --- answers ----------------------------------------------------------------------------------------------------------


class Answer(IntEnum):
    """What a process has answered to the last request that it has read."""

    NONE = 0
    ARMED = 1
    PASSED = 2
    """It is past these steps."""
    REFUSED = 3
    """It does not understand the request."""
    DISARMED = 4


class Cell(IntEnum):
    """Places in the file of a process, of eight bytes each."""

    STEP = 0
    """That it is in."""
    REQUEST = 1
    """Number of the last request that it has read."""
    ANSWER = 2
    FIRST = 3
    """First step of the window that it has answered with."""
    END = 4
    """First step after it; -1: to the end."""
    AWAKE = 5
    OVER = 6
    """Its recording has ended."""


_LAYOUT = struct.Struct(f"={len(Cell)}q")


def map_cells(trace: str | os.PathLike[str], token: str) -> memoryview:
    """Create the file of this process; returns its cells, which others see as they are set. Raises OSError."""
    path = f"{os.fspath(trace)}/{STARTS}/{token}.{ASLEEP}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(_LAYOUT.size))
        return memoryview(mmap.mmap(descriptor, _LAYOUT.size)).cast("q")
    finally:
        os.close(descriptor)


def flush(cells: memoryview) -> None:
    """Have other hosts see them, too, where the trace is on a shared folder."""
    mapped: Any = cells.obj
    mapped.flush()


@dataclass(frozen=True)
class SleepingProcess:
    """A process that was started asleep, as its file describes it."""

    token: str
    step: int
    """That it is in."""
    request: int
    """Number of the last request that it has read; 0: none."""
    answer: Answer
    first: int
    end: int | None
    """Of the window that it has answered with."""
    is_awake: bool


def sleeping_process(trace: Path, token: str) -> SleepingProcess | None:
    """The process with this token; None: it was not started asleep, or its recording has ended."""
    try:
        cells = _LAYOUT.unpack(Path(trace, STARTS, f"{token}.{ASLEEP}").read_bytes())
        answer = Answer(cells[Cell.ANSWER])
    except (OSError, struct.error, ValueError):
        return None
    if cells[Cell.OVER]:
        return None
    end = None if cells[Cell.END] < 0 else cells[Cell.END]
    return SleepingProcess(
        token, cells[Cell.STEP], cells[Cell.REQUEST], answer, cells[Cell.FIRST], end, bool(cells[Cell.AWAKE])
    )


def sleeping_processes(trace: Path) -> Iterator[SleepingProcess]:
    """The processes of a trace that were started asleep and still run, as far as this host knows."""
    for path in sorted(Path(trace, STARTS).glob(f"*.{ASLEEP}")):
        token = path.stem
        try:
            start = parse_start(path.with_suffix(".json").read_bytes()) or {}
        except OSError:
            continue
        found = sleeping_process(trace, token)
        if found is not None and (is_alive(start) or start.get("host") != this_process()["host"]):
            yield found
