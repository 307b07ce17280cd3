"""Event files of TensorBoard: the scalars that a program logged itself, as series.

Owns their format: frames of TFRecord, each with checksums, around messages in protobuf's wire format (``event.proto``,
``summary.proto`` and ``tensor.proto`` of TensorFlow). Images, histograms and text are skipped. Never writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import google_crc32c
import numpy as np

from rltrace.diff.metrics.series import LOGGED, Series

NAMES: Final = "events.out.tfevents.*"

MAX_RECORD: Final = 1 << 30
"""Bytes of a record; a longer one is damage."""


@dataclass(frozen=True)
class LoggedScalars:
    """The scalars in the event files of one run."""

    series: tuple[Series, ...]
    holes: tuple[str, ...]
    """What could not be read."""


class DamagedFileError(ValueError):
    """Bytes that are no event file."""


def event_files(path: Path) -> list[Path]:
    """The event files of a run: those in its folder and the folders below, by folder, then in the order of creation;
    or the file itself.
    """
    if path.is_file():
        return [path] if path.match(NAMES) else []
    return sorted(path.rglob(NAMES), key=lambda file: (file.parent, file.name))


def logged_scalars(path: Path) -> LoggedScalars:
    """All scalars of a run, by folder and tag.

    A file that was begun later replaces what the earlier ones of its folder have from its first step on, as TensorBoard
    does where a run was resumed.
    """
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    holes = []
    for file in event_files(path):
        folder = "" if path in (file, file.parent) else f"{file.parent.relative_to(path).as_posix()}/"
        own: dict[tuple[str, str], list[tuple[int, float]]] = {}
        try:
            for step, tag, value in _scalars(file):
                own.setdefault((folder, tag), []).append((step, value))
        except (DamagedFileError, OSError) as error:
            holes.append(f"{file}: {error}")
        first = min((points[0][0] for points in own.values()), default=0)
        for key, points in own.items():
            found[key] = [point for point in found.get(key, ()) if point[0] < first] + points
    return LoggedScalars(
        tuple(_series(*key, sorted(points, key=lambda point: point[0]), not holes) for key, points in found.items()),
        tuple(holes),
    )


def _series(folder: str, tag: str, points: list[tuple[int, float]], whole: bool) -> Series:
    steps = np.array([step for step, _ in points], np.int64)
    values = np.array([value for _, value in points], np.float64)
    return Series(LOGGED, f"{folder}{tag}", "", "", (LOGGED, folder, tag), steps, values, whole)


def _scalars(file: Path) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of each scalar, in the order of writing."""
    with file.open("rb") as stream:
        for record in _records(stream):
            step, summary = 0, b""
            for number, value in _fields(record):
                if number == Field.EVENT_STEP and isinstance(value, int):
                    step = value - (1 << 64) if value >> 63 else value
                elif number == Field.EVENT_SUMMARY and isinstance(value, bytes):
                    summary = value
            for number, value in _fields(summary):
                if number == Field.SUMMARY_VALUE and isinstance(value, bytes):
                    tag, scalar = _tagged(value)
                    if scalar is not None:
                        yield step, tag, scalar


# --- frames -----------------------------------------------------------------------------------------------------------


def _records(stream: IO[bytes]) -> Iterator[bytes]:
    """The records up to the first incomplete one, which is still being written, or was never finished."""
    at = 0
    while len(head := stream.read(12)) == 12:
        length, check = struct.unpack("<QI", head)
        damage = DamagedFileError(f"damaged at byte {at:,}, and not read from there on")
        if _masked(head[:8]) != check or length > MAX_RECORD:
            raise damage
        data = stream.read(length + 4)
        if len(data) < length + 4:
            return
        if _masked(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise damage
        yield data[:-4]
        at += 12 + len(data)


def _masked(data: bytes) -> int:
    """The checksum of TFRecord: CRC-32C, rotated and shifted."""
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- messages ---------------------------------------------------------------------------------------------------------


class Field:
    """Numbers of the fields that are read."""

    EVENT_STEP = 2
    EVENT_SUMMARY = 5
    SUMMARY_VALUE = 1
    VALUE_TAG = 1
    VALUE_SIMPLE = 2  # float
    VALUE_TENSOR = 8
    TENSOR_TYPE = 1
    TENSOR_CONTENT = 4  # bytes of the elements
    TENSOR_FLOATS = 5
    TENSOR_DOUBLES = 6


ELEMENTS: Final = {1: "<f4", 2: "<f8"}
"""Types of tensors that hold scalars, by their number in ``types.proto``."""


def _tagged(message: bytes) -> tuple[str, float | None]:
    """Tag and number of a value; None: it is no scalar."""
    tag, scalar = "", None
    for number, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if number == Field.VALUE_TAG:
            tag = value.decode("utf-8", "replace")
        elif number == Field.VALUE_SIMPLE and len(value) == 4:
            scalar = float(np.frombuffer(value, "<f4")[0])
        elif number == Field.VALUE_TENSOR:
            scalar = _element(value)
    return tag, scalar


def _element(tensor: bytes) -> float | None:
    """The element of a tensor of one float or double; None: it is another tensor."""
    kind, data = 0, b""
    for number, value in _fields(tensor):
        if number == Field.TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number in (Field.TENSOR_CONTENT, Field.TENSOR_FLOATS, Field.TENSOR_DOUBLES) and isinstance(value, bytes):
            data += value
    if kind not in ELEMENTS:
        return None
    dtype = np.dtype(ELEMENTS[kind])
    return float(np.frombuffer(data, dtype)[0]) if len(data) == dtype.itemsize else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a message: a varint as a number, all else as its bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise DamagedFileError(f"a field of type {kind} in a record")
        if at + length > len(message):
            raise DamagedFileError("a field that is longer than its record")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(number, place after it)."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    raise DamagedFileError("a number that does not end")
