"""The slow reference beside the xxhash library: the word of last resort has to be right itself."""

import random

import pytest
from xxhash import xxh3_64_intdigest

from rltrace.digest import PAGE_BYTES, layout_text, reference, seed_of

SEEDS = (0, 1, 0x9E3779B97F4A7C15, 2**64 - 1)
EDGES = (512, 1_023, 1_024, 1_025, 1_088, 2_047, 2_048, 2_049, PAGE_BYTES - 1, PAGE_BYTES)


def _bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_short_length_hashes_as_in_the_library(seed: int) -> None:
    """XXH3 has a rule of its own for each of five ranges of short lengths; 0 to 300 bytes cross all of them."""
    for size in range(301):
        data = _bytes(size)
        assert reference.xxh3_64(data, seed) == xxh3_64_intdigest(data, seed), size


@pytest.mark.parametrize("size", EDGES)
def test_stripes_and_blocks_end_where_they_do_in_the_library(size: int) -> None:
    """Lengths around stripes, blocks and a whole page, where the long rule changes what it does."""
    data = _bytes(size)
    for seed in SEEDS:
        assert reference.xxh3_64(data, seed) == xxh3_64_intdigest(data, seed)


@pytest.mark.parametrize("extremes", [b"\x00", b"\xff", b"\x80\x00\x00\x00", b"\x00\x00\x80\x7f"])
def test_extreme_bytes_hash_as_in_the_library(extremes: bytes) -> None:
    """Zeros, ones, sign bits and infinities carry through the wide sums and products."""
    for size in (7, 16, 100, 240, 1_500):
        data = (extremes * size)[:size]
        assert reference.xxh3_64(data, 3) == xxh3_64_intdigest(data, 3)


def test_pages_are_digested_as_the_definition_says() -> None:
    """Just above one page the digests of both pages are digested by the same rule under the same seed."""
    data = _bytes(PAGE_BYTES + 5)
    pages = [xxh3_64_intdigest(data[:PAGE_BYTES], 9), xxh3_64_intdigest(data[PAGE_BYTES:], 9)]
    joined = b"".join(page.to_bytes(8, "little") for page in pages)
    assert reference.digest(data, 9) == xxh3_64_intdigest(joined, 9)
    assert reference.digest(data[:PAGE_BYTES], 9) == pages[0]


def test_the_seed_is_the_hash_of_dtype_and_shape() -> None:
    """The texts that the definition contains, and nothing else."""
    assert layout_text("float32", (64, 4)) == "float32[64,4]"
    assert layout_text("bool", ()) == "bool[]"
    assert seed_of("float32", (64, 4)) == xxh3_64_intdigest(b"float32[64,4]")


def test_digests_never_change() -> None:
    """The algorithm is named in every trace, so its digests are written down here and may never change."""
    assert reference.digest(b"", 0) == 0x2D06800538D394C2
    assert f"{reference.digest(bytes(range(256)), seed_of('uint8', (256,))):016x}" == VECTORS[0]
    assert f"{reference.digest(bytes(range(256)) * 65, seed_of('uint8', (65, 256))):016x}" == VECTORS[1]


VECTORS = ("50eb9bcd6159b4a9", "4d172f7f974bdd39")
