"""Which rows that one side never computed count, and which need no partner; and padding without a mask."""

from __future__ import annotations

import numpy as np
import pytest

from rltrace.extensions.parity.matching.forward_passes import Forward
from rltrace.extensions.parity.matching.key_choice import grids_of
from rltrace.extensions.parity.matching.row_pairs import missing
from rltrace.extensions.parity.matching.token_grids import token_grids
from rltrace.trace.format.activation_rows import ModuleCall


def fed(rows: list[list[int]], step: int = 0) -> Forward:
    call = ModuleCall(step, None, "M.embed", "Embedding", step, "forward", False, 0, 0, ())
    ids = np.array(rows, np.int64)
    return Forward(call, ids.shape, ids, None, None)


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
    without, padded = grids_of(a, b, None), grids_of(a, b, 9)
    assert without.a[0].keys[2] != without.b[0].keys[0]
    assert padded.a[0].keys[2] == padded.b[0].keys[0]
    assert padded.how == "token 9 is padding, as given"
