"""A capture: a control that was run on another machine, in one file, with its trace and all values.

The file is a ZIP archive without compression (chunks are compressed already, and it cannot expand on reading) with
``capture.json`` and the trace. Reading runs no code and writes nothing outside the folder in the argument.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from rltrace.errors import RltraceError
from rltrace.experiment.confirm.steps_covered import StepsCovered
from rltrace.json import JsonError, from_json, to_json
from rltrace.trace.read.reader import Trace

ABOUT, TRACE = "capture.json", "control.zarr"
LARGEST_ABOUT = 1 << 20
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile)
"""What reading a damaged archive raises; RuntimeError, if it is encrypted or nested too deep."""


class CaptureError(RltraceError):
    """A file is no capture, or not the one that is needed."""


@dataclass(frozen=True)
class CaptureInfo:
    """The metadata of a capture."""

    SCHEMA: ClassVar = "rltrace.capture/1"

    subject: str
    """The trace that the control equals (``identity_of``)."""
    path: str
    """Its path on the machine of the run, for messages."""
    first: int
    end: int
    """Steps covered: from ``first`` up to, not including, ``end``."""
    runs: int
    """How often the control was run with the same result."""

    @property
    def covered(self) -> StepsCovered:
        return StepsCovered(self.first, self.end)


def identity_of(trace: Trace) -> str:
    """Identifies a trace and its slices: 16 hex digits of a hash of its launch record."""
    launch = json.dumps(trace.launch, sort_keys=True, default=str)
    return hashlib.sha256(launch.encode()).hexdigest()[:16]


def write_capture(file: Path, about: CaptureInfo, trace: Path) -> None:
    """Write the file atomically, readable by its owner only. Raises CaptureError where that fails."""
    temporary = file.with_name(file.name + ".new")
    try:
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600, exist_ok=False)
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(ABOUT, json.dumps(to_json(about), indent=1))
            for path in _files(trace):
                archive.write(path, str(PurePosixPath(TRACE, *path.relative_to(trace).parts)))
        temporary.replace(file)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CaptureError(f"{file} cannot be written: {error.strerror}") from error


def size_of(trace: Path) -> int:
    """Bytes of a capture of it, without headers."""
    return sum(path.stat().st_size for path in _files(trace))


def read_capture(file: Path) -> CaptureInfo:
    """The metadata of a capture. Raises CaptureError."""
    with _opened(file) as archive:
        return _about(file, archive)


def unpack(file: Path, folder: Path) -> CaptureInfo:
    """Extract the captured trace to ``folder``, which must not exist. Raises CaptureError."""
    with _opened(file) as archive:
        about = _about(file, archive)
        members = [(_parts(file, info), info) for info in archive.infolist() if info.filename != ABOUT]
        if sum(info.file_size for _, info in members) > file.stat().st_size:
            raise CaptureError(f"{file} is no capture: it would unpack to more than it holds")
        try:
            for parts, info in members:
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as source, target.open("xb") as written:
                    shutil.copyfileobj(source, written)
        except UNREADABLE as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise CaptureError(f"{file} cannot be unpacked: {error}") from error
        return about


def _files(trace: Path) -> Iterator[Path]:
    return (Path(folder, name) for folder, _, names in sorted(os.walk(trace)) for name in sorted(names))


def _opened(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except OSError as error:
        raise CaptureError(f"{file} cannot be read: {error.strerror}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise CaptureError(f"{file} is no capture (rltrace capture writes one)") from None


def _about(file: Path, archive: zipfile.ZipFile) -> CaptureInfo:
    try:
        info = archive.getinfo(ABOUT)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > LARGEST_ABOUT:
            raise CaptureError(f"{file} is no capture: its {ABOUT} is malformed")
        found: Any = json.loads(archive.read(info))
    except (KeyError, ValueError, *UNREADABLE):
        raise CaptureError(f"{file} is no capture (rltrace capture writes one)") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != CaptureInfo.SCHEMA:
        raise CaptureError(f"{file} has the schema {schema!r}; this rltrace reads {CaptureInfo.SCHEMA}")
    try:
        about = from_json(CaptureInfo, found)
    except JsonError as error:
        raise CaptureError(f"{file} is no complete capture: {error}") from None
    if not 0 <= about.first < about.end or about.runs < 1:
        raise CaptureError(f"{file} is no complete capture: steps {about.first}:{about.end}, {about.runs} runs")
    return about


def _parts(file: Path, info: zipfile.ZipInfo) -> tuple[str, ...]:
    """Path of a member below the folder. Raises CaptureError where it leads outside."""
    top, *parts = info.filename.split("/")
    plain = all(part not in ("", ".", "..") and "\\" not in part and "\0" not in part for part in parts)
    if top != TRACE or not parts or not plain or info.is_dir():
        raise CaptureError(f"{file} is no capture: it holds {info.filename!r}")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise CaptureError(f"{file} is no capture: {info.filename!r} is compressed, which none of its files is")
    return tuple(parts)
