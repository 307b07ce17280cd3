"""Encoding and decoding of chunks as in zarr v3: transpose, little-endian bytes, zstd, crc32c.

Owns the bytes of a chunk file. Works without zarr; imports the codec libraries at the first chunk. A chunk that
declares another size than its array has is refused before anything is allocated.
"""

import binascii
from base64 import b64decode, b64encode
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.arrays import ArraySpec

CHECKSUM_BYTES = 4
SLACK = 1 << 12
"""Bytes that zstd may add to incompressible data, beside 1/256 of its size."""


class CodecError(Exception):
    """The bytes are not a chunk of this array."""


@cache
def load() -> tuple[Any, Any]:
    """The codec libraries, imported at the first call (tens of milliseconds); exit may come too late to import."""
    import google_crc32c
    from numcodecs import zstd

    return zstd, google_crc32c


def max_bytes(spec: ArraySpec) -> int:
    """Upper bound of the length of an encoded chunk, in bytes."""
    return spec.nbytes + spec.nbytes // 256 + SLACK


def stored_shape(spec: ArraySpec) -> tuple[int, ...]:
    """Shape of a chunk in stored order."""
    return tuple(spec.chunk[axis] for axis in spec.order) if spec.order else spec.chunk


def encode(spec: ArraySpec, stored: NDArray[Any]) -> bytes:
    """The chunk file of ``stored``: a whole chunk, C-contiguous, axes in stored order."""
    zstd, google_crc32c = load()
    if stored.shape != stored_shape(spec) or stored.dtype != np.dtype(spec.dtype):
        raise ValueError(
            f"a chunk of {spec.name} is {spec.dtype}{stored_shape(spec)}, not {stored.dtype}{stored.shape}"
        )
    body: bytes = zstd.compress(np.ascontiguousarray(stored), spec.level)
    checksum: int = google_crc32c.value(body)
    return body + checksum.to_bytes(CHECKSUM_BYTES, "little")


def decode(spec: ArraySpec, encoded: bytes) -> NDArray[Any]:
    """The chunk, axes in stored order. Raises CodecError."""
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
    """Unpacked size that a zstd frame declares (RFC 8878, section 3.1.1.1); None: none, or not a frame."""
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
    """Rows of an array as text for a journal record."""
    return b64encode(encode(_cut(spec, len(rows)), np.ascontiguousarray(rows.T))).decode()


def rows_from_text(spec: ArraySpec, text: str, count: int) -> NDArray[Any]:
    """The rows, shape [count, columns]. Raises CodecError."""
    spec = _cut(spec, count)
    if len(text) > max_bytes(spec) * 2:
        raise CodecError(f"it is longer than {count} rows can be")
    try:
        encoded = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"it is not base64: {error}") from None
    return decode(spec, encoded).T


def _cut(spec: ArraySpec, count: int) -> ArraySpec:
    return spec._replace(chunk=(count, *spec.chunk[1:]))
