"""Arming: requests to a run that is asleep, and what its processes answer; and the request to end a run.

Owns three kinds of files in ``starts/``: ``N.request``, the Nth request to all processes of the trace,
``TOKEN.asleep`` of one process, with the step that it is in and its answer to the last request that it has read, and
``end.request`` of the launcher. No file stays open: a program may close what it does not know. Imports the standard
library only.
"""

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
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
            with suppress(FileExistsError):
                os.link(partial, request_path(trace, number))  # whole or not at all, and never over another
                return number
            number += 1
    finally:
        partial.unlink()


def read_request(trace: str | os.PathLike[str], number: int) -> ArmRequest | None:
    """The ``number``th request; None where it is of another version or user, or damaged. Raises OSError."""
    descriptor = os.open(request_path(trace, number), os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return None
        fields: Any = parse_start(os.read(descriptor, MAX_START_BYTES))
    finally:
        os.close(descriptor)
    if fields is None or fields.pop("version", None) != VERSION or fields.keys() != set(ArmRequest._fields):
        return None
    return ArmRequest(**{**fields, "values": tuple(fields["values"])})


# --- end --------------------------------------------------------------------------------------------------------------


END = "end"
"""In place of a number."""


class EndRequest(NamedTuple):
    """What the launcher requests of every process, once the run differs from another one."""

    step: int
    """The process ends when this step is done; where it is past it, when the current one is."""
    why: str


def end_path(trace: str | os.PathLike[str]) -> str:
    return f"{os.fspath(trace)}/{STARTS}/{END}.{REQUEST}"


def write_end_request(trace: Path, request: EndRequest) -> None:
    """Write it, whole or not at all. Raises OSError."""
    partial = Path(trace, STARTS, f"{os.getpid()}.partial")
    partial.write_bytes(checked(json.dumps({"version": VERSION, **request._asdict()}).encode()))
    partial.replace(end_path(trace))


def read_end_request(trace: str | os.PathLike[str]) -> EndRequest | None:
    """The request; None where it is of another version, or damaged. Raises OSError."""
    with open(end_path(trace), "rb") as file:  # noqa: PTH123
        fields: Any = parse_start(file.read(MAX_START_BYTES))
    if fields is None or fields.pop("version", None) != VERSION or fields.keys() != set(EndRequest._fields):
        return None
    return EndRequest(**fields)


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


class SleepingProcess(NamedTuple):
    """A process that was started asleep, as it describes itself in its file."""

    step: int = 0
    """That it is in, or was a moment ago."""
    request: int = 0
    """Number of the last request that it has read; 0: none."""
    answer: Answer = Answer.NONE
    first: int = 0
    end: int | None = None
    """Of the window that it has answered with."""
    is_awake: bool = False
    is_over: bool = False
    """Its recording has ended."""

    def write(self, trace: str | os.PathLike[str], token: str) -> None:
        """Write the file of this process, whose token it is. Raises OSError."""
        end = -1 if self.end is None else self.end
        cells = self.step, self.request, self.answer, self.first, end, self.is_awake, self.is_over
        path = f"{os.fspath(trace)}/{STARTS}/{token}.{ASLEEP}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(descriptor, _LAYOUT.pack(*cells), 0)  # at once, so that a reader sees one state
        finally:
            os.close(descriptor)


_LAYOUT = struct.Struct("<5q2?")


def sleeping_process(trace: Path, token: str) -> SleepingProcess | None:
    """The process with this token; None: it was not started asleep, or its recording has ended."""
    try:
        step, request, answer, first, end, is_awake, is_over = _LAYOUT.unpack(
            Path(trace, STARTS, f"{token}.{ASLEEP}").read_bytes()
        )
        found = SleepingProcess(step, request, Answer(answer), first, None if end < 0 else end, is_awake, is_over)
    except (OSError, struct.error, ValueError):
        return None
    return None if found.is_over else found


def sleeping_processes(trace: Path) -> Iterator[SleepingProcess]:
    """The processes of a trace that were started asleep and still run, as far as this host knows."""
    for path in sorted(Path(trace, STARTS).glob(f"*.{ASLEEP}")):
        try:
            start = parse_start(path.with_suffix(".json").read_bytes()) or {}
        except OSError:
            continue
        found = sleeping_process(trace, path.stem)
        if found is not None and (is_alive(start) or start.get("host") != this_process()["host"]):
            yield found
