"""Traces read from memory, so that thousands of damaged ones can be: by the real reader, their files on no disk.

Owns a replacement of ``Folder`` without links and odd files; those are tested on a disk. Encoding and decoding are pure
functions of a chunk, and are done once for the same one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tampering import Files
from xxhash import xxh3_128_digest

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import ArraySpec
from rltrace.trace.format.files import UnreadableError
from rltrace.trace.read import reader


class Memory:
    """The files of a trace, as ``Folder`` gives them out."""

    unlisted = ""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.asked: set[str] = set()
        """Files that were read."""
        self._names: dict[str, list[str]] = {}

    def size(self, key: str) -> int:
        return len(self.read(key, 1 << 40))

    def read(self, key: str, limit: int, digest: str = "") -> bytes:
        self.asked.add(key)
        if key not in self.files:
            raise UnreadableError("is missing")
        return self.files[key][:limit]

    def holds(self, key: str) -> bool:
        return key in self.files

    def names(self, key: str) -> list[str]:
        if key not in self._names:
            start = len(key) + 1
            self._names[key] = sorted({f[start:].split("/")[0] for f in self.files if f.startswith(f"{key}/")})
        return self._names[key]

    def walk(self) -> Iterator[tuple[str, int]]:
        return iter(sorted((key, len(data)) for key, data in self.files.items()))

    def size_ahead(self, keys: object) -> None:
        pass

    def read_ahead(self, requests: object) -> None:
        pass

    def renamed(self) -> None:
        """Files came or went."""
        self._names.clear()


@contextmanager
def in_memory(folders: dict[Path, Memory]) -> Iterator[None]:
    """``open_trace`` of one of these (existing) paths reads from memory."""
    with coding_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "Folder", lambda path: folders[path])
        yield


@contextmanager
def coding_once() -> Iterator[None]:
    """The same chunk is encoded once and decoded once."""
    encode, decode = chunk_codec.encode, chunk_codec.decode
    encoded: dict[object, bytes] = {}
    decoded: dict[object, np.ndarray] = {}

    def encode_once(spec: ArraySpec, stored: np.ndarray) -> bytes:
        key = spec.name, spec.chunk, xxh3_128_digest(np.ascontiguousarray(stored))
        if key not in encoded:
            encoded[key] = encode(spec, stored)
        return encoded[key]

    def decode_once(spec: ArraySpec, data: bytes) -> np.ndarray:
        key = spec.name, spec.chunk, data
        if key not in decoded:
            decoded[key] = decode(spec, data)
            decoded[key].flags.writeable = False
        return decoded[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_codec, "encode", encode_once)
        patch.setattr(chunk_codec, "decode", decode_once)
        yield
