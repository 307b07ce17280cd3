"""What the tokens of forward passes are known by: sequences, places in them, padding, wherever positions count from."""

import numpy as np
import pytest

from rltrace.extensions.parity.matching.forward_passes import Forward
from rltrace.extensions.parity.matching.layouts import RowLayout, layouts, placement
from rltrace.extensions.parity.matching.token_grids import UNKNOWN, TokenGrid, padding, token_grids
from rltrace.extensions.parity.token_keys import NO_KEY, Sequences
from rltrace.trace.format.activation_rows import ModuleCall

# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_cache_changes_no_key() -> None:
    """A sequence given whole, and the same one given as a prompt and token by token, have the same keys."""
    whole = Sequences().keys(np.array([[5, 6, 7, 8]]))
    cached = Sequences()
    parts = [cached.keys(np.array([[5, 6]]), np.array([[0, 1]]))]
    parts += [cached.keys(np.array([[token]]), np.array([[at]])) for token, at in ((7, 2), (8, 3))]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
    assert len(set(whole[0].tolist())) == 4


def test_padding_on_either_side_has_no_key_and_changes_none() -> None:
    """Left and right padding give the tokens the keys they have without."""
    plain = Sequences().keys(np.array([[5, 6, 7]]))[0]
    left = Sequences().keys(np.array([[0, 5, 6, 7]]), np.array([[1, 0, 1, 2]]), np.array([[0, 1, 1, 1]]))[0]
    right = Sequences().keys(np.array([[5, 6, 7, 0]]), None, np.array([[1, 1, 1, 0]]))[0]
    assert left.tolist() == [NO_KEY, *plain] and right.tolist() == [*plain, NO_KEY]


def test_a_token_after_another_prefix_has_another_key() -> None:
    """The same token at the same place after other ones, or after the same ones in another order, is another row."""
    keys = Sequences().keys(np.array([[1, 2, 3], [2, 1, 3], [9, 2, 3]]))
    assert len(set(keys[:, 2].tolist())) == 3


def test_what_is_not_known_has_no_key() -> None:
    """A call that goes on where no sequence stands, or with another batch, is given no key rather than a wrong one."""
    cached = Sequences()
    cached.keys(np.array([[5, 6]]), np.array([[0, 1]]))
    assert cached.keys(np.array([[7]]), np.array([[5]])).tolist() == [[NO_KEY]]
    assert cached.keys(np.array([[7]]), np.array([[2]])).tolist() == [[NO_KEY]]  # nor afterwards
    cached.keys(np.array([[5, 6]]), np.array([[0, 1]]))
    assert cached.keys(np.array([[7], [7]]), np.array([[2], [2]])).tolist() == [[NO_KEY], [NO_KEY]]


def test_a_mask_alone_shows_how_long_a_sequence_is() -> None:
    """Without positions the mask says how many tokens came before, padding aside."""
    whole = Sequences().keys(np.array([[5, 6, 7]]))[0]
    cached = Sequences()
    cached.keys(np.array([[0, 5, 6]]), None, np.array([[0, 1, 1]]))
    assert cached.keys(np.array([[7]]), None, np.array([[0, 1, 1, 1]])).tolist() == [[whole[2]]]


def test_sequences_packed_into_one_row_are_separated_by_their_positions() -> None:
    """As trainers without padding have them; one whose beginning is not there has no key."""
    plain = [Sequences().keys(np.array([ids]))[0].tolist() for ids in ([5, 6, 7], [8, 9])]
    packed = Sequences().keys(np.array([[5, 6, 7, 8, 9]]), np.array([[0, 1, 2, 0, 1]]))[0]
    assert packed.tolist() == [*plain[0], *plain[1]]
    cut = Sequences().keys(np.array([[5, 6, 7, 4, 9]]), np.array([[0, 1, 2, 2, 3]]))[0]
    assert cut.tolist() == [*plain[0], NO_KEY, NO_KEY]


def test_padding_that_only_positions_show_changes_no_key() -> None:
    """Left padding whose positions are all 1, or all 0, as libraries fill them in."""
    plain = Sequences().keys(np.array([[5, 6, 7]]))[0].tolist()
    for filled in (1, 0):
        keys = Sequences().keys(np.array([[2, 2, 5, 6, 7]]), np.array([[filled, filled, 0, 1, 2]]))[0]
        assert keys[2:].tolist() == plain


# --- grids ------------------------------------------------------------------------------------------------------------


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


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "grid", "expected"),
    [
        ((4, 20), (4, 20), ["plain"]),
        ((80,), (4, 20), ["flat"]),
        ((4, 20, 8), (4, 20), ["grouped"]),
        ((80, 8), (4, 20), ["flat-grouped"]),
        ((4, 8, 20), (4, 20), ["heads-first"]),
        ((4, 20, 20), (4, 20), ["grouped", "heads-first"]),
        ((4, 8, 1), (4, 1), ["heads-first"]),
        ((4, 1, 8), (4, 1), ["grouped"]),
        ((1, 20), (4, 20), ["shared"]),
        ((1, 20, 3), (4, 20), ["shared-grouped"]),
        ((4, 1), (4, 20), []),  # of which tokens, only content can say
        ((1, 8, 1), (1, 1), ["heads-first"]),
        ((1, 1, 1), (1, 1), ["grouped"]),
        ((4,), (4, 20), []),
        ((13,), (4, 20), []),
        ((20, 4), (4, 20), []),
        ((64,), (64,), ["plain"]),
        ((64, 3), (64,), ["grouped"]),
        ((63,), (64,), []),
        ((4, 20, 0), (4, 20), []),
        ((20,), (4, 20), ["shared"]),
    ],
)
def test_shapes_that_allow_a_reading(shape: tuple[int, ...], grid: tuple[int, ...], expected: list[str]) -> None:
    """Every way in which rows of this shape may be the grid's tokens."""
    assert [layout.value for layout in layouts(shape, grid)] == expected


def test_heads_of_a_token_are_its_own() -> None:
    """[2 sequences, 3 heads, 2 tokens]: token 1 of sequence 0 has rows 1, 3, 5; token 0 of sequence 1 rows 6, 8, 10."""
    placed = placement((2, 3, 2), (2, 2), RowLayout.HEADS_FIRST)
    assert placed.tensor_rows.tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_what_all_sequences_share_is_each_ones() -> None:
    placed = placement((1, 2, 2), (2, 2), RowLayout.SHARED_GROUPED)
    assert placed.tensor_rows.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert placed.tokens.tolist() == [0, 1, 2, 3]
