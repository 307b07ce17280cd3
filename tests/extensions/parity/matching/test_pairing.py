"""Rows of two sides that are the same row: by key within a step, several of one key by how their sequences go on."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.extensions.parity.matching.forward_passes import Forward
from rltrace.extensions.parity.matching.key_choice import grids_of as token_grids_of
from rltrace.extensions.parity.matching.layouts import RowLayout, placement
from rltrace.extensions.parity.matching.row_keying import KeyedRows
from rltrace.extensions.parity.matching.row_pairs import (
    LAST,
    KeyedTable,
    computed_again,
    missing,
    pair,
    partners,
    table_of,
)
from rltrace.extensions.parity.matching.token_grids import TokenGrid, token_grids
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part

Tokens = list[list[int]]
SEQUENCES = st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=4), min_size=1, max_size=5)


def fed(rows: Tokens, step: int = 0, number: int = 0) -> Forward:
    call = ModuleCall(number, None, "M.embed", "Embedding", step, "forward", False, 0, 0, ())
    ids = np.array(rows, np.int64)
    return Forward(call, ids.shape, ids, None, None)


def grids_of(sequences: Tokens) -> list[TokenGrid]:
    """Each sequence in a call of its own, numbered through."""
    return list(token_grids([fed([row], number=k) for k, row in enumerate(sequences)]))


def table(grids: list[TokenGrid], ranks: np.ndarray | None = None, salt: int = 0) -> KeyedTable:  # type: ignore[type-arg]
    """Rows whose digest is their place in their sequence, plus ``salt``."""
    sources = []
    for grid in grids:
        placed = placement(grid.shape, grid.shape, RowLayout.PLAIN)
        digests = (grid.places + salt).astype(np.uint64).reshape(grid.shape)
        tensor = ActivationRows(Part.OUTPUT, "", "float32", (*grid.shape, 4), (0, 1), digests, 0)
        sources.append((grid.anchor, KeyedRows(tensor, grid, placed.tokens, placed.tensor_rows)))
    return table_of(sources, ranks)


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, SEQUENCES)
def test_rows_pair_only_with_rows_of_the_same_tokens(a: Tokens, b: Tokens) -> None:
    """As often as both sides have a prefix; what is left over is of no key of the other side, or computed again."""
    own, other = grids_of(a), grids_of(b)
    x, y = table(own, partners(own, other)), table(other)
    pairs = pair(x, y)
    prefixes = [[tuple(row[: k + 1]) for row in side for k in range(len(row))] for side in (a, b)]
    common = sum(min(prefixes[0].count(p), prefixes[1].count(p)) for p in set(prefixes[0]))
    assert len(pairs.ids) == len(set(pairs.ids.tolist())) == common
    assert np.array_equal(x.keys[pairs.a], y.keys[pairs.b])
    assert len(pairs.only_a) == sum(p not in prefixes[1] for p in prefixes[0])


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.randoms())
def test_sequences_pair_with_those_that_go_on_alike(sequences: Tokens, random: Random) -> None:
    """A generator's sequences, each but for its last token, in another order: every row of theirs is one of the same
    text, so that what begins alike is not mixed up.
    """
    order = list(range(len(sequences)))
    random.shuffle(order)
    own, other = grids_of([[*row, 0] for row in sequences]), grids_of([[*sequences[k], 0, 0] for k in order])
    ranks = partners(own, other)
    texts = [tuple(sequences[k]) for k in order]
    assert [texts[rank] for rank in ranks.tolist()] == [tuple(row) for row in sequences]
    x, y = table(own, ranks), table(other)
    pairs = pair(x, y)
    at = dict(zip(ranks.tolist(), range(len(ranks)), strict=True))
    assert [at[k] for k in y.sequences[pairs.b].tolist()] == x.sequences[pairs.a].tolist()


def test_a_sequence_that_is_not_continued_has_no_partner() -> None:
    assert partners(grids_of([[1, 2], [3, 4]]), grids_of([[3, 4, 5]])).tolist() == [LAST, 0]


def test_rows_that_are_computed_again() -> None:
    """Each with the first time; in another step they are others."""
    twice = table([token_grids([fed([[1, 2]], number=k)])[0] for k in (0, 1)])
    assert [rows.tolist() for rows in computed_again(twice)] == [[2, 3], [0, 1]]
    steps = replace(twice, steps=np.array([0, 0, 1, 1]))
    assert [rows.tolist() for rows in computed_again(steps)] == [[], []]


# --- rows that one side lacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ([[1, 2, 3]], [[1, 2, 3]], (0, 0)),
        ([[1, 2, 3]], [[1, 2]], (1, 1)),  # the last sampled token
        ([[1, 2, 3, 4]], [[1, 2]], (2, 0)),  # two of them are more than that
        ([[1, 2, 3, 0, 0]], [[1, 2]], (3, 3)),
        ([[1, 2, 0, 0]], [[1, 2]], (2, 2)),
        ([[1, 2, 3, 4, 0, 0]], [[1, 2]], (4, 0)),
        ([[1, 2], [7, 8]], [[1, 2]], (2, 0)),  # a sequence that the other has not at all
        ([[1, 2, 2]], [[3, 1, 2]], (3, 0)),
        ([[1, 2], [0, 0]], [[1, 2]], (2, 2)),  # padding as a sequence of its own
    ],
)
def test_rows_that_have_no_partner(own: list[list[int]], other: list[list[int]], expected: tuple[int, int]) -> None:
    """All rows that the other side lacks, and of them those that were never fed back, and padding."""
    found = missing(token_grids([fed(own)]), token_grids([fed(other)]))
    assert (found.rows, found.excused) == expected
    assert found.counted == expected[0] - expected[1]


def test_a_row_of_another_step_is_no_partner() -> None:
    """The weights are others there."""
    assert missing(token_grids([fed([[1, 2]])]), token_grids([fed([[1, 2]], step=1)])).counted == 2


def test_padding_is_what_was_given() -> None:
    """Without a mask and without its id, padding on the left makes other sequences."""
    a, b = [fed([[9, 9, 1, 2], [3, 4, 5, 6]])], [fed([[1, 2, 8, 8], [3, 4, 5, 6]])]
    without, padded = token_grids_of(a, b, None), token_grids_of(a, b, 9)
    assert without.a[0].keys[2] != without.b[0].keys[0]
    assert padded.a[0].keys[2] == padded.b[0].keys[0]
    assert padded.how == "token 9 is padding, as given"
