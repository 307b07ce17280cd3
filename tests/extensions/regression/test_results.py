"""Results are compared by their bits."""

import struct
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from rltrace.extensions.regression.runs import copied, difference


@dataclass
class Batch:
    reward: torch.Tensor


def other_nan() -> torch.Tensor:
    return torch.tensor(struct.unpack("<i", b"\1\0\xc0\x7f")[0], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), None),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), None),
        (torch.tensor(float("nan")), other_nan(), "the result: 1 of 1 elements differ"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "1 only in the sign of zero"),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), "by at most 1 ULP"),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), "the result is float32[1] and float64[1]"),
        (torch.ones(2, 3).T, torch.ones(3, 2), None),
        (torch.tensor([1j]).conj(), torch.tensor([complex(0, -1)]), None),
        (torch.tensor([True, False]), torch.tensor([True, True]), "1 of 2 elements differ"),
        (np.float32(1), np.float32(1), None),
        (np.arange(3), np.arange(3) + 1, "3 of 3 elements differ"),
        (np.array(["a", None]), np.array(["a", None]), None),
        (0.0, -0.0, "the result is 0.0 and -0.0"),
        (float("nan"), float("nan"), None),
        (1, 1.0, "the result is a int and a float"),
        ("a", "b", "the result is 'a' and 'b'"),
        ({"x": [1, 2]}, {"x": [1, 3]}, "the result['x'][1] is 2 and 3"),
        ({"x": 1}, {"y": 1}, "the result has other keys: 'x' on one side only"),
        ((1,), (1, 2), "the result has 1 and 2 elements"),
        (Batch(torch.zeros(1)), Batch(torch.ones(1)), "the result['reward']: 1 of 1"),
    ],
)
def test_bits_decide(a: object, b: object, expected: str | None) -> None:
    """The first place that differs is named; equal bits are no difference, equal numbers of other bits are."""
    found = difference(copied(a), copied(b))
    assert (found is None) if expected is None else (expected in (found or ""))


def test_a_copy_keeps_the_state_of_a_module() -> None:
    """What a program writes later is not in it."""
    module = nn.Linear(2, 2)
    before = copied(module)
    assert difference(before, copied(module)) is None
    with torch.no_grad():
        module.bias.add_(1)
    assert difference(before, copied(module)) is not None
