"""Rows known by where they stood before: by memory, by bits, and not at all where that leaves a choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rltrace.extensions.parity.patching.known_tensors import KnownTensors
from rltrace.extensions.parity.token_keys import NONE
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests.layouts import Layouts

Tensor = torch.Tensor


def met(keys: list[int], hidden: Tensor) -> KnownTensors:
    found = KnownTensors(np.array(keys, np.uint64), Layouts(Tables()))
    found.add(hidden, np.arange(len(keys)))
    return found


@pytest.mark.parametrize("how", [lambda t: t, torch.clone], ids=["view", "copy"])
@pytest.mark.parametrize(
    "part",
    [
        lambda t: t[:, 1:],
        lambda t: t[:, :-1],
        lambda t: t[1:, ::2],
        lambda t: t.transpose(0, 1),
        lambda t: t.reshape(-1, 2)[3:5],
        lambda t: t[:, 0],
    ],
)
def test_parts_of_a_tensor(part: Callable[[Tensor], Tensor], how: Callable[[Tensor], Tensor]) -> None:
    """Whatever is taken of it, as a view or copied: the row of the pass that each row is."""
    hidden = torch.randn(2, 3, 2)
    places = torch.arange(6.0).view(2, 3, 1).expand(2, 3, 2).contiguous()
    rows = met([1, 2, 3, 4, 5, 6], hidden).rows(how(part(hidden)))
    assert rows is not None
    assert rows.tolist() == part(places)[..., 0].reshape(-1).tolist()


def test_the_same_bits_at_tokens_of_two_keys_are_nobodys() -> None:
    """A copy of a row that stood at two places is either; of tokens with one key, it does not matter which."""
    hidden = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0]])
    rows = met([1, 2, 7, 2], hidden).rows(hidden[:2].clone())
    assert rows is not None
    assert rows.tolist() == [NONE, 1]


def test_what_stood_nowhere_is_not_known() -> None:
    """Nor is what was written since, or has gone."""
    hidden = torch.randn(4, 2)
    known = met([1, 2, 3, 4], hidden)
    copied = hidden[1:3].clone()
    assert known.rows(torch.randn(2, 2)) is None
    assert known.rows(copied) is not None
    hidden += 1
    assert met([1, 2, 3, 4], hidden).rows(copied) is None
    fresh = KnownTensors(np.array([1, 2, 3, 4], np.uint64), Layouts(Tables()))
    fresh.add(hidden.clone(), np.arange(4))
    assert fresh.rows(hidden[1:3]) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_copies_are_found_as_a_search_finds_them(values: list[int], data: st.DataObject) -> None:
    """Row by row, in words: all places with these bits have one key, or none."""
    keys = data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values)))
    hidden = torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 2).contiguous()
    at = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=6))
    rows = met(keys, hidden).rows(hidden[at].clone())
    assert rows is not None
    for row, place in zip(rows.tolist(), at, strict=True):
        same = [i for i, value in enumerate(values) if value == values[place]]
        if len({keys[i] for i in same}) == 1:
            assert keys[row] == keys[place]
            assert row in same
        else:
            assert row == NONE
