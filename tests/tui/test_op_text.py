"""One op as lines: where its inputs come from, on both sides."""

from __future__ import annotations

import pytest

from rltrace.query.op_pair import PairedInput
from rltrace.query.ops import OpInput
from rltrace_tui.op_text import input_text


@pytest.mark.parametrize(
    ("a", "b", "match", "text"),
    [
        ((6, 0, 0), (6, 0, 0), "read", "= input 0  float32[4]  from op 6  read: hashed here on both sides, equal"),
        (
            (6, 0, 0),
            (6, 0, 2),
            "differ",
            "≠ input 0  float32[4]  from op 6 from element 0 | op 6 from element 2  differs",
        ),
        ((6, 0, 0), (6, 1, 0), "differ", "≠ input 0  float32[4]  from op 6 result 0 | op 6 result 1  differs"),
        (
            (6, 1, 3),
            (7, 1, 3),
            "",
            "  input 0  float32[4]  from op 6 result 1 from element 3 | op 7 result 1 from element 3",
        ),
        ((None, None, 4), (None, None, 4), "", "  input 0  float32[4]  from outside from element 4"),
    ],
)
def test_where_an_input_comes_from(
    a: tuple[int | None, int | None, int], b: tuple[int | None, int | None, int], match: str, text: str
) -> None:
    """The op that wrote it; its result and the first element, where they are not the first ones or differ."""
    sides = [OpInput("float32[4]", row, "outside" if row is None else "row", None, *part) for row, *part in (a, b)]
    assert input_text(PairedInput(0, sides[0], sides[1], match)) == text
