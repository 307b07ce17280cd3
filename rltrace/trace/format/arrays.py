"""The zarr arrays of a trace: their shapes, the names of their chunks and their ``zarr.json``.

Owns what a zarr reader sees of a trace. Every array grows by whole chunks along its first axis; its ``zarr.json`` is
written again at each new chunk, its chunks never are. Imports neither zarr nor NumPy.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.schema import (
    CALL_CHUNK,
    DIGEST_CHUNK,
    FORMAT,
    INDEX_CHUNK,
    KEPT_CHUNK,
    SAMPLE_CHUNK,
    SEGMENT_CELLS,
    SEGMENT_ROWS,
    STEP_CHUNK,
    TABLE_CHUNK,
    VALUE_CHUNK,
    ActivationColumn,
    Column,
    ModuleCallColumn,
    Sample,
    Step,
    ValueIndex,
)


class ArraySpec(NamedTuple):
    """One array of the format."""

    name: str
    dtype: str
    """A zarr v3 data type; always little endian."""
    chunk: tuple[int, ...]
    """Shape of one chunk, as a reader of the array sees it."""
    level: int
    """zstd level, chosen by measurement (docs/reference/trace-format.md)."""
    order: tuple[int, ...] | None = None
    """Axes of a chunk in the order they are stored, where it is not the order of ``chunk``."""
    attributes: Mapping[str, object] = MappingProxyType({})

    @property
    def itemsize(self) -> int:
        return {"uint8": 1, "uint32": 4, "uint64": 8}[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of one decoded chunk."""
        return prod(self.chunk) * self.itemsize

    def key(self, chunk: int) -> str:
        """File of one chunk within the folder of the array."""
        return ".".join(["c", str(chunk), *(["0"] * (len(self.chunk) - 1))])

    def document(self, chunks: int) -> bytes:
        """``zarr.json`` of the array when it has so many chunks."""
        codecs: list[dict[str, object]] = []
        if self.order:
            codecs.append({"name": "transpose", "configuration": {"order": list(self.order)}})
        codecs.append(
            {"name": "bytes", "configuration": {"endian": "little"}} if self.itemsize > 1 else {"name": "bytes"}
        )
        codecs.append({"name": "zstd", "configuration": {"level": self.level, "checksum": False}})
        codecs.append({"name": "crc32c"})
        return _document(
            node_type="array",
            shape=[chunks * self.chunk[0], *self.chunk[1:]],
            data_type=self.dtype,
            chunk_grid={"name": "regular", "configuration": {"chunk_shape": list(self.chunk)}},
            chunk_key_encoding={"name": "default", "configuration": {"separator": "."}},
            fill_value=0,
            codecs=codecs,
            attributes=dict(self.attributes),
        )


def _names(columns: type[IntEnum]) -> list[str]:
    return [column.name.lower() for column in columns]


ROWS: Final = ArraySpec(
    "rows", "uint32", (SEGMENT_ROWS, len(Column)), level=1, order=(1, 0), attributes={"columns": _names(Column)}
)
CELLS: Final = ArraySpec("cells", "uint64", (SEGMENT_CELLS,), level=3)
TABLES: Final = ArraySpec("tables", "uint8", (TABLE_CHUNK,), level=3)
STEPS: Final = ArraySpec(
    "steps", "uint64", (STEP_CHUNK, len(Step)), level=1, order=(1, 0), attributes={"columns": _names(Step)}
)
SERIES: Final = ArraySpec(
    "series", "uint64", (SAMPLE_CHUNK, len(Sample)), level=1, order=(1, 0), attributes={"columns": _names(Sample)}
)
VALUE_BYTES: Final = ArraySpec("values/bytes", "uint8", (VALUE_CHUNK,), level=1)
VALUE_INDEX: Final = ArraySpec(
    "values/index",
    "uint64",
    (INDEX_CHUNK, len(ValueIndex)),
    level=1,
    order=(1, 0),
    attributes={"columns": _names(ValueIndex)},
)
KEPT_CALLS: Final = ArraySpec(
    "kept/calls",
    "uint64",
    (CALL_CHUNK, len(ModuleCallColumn)),
    level=1,
    order=(1, 0),
    attributes={"columns": _names(ModuleCallColumn)},
)
KEPT_TENSORS: Final = ArraySpec(
    "kept/tensors",
    "uint64",
    (KEPT_CHUNK, len(ActivationColumn)),
    level=1,
    order=(1, 0),
    attributes={"columns": _names(ActivationColumn)},
)
KEPT_DIGESTS: Final = ArraySpec("kept/digests", "uint64", (DIGEST_CHUNK,), level=1)


def _document(**fields: object) -> bytes:
    return (json.dumps({"zarr_format": 3, **fields}, indent=1) + "\n").encode()


def group_document(attributes: Mapping[str, object] | None = None) -> bytes:
    """``zarr.json`` of a group."""
    return _document(node_type="group", attributes=dict(attributes or {}))


def root_document() -> bytes:
    """``zarr.json`` of the trace itself: what makes a folder a trace."""
    return group_document({"rltrace": {"format": list(FORMAT)}})


def folder_document(holds: str) -> bytes:
    """``zarr.json`` of a folder of plain files: an empty array, so that zarr walks past the files."""
    return _document(
        node_type="array",
        shape=[0],
        data_type="uint8",
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1]}},
        chunk_key_encoding={"name": "default", "configuration": {"separator": "."}},
        fill_value=0,
        codecs=[{"name": "bytes"}],
        attributes={"holds": holds},
    )


JOURNAL_FOLDER: Final = folder_document("log: framed records, see docs/reference/trace-format.md of rltrace")
BIRTHS_FOLDER: Final = folder_document("one small file for every process that started, and one for every name taken")


# --- codec ------------------------------------------------------------------------------------------------------------
#
# One chunk, encoded and decoded as zarr v3 does it: transpose, little-endian bytes, zstd, crc32c.
#
# Owns the bytes of a chunk file. Works without zarr; loads the codec libraries when the first chunk passes. A chunk
# whose declared size is not the one its array asks for is refused before anything is allocated.


CHECKSUM_BYTES = 4
SLACK = 1 << 12
"""What zstd may add to bytes that don't compress, its own bound (1/256) aside."""


class CodecError(Exception):
    """Bytes that are no chunk of this array."""


@cache
def load() -> tuple[Any, Any]:
    """The codec libraries, imported at the first call (tens of milliseconds) and kept: at exit imports end first."""
    import google_crc32c
    from numcodecs import zstd

    return zstd, google_crc32c


def longest(spec: ArraySpec) -> int:
    """No encoded chunk of this array is longer, in bytes."""
    return spec.nbytes + spec.nbytes // 256 + SLACK


def stored_shape(spec: ArraySpec) -> tuple[int, ...]:
    """Shape of a chunk as it is stored (C order)."""
    return tuple(spec.chunk[axis] for axis in spec.order) if spec.order else spec.chunk


def encode(spec: ArraySpec, stored: NDArray[Any]) -> bytes:
    """The chunk file of ``stored``: a whole chunk, C-contiguous, axes already in stored order."""
    zstd, google_crc32c = load()
    if stored.shape != stored_shape(spec) or stored.dtype != np.dtype(spec.dtype):
        raise ValueError(
            f"a chunk of {spec.name} is {spec.dtype}{stored_shape(spec)}, not {stored.dtype}{stored.shape}"
        )
    body: bytes = zstd.compress(np.ascontiguousarray(stored), spec.level)
    checksum: int = google_crc32c.value(body)
    return body + checksum.to_bytes(CHECKSUM_BYTES, "little")


def decode(spec: ArraySpec, encoded: bytes) -> NDArray[Any]:
    """The chunk in its stored order. Raises CodecError where the bytes are none."""
    zstd, google_crc32c = load()
    body, checksum = encoded[:-CHECKSUM_BYTES], encoded[-CHECKSUM_BYTES:]
    if len(encoded) <= CHECKSUM_BYTES or google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise CodecError("its checksum does not match its bytes")
    if content_size(body) != spec.nbytes:
        raise CodecError("it does not unpack to the size of a chunk")
    stored = np.empty(stored_shape(spec), spec.dtype)
    try:
        zstd.decompress(body, stored)
    except (RuntimeError, ValueError) as error:
        raise CodecError(f"it does not unpack: {error}") from None
    return stored


def content_size(frame: bytes) -> int | None:
    """Size that a zstd frame says it unpacks to (RFC 8878, section 3.1.1.1); None: it doesn't say, or is no frame."""
    if len(frame) < 6 or frame[:4] != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = frame[4]
    single = bool(descriptor & 0x20)
    start = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if width == 0 or len(frame) < start + width:
        return None
    size = int.from_bytes(frame[start : start + width], "little")
    return size + 256 if width == 2 else size


def rows_to_text(spec: ArraySpec, rows: NDArray[Any]) -> str:
    """A few rows of an array as a journal record holds them."""
    return b64encode(encode(_cut(spec, len(rows)), np.ascontiguousarray(rows.T))).decode()


def rows_from_text(spec: ArraySpec, text: str, count: int) -> NDArray[Any]:
    """The rows, shape [count, columns]. Raises CodecError where the text is none of so many."""
    spec = _cut(spec, count)
    if len(text) > longest(spec) * 2:
        raise CodecError("it is longer than so many rows can be")
    try:
        encoded = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"it is not base64: {error}") from None
    return decode(spec, encoded).T


def _cut(spec: ArraySpec, count: int) -> ArraySpec:
    return spec._replace(chunk=(count, *spec.chunk[1:]))
