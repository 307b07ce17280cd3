"""Distances between two recorded tensors, element by element: in ULPs, absolute and relative.

Counts the elements that differ, by how much, and those without a distance (NaN, infinities). Pure functions of NumPy
arrays. The ULP distance here is the number of representable numbers from one to the other (Dawson, "Comparing floating
point numbers", 2012): 1 for neighbours, 0 for +0 and -0; it does not shrink where a rounding crosses a power of two.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# --- bits -------------------------------------------------------------------------------------------------------------
#
# Floating-point formats by dtype name: signs, magnitudes, NaN and numbers from the bits of the elements, without torch.
# Layouts: IEEE 754-2019; bfloat16 is the upper half of a binary32; the 8-bit formats: OCP 8-bit Floating Point
# Specification 1.0 and, for ``fnuz``, Noune et al., "8-bit Numerical Formats" (2022).


Bits = NDArray[Any]
"""Unsigned integers, one per element."""

MOST_ULP = 1 << 20
"""A distance in ULPs up to this says how far rounding went; a longer one is of other data, and is not shown."""


@dataclass(frozen=True)
class FloatFormat:
    """How a floating-point format lays out its bits: sign, exponent, fraction, from the highest bit down."""

    bits: int
    exponent: int
    """Bits of the exponent."""
    fraction: int
    bias: int
    infinite: bool = True
    """The largest exponent encodes infinities and NaN. False: it encodes numbers, except for the NaN of ``nan``."""
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
"""dtype of the real and of the imaginary part."""

INTEGERS = {name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
INTEGERS["bool"] = np.dtype("uint8")

SIZES = {name: form.bits // 8 for name, form in FLOATS.items()} | {name: t.itemsize for name, t in INTEGERS.items()}
"""Bytes of one number."""


def bits_of(array: NDArray[Any], size: int) -> Bits:
    """The elements' bits, flat; ``size``: bytes of an element, or of a part of a complex one."""
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


# --- distances --------------------------------------------------------------------------------------------------------


N = TypeVar("N", int, float)

LISTED = 64
"""Elements that are listed one by one."""

BLOCK = 1 << 20
"""Elements that are measured at a time: some 100 MB of intermediate arrays."""


@dataclass(frozen=True)
class Bin:
    """Elements at a distance of ``low`` to ``high``, both included."""

    low: int
    high: int
    count: int


@dataclass(frozen=True)
class ElementPair:
    """One element on both sides."""

    index: tuple[int, ...]
    a: str
    """As a number."""
    b: str
    hex_a: str
    hex_b: str
    distance: int | None
    """None: one of them is not finite."""


@dataclass(frozen=True)
class Distances:
    """Distances between two tensors of one dtype and shape."""

    dtype: str
    shape: tuple[int, ...]
    unit: str
    """"ULP" for floating-point numbers, "" for integers, "bytes" for unknown dtypes (only ``differing`` is set)."""
    elements: int
    differing: int = 0
    """Elements of which any bit differs."""
    largest: int | None = None
    """The largest distance; None: no element that differs has one."""
    largest_absolute: float | None = None
    """The largest difference of two finite numbers; infinite where a double cannot hold it."""
    largest_relative: float | None = None
    """The largest of |a - b| / max(|a|, |b|)."""
    zeros: int = 0
    """Elements that differ only in the sign of zero, at a distance of 0."""
    nans: int = 0
    """NaN on one side."""
    payloads: int = 0
    """NaN on both sides, with different bits."""
    infinities: int = 0
    """Infinite on one side, and different on the other."""
    histogram: tuple[Bin, ...] = ()
    """Distances above 0, in bins that double, from 1 to the largest, without gaps."""
    worst: tuple[ElementPair, ...] = ()
    """Elements that differ most, those without a distance first; at most ``LISTED``."""
    rows_in_b: tuple[int, ...] = ()
    """The row of B that each row of A is, where the rows are the same in another order; else empty."""
    all_rows_equal: str = ""
    """``A`` or ``B``, where all rows of that side alone are equal."""


MAX_MOVED_ROWS = 1 << 14
"""Rows of the tensors that are looked for in another order."""


def _with_rows(found: Distances, a: NDArray[Any], b: NDArray[Any]) -> Distances:
    if not found.differing or a.ndim < 2 or not 1 < len(a) <= MAX_MOVED_ROWS:
        return found
    on_a, on_b = ([row.tobytes() for row in np.ascontiguousarray(side)] for side in (a, b))
    alike = [len(set(rows)) == 1 for rows in (on_a, on_b)]
    if sorted(on_a) != sorted(on_b):
        return replace(found, all_rows_equal="AB"[alike[1]] if alike[0] != alike[1] else "")
    places: dict[bytes, list[int]] = {}
    for place in reversed(range(len(on_b))):
        places.setdefault(on_b[place], []).append(place)
    return replace(found, rows_in_b=tuple(places[row].pop() for row in on_a))


def measure(dtype: str, a: NDArray[Any], b: NDArray[Any], listed: int = LISTED) -> Distances:
    """Compare two tensors: arrays of equal shape, of any type whose elements hold the bytes of ``dtype``.

    Raises ValueError where shapes or element sizes differ.
    """
    if a.shape != b.shape or a.dtype.itemsize != b.dtype.itemsize:
        raise ValueError(f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} cannot be compared element by element")
    parts = 2 if dtype in COMPLEX else 1
    name = COMPLEX.get(dtype, dtype)
    size = a.dtype.itemsize // parts
    if name not in SIZES:
        return _unordered(dtype, a, b)
    if size != SIZES[name]:
        raise ValueError(f"an element of {dtype} does not have {a.dtype.itemsize} bytes")
    bits_a, bits_b = (bits_of(side, size).reshape(-1, parts) for side in (a, b))
    found = Distances(dtype, tuple(a.shape), "" if name in INTEGERS else "ULP", a.size)
    for start in range(0, a.size, BLOCK):
        block = slice(start, start + BLOCK)
        found = _merged(found, _block(found, name, start, bits_a[block], bits_b[block], listed), listed)
    return _with_rows(found, a, b)


def first_elements(dtype: str, array: NDArray[Any], count: int = LISTED) -> tuple[ElementPair, ...]:
    """The first elements of one tensor, the same on both sides; empty for an unknown dtype."""
    parts = 2 if dtype in COMPLEX else 1
    name = COMPLEX.get(dtype, dtype)
    if name not in SIZES or array.dtype.itemsize != parts * SIZES[name]:
        return ()
    bits = bits_of(array.reshape(-1)[:count], SIZES[name]).reshape(-1, parts)
    texts = [_part(name, bits[:, k].copy(), bits[:, k].copy()).texts for k in range(parts)]
    return tuple(
        _element(_index(array.shape, k), [text(k) for text in texts], (bits[k], bits[k]), 0) for k in range(len(bits))
    )


@dataclass(frozen=True)
class _Part:
    """One number of each differing element: the element, or its real or imaginary part."""

    distance: NDArray[np.uint64]
    has_distance: NDArray[np.bool_]
    absolute: NDArray[np.float64]
    relative: NDArray[np.float64]
    nan: NDArray[np.bool_]
    payload: NDArray[np.bool_]
    infinite: NDArray[np.bool_]
    texts: Any
    """Number of an element that differs, to (A's, B's) as text."""


def _part(name: str, a: Bits, b: Bits) -> _Part:
    return _float_part(name, FLOATS[name], a, b) if name in FLOATS else _integer_part(name, a, b)


def _float_part(name: str, form: FloatFormat, a: Bits, b: Bits) -> _Part:
    nan_a, nan_b = is_nan(form, a), is_nan(form, b)
    nan, both = nan_a ^ nan_b, nan_a & nan_b
    infinite = (is_infinite(form, a) | is_infinite(form, b)) & (a != b) & ~nan
    finite = ~(nan_a | nan_b | infinite)
    x, y = magnitudes(form, a), magnitudes(form, b)
    across = is_negative(form, a) != is_negative(form, b)
    distance = np.where(across, x + y, np.maximum(x, y) - np.minimum(x, y))
    numbers = decoded(form, a), decoded(form, b)
    absolute, relative = _differences(*(np.where(finite, each, 0.0) for each in numbers))

    def texts(k: int) -> tuple[str, str]:
        return _float_text(name, numbers[0][k]), _float_text(name, numbers[1][k])

    return _Part(distance, finite, absolute, relative, nan, both & (a != b), infinite, texts)


def _integer_part(name: str, a: Bits, b: Bits) -> _Part:
    x, y = a.view(INTEGERS[name]), b.view(INTEGERS[name])
    wide = (x.astype(np.uint64), y.astype(np.uint64))  # sign-extended: differences are right modulo 2**64
    distance = np.where(x > y, wide[0] - wide[1], wide[1] - wide[0])
    none = np.zeros(len(a), bool)
    absolute, relative = _differences(x.astype(np.float64), y.astype(np.float64))

    def texts(k: int) -> tuple[str, str]:
        return (str(bool(x[k])), str(bool(y[k]))) if name == "bool" else (str(x[k]), str(y[k]))

    return _Part(distance, ~none, absolute, relative, none, none, none, texts)


def _differences(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """|x - y|, and |x - y| / max(|x|, |y|)."""
    largest = np.maximum(np.abs(x), np.abs(y))
    with np.errstate(over="ignore"):
        absolute: NDArray[np.float64] = np.abs(x - y)
    scale = np.where(largest > 0, largest, 1.0)
    return absolute, np.abs(x / scale - y / scale)


def _block(whole: Distances, name: str, start: int, a: Bits, b: Bits, listed: int) -> Distances:
    """``whole`` for the elements from ``start`` on only; shapes [elements, numbers per element]."""
    at = np.flatnonzero((a != b).any(axis=1))
    a, b = a[at], b[at]
    parts = [_part(name, a[:, k].copy(), b[:, k].copy()) for k in range(a.shape[1])]
    distance = np.max([np.where(part.has_distance, part.distance, 0) for part in parts], axis=0)
    measured = np.all([part.has_distance for part in parts], axis=0)
    nan, payload, infinite = (
        np.any([getattr(part, what) for part in parts], axis=0) for what in ("nan", "payload", "infinite")
    )
    known = distance[measured]
    worst = np.lexsort((at, ~distance, measured))[:listed]
    return replace(
        whole,
        differing=len(at),
        largest=int(known.max()) if len(known) else None,
        largest_absolute=_largest(part.absolute[measured] for part in parts),
        largest_relative=_largest(part.relative[measured] for part in parts),
        zeros=int((measured & (distance == 0)).sum()),
        nans=int(nan.sum()),
        payloads=int((payload & ~nan).sum()),
        infinities=int((infinite & ~nan & ~payload).sum()),
        histogram=_histogram(known[known > 0]),
        worst=tuple(
            _element(
                _index(whole.shape, start + int(at[k])),
                [part.texts(k) for part in parts],
                (a[k], b[k]),
                int(distance[k]) if measured[k] else None,
            )
            for k in worst.tolist()
        ),
    )


def _merged(a: Distances, b: Distances, listed: int) -> Distances:
    """Two parts of the same tensor, the first one's elements before the second's."""
    bins = [
        replace(x or y, count=(x.count if x else 0) + (y.count if y else 0))
        for x, y in zip_longest(a.histogram, b.histogram)
    ]
    worst = sorted([*a.worst, *b.worst], key=lambda e: (e.distance is not None, -(e.distance or 0), e.index))
    return replace(
        a,
        differing=a.differing + b.differing,
        largest=_larger(a.largest, b.largest),
        largest_absolute=_larger(a.largest_absolute, b.largest_absolute),
        largest_relative=_larger(a.largest_relative, b.largest_relative),
        zeros=a.zeros + b.zeros,
        nans=a.nans + b.nans,
        payloads=a.payloads + b.payloads,
        infinities=a.infinities + b.infinities,
        histogram=tuple(bins),
        worst=tuple(worst[:listed]),
    )


def _larger(a: N | None, b: N | None) -> N | None:
    return b if a is None else a if b is None else max(a, b)


def _largest(each: Iterable[NDArray[np.float64]]) -> float | None:
    return max((float(values.max()) for values in each if len(values)), default=None)


def _histogram(distances: NDArray[np.uint64]) -> tuple[Bin, ...]:
    """Bins 1, 2 to 3, 4 to 7 and so on; integer bounds, as a double cannot distinguish 2**53 from its neighbour."""
    if not len(distances):
        return ()
    last = int(distances.max()).bit_length()
    lows = np.array([1 << k for k in range(last)], np.uint64)
    counts = np.bincount(np.searchsorted(lows, distances, side="right") - 1, minlength=last)
    return tuple(Bin(1 << k, (2 << k) - 1, int(count)) for k, count in enumerate(counts))


def _index(shape: tuple[int, ...], place: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(place, shape)) if shape else ()


def _element(
    index: tuple[int, ...], texts: list[tuple[str, str]], bits: tuple[Bits, Bits], distance: int | None
) -> ElementPair:
    a, b = (_complex_text(*side) if len(side) > 1 else side[0] for side in zip(*texts, strict=True))
    hex_a, hex_b = (" ".join(f"{int(number):0{2 * side.dtype.itemsize}x}" for number in side) for side in bits)
    return ElementPair(index, a, b, hex_a, hex_b, distance)


def _float_text(name: str, number: np.float64) -> str:
    """As many digits as distinguish it from its neighbours."""
    exact = {"float64": np.float64, "float16": np.float16}.get(name, np.float32)
    return str(exact(number))


def _complex_text(real: str, imaginary: str) -> str:
    return f"{real}{'' if imaginary.startswith('-') else '+'}{imaginary}j"


def _unordered(dtype: str, a: NDArray[Any], b: NDArray[Any]) -> Distances:
    """The result for an unknown dtype: only the number of elements that differ."""
    size = max(1, a.dtype.itemsize)
    raw = [np.ascontiguousarray(side).reshape(-1).view(np.uint8).reshape(-1, size) for side in (a, b)]
    differing = int((raw[0] != raw[1]).any(axis=1).sum())
    return Distances(dtype, tuple(a.shape), "bytes", a.size, differing)
