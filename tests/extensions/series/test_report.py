"""What is said of series: sparklines and words, of long and of odd ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaler_traces import GOOD, OVERFLOW, process_of, scaled

from rltrace.diff.base.model import Drift, DriftPoint
from rltrace.diff.metrics.series import MAX_POINTS, Series, points_of, recorded_series
from rltrace.extensions.series.report import divergence_text
from rltrace.extensions.series.scalers import (
    ScalerDivergence,
    ScalerDivergenceCause,
    ScalerGroup,
    scaler_divergences,
    scalers_of,
)
from rltrace.json import to_json
from rltrace.report.curves import BARS, drift_text, growth_text, short_name, spark
from rltrace.trace.format.schema import SAMPLE_CHUNK

NUMBERS = st.floats(width=64)


def series(values: list[float] | np.ndarray, name: str = "x", *, whole: bool = True) -> Series:  # type: ignore[type-arg]
    numbers = np.asarray(values, np.float64)
    return Series("watch", name, "rank0/main", "", (name,), np.arange(len(numbers)), numbers, whole)


def drift(**fields: object) -> Drift:
    point = DriftPoint(4, 1.0, 2.0)
    plain: dict[str, object] = {"kind": "item", "name": "x", "stream": "s", "place": ""}
    plain |= {"a_count": 1, "b_count": 1, "matched": 1}
    plain |= {"first": point, "exceeds": point, "threshold": 0.5, "growth": ((4, 1.0),), "largest": 1.0, "whole": True}
    return Drift(**{**plain, **fields})  # type: ignore[arg-type]


def test_sparks() -> None:
    """The last number of each stretch, from the smallest to the largest; what is not finite is seen."""
    assert spark(np.array([0.0, 1.0, 2.0, 7.0]), 10) == "▁▂▃█"
    assert spark(np.arange(64.0), 8) == BARS[1:]
    assert spark(np.array([1.0, np.nan, 1.0, np.inf]), 4) == "▄!▄!" and spark(np.array([3.0]), 9) == "▄"
    assert spark(np.zeros(0), 8) == "" == spark(np.ones(3), 0)
    assert spark(np.array([5.0]), 8, (0.0, 5.0)) == "█"


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=40), st.integers(1, 12))
def test_any_numbers_are_drawn(values: list[float], width: int) -> None:
    """Whatever the numbers are, the line fits, and the JSON is JSON."""
    assert 1 <= len(spark(np.array(values), width)) <= width
    json.dumps(to_json(series(values)), allow_nan=False)


def test_a_million_numbers_are_drawn_in_few_points() -> None:
    """A spike stays a spike, NaN stays NaN, and no report grows with the series."""
    values = np.zeros(1 << 20)
    values[[5, 700_000]] = 9.0, np.nan
    kept = points_of(series(values))
    assert len(kept) < 1 << 15 and (5, 9.0) in kept and any(step == 700_000 for step, _ in kept)
    found = to_json(series(values))
    assert len(found["points"]) <= MAX_POINTS + 8 and (found["max"], found["not_finite"]) == (9.0, 1)
    assert [5, 9.0] in found["points"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("value_losses.append(value_loss.item())", "value_loss"),
        ("log(kl.mean().item())", "kl"),
        ("log(a.item(), b.item())", "log(a.item(), b.item())"),
        ("self.loss.detach().cpu().item()", "self.loss"),
    ],
)
def test_what_a_curve_is_called(line: str, name: str) -> None:
    """The variable that is read, where a line reads one; else the line."""
    assert short_name(drift(name=line)) == name
    assert short_name(drift(kind="watch", name=line)) == line


def test_how_a_curve_comes_apart() -> None:
    """First difference and visible step, where it was read so; distances by powers of ten, cut in the middle."""
    assert drift_text(drift()) == "differs from step 4 (1.0 | 2.0); the difference exceeds the threshold (0.5) at once"
    late = drift(exceeds=DriftPoint(9, 1.0, 2.0), whole=False)
    exceeds = "the difference exceeds the threshold (0.5) from step 9 at the latest"
    assert drift_text(late) == f"differs from step 4 at the latest (1.0 | 2.0); {exceeds}"
    assert drift_text(drift(exceeds=None)) == (
        "differs from step 4 (1.0 | 2.0); the difference stays below the threshold (0.5)"
    )
    growth = tuple((10 * k, 10.0 ** (k - 9)) for k in range(9))
    assert growth_text(drift(growth=growth)) == (
        "1e-09 at step 0, 1e-08 at step 10, 1e-07 at step 20, …, 0.001 at step 60, 0.01 at step 70, 0.1 at step 80"
    )
    assert growth_text(drift(growth=((1, float("inf")),))) == "not finite on one side at step 1"


def side(*scalers: int, **fields: object) -> ScalerGroup:
    plain: dict[str, object] = {"step": 4, "before": 16.0, "after": 32.0, "found_inf": False, "growth": 2}
    return ScalerGroup(scalers, **{**plain, **fields})  # type: ignore[arg-type]


def test_differences_in_words() -> None:
    """Which scalers, after how many updates, at which step, because of what."""
    skipping = side(1, step=5, after=8.0, found_inf=True)
    divergence = ScalerDivergence("rank0/main", 3, ScalerDivergenceCause.FOUND_INF, (side(0, 2), skipping))
    assert divergence_text(divergence) == (
        "Scalers 0, 1 and 2 are the same for 2 updates (16) and diverge at update 3 (steps 4 and 5): infinities"
        " were found in the gradients of scaler 1, none in those of scalers 0 and 2. The scale after it: 32 in scalers"
        " 0 and 2, 8 in scaler 1."
    )
    start = ScalerDivergence("rank0/main", 0, ScalerDivergenceCause.START, (side(0, after=16.0), side(1, after=8.0)))
    said = "Scalers 0 and 1 start with different scales: scaler 0 at 16, scaler 1 at 8."
    assert divergence_text(start, named=True) == f"rank0/main: {said}"
    for cause in (ScalerDivergenceCause.GROWTH, ScalerDivergenceCause.SET):
        assert "infinities were found by all or none" in divergence_text(
            ScalerDivergence("p", 1, cause, (side(0), side(1, after=8.0)))
        )


# --- scalers ----------------------------------------------------------------------------------------------------------


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
