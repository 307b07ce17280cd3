"""The root of a trace: created before any process starts, ended after the last one.

Owns the folder, its root group and the launch's journal. Imports neither NumPy nor a codec.
"""

import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from rltrace.errors import RecordError, UsageError
from rltrace.trace.format.arrays import JOURNAL_FOLDER, STARTS_FOLDER, group_document, root_document
from rltrace.trace.format.journal import MAGIC, JournalWriter, heads_record, parse_journal
from rltrace.trace.format.process_start import STARTS
from rltrace.trace.format.schema import FORMAT

JOURNAL: Final = "journal/log"
PROCESSES: Final = "processes"
NODES: Final = "nodes"
"""Folder of a trace that several machines recorded (``record --nodes``), with the trace of each: 0, 1 …"""


def create_trace(path: Path, launch: Mapping[str, object], *, force: bool = False) -> None:
    """Create an empty trace at ``path``, readable by its owner only. ``force`` replaces a trace, nothing else.

    Raises UsageError where ``path`` exists, RecordError where the folder cannot be written.
    """
    path = Path(path)
    if has_trace(path, force):
        remove_trace(path)
    try:
        path.mkdir(mode=0o700)
        for folder, document in (
            ("", root_document()),
            ("journal", JOURNAL_FOLDER),
            (STARTS, STARTS_FOLDER),
            (PROCESSES, group_document()),
        ):
            (path / folder).mkdir(mode=0o700, exist_ok=True)
            (path / folder / "zarr.json").write_bytes(document)
        journal = JournalWriter(os.fspath(path / JOURNAL))
        journal.append([{"type": "launch", "format": list(FORMAT), "created": time.time(), **launch}])
    except OSError as error:
        reason = "" if path.absolute().parent.is_dir() else f"there is no folder {path.parent}"
        raise record_error(f"the trace {path} cannot be created", error, reason) from error


def end_launch(path: Path, ending: Mapping[str, object], launch: int | None = None) -> None:
    """Record how the launch ended, and the heads of all journals. Raises RecordError.

    ``launch``: digest of the launch's first record; nothing is written to the trace of another launch.
    """
    log = Path(path) / JOURNAL
    try:
        found = parse_journal(log.read_bytes())
        if launch is not None and launch != next(iter(found.ends.values()), None):
            raise RecordError(f"{path} has become another recording's trace")
        journal = JournalWriter(os.fspath(log), resume=found.digest, size=found.size)
        heads = heads_record(Path(path, PROCESSES), JOURNAL)
        journal.append([heads, {"type": "exit", "time": time.time(), **ending}])
    except OSError as error:
        raise record_error(f"the end of the launch cannot be written to {path}", error) from error


def add_to_launch(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    """Append records to the journal of a launch that has ended. Raises RecordError."""
    log = Path(path) / JOURNAL
    try:
        found = parse_journal(log.read_bytes())
        if found.damage or not found.records:
            raise RecordError(f"{path} cannot be added to: {JOURNAL} is damaged")
        JournalWriter(os.fspath(log), resume=found.digest, size=found.size).append(records)
    except OSError as error:
        raise record_error(f"{path} cannot be added to", error) from error


def record_error(what: str, error: OSError, reason: str = "") -> RecordError:
    """The error for a failed write, with its errno; ``reason`` replaces the system's message."""
    raised = RecordError(f"{what}: {reason or error.strerror or error}")
    raised.errno = error.errno
    return raised


def name_file(name: bytes) -> str:
    """File in ``starts/`` whose exclusive creation claims the name of a process."""
    return f"{xxh3_64_hexdigest(name)}.name"


def is_trace(path: Path) -> bool:
    """Whether the folder is a trace, damaged or not."""
    try:
        if not stat.S_ISREG((path / JOURNAL).lstat().st_mode):  # no pipe, no link
            return False
        with (path / JOURNAL).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def has_trace(path: Path, force: bool) -> bool:
    """Whether there is a trace at ``path``, which may be replaced. Raises UsageError where something may not."""
    if not os.path.lexists(path):
        return False
    if not force:
        raise UsageError(f"{path} exists already; choose another name, or replace it with --force")
    if path.is_symlink() or not is_trace(path):
        raise UsageError(f"{path} exists and is not a trace; --force replaces traces only")
    return True


def set_aside(path: Path) -> Path:
    """Rename a trace to a free name beside it, and return that name. Raises RecordError."""
    aside = fresh_trace(path.parent, f"{path.name.removesuffix('.zarr')}-old")
    try:
        path.rename(aside)
    except OSError as error:
        raise record_error(f"the old trace {path} cannot be renamed", error) from error
    return aside


def remove_trace(path: Path) -> None:
    """Remove a trace. Raises RecordError where the system does not."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise record_error(f"the old trace {path} cannot be removed", error) from error


def fresh_trace(folder: Path, stem: str) -> Path:
    """The first of ``stem-1.zarr``, ``stem-2.zarr``, … that is free in ``folder``."""
    number = 1
    while os.path.lexists(folder / f"{stem}-{number}.zarr"):
        number += 1
    return folder / f"{stem}-{number}.zarr"


# --- states of a process (docs/reference/trace-format.md) -------------------------------------------------------------


RUNNING: Final = "running"
COMPLETE: Final = "complete"
STOPPED: Final = "stopped"
KILLED: Final = "killed"
DAMAGED: Final = "damaged"
NEVER_RECORDED: Final = "never-recorded"
LEFT_OUT: Final = "left-out"
