"""Scalers of one trace that diverge are reported with the update, the step and the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaler_traces import GOOD, OVERFLOW, process_of, scaled

from rltrace.diff.metrics.series import recorded_series
from rltrace.extensions.series.scalers import ScalerDivergence, ScalerDivergenceCause, scaler_divergences, scalers_of
from rltrace.trace.format.schema import SAMPLE_CHUNK


def divergences(path: Path) -> tuple[ScalerDivergence, ...]:
    process = process_of(path)
    return scaler_divergences(process.name, list(recorded_series(process)))


def groups(divergence: ScalerDivergence) -> list[tuple[int, ...]]:
    return sorted(side.scalers for side in divergence.sides)


def test_infinities_in_the_gradients_of_one(tmp_path: Path) -> None:
    """The update at which one alone skips is where the scales diverge; its optimizer learns less from then on."""
    path = scaled(tmp_path / "a.zarr", {0: [GOOD] * 4, 1: [GOOD, OVERFLOW, GOOD, GOOD]})
    (found,) = divergences(path)
    assert (found.update, found.cause, groups(found)) == (2, ScalerDivergenceCause.FOUND_INF, [(0,), (1,)])
    calm, skipping = found.sides
    assert (calm.step, calm.before, calm.after, calm.found_inf, calm.growth) == (2, 1024.0, 2048.0, False, 1)
    assert (skipping.step, skipping.after, skipping.found_inf) == (3, 512.0, True)
    process = process_of(path)
    first, second = scalers_of(process, list(recorded_series(process)))
    assert (first.overflows, first.last, second.overflows, second.first) == (0, 4096.0, 1, 1024.0)
    assert [(o.attempts, o.skipped, o.rate, o.effective) for s in (first, second) for o in s.optimizers] == [
        (4, 0, 0.5, 0.5),
        (4, 1, 0.5, 0.375),
    ]


def test_a_tree_of_divergences(tmp_path: Path) -> None:
    """Those that go on together may diverge later: one that overflows first leaves three, one of which leaves two."""
    found = {0: [GOOD] * 6, 1: [GOOD] * 6, 2: [GOOD] * 4 + [OVERFLOW, GOOD], 3: [OVERFLOW] + [GOOD] * 5}
    first, second = divergences(scaled(tmp_path / "a.zarr", found))
    assert (first.update, groups(first)) == (1, [(0, 1, 2), (3,)])
    assert (second.update, groups(second)) == (5, [(0, 1), (2,)])


def test_other_causes(tmp_path: Path) -> None:
    """Another start, another growth interval, a scale that the program set: none of these is put down to infinities."""
    both = {0: [GOOD] * 4, 1: [GOOD] * 4}
    (start,) = divergences(scaled(tmp_path / "a.zarr", both, starts={1: 8.0}))
    assert (start.update, start.cause) == (0, ScalerDivergenceCause.START)
    (growth,) = divergences(scaled(tmp_path / "b.zarr", both, intervals={1: 3}))
    assert (growth.update, growth.cause) == (2, ScalerDivergenceCause.GROWTH)
    (by_hand,) = divergences(scaled(tmp_path / "c.zarr", both, set_by_hand={(1, 0): 7.0}))
    assert (by_hand.update, by_hand.cause) == (1, ScalerDivergenceCause.SET)


def test_scalers_that_stay_together(tmp_path: Path) -> None:
    """Equal scales are no finding, one that stopped earlier is none; neither is a scaler by itself."""
    assert divergences(scaled(tmp_path / "a.zarr", {0: [GOOD, OVERFLOW] * 3, 1: [GOOD, OVERFLOW] * 2})) == ()
    assert divergences(scaled(tmp_path / "b.zarr", {0: [OVERFLOW]})) == ()
    (divergence,) = divergences(scaled(tmp_path / "c.zarr", {0: [GOOD], 1: [GOOD] * 3 + [OVERFLOW], 2: [GOOD] * 4}))
    assert (divergence.update, groups(divergence)) == (4, [(1,), (2,)])


def test_nothing_is_said_of_scalers_with_numbers_missing(tmp_path: Path) -> None:
    """Which update is which is not known any more."""
    path = scaled(tmp_path / "a.zarr", {0: [GOOD] * 4, 1: [OVERFLOW] + [GOOD] * 3}, watched=SAMPLE_CHUNK - 5)
    assert divergences(path)
    (path / "processes/0/series/c.0.0").write_bytes(b"?")
    assert divergences(path) == ()


@settings(max_examples=25)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5))
def test_divergences_are_those_of_the_histories(
    tmp_path_factory: pytest.TempPathFactory, flags: list[list[bool]]
) -> None:
    """Two scalers are on one side of every divergence exactly where their flags agree as far as both went."""
    found = divergences(scaled(tmp_path_factory.mktemp("scaled") / "a.zarr", dict(enumerate(flags))))
    for a in range(len(flags)):
        for b in range(a):
            both = list(zip(flags[a], flags[b], strict=False))
            first = next((update for update, (x, y) in enumerate(both, 1) if x != y), None)
            apart = [
                p.update for p in found if not any({a, b} <= set(side.scalers) for side in p.sides) if _names(p, a, b)
            ]
            assert apart == ([] if first is None else [first])


def _names(divergence: ScalerDivergence, *scalers: int) -> bool:
    return set(scalers) <= {number for side in divergence.sides for number in side.scalers}
