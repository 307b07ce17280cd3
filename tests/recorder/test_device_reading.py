"""Digests by way of a device, waited for; on CPU tensors here: those of the buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rltrace.digest import PAGE_BYTES, digest_buffer
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests import backend, layouts
from rltrace.recorder.digests.layouts import Layouts, logical_bytes
from rltrace.recorder.digests.tensor_digest import TensorDigests, digests_on_device


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
