"""Digests of observations, actions, rewards and other values, whatever their type; and the values of small ones.

Owns the rule for each type. An array has the digest of the tensor with the same contents (``rltrace.digest``), so an
observation can be recognised as the input of an op. A number has the digest of a NumPy scalar. Of any other object only
its class is digested: its ``repr`` may hold an address.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from xxhash import xxh3_64_intdigest

from rltrace.digest import PAGE_BYTES, digest_buffer, digest_pages, seed_of
from rltrace.trace.format.events import value_header

MAX_DEPTH = 32
"""Levels of nesting; of what lies deeper only the class is digested."""

_FLOAT, _INTEGER, _BOOL = seed_of("float64", ()), seed_of("int64", ()), seed_of("bool", ())
_NUMBERS: Final = (
    *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
)
_SEEDS: Final = {kind: seed_of(str(np.dtype(kind)), ()) for kind in _NUMBERS if sys.byteorder == "little"}
"""Of NumPy's scalars whose memory is what is hashed."""
_PYTHON: Final[dict[type, tuple[type, str]]] = {float: (np.float64, "d"), int: (np.int64, "q"), bool: (np.bool_, "?")}
"""NumPy's counterparts of Python's numbers, with the letters of ``struct``."""
_seed_of = lru_cache(1_024)(seed_of)
_pack_float = struct.Struct("<d").pack


_ValueForm = tuple[int, Callable[[bytes], tuple[int, ...]], int, Callable[[Any], bytes] | None]
"""Header, unpacker of cells, their size in bytes, and how a Python number is packed; None: by ``tobytes``."""


class ValueDigests:
    """Digests of values. ``of_tensor``: those of tensors."""

    def __init__(self, of_tensor: Callable[[torch.Tensor], int]) -> None:
        self._of_tensor = of_tensor
        self._seeds: dict[tuple[Any, tuple[int, ...]], tuple[int, bool]] = {}
        self._forms: dict[Any, _ValueForm | None] = {}
        """By dtype and shape of an array, or by type: how a value is recorded; None: it is not."""

    def that_remember(self) -> ValueDigests:
        """These, with a digest of each tensor that is computed once: for values that stay alive and as they are."""
        known: dict[int, int] = {}

        def of_tensor(tensor: torch.Tensor) -> int:
            digest = known.get(id(tensor))
            if digest is None:
                digest = known[id(tensor)] = self._of_tensor(tensor)
            return digest

        return ValueDigests(of_tensor)

    def cells(self, field: int, value: Any) -> tuple[int, ...]:
        """Cells with a small array or number (``trace/format/schema.py``), as the value of a field of an event."""
        kind = type(value)
        key: Any
        if kind is np.ndarray:
            key = value.dtype, value.shape
        elif kind in _SEEDS or kind in _PYTHON:
            key = kind
        else:
            return ()
        try:
            form = self._forms[key] if key in self._forms else self._add_form(key, value)
            if form is None:
                return ()
            header, unpack, size, pack = form
            data = value.tobytes() if pack is None else pack(value)
            return header | field, *unpack(data if len(data) == size else data.ljust(size, b"\0"))
        except Exception:  # an integer of more than 64 bits
            return ()

    def _add_form(self, key: Any, value: Any) -> _ValueForm | None:
        number, letter = _PYTHON.get(type(value), (None, ""))
        dtype = value.dtype if number is None else np.dtype(number)
        shape = value.shape if number is None else ()
        header = None if dtype.str[0] == ">" else value_header(dtype.name, shape)
        form = None
        if header is not None:
            count = -(-dtype.itemsize * int(np.prod(shape)) // 8)
            form = (
                header,
                struct.Struct(f"<{count}Q").unpack,
                8 * count,
                struct.Struct(f"<{letter}").pack if letter else None,
            )
        self._forms[key] = form
        return form

    def digest(self, value: Any) -> int:
        """Digest of any value; of its class where reading it raises."""
        try:
            return self._digest(value, 0)
        except Exception:
            return _by_class(type(value))

    def _digest(self, value: Any, depth: int) -> int:
        kind = type(value)
        if kind is np.ndarray:
            return self._of_array(value)
        seed = _SEEDS.get(kind)
        if seed is not None:
            return xxh3_64_intdigest(value, seed)
        if kind is float:
            return xxh3_64_intdigest(_pack_float(value), _FLOAT)
        if kind is bool:
            return xxh3_64_intdigest(b"\1" if value else b"\0", _BOOL)
        if kind is int and -(2**63) <= value < 2**63:
            return xxh3_64_intdigest(value.to_bytes(8, "little", signed=True), _INTEGER)
        return self._of_another(value, kind, depth)

    def _of_another(self, value: Any, kind: type, depth: int) -> int:
        if isinstance(value, (np.ndarray, np.generic)):
            return self._of_array(np.asarray(value))
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if isinstance(value, (str, int)):
            return _named(kind.__name__, str(value).encode("utf-8", "surrogatepass"))
        if isinstance(value, (bytes, bytearray)):
            return _named("bytes", bytes(value))
        if depth < MAX_DEPTH:
            if isinstance(value, Mapping):
                keys = sorted(value, key=str)  # a dict may have been filled from a set, in its order
                items = [item for key in keys for item in (str(key), value[key])]
                return self._of_items("mapping", items, depth)
            if isinstance(value, (list, tuple)):
                return self._of_items("sequence", value, depth)
        return _by_class(kind)

    def _of_items(self, what: str, items: Any, depth: int) -> int:
        return digest_pages([_named(what, b""), *(self._digest(item, depth + 1) for item in items)], len(items))

    def _of_array(self, array: Any) -> int:
        key = array.dtype, array.shape
        known = self._seeds.get(key)
        if known is None:
            if array.dtype.hasobject:
                return self._of_items(f"objects{array.shape}", array.ravel().tolist(), MAX_DEPTH - 1)
            known = self._seeds[key] = seed_of(_dtype_name(array.dtype), array.shape), array.dtype.str[0] == ">"
        seed, is_big_endian = known
        if is_big_endian or not array.flags.c_contiguous:
            array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if array.nbytes <= PAGE_BYTES:
            return xxh3_64_intdigest(array if array.ndim else array.tobytes(), seed)
        return digest_buffer(array.view(np.uint8), seed)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """torch's name of a dtype where it has one, else NumPy's."""
    return str(dtype.newbyteorder("=")) if dtype.fields is None else str(dtype.descr)


def _by_class(kind: type) -> int:
    return _named("object", f"{kind.__module__}.{kind.__qualname__}".encode())


def _named(kind: str, data: bytes) -> int:
    return xxh3_64_intdigest(data, _seed_of(kind, (len(data),)))
