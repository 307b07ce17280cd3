"""The fast path over memory: the reference's digests, from buffers and from addresses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.digest import PAGE_BYTES, digest_address, digest_buffer, digest_pages, reference

SEEDS = st.integers(0, 2**64 - 1)
AROUND_PAGES = (1, 8, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES, 2 * PAGE_BYTES + 9)


def _noise(size: int, key: int) -> np.ndarray:
    return np.random.default_rng(key).integers(0, 256, size, dtype=np.uint8)


@given(data=st.binary(max_size=700), seed=SEEDS)
@settings(max_examples=150)
def test_a_buffer_has_the_digest_of_the_reference(data: bytes, seed: int) -> None:
    """A buffer of any bytes under any seed has the digest of the definition."""
    assert digest_buffer(data, seed) == reference.digest(data, seed)


@given(size=st.sampled_from(AROUND_PAGES), key=st.integers(0, 99), seed=SEEDS)
@settings(max_examples=15)
def test_around_page_edges_buffers_and_addresses_have_the_digest_of_the_reference(
    size: int, key: int, seed: int
) -> None:
    """The same bytes have one digest as a NumPy array, as a memoryview and at a bare address."""
    data = _noise(size, key)
    expected = reference.digest(data.tobytes(), seed)
    assert digest_buffer(data, seed) == expected
    assert digest_buffer(memoryview(data.tobytes()), seed) == expected
    assert digest_address(data.ctypes.data, size, seed) == expected


@given(offset=st.integers(1, 63), size=st.integers(0, 400), seed=SEEDS)
@settings(max_examples=40)
def test_an_address_need_not_be_aligned(offset: int, size: int, seed: int) -> None:
    """Views of tensors begin anywhere."""
    data = _noise(512, 5)
    expected = reference.digest(data[offset : offset + size].tobytes(), seed)
    assert digest_address(data.ctypes.data + offset, size, seed) == expected


def test_no_bytes_have_a_digest_that_knows_its_seed() -> None:
    """Empty tensors of two shapes differ; the address of no bytes is never looked at."""
    assert digest_address(0, 0, 1) == digest_buffer(b"", 1) == reference.digest(b"", 1)
    assert digest_buffer(b"", 1) != digest_buffer(b"", 2)


@pytest.mark.parametrize("pages", [2, 3, 5])
def test_digests_of_pages_make_the_digest_of_the_whole(pages: int) -> None:
    """What a device hands over, eight bytes a page, is enough."""
    data = _noise(pages * PAGE_BYTES - 77, pages).tobytes()
    each = [reference.xxh3_64(data[i : i + PAGE_BYTES], 4) for i in range(0, len(data), PAGE_BYTES)]
    assert digest_pages(each, 4) == reference.digest(data, 4)
    assert digest_pages(each[::-1], 4) != digest_pages(each, 4)


def test_more_than_a_page_of_page_digests_is_cut_into_pages_again() -> None:
    """2,049 pages, so 16 KiB and 8 bytes of page digests: the rule applies to itself."""
    each = np.random.default_rng(1).integers(0, 2**63, PAGE_BYTES // 8 + 1).tolist()
    joined = b"".join(number.to_bytes(8, "little") for number in each)
    assert digest_pages(each, 6) == reference.digest(joined, 6)


def test_wider_elements_and_read_only_memory_are_taken_as_their_bytes() -> None:
    """Arrays of any dtype are digested by their bytes, frozen ones too."""
    data = np.arange(40, dtype=np.float64)
    data.flags.writeable = False
    assert digest_buffer(data, 2) == reference.digest(data.tobytes(), 2)
