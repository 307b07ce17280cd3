"""Digests by way of a device, waited for; on CPU tensors here: those of the buffers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rltrace.digest import PAGE_BYTES, digest_buffer, seed_of
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests import backend, layouts, torch_backend
from rltrace.recorder.digests.layouts import Layouts, logical_bytes
from rltrace.recorder.digests.tensor_digest import TensorDigests, digest_on_device, digests_on_device

SEEDS = st.integers(0, 2**64 - 1)


SIZES = (0, 1, 7, 300, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES, 3 * PAGE_BYTES + 1_001)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_have_the_digest_of_the_buffer(size: int) -> None:
    """Around page edges, whatever the storage offset: pages of a view may lie across words."""
    data = np.random.default_rng(size).integers(0, 256, size + 16, dtype=np.uint8)
    for offset in (0, 1, 8, 13):
        whole = torch.from_numpy(data)
        expected = digest_buffer(data[offset : offset + size], 11)
        assert digest_on_device(whole[offset : offset + size], 11) == expected


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.bool, torch.complex64]
)
def test_every_width_is_taken_as_its_bytes(dtype: torch.dtype) -> None:
    """0-dimensional, matrix, and larger than a page."""
    for shape in ((), (3, 5), (130, 129)):
        values = torch.randn(shape).to(dtype)
        seed = seed_of(str(dtype)[6:], shape)
        data = values.view(torch.int16).numpy() if dtype is torch.bfloat16 else values.numpy()
        assert digest_on_device(values, seed) == digest_buffer(np.ascontiguousarray(data), seed)


def test_a_single_element_may_have_any_stride() -> None:
    """Contiguous though its stride is 7: torch refuses to view such a tensor as bytes."""
    odd = torch.randn(7)[::7]
    assert odd.is_contiguous() and odd.stride() == (7,)
    assert digest_on_device(odd, 3) == digest_buffer(odd.numpy(), 3)


@given(seeds=st.lists(SEEDS, max_size=12), key=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_many_at_once_have_the_digests_that_each_has(seeds: list[int], key: int) -> None:
    """Of any sizes, each under its own seed: pages of several lie side by side, and come back in the same order."""
    generator = random.Random(key)
    sizes = [generator.choice((*SIZES, 5, 64, 257 * PAGE_BYTES + 3)) for _ in seeds]
    data = [np.frombuffer(generator.randbytes(size + 1), np.uint8)[:size].copy() for size in sizes]
    tensors = [torch.from_numpy(each) for each in data]
    expected = [digest_buffer(each, seed) for each, seed in zip(data, seeds, strict=True)]
    assert digests_on_device(tensors, seeds) == expected


def test_more_pages_than_are_digested_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are cut: those of one large tensor, and of many small ones."""
    monkeypatch.setattr(torch_backend, "PAGES_AT_ONCE", 7)
    monkeypatch.setattr(torch_backend, "SEPARATE_PAGES", 5)
    generator = np.random.default_rng(3)
    data = [generator.integers(0, 256, n * PAGE_BYTES + n, dtype=np.uint8) for n in (4, 40, 4, 4, 4, 2, 5, 1)]
    seeds = list(range(len(data)))
    expected = [digest_buffer(each, seed) for each, seed in zip(data, seeds, strict=True)]
    assert digests_on_device([torch.from_numpy(each) for each in data], seeds) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda words: words.view(300, 700).t(),
        lambda words: words.view(1, 525, 400)[:, 3:, 1:],
        lambda words: words.view(torch.complex64).view(250, 420).t().conj(),
        lambda words: words.view(1050, 200)[::2].expand(1, 1, -1, -1),
        lambda words: words[:70_000].view(70, 1000).expand(3, 70, 1000),
        lambda words: words.view(3, 2, 35_000)[::2].transpose(0, 1)[..., 1:],
    ],
)
def test_a_large_tensor_is_condensed_slab_by_slab(make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided, conjugated or expanded one has the digest of its logical bytes, and is never copied as a whole."""
    monkeypatch.setattr(layouts, "SLAB_BYTES", 5 * PAGE_BYTES)
    copied: list[int] = []
    monkeypatch.setattr(
        backend, "logical_bytes", lambda part: copied.append(part.numel() * part.element_size()) or logical_bytes(part)
    )
    tensor = make(torch.randn(210_000))
    assert digests_on_device([tensor, torch.ones(3)], [7, 8]) == [
        digest_buffer(logical_bytes(tensor).numpy(), 7),
        digest_buffer(np.ones(3, np.float32), 8),
    ]
    assert len(copied) > 5 and max(copied) <= layouts.SLAB_BYTES


def test_several_tensors_of_all_kinds() -> None:
    """None has digest 0; sparse, strided, conjugated, empty and on no device: what each has by itself."""
    digests = TensorDigests(Layouts(Tables()))
    tensors = [
        torch.randn(5),
        None,
        torch.randn(4, 6).t(),
        torch.eye(3).to_sparse(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.empty(0),
        torch.empty(3, device="meta"),
        nn.Parameter(torch.randn(2, 2)),
    ]
    assert digests.several(tensors) == [0 if tensor is None else digests.of(tensor) for tensor in tensors]
    assert digests.several([]) == []


@pytest.mark.gpu
def test_several_tensors_of_a_gpu_are_read_back_together() -> None:
    """The digests of the same bytes on a CPU, those of other devices among them, and one wait for all."""
    digests = TensorDigests(Layouts(Tables()))
    plain = [torch.randn(n, 3) for n in (1, 70, 3_000, 90_001)]
    mixed = [tensor.cuda() if place % 3 else tensor for place, tensor in enumerate(plain)]
    assert digests.several(mixed) == [digests.of(tensor) for tensor in plain]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, PAGE_BYTES, 5 * PAGE_BYTES + 77, 3_000_001])
def test_a_gpu_computes_the_same_digests(size: int) -> None:
    """The same bytes, on a CUDA device."""
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert digest_on_device(torch.from_numpy(data).cuda(), 3) == digest_buffer(data, 3)
