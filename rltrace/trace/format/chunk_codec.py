"""One chunk, encoded and decoded as zarr v3 does it: transpose, little-endian bytes, zstd, crc32c.

Owns the bytes of a chunk file. Works without zarr; loads the codec libraries when the first chunk passes. A chunk
whose declared size is not the one its array asks for is refused before anything is allocated.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.arrays import ArraySpec

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
