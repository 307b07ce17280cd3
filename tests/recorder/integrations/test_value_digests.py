"""Values of small fields of events: the cells that hold them, read back as they were, and in no hash."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from recorded import Record
from toy_environments import Walk

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.recorder.integrations.value_digests import ValueDigests
from rltrace.trace.format.events import event_of, field_values
from rltrace.trace.format.schema import FIELD_DTYPES, MAX_FIELD_DIMENSIONS, MAX_FIELD_ELEMENTS, Kind

NAMES = ("action", "observation", "reward")
DIGESTS = ValueDigests(lambda tensor: 0)

LARGEST = (MAX_FIELD_ELEMENTS,), (1,) * MAX_FIELD_DIMENSIONS
SMALL = st.sampled_from(FIELD_DTYPES).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, max_side=2) | st.sampled_from(LARGEST))
)
NUMBERS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats()


@given(st.lists(SMALL | NUMBERS, min_size=1, max_size=3))
def test_values_are_read_back_as_they_were(values: list[Any]) -> None:
    """Of every dtype and shape, one after another: bit for bit, NaN and the sign of zero included."""
    cells = [cell for place, value in enumerate(values) for cell in DIGESTS.cells(place, value)]
    found = dict(field_values(cells, NAMES))
    assert list(found) == list(NAMES[: len(values)])
    for value, read in zip(values, found.values(), strict=True):
        array = np.asarray(value)
        assert read.shape == array.shape
        again = np.array(read.elements, array.dtype)
        assert np.array_equal(again, array.ravel(), equal_nan=array.dtype.kind == "f")
        assert (
            array.dtype.kind != "f"
            or np.array_equal(np.signbit(again), np.signbit(array.ravel()))
            or np.isnan(again).any()
        )


@pytest.mark.parametrize(
    "value",
    [
        *(np.zeros(MAX_FIELD_ELEMENTS + 1), np.zeros(0), np.zeros(2, ">f8"), np.array(["a"]), np.zeros((1,) * 7)),
        *(np.zeros(1, np.complex64), 2**63, "left", None, [1.0], {"x": 1.0}),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_other_values_are_only_digested(value: object) -> None:
    """Large, empty or nested ones, and what is no number of at most 64 bits."""
    assert DIGESTS.cells(0, value) == ()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=4), st.integers(0, 3))
def test_cells_of_any_content_are_read_as_far_as_they_are_values(cells: list[int], cut: int) -> None:
    """A value that is cut off, and what no writer wrote, is left out."""
    whole = DIGESTS.cells(1, np.arange(4, dtype=np.float32))
    found = list(field_values([*whole, *DIGESTS.cells(0, 7)[:1]], NAMES))
    assert [name for name, _ in found] == ["observation"]
    assert list(field_values(whole[:cut], NAMES)) == ([] if cut < len(whole) else found)
    assert all(name in NAMES for name, _ in field_values(cells, NAMES))


def test_events_hold_them_and_no_digest_depends_on_them(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run recorded without them is the same, digest for digest."""

    def program() -> None:
        env = Walk(length=99)
        env.reset(seed=7)
        env.step(1)

    recorded = []
    for _ in range(2):
        recorded.append(record(program))
        monkeypatch.setattr(ValueDigests, "cells", lambda self, field, value: ())
    found = [
        event_of(recorded[0].raw, row.index, row.scalars)
        for row in recorded[0].rows
        if row.kind in (Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP)
    ]
    assert [event.values for event in found] == [{"observation": (0.0,)}, {"action": (1,), "observation": (1.0,)}]
    assert (found[1].context["step"], found[1].fields["reward"]) == (1, 0.1)
    assert compare(*(side.path for side in recorded)).verdict is Verdict.IDENTICAL
    marks = [{segment.marks for segment in side.stream.segments} for side in recorded]
    assert marks[0] == marks[1]


def test_sizes_with_a_gap() -> None:
    """No value has a dimension of no elements before another one: nothing is read from such cells."""
    dtype = FIELD_DTYPES.index("float32") << 8
    assert [(name, value.shape) for name, value in field_values([2 << 16 | dtype, 0], ["x"])] == [("x", (2,))]
    assert list(field_values([2 << 24 | dtype, 0], ["x"])) == []
