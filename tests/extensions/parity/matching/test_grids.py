"""What the tokens of forward passes are known by: sequences, places in them, padding, wherever positions count from."""

from __future__ import annotations

import numpy as np
import pytest

from rltrace.extensions.parity.matching.forward_passes import Forward
from rltrace.extensions.parity.matching.token_grids import UNKNOWN, TokenGrid, padding, token_grids
from rltrace.trace.format.activation_rows import ModuleCall


def forward(
    number: int, ids: list[list[int]], positions: list[list[int]] | None = None, mask: list[list[int]] | None = None
) -> Forward:
    call = ModuleCall(number, None, "M.embed", "Embedding", 0, "forward", False, 0, 0, ())
    tokens = np.array(ids, np.int64)
    given = (None if array is None else np.array(array, np.int64) for array in (positions, mask))
    return Forward(call, tokens.shape, tokens, *given)


WHOLE = forward(0, [[5, 6, 7, 8]])


def keys(*forwards: Forward, pad: int | None = None) -> list[list[int]]:
    return [grid.keys.tolist() for grid in token_grids(forwards, pad)]


def test_sequences_and_places_go_on_with_a_cache() -> None:
    """Two sequences, the first padded on the left: the tokens that come one by one are theirs, place by place."""
    prompt = forward(0, [[0, 5], [5, 6]], [[1, 0], [0, 1]], [[0, 1], [1, 1]])
    step = forward(1, [[6], [7]], [[1], [2]])
    first, second = token_grids([prompt, step])
    assert first.sequences.tolist() == [UNKNOWN, 0, 1, 1]
    assert (second.sequences.tolist(), second.places.tolist()) == ([0, 1], [1, 2])
    assert [first.known, second.known] == [3, 2]
    own = keys(WHOLE)[0]
    assert first.keys.tolist() == [0, own[0], own[0], own[1]]
    assert second.keys.tolist() == [own[1], own[2]]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_positions_may_count_from_the_left_edge_or_from_another_number(first: int) -> None:
    """A library that counts padding too calls the third column position 2, then and later."""
    prompt = forward(0, [[0, 0, 5], [5, 6, 7]], [[first, first + 1, first + 2]] * 2, [[0, 0, 1], [1, 1, 1]])
    step = forward(1, [[6], [8]], [[first + 3], [first + 3]])
    own = keys(WHOLE)[0]
    assert keys(prompt, step) == [[0, 0, own[0], *own[:3]], [own[1], own[3]]]


def test_a_padding_token_without_a_mask() -> None:
    """Given by its id: a run of it at either end of a sequence, not within."""
    own = keys(WHOLE)[0]
    assert keys(forward(0, [[9, 9, 5, 6, 7, 8, 9]]), pad=9) == [[0, 0, *own, 0]]
    assert padding(np.array([[9, 5, 9, 6, 9]]), 9).tolist() == [[True, False, False, False, True]]


def test_sequences_of_two_models_are_numbered_through() -> None:
    other = ModuleCall(7, None, "Critic.embed", "Embedding", 0, "forward", False, 0, 0, ())
    grids: tuple[TokenGrid, ...] = token_grids([WHOLE, Forward(other, (1, 4), WHOLE.ids, None, None)])
    assert [sorted(set(grid.sequences.tolist())) for grid in grids] == [[0], [1]]
    assert grids[0].keys.tolist() == grids[1].keys.tolist()
