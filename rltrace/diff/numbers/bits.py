"""What the bits of a tensor's elements mean: signs, magnitudes, NaN, numbers. By the name of the dtype, without torch.

Owns the layouts of floating-point formats, NumPy's and those that NumPy lacks. Pure functions of arrays of unsigned
integers that hold the elements' bits. Layouts: IEEE 754-2019; bfloat16 is the upper half of a binary32; the 8-bit
formats: OCP 8-bit Floating Point Specification 1.0 and, for ``fnuz``, Noune et al., "8-bit Numerical Formats" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""Unsigned integers, one an element."""


@dataclass(frozen=True)
class FloatFormat:
    """How a floating-point format lays out its bits: sign, exponent, fraction, from the highest bit down."""

    bits: int
    exponent: int
    """Bits of the exponent."""
    fraction: int
    bias: int
    infinite: bool = True
    """The largest exponent stands for infinities and NaN. False: it holds numbers, but for the NaN of ``nan``."""
    nan: tuple[int, ...] = ()
    """Bit patterns of NaN, where ``infinite`` is False."""

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1) if self.exponent + self.fraction < self.bits else 0


FLOATS = {
    "float64": FloatFormat(64, 11, 52, 1023),
    "float32": FloatFormat(32, 8, 23, 127),
    "float16": FloatFormat(16, 5, 10, 15),
    "bfloat16": FloatFormat(16, 8, 7, 127),
    "float8_e5m2": FloatFormat(8, 5, 2, 15),
    "float8_e4m3fn": FloatFormat(8, 4, 3, 7, infinite=False, nan=(0x7F, 0xFF)),
    "float8_e5m2fnuz": FloatFormat(8, 5, 2, 16, infinite=False, nan=(0x80,)),
    "float8_e4m3fnuz": FloatFormat(8, 4, 3, 8, infinite=False, nan=(0x80,)),
    "float8_e8m0fnu": FloatFormat(8, 8, 0, 127, infinite=False, nan=(0xFF,)),
}

COMPLEX = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
"""Two of the second name, one after the other."""

INTEGERS = {name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
INTEGERS["bool"] = np.dtype("uint8")

SIZES = {name: form.bits // 8 for name, form in FLOATS.items()} | {name: t.itemsize for name, t in INTEGERS.items()}
"""Bytes of one number."""


def bits_of(array: NDArray[Any], size: int) -> Bits:
    """The elements' bits, flat; ``size``: bytes of an element (of a part, for complex ones)."""
    flat = np.ascontiguousarray(array).reshape(-1)
    found: Bits = flat.view(np.dtype(f"u{size}"))
    return found


def magnitudes(form: FloatFormat, bits: Bits) -> NDArray[np.uint64]:
    """Bits without the sign: within a sign, neighbouring numbers have neighbouring magnitudes."""
    keep = (1 << form.bits) - 1 if not form.sign else form.sign - 1
    return bits.astype(np.uint64) & np.uint64(keep)


def is_negative(form: FloatFormat, bits: Bits) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (bits & bits.dtype.type(form.sign)) != 0
    return found


def is_nan(form: FloatFormat, bits: Bits) -> NDArray[np.bool_]:
    if form.infinite:
        found: NDArray[np.bool_] = magnitudes(form, bits) > np.uint64(_infinity(form))
        return found
    return np.isin(bits, form.nan)


def is_infinite(form: FloatFormat, bits: Bits) -> NDArray[np.bool_]:
    if not form.infinite:
        return np.zeros(len(bits), bool)
    found: NDArray[np.bool_] = magnitudes(form, bits) == np.uint64(_infinity(form))
    return found


def _infinity(form: FloatFormat) -> int:
    return ((1 << form.exponent) - 1) << form.fraction


def decoded(form: FloatFormat, bits: Bits) -> NDArray[np.float64]:
    """The numbers, exactly: a double holds every number of every format here."""
    if form.bits == 64:
        return bits.view(np.float64)
    magnitude = magnitudes(form, bits)
    exponent = (magnitude >> np.uint64(form.fraction)).astype(np.int64)
    fraction = (magnitude & np.uint64((1 << form.fraction) - 1)).astype(np.int64)
    normal = (exponent > 0) | (form.fraction == 0)
    whole = np.where(normal, fraction + (1 << form.fraction), fraction).astype(np.float64)
    numbers = np.ldexp(whole, np.where(normal, exponent, 1) - form.bias - form.fraction)
    numbers = np.where(is_infinite(form, bits), np.inf, numbers)
    numbers = np.where(is_negative(form, bits), -numbers, numbers)
    return np.where(is_nan(form, bits), np.nan, numbers)
