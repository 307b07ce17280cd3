"""The dtypes of recorded values: their sizes, and their numbers as NumPy arrays.

A dtype that NumPy lacks is widened exactly, but for NaN payloads. No torch.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PLAIN: Final[Mapping[str, str]] = {
    "bool": "?",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}
"""NumPy type of the dtypes that NumPy has, by torch's name without ``torch.``."""


def itemsize(dtype: str) -> int | None:
    """Bytes of one element; None: values of this dtype are not recorded."""
    if dtype in PLAIN:
        return np.dtype(PLAIN[dtype]).itemsize
    found = _WIDENED.get(dtype)
    return None if found is None else np.dtype(found[0]).itemsize


def raw(dtype: str, data: bytes | bytearray | memoryview) -> NDArray[Any]:
    """The stored elements, shape [n]; of dtypes that NumPy lacks, their bits as unsigned integers."""
    found = _WIDENED.get(dtype)
    return np.frombuffer(data, PLAIN[dtype] if found is None else found[0])


def numbers(dtype: str, stored: NDArray[Any]) -> NDArray[Any]:
    """The numbers of a result of ``raw``, of any shape; dtypes that NumPy lacks are widened to float32 or complex64."""
    found = _WIDENED.get(dtype)
    return stored if found is None else found[1](stored)


def _bfloat16(bits: NDArray[Any]) -> NDArray[Any]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _complex32(pairs: NDArray[Any]) -> NDArray[Any]:
    parts = np.stack([pairs & 0xFFFF, pairs >> 16], axis=-1).astype(np.uint16).view(np.float16)
    return parts.astype(np.float32).view(np.complex64)[..., 0]


def _small_float(exponent: int, mantissa: int, bias: int, kind: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Numbers of an 8-bit float: a sign, ``exponent`` bits, ``mantissa`` bits.

    ``kind``: "ieee" has infinities and NaN as in IEEE 754, "fn" (finite) has NaN only where all bits are set,
    "fnuz" has one NaN where the negative zero would be.
    """

    @cache
    def table() -> NDArray[np.float32]:
        bits = np.arange(256)
        powers, parts = (bits >> mantissa) & ((1 << exponent) - 1), bits & ((1 << mantissa) - 1)
        fractions = parts / (1 << mantissa)
        sizes = np.where(powers > 0, (1 + fractions) * 2.0 ** (powers - bias), fractions * 2.0 ** (1 - bias))
        values = np.where(bits & 128, -sizes, sizes)
        top = powers == (1 << exponent) - 1
        if kind == "ieee":
            values[top & (parts == 0)] *= np.inf
            values[top & (parts != 0)] = np.nan
        elif kind == "fn":
            values[(bits & 127) == 127] = np.nan
        else:
            values[128] = np.nan
        return values.astype(np.float32)

    return lambda stored: table()[stored]


def _power_of_two(stored: NDArray[Any]) -> NDArray[Any]:
    """float8_e8m0fnu: a power of two without a sign; 255 is NaN."""
    table = np.append(np.exp2(np.arange(255) - 127.0), np.nan).astype(np.float32)
    return np.take(table, stored)


_WIDENED: Final[Mapping[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]]] = {
    "bfloat16": ("<u2", _bfloat16),
    "complex32": ("<u4", _complex32),
    "float8_e4m3fn": ("u1", _small_float(4, 3, 7, "fn")),
    "float8_e5m2": ("u1", _small_float(5, 2, 15, "ieee")),
    "float8_e4m3fnuz": ("u1", _small_float(4, 3, 8, "fnuz")),
    "float8_e5m2fnuz": ("u1", _small_float(5, 2, 16, "fnuz")),
    "float8_e8m0fnu": ("u1", _power_of_two),
}
"""dtypes that NumPy lacks: how they are stored, and how they are widened."""
