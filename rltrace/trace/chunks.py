"""Chunks of a trace being read: taken only when length and digest of the encoded bytes are those the journal tells.

Owns that check, and the count of what was read. Which rows a chunk holds is for those who ask.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from rltrace.trace import codec
from rltrace.trace.arrays import ArraySpec
from rltrace.trace.files import Folder, UnreadableError
from rltrace.trace.segment import ChunkFile


class Counter:
    """What was read from disk so far."""

    def __init__(self) -> None:
        self.chunks = 0
        self.bytes = 0


def read_chunk(folder: Folder, base: str, spec: ArraySpec, file: ChunkFile, counter: Counter) -> NDArray[Any]:
    """One chunk, verified. Raises UnreadableError saying what is wrong with it."""
    key = f"{base}/{file.key}"
    try:
        encoded = folder.read(key, codec.longest(spec))
        counter.chunks += 1
        counter.bytes += len(encoded)
        if len(encoded) != file.length:
            raise UnreadableError(_other_size(len(encoded), file))
        if xxh3_64_hexdigest(encoded) != file.digest:
            raise UnreadableError("is not what was written")
        return codec.decode(spec, encoded)
    except codec.CodecError as error:
        raise UnreadableError(f"cannot be used: {error}") from None


def missing_or_cut(folder: Folder, base: str, file: ChunkFile) -> str | None:
    """What is wrong with a chunk as far as shows without reading it, its path included; None: nothing."""
    try:
        size = folder.size(f"{base}/{file.key}")
    except UnreadableError as error:
        return f"{base}/{file.key} {error}"
    return None if size == file.length else f"{base}/{file.key} {_other_size(size, file)}"


def _other_size(size: int, file: ChunkFile) -> str:
    return f"has {size} bytes; {file.length} were written"
