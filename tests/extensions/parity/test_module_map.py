"""A map file: what its lines mean, and what is said of one that is wrong."""

from __future__ import annotations

import pytest

from rltrace.extensions.parity.module_names import MapError, apply_map, parse_map

A = ["Gen", "Gen.layers.0.q", "Gen.layers.1.q", "Gen.head"]
B = ["Train", "Train.blocks.0.query", "Train.blocks.1.query", "Train.out"]


def _applied(text: str) -> dict[str, str]:
    return apply_map(parse_map(text, "names.map"), "names.map", A, B)


def test_what_a_star_stood_for_is_carried_over() -> None:
    """Comments and empty lines say nothing."""
    text = "# names\n\nGen.layers.*.q = Train.blocks.*.query   # both layers\nGen.head = Train.out\n"
    assert _applied(text) == {
        "Gen.layers.0.q": "Train.blocks.0.query",
        "Gen.layers.1.q": "Train.blocks.1.query",
        "Gen.head": "Train.out",
    }


def test_a_line_may_say_again_what_another_says() -> None:
    """Only lines that say different things contradict each other."""
    assert _applied("Gen.head = Train.out\nGen.h* = Train.out*".replace("h*", "head*")) == {"Gen.head": "Train.out"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Gen.head", "names.map:1: a line is A-GLOB = B-GLOB"),
        ("Gen.head = ", "names.map:1: a line is A-GLOB = B-GLOB"),
        ("a = b = c", "names.map:1: a line is A-GLOB = B-GLOB"),
        ("# nothing\n", "names.map holds no line"),
        ("\nGen.*.q = Train.out", "names.map:2: each * of A matches one of B: there are 1 on the left, 0 on the"),
        ("Gen.layer.*.q = Train.blocks.*.query", "no module of A is called Gen.layer.*.q; similar: Gen.layers."),
        ("Gen.layers.*.q = Train.block.*.q", "no module of B is called Train.block.0.q, for Gen.layers.0.q of A;"),
        ("Gen.head = Train.out\nGen.head = Train", "names.map:2: Gen.head of A is Train here, and Train.out by line 1"),
        ("Gen.head = Train.out\nGen = Train.out", "names.map:2: Train.out of B is Gen here, and Gen.head by line 1"),
    ],
)
def test_a_line_that_is_wrong_is_named(text: str, said: str) -> None:
    """With its number, what is wrong with it, and names near to the one that is not there."""
    with pytest.raises(MapError) as raised:
        _applied(text)
    assert said in str(raised.value)
