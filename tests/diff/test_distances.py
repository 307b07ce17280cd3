"""Distances between tensors: against exact arithmetic, against torch, and at every edge of the formats."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.diff.metrics import distances
from rltrace.diff.metrics.distances import FLOATS, Bin, Distances, decoded, is_infinite, is_nan, measure
from rltrace.report.diff import distances_text

NARROW = [name for name, form in FLOATS.items() if form.bits <= 16]


def every(name: str) -> np.ndarray:
    """Every bit pattern of a narrow format."""
    bits = FLOATS[name].bits
    return np.arange(1 << bits, dtype=np.dtype(f"u{bits // 8}"))


@pytest.mark.parametrize("name", NARROW)
def test_every_pattern_is_the_number_that_torch_reads(name: str) -> None:
    """All bit patterns of the 8- and 16-bit formats decode to what torch makes of them, NaN and signs of zero too."""
    bits = every(name)
    raw = torch.from_numpy(bits.view("i2") if FLOATS[name].bits == 16 else bits)
    theirs = raw.view(getattr(torch, name)).to(torch.float64).numpy()
    ours = decoded(FLOATS[name], bits)
    assert np.array_equal(ours, theirs, equal_nan=True)
    is_number = ~np.isnan(theirs)
    assert (np.signbit(ours) == np.signbit(theirs))[is_number].all()
    assert (is_nan(FLOATS[name], bits) == np.isnan(theirs)).all()
    assert (is_infinite(FLOATS[name], bits) == np.isinf(theirs)).all()


@pytest.mark.parametrize("name", NARROW)
def test_neighbours_are_one_apart(name: str) -> None:
    """Sorted by value, each finite number is at a distance of 1 from the next, over zero and over powers of two."""
    bits = every(name)
    values = decoded(FLOATS[name], bits)
    kept = np.isfinite(values) & ~((values == 0) & np.signbit(values))
    ordered = bits[kept][np.argsort(values[kept])]
    found = measure(name, ordered[:-1], ordered[1:])
    assert found.differing == len(ordered) - 1
    assert found.histogram == (Bin(1, 1, len(ordered) - 1),) and found.largest == 1


def exact(a: float, b: float, code: str) -> int | None:
    """The number of representable numbers from one to the other, with Python's integers."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return None
    size = {"f": 4, "d": 8}[code]
    x, y = (int.from_bytes(struct.pack(f">{code}", n), "big") for n in (a, b))
    sign = 1 << (8 * size - 1)
    return abs((x if x < sign else sign - x) - (y if y < sign else sign - y))


FLOAT32 = st.floats(width=32) | st.sampled_from(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, 3.4028234663852886e38]
)
FLOAT64 = st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308])


@settings(max_examples=150)
@given(
    st.sampled_from(["f", "d"]).flatmap(
        lambda code: st.tuples(
            st.just(code), st.lists(st.tuples(*[FLOAT32 if code == "f" else FLOAT64] * 2), min_size=1, max_size=9)
        )
    )
)
def test_against_exact_arithmetic(drawn: tuple[str, list[tuple[float, float]]]) -> None:
    """Counts, largest distances and the list agree with arithmetic that cannot round or overflow."""
    code, pairs = drawn
    a, b = (np.array([pair[k] for pair in pairs], f"f{4 if code == 'f' else 8}") for k in (0, 1))
    with np.errstate(all="ignore"):
        found = measure("float32" if code == "f" else "float64", a, b)
    unequal = [k for k in range(len(a)) if a[k : k + 1].tobytes() != b[k : k + 1].tobytes()]
    steps = {k: exact(float(a[k]), float(b[k]), code) for k in unequal}
    known = [step for step in steps.values() if step is not None]
    assert found.differing == len(unequal)
    assert found.largest == max(known, default=None)
    assert sum(bin.count for bin in found.histogram) == sum(step > 0 for step in known)
    assert found.zeros == sum(step == 0 for step in known)
    assert {element.index[0]: element.distance for element in found.worst} == steps
    assert found.nans + found.payloads + found.infinities == sum(step is None for step in steps.values())
    gaps = [abs(Fraction(float(a[k])) - Fraction(float(b[k]))) for k in unequal if steps[k] is not None]
    if gaps and float("inf") != found.largest_absolute:
        assert found.largest_absolute == pytest.approx(float(max(gaps)))


def test_what_has_no_distance() -> None:
    """NaN on one side, other NaN on both, an infinity against anything else: counted apart, first in the list."""
    a = np.array([0x7FC00000, 0x7FC00000, 0x7F800000, 0x7F800000, 0x3F800000], np.uint32)
    b = np.array([0x3F800000, 0x7FC00001, 0xFF800000, 0x7F7FFFFF, 0x3F800001], np.uint32)
    found = measure("float32", a, b)
    assert (found.nans, found.payloads, found.infinities, found.differing) == (1, 1, 2, 5)
    assert [element.distance for element in found.worst] == [None, None, None, None, 1]
    assert found.largest == 1 and (found.worst[0].a, found.worst[0].hex_b) == ("nan", "3f800000")


def test_signed_zeros() -> None:
    """+0 and -0 are other bits at no distance: reported, and in no bin."""
    found = measure("float64", np.array([0.0, 1.0]), np.array([-0.0, 1.0]))
    assert (found.differing, found.zeros, found.largest, found.histogram) == (1, 1, 0, ())
    assert (found.worst[0].a, found.worst[0].b) == ("0.0", "-0.0")


def test_integers() -> None:
    """Whole numbers are apart by what lies between, over the whole range of 64 bits; truth values by one."""
    found = measure("int64", np.array([-(2**63), 5]), np.array([2**63 - 1, 5]))
    assert (found.largest, found.unit, found.differing) == (2**64 - 1, "", 1)
    unsigned = measure("uint64", np.array([2**64 - 1], np.uint64), np.array([0], np.uint64))
    assert unsigned.largest == 2**64 - 1
    truth = measure("bool", np.array([True, False]), np.array([False, False]))
    assert (truth.largest, truth.worst[0].a, truth.worst[0].index) == (1, "True", (0,))


def test_complex() -> None:
    """The distance of complex numbers is that of the part that is further apart; without one where a part has none."""
    a = np.array([1 + 2j, 3 + 1j, complex(math.nan, 1)], np.complex64)
    b = np.array([1 + np.nextafter(np.float32(2), np.float32(3)) * 1j, 3 + 1j, 1 + 1j], np.complex64)
    found = measure("complex64", a, b)
    assert (found.differing, found.largest, found.nans) == (2, 1, 1)
    assert found.worst[1].a == "1.0+2.0j" and found.worst[1].hex_a == "3f800000 40000000"


def test_unknown_dtype() -> None:
    """Of a dtype without a known order the number of differing elements is reported, and no guess."""
    assert measure("qint8", np.array([1, 2], np.uint8), np.array([1, 3], np.uint8)) == Distances(
        "qint8", (2,), "bytes", 2, 1
    )


def test_shapes() -> None:
    """Places are reported in the tensor's own shape; nothing is measured across shapes, and empty tensors are equal."""
    a = np.zeros((2, 3), np.float32)
    b = a.copy()
    b[1, 2] = 1
    assert measure("float32", a, b).worst[0].index == (1, 2)
    assert measure("float32", a[0, 0], b[1, 2]).worst[0].index == ()
    assert measure("float32", a[:0], b[:0]).differing == 0
    with pytest.raises(ValueError, match="element by element"):
        measure("float32", a, b.T)
    with pytest.raises(ValueError, match="does not have 4 bytes"):
        measure("float64", a, b)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured in small blocks, everything comes out as measured at once, the order of the list included."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal((5, 7)).astype(np.float32)
    b = np.where(generator.random((5, 7)) < 0.7, a + generator.standard_normal((5, 7)).astype(np.float32) * 1e-3, a)
    b[2, 3], b[4, 4] = math.nan, math.inf
    whole = measure("float32", a, b, listed=9)
    monkeypatch.setattr(distances, "BLOCK", 4)
    assert measure("float32", a, b, listed=9) == whole and len(whole.worst) == 9


def test_rows_in_another_order() -> None:
    """Which row of B each row of A is, equal ones in their order; and rows that are all equal on one side alone."""
    a = np.array([[1, 2], [3, 4], [1, 2], [5, 6]], np.float32)
    found = measure("float32", a, a[[3, 0, 2, 1]])
    assert found.rows_in_b == (1, 3, 2, 0)
    said = (
        "the same rows in another order (row 0 of A is row 1 of B, row 1 of A is row 3 of B, row 3 of A is row 0 of B)"
    )
    assert distances_text(found).startswith(f"{said}, 6 of 8 elements differ")
    assert measure("float32", a, a).rows_in_b == measure("float32", a[:, 0], a[[3, 0, 2, 1], 0]).rows_in_b == ()
    same = measure("float32", a, a[[1, 1, 1, 1]])
    assert (same.rows_in_b, same.all_rows_equal) == ((), "B")
    assert distances_text(same).startswith("all rows of B are equal, ")
