"""Pairs of tensors that differ as training programs make them differ: their digests must, too.

Random changes prove little; what breaks a fingerprint is structure. Three popular fingerprints stand beside the digest
and fall together on these very pairs, so a digest as weak as one of them would fail here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rltrace.digest import PAGE_BYTES, digest_buffer, layout_text, reference, seed_of

FLOATS = {
    "float64": np.uint64,
    "float32": np.uint32,
    "float16": np.uint16,
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
}
"""Float types, and integers as wide: in each the topmost bit is the sign."""
SIZES = (64, 1_024, 2 * PAGE_BYTES // 8 + 6)
"""Elements of eight bytes: far below a page, half of one, above two."""

Tensor = tuple[str, tuple[int, ...], bytes]
"""dtype, shape, logical bytes."""
Fingerprint = Callable[[Tensor], object]


def tensor(values: np.ndarray[Any, Any], dtype: str = "") -> Tensor:
    return dtype or values.dtype.name, values.shape, np.ascontiguousarray(values).tobytes()


def noise(size: int, kind: Any = np.uint64) -> np.ndarray[Any, Any]:
    return np.random.default_rng(size).integers(1, np.iinfo(kind).max, size, dtype=kind)


# --- pairs ------------------------------------------------------------------------------------------------------------


def permutations(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All elements in another order."""
    x = np.random.default_rng(1).normal(size=n)
    for other in (x[::-1], np.roll(x, 1), np.roll(x, n // 2), np.sort(x), np.random.default_rng(2).permutation(x)):
        yield tensor(x), tensor(other)


def swaps(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Two elements, two halves, or two whole pages change places."""
    x = np.random.default_rng(3).normal(size=n)
    for i, j in ((0, 1), (0, n - 1), (n // 2, n // 2 + 1), (7, 15), (1, n // 2)):
        y = x.copy()
        y[[i, j]] = y[[j, i]]
        yield tensor(x), tensor(y)
    yield tensor(x), tensor(np.concatenate([x[n // 2 :], x[: n // 2]]))
    page = PAGE_BYTES // 8
    if n > 2 * page:
        yield tensor(x), tensor(np.concatenate([x[page : 2 * page], x[:page], x[2 * page :]]))


def sign_flips(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One sign, two signs, every other sign, all signs, in every float type."""
    for dtype, kind in FLOATS.items():
        x = noise(n * 8 // np.dtype(kind).itemsize, kind)
        sign = kind(1 << (8 * np.dtype(kind).itemsize - 1))
        some = np.random.default_rng(4).random(len(x)) < 0.5
        last = len(x) - 1
        for chosen in ([0], [last], [0, 8], [3, 11], [7, last], [1, 3, 5, 7], some, np.s_[1::2], np.s_[:]):
            y = x.copy()
            y[chosen] ^= sign
            yield tensor(x, dtype), tensor(y, dtype)


def constant_fills(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One number everywhere, and another number everywhere."""
    fills = (0.0, 1.0, -1.0, 2.0, 0.5, 1e-8, np.inf)
    for i, a in enumerate(fills):
        for b in fills[:i]:
            yield tensor(np.full(n, a)), tensor(np.full(n, b))
            yield tensor(np.full(2 * n, a, np.float32)), tensor(np.full(2 * n, b, np.float32))


def shifts(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same numbers, some places further on, zeros before them."""
    x = np.concatenate([np.random.default_rng(5).normal(size=n // 2), np.zeros(n - n // 2)])
    for by in (1, 2, 8, 16, n // 4):
        yield tensor(x), tensor(np.roll(x, by))
        yield tensor(x.astype(np.float32)), tensor(np.roll(x.astype(np.float32), by))


def transposes(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A square matrix and its transpose, in three widths of float."""
    side = int(n**0.5)
    for dtype in (np.float64, np.float32, np.float16):
        x = np.random.default_rng(6).normal(size=(side, side)).astype(dtype)
        yield tensor(x), tensor(x.T)
        yield tensor(x), tensor(x[::-1, ::-1])


def zeros_against_negative_zeros(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Equal by comparison, not by their bits; all of them, one, and two."""
    for dtype, kind in FLOATS.items():
        sign = kind(1 << (8 * np.dtype(kind).itemsize - 1))
        zeros = np.zeros(n * 8 // np.dtype(kind).itemsize, kind)
        for chosen in (np.s_[:], [0], [len(zeros) - 1], [3, 11], [0, len(zeros) // 2]):
            y = zeros.copy()
            y[chosen] = sign
            yield tensor(zeros, dtype), tensor(y, dtype)


def other_dtypes_and_shapes(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The very same bytes, called something else."""
    x = noise(n)
    for dtype in ("int64", "float64", "complex64"):
        yield tensor(x), (dtype, (n,), x.tobytes())
    for shape in ((n, 1), (1, n), (2, n // 2), (n // 2, 2), (n // 2, 1, 2)):
        yield tensor(x), tensor(x.reshape(shape))
    yield tensor(x), tensor(x.view(np.uint32))


def padding(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Zeros behind, zeros before, one element less; and an empty tensor of one shape or another."""
    x = np.random.default_rng(7).normal(size=n)
    for more in (1, 2, 8, 128):
        yield tensor(x), tensor(np.concatenate([x, np.zeros(more)]))
        yield tensor(np.concatenate([np.zeros(more), x])), tensor(np.concatenate([x, np.zeros(more)]))
    yield tensor(np.zeros(n)), tensor(np.zeros(n + 1))
    yield tensor(x), tensor(x[:-1])
    yield tensor(np.zeros((0, n))), tensor(np.zeros((n, 0)))


def payloads(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """NaNs of other payloads and signs, which no comparison distinguishes."""
    x = np.full(n, np.nan).view(np.uint64)
    for bits in (0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001):
        for chosen in ([0], [0, 8], np.s_[:]):
            y = x.copy()
            y[chosen] = bits
            yield tensor(x, "float64"), tensor(y, "float64")


FAMILIES = (
    permutations,
    swaps,
    sign_flips,
    constant_fills,
    shifts,
    transposes,
    zeros_against_negative_zeros,
    other_dtypes_and_shapes,
    padding,
    payloads,
)


def every_pair() -> Iterator[tuple[str, Tensor, Tensor]]:
    for family in FAMILIES:
        for n in SIZES:
            for a, b in family(n):
                yield family.__name__, a, b


# --- fingerprints -----------------------------------------------------------------------------------------------------


def digest(t: Tensor) -> int:
    """Ours."""
    return digest_buffer(t[2], seed_of(t[0], t[1]))


def lanes(t: Tensor) -> np.ndarray[Any, Any]:
    return np.frombuffer(t[2] + bytes(-len(t[2]) % 8), np.uint64)


def xor(t: Tensor) -> object:
    """What ``torch.hash_tensor`` does: all 64-bit lanes, exclusive or. Knows dtype and shape all the same."""
    return layout_text(t[0], t[1]), int(np.bitwise_xor.reduce(lanes(t), initial=0))


def norm(t: Tensor) -> object:
    """The sum of magnitudes, at full precision, as debugging modes print it."""
    kinds = {"float64": np.float64, "float32": np.float32, "float16": np.float16}
    values = np.frombuffer(t[2], kinds.get(t[0], np.uint8))
    finite = np.sort(np.abs(values[np.isfinite(values)]).astype(np.longdouble))
    return layout_text(t[0], t[1]), float(finite.sum())


def multilinear(t: Tensor) -> object:
    """Each 64-bit lane times an odd random key of its own, summed modulo 2**64."""
    words = lanes(t)
    keys = np.random.default_rng(8).integers(0, 2**63, len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        return layout_text(t[0], t[1]), int((words * keys).sum(dtype=np.uint64))


def collisions(fingerprint: Fingerprint) -> set[str]:
    """Families in which some pair falls together."""
    return {family for family, a, b in every_pair() if fingerprint(a) == fingerprint(b)}


# --- tests ------------------------------------------------------------------------------------------------------------


def test_every_pair_is_a_pair() -> None:
    """No tensor is paired with itself, every family has pairs, below one page and above."""
    sizes: dict[str, set[bool]] = {}
    for family, a, b in every_pair():
        assert a != b, family
        sizes.setdefault(family, set()).add(len(a[2]) > PAGE_BYTES)
    assert sizes == {family.__name__: {False, True} for family in FAMILIES}


def test_no_two_digests_of_a_pair_are_equal() -> None:
    """The digests of a pair differ in every family, at every size."""
    assert collisions(digest) == set()


def test_no_two_digests_of_all_tensors_are_equal() -> None:
    """Some 500 tensors of all families have as many digests."""
    found: dict[int, Tensor] = {}
    for _, *pair in every_pair():
        for t in pair:
            assert found.setdefault(digest(t), t) == t
    assert len(found) > 500


@pytest.mark.parametrize(
    ("fingerprint", "blind_to"),
    [
        (xor, {"permutations", "swaps", "sign_flips", "constant_fills", "transposes", "zeros_against_negative_zeros"}),
        (norm, {"permutations", "swaps", "sign_flips", "transposes", "zeros_against_negative_zeros", "payloads"}),
        (multilinear, {"sign_flips", "zeros_against_negative_zeros"}),
    ],
)
def test_weaker_fingerprints_fall_together_on_these_pairs(fingerprint: Fingerprint, blind_to: set[str]) -> None:
    """Weaker fingerprints are equal on these pairs, so this suite can fail."""
    assert blind_to <= collisions(fingerprint)


def test_the_reference_agrees_on_a_pair_of_each_family() -> None:
    """What is tested here is the definition, not only its fast path."""
    for family in FAMILIES:
        for t in next(family(SIZES[0])):
            assert reference.digest(t[2], seed_of(t[0], t[1])) == digest(t)
