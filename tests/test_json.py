"""Dataclasses and named tuples as JSON, there and back, and what is said of an object that is not one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.diff.base.model import Pair
from rltrace.json import JsonError, from_json, to_json


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(NamedTuple):
    number: float
    sides: Pair[str]


@dataclass(frozen=True)
class Outer:
    name: str
    count: int | None
    colour: Colour
    inner: tuple[Inner, ...]
    window: tuple[int, bool]
    counts: Mapping[str, int] = field(default_factory=dict)

    SCHEMA: ClassVar = "test/1"
    COMPUTED: ClassVar = ("length",)

    @property
    def length(self) -> int:
        return len(self.inner)


class Named(NamedTuple):
    x: int


TEXT = st.text(max_size=5)
INNER = st.builds(Inner, st.floats(allow_nan=False), st.builds(Pair, st.none() | TEXT, st.none() | TEXT))
OUTER = st.builds(
    Outer,
    TEXT,
    st.none() | st.integers(),
    st.sampled_from(Colour),
    st.lists(INNER, max_size=3).map(tuple),
    st.tuples(st.integers(), st.booleans()),
    st.dictionaries(TEXT, st.integers(), max_size=2),
)
WHOLE: dict[str, Any] = to_json(Outer("x", 1, Colour.RED, (Inner(0.5, Pair("a", None)),), (1, True), {"y": 2}))


@given(OUTER)
def test_there_and_back(outer: Outer) -> None:
    """Every field is what it was, infinities included, through valid JSON."""
    assert from_json(Outer, json.loads(json.dumps(to_json(outer), allow_nan=False))) == outer


def test_keys() -> None:
    """The schema, the fields by their names, and the properties that are part of it."""
    assert list(WHOLE) == ["schema", "name", "count", "colour", "inner", "window", "counts", "length"]
    assert (WHOLE["schema"], WHOLE["colour"], WHOLE["length"]) == ("test/1", "red", 1)
    assert WHOLE["inner"] == [{"number": 0.5, "sides": {"a": "a", "b": None}}]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1 + 2j, [1.0, 2.0]),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (Named(1), {"x": 1}),
        ((1, [Path("a/b")]), [1, ["a/b"]]),
    ],
)
def test_what_json_has_no_word_for(value: object, written: object) -> None:
    """Numbers that are none, complex ones, NumPy's, named tuples and paths."""
    assert to_json(value) == written


def test_what_has_no_json() -> None:
    """It is refused, rather than written in whatever form."""
    with pytest.raises(TypeError):
        to_json(iter([1]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"count": "1"}, '"count" is no int'),
        ({"count": True}, '"count" is no int'),
        ({"colour": "green"}, "\"colour\": 'green' is not a valid Colour"),
        ({"inner": [{"number": 1}]}, '"inner[0].sides" is missing'),
        ({"inner": [{"number": "far", "sides": {}}]}, '"inner[0].number" is no float'),
        ({"window": [1]}, '"window" has 1 items, not 2'),
        ({"counts": {"y": None}}, '"counts.y" is no int'),
    ],
)
def test_what_is_something_else(change: Mapping[str, object], why: str) -> None:
    """One sentence names the key and what is wrong with it; unknown keys and missing ones with a default are fine."""
    with pytest.raises(JsonError) as raised:
        from_json(Outer, {**WHOLE, **change})
    assert str(raised.value) == why
    assert from_json(Outer, {key: value for key, value in WHOLE.items() if key != "counts"} | {"later": 1}).counts == {}
    with pytest.raises(JsonError, match='"name" is missing'):
        from_json(Outer, {})
