"""Which points and steps are drawn where not all can be."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rltrace.diff.metrics.series import decimated
from rltrace.diff.metrics.timeline import WORSE, StepState
from rltrace.extensions.page.timeline import state_runs, stretches

NUMBERS = st.lists(st.floats(allow_nan=True), max_size=300)


@given(NUMBERS, st.integers(4, 100))
def test_decimated(numbers: list[float], most: int) -> None:
    """Few enough, in order, ends kept, nothing invented; the largest and the smallest number of all are there."""
    points = list(enumerate(numbers))
    kept = [points[place] for place in decimated(np.array(numbers), most).tolist()]
    assert len(kept) <= max(most, 4)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert {step for step, _ in kept} <= set(range(len(numbers)))
    finite = [value for value in numbers if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= {value for _, value in kept}
    if points:
        assert (kept[0][0], kept[-1][0]) == (0, len(numbers) - 1)


def test_a_spike_is_kept() -> None:
    """One step among thousands is still seen."""
    points = [(step, 100.0 if step == 4711 else 0.0) for step in range(10_000)]
    (drawn,) = stretches(points, 40, whole=True)
    assert (4711, 100.0) in drawn


def test_a_first_difference_is_kept() -> None:
    """The number at the step where two runs diverge is drawn, however unremarkable it is."""
    points = [(step, float(step)) for step in range(10_000)]
    assert (4711, 4711.0) not in stretches(points, 40, whole=True)[0]
    assert (4711, 4711.0) in stretches(points, 40, whole=True, mark=4711)[0]


def test_a_number_that_is_not_finite_is_kept() -> None:
    """So that a line breaks there."""
    values = np.zeros(10_000)
    values[4711] = np.nan
    assert 4711 in decimated(values, 40)


def test_what_was_read_in_places_is_drawn_in_places() -> None:
    """No line leads over steps that were not read; where all were read, rare numbers are joined as they are."""
    read = [(start + step, 1.0) for start in (0, 5000, 9000) for step in range(50)]
    parts = stretches(read, 60, whole=False)
    assert [(part[0][0], part[-1][0]) for part in parts] == [(0, 49), (5000, 5049), (9000, 9049)]
    assert sum(map(len, parts)) <= 60
    assert len(stretches(read, 60, whole=True)) == 1
    assert stretches([], 60, whole=False) == []
    assert stretches([(3, 1.0)], 60, whole=False) == [[(3, 1.0)]]


@given(st.lists(st.sampled_from(StepState), max_size=200), st.integers(1, 50))
def test_state_runs(states: list[StepState], most: int) -> None:
    """The runs cover every step once, are few enough, and never show a step as better than it is."""
    runs = state_runs(states, most)
    assert len(runs) <= most
    assert [start for start, _, _ in runs] == [0, *(stop for _, stop, _ in runs)][: len(runs)]
    assert (runs[-1][1] if runs else 0) == len(states)
    for start, stop, state in runs:
        assert all(WORSE.index(state) >= WORSE.index(inside) for inside in states[start:stop])
        assert state in states[start:stop]
