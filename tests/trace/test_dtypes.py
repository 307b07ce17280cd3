"""Stored elements read as the numbers that torch reads."""

import numpy as np
import pytest
import torch

from rltrace.trace.format import dtypes

WIDENED = {
    "bfloat16": torch.int16,
    "complex32": torch.int32,
    "float8_e4m3fn": torch.uint8,
    "float8_e5m2": torch.uint8,
    "float8_e4m3fnuz": torch.uint8,
    "float8_e5m2fnuz": torch.uint8,
    "float8_e8m0fnu": torch.uint8,
}


@pytest.mark.parametrize("name", WIDENED)
def test_dtypes_that_numpy_lacks(name: str) -> None:
    """Every pattern of bits (of complex32 many) is the number that torch widens it to, NaN and infinities included."""
    bits = {torch.uint8: torch.arange(256), torch.int16: torch.arange(1 << 16)}.get(
        WIDENED[name], torch.arange(1 << 14) * 262_139
    )
    stored = bits.to(WIDENED[name])
    expected = stored.view(getattr(torch, name)).to(torch.complex64 if "complex" in name else torch.float32).numpy()
    found = dtypes.numbers(name, dtypes.raw(name, stored.numpy().tobytes()))
    assert found.dtype == expected.dtype
    a, b = found.view(np.float32), expected.view(np.float32)
    assert ((np.isnan(a) & np.isnan(b)) | (a.view(np.uint32) == b.view(np.uint32))).all()


def test_sizes() -> None:
    """Bytes of an element as torch counts them; None for a dtype whose values are not recorded."""
    for name in (*dtypes.PLAIN, *WIDENED):
        assert dtypes.itemsize(name) == getattr(torch, name).itemsize
    assert dtypes.itemsize("quint8") is None
