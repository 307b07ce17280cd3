"""Keys of tokens: the same for the same sequence so far, whatever the batch, the padding and the cache."""

from __future__ import annotations

import numpy as np

from rltrace.extensions.parity.token_keys import NO_KEY, Sequences


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


def test_a_flat_batch_gives_no_key_to_what_may_continue_another_sequence() -> None:
    """An engine's batches: prompts of 4 and 3 tokens, then a new prompt of 6 with a decoded token of each before and
    after it. Only what begins within a batch, at positions that no earlier one had, is certain.
    """
    flat = Sequences()
    plain = [Sequences().keys(np.array([ids]))[0].tolist() for ids in ([5, 9, 3, 7], [8, 1, 4], [5, 9])]
    prefill = flat.flat_keys(np.array([5, 9, 3, 7, 8, 1, 4]), np.array([0, 1, 2, 3, 0, 1, 2]))
    assert prefill.tolist() == [*plain[0], *plain[1]]
    mixed = flat.flat_keys(np.array([6, 5, 9, 3, 7, 2, 2]), np.array([4, 0, 1, 2, 3, 4, 3]))
    assert mixed.tolist() == [NO_KEY, plain[0][0], *[NO_KEY] * 5]


def test_padding_that_only_positions_show_changes_no_key() -> None:
    """Left padding whose positions are all 1, or all 0, as libraries fill them in."""
    plain = Sequences().keys(np.array([[5, 6, 7]]))[0].tolist()
    for filled in (1, 0):
        keys = Sequences().keys(np.array([[2, 2, 5, 6, 7]]), np.array([[filled, filled, 0, 1, 2]]))[0]
        assert keys[2:].tolist() == plain
