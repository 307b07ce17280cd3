"""Tensors condensed by torch operations, run on CPU tensors here: finished, they have the digests of their buffers."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.digest import PAGE_BYTES, digest_buffer, reference
from rltrace.recorder.digests import torch_backend
from rltrace.recorder.digests.backend import condense
from rltrace.recorder.digests.torch_backend import condensed_words, finished, page_digests, signed

SIZES = (0, 1, 7, 8, 300, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES, 3 * PAGE_BYTES + 1_001)
SEEDS = st.integers(0, 2**64 - 1)

EXTREMES = (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2**32, 2**64 - 1)


@given(seed=SEEDS, key=st.integers(0, 9))
@settings(max_examples=8, deadline=None)
def test_a_page_has_the_digest_of_the_reference(seed: int, key: int) -> None:
    """Random pages under random seeds."""
    data = random.Random(key).randbytes(PAGE_BYTES)
    page = torch.frombuffer(bytearray(data), dtype=torch.int64).view(1, -1)
    assert page_digests(page, seed).tolist() == [signed(reference.xxh3_64(data, seed))]


@pytest.mark.parametrize("fill", [0, -1, -(2**63), 2**63 - 1, 0x80000000, 0x7F800000FF800000])
def test_extreme_pages_have_the_digest_of_the_library(fill: int) -> None:
    """Where unsigned sums and products wrap, signed ones must wrap alike."""
    page = torch.full((1, PAGE_BYTES // 8), fill)
    for seed in (0, 1, 2**63, 2**64 - 1):
        assert page_digests(page, seed).tolist() == [signed(digest_buffer(page.numpy(), seed))]


@given(factors=st.lists(st.tuples(SEEDS, SEEDS), max_size=20))
@settings(max_examples=50, deadline=None)
def test_products_are_folded_with_every_carry(factors: list[tuple[int, int]]) -> None:
    """Low half xor high half, of numbers of 128 bits that torch does not have."""
    factors += [(a, b) for a in EXTREMES for b in EXTREMES]
    a, b = (torch.tensor([signed(pair[side]) for pair in factors]) for side in (0, 1))
    assert torch_backend._fold(a, b).tolist() == [signed(x * y ^ x * y >> 64) for x, y in factors]


def _condensed(tensors: list[torch.Tensor], seeds: list[int], at: int = 0) -> list[int]:
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    counts = [condensed_words(size) for size in sizes]
    into = torch.full((at + sum(counts) + 3,), -1)
    condense(tensors, seeds, into, at)
    assert into[:at].eq(-1).all() and into[at + sum(counts) :].eq(-1).all()
    words = into[at : at + sum(counts)].split(counts)
    return [finished(part.numpy(), size, seed) for part, size, seed in zip(words, sizes, seeds, strict=True)]


@given(seeds=st.lists(SEEDS, max_size=12), key=st.integers(0, 99), at=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_any_tensors_at_once(seeds: list[int], key: int, at: int) -> None:
    """Of any sizes from any addresses on, each under its seed, from any word on; what is beside them is left alone."""
    generator = random.Random(key)
    sizes = [generator.choice((*SIZES, 5, 64, 257 * PAGE_BYTES + 3)) for _ in seeds]
    offsets = [generator.choice((0, 1, 8, 13)) for _ in seeds]
    data = [np.frombuffer(generator.randbytes(size + 16), np.uint8).copy() for size in sizes]
    cut = [each[offset : offset + size] for each, size, offset in zip(data, sizes, offsets, strict=True)]
    expected = [digest_buffer(each, seed) for each, seed in zip(cut, seeds, strict=True)]
    assert _condensed([torch.from_numpy(each) for each in cut], seeds, at) == expected


def test_more_pages_than_are_digested_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are cut: those of one large tensor, and of many small ones."""
    monkeypatch.setattr(torch_backend, "PAGES_AT_ONCE", 7)
    monkeypatch.setattr(torch_backend, "SEPARATE_PAGES", 5)
    generator = np.random.default_rng(3)
    data = [generator.integers(0, 256, n * PAGE_BYTES + n, dtype=np.uint8) for n in (4, 40, 4, 4, 4, 2, 5, 1)]
    expected = [digest_buffer(each, seed) for seed, each in enumerate(data)]
    assert _condensed([torch.from_numpy(each) for each in data], list(range(len(data)))) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int16, torch.bool, torch.complex64])
def test_every_width_is_taken_as_its_bytes(dtype: torch.dtype) -> None:
    """0-dimensional, matrix, larger than a page; one element whose stride is 7."""
    tensors = [torch.randn(shape).to(dtype) for shape in ((), (3, 5), (130, 129))] + [torch.ones(7).to(dtype)[::7]]
    data = [bytes(tensor.clone(memory_format=torch.contiguous_format).untyped_storage()) for tensor in tensors]
    assert _condensed(tensors, [5] * 4) == [digest_buffer(each, 5) for each in data]


def test_what_is_read_as_words_begins_with_one() -> None:
    """A device reads no word across two; a storage that another library lent may begin anywhere."""
    lent = torch.frombuffer(bytearray(PAGE_BYTES + 8), dtype=torch.uint8, offset=1, count=PAGE_BYTES)
    assert lent.storage_offset() == 0 and lent.data_ptr() % 8
    assert torch_backend.whole_pages(lent).data_ptr() % 8 == 0


def test_a_whole_page_is_one_word() -> None:
    """Condensed sizes, around a page's."""
    assert [condensed_words(size) for size in SIZES] == [0, 1, 1, 1, 38, 2048, 1, 2, 3, 3 + 126]
