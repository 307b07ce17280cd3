"""Where curves first differ, where one sees it, and what numbers belong together for that."""

import math
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import recorder
from views import both, compare_in, paths_in

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Drift, DriftPoint, Verdict
from rltrace.diff.metrics.curves import compare_series, drift_of, growth, logs_more_often, range_of
from rltrace.diff.metrics.series import ITEM, Series, all_series, item_series
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace


def series(values: list[float], steps: list[int] | None = None) -> Series:
    at = list(range(len(values))) if steps is None else steps
    return Series("watch", "x", "rank0/main", "", ("x",), np.array(at, np.int64), np.array(values, np.float64))


def test_the_first_bit_and_the_visible_step_are_two_points() -> None:
    """A difference of one bit is reported at once; it is visible where it exceeds a hundredth of the curve's range."""
    a = [float(k) for k in range(101)]
    b = [value + (0 if k < 3 else 5e-12 * 10 ** (k // 8)) for k, value in enumerate(a)]
    drift = drift_of(series(a), series(b))
    assert drift.threshold == pytest.approx(1.0, rel=0.1)
    assert drift.first == DriftPoint(3, 3.0, b[3]) and drift.exceeds is not None and drift.exceeds.step == 96
    assert drift.growth[0] == (3, pytest.approx(5e-12, rel=0.1))
    assert [step for step, _ in drift.growth[1:]] == [*range(8, 100, 8)]
    assert drift.largest == pytest.approx(5.0, rel=0.01) and drift.matched == 101


def test_equal_curves() -> None:
    """No point, no distance; NaN and infinities at the same place are equal."""
    odd = [1.0, math.nan, math.inf, -math.inf, -0.0]
    drift = drift_of(series(odd), series(odd))
    assert (drift.first, drift.exceeds, drift.growth, drift.largest) == (None, None, (), 0.0)


@pytest.mark.parametrize(("x", "y"), [(1.0, math.nan), (math.inf, 1.0), (math.inf, -math.inf), (math.nan, math.inf)])
def test_one_side_alone_is_not_finite(x: float, y: float) -> None:
    """A value that is not finite on one side alone is visible wherever it is."""
    drift = drift_of(series([0.0, x, 5.0]), series([0.0, y, 5.0]))
    assert drift.exceeds.step == 1 and drift.largest == math.inf
    assert drift.growth == ((1, math.inf),)


def rate(values: list[float], steps: list[int]) -> Series:
    return replace(series(values, steps), kind="learning-rate")


def test_a_learning_rate_holds_until_it_changes() -> None:
    """It is recorded where it changes: a schedule that one run alone has differs from its first change on."""
    constant, annealed = rate([0.1], [0]), rate([0.1, 0.05, 0.02], [0, 3, 9])
    drift = drift_of(constant, annealed)
    assert drift.first == DriftPoint(3, 0.1, 0.05) and drift.largest == pytest.approx(0.08)
    assert drift_of(annealed, constant).first == DriftPoint(3, 0.05, 0.1)
    later = drift_of(rate([0.1, 0.05], [2, 3]), annealed)
    assert later.first == DriftPoint(9, 0.05, 0.02)
    assert drift_of(annealed, annealed).first is None


def test_learning_rates_of_runs_of_other_lengths(tmp_path: Path) -> None:
    """They are compared to the end of the shorter run: a change after it is none."""
    for builder, (steps, rates) in both(tmp_path, (4, {0: 0.1}), (6, {0: 0.1, 2: 0.05, 5: 0.01})):
        for step in range(steps):
            if step in rates:
                builder.sample("optimizer:0/group:0/lr", rates[step], kind="learning-rate", step=step)
            builder.op("aten.sin.default", outputs=[step])
            builder.end_step()
    (drift,) = compare_in(tmp_path).drift
    assert drift.first == DriftPoint(2, 0.1, 0.05)
    assert (drift.matched, drift.largest) == (2, pytest.approx(0.05))


def test_a_flat_curve_is_not_magnified() -> None:
    """A return of 500 throughout, in the other run 500.0001: its range is no measure of what one sees."""
    assert range_of(np.array([500.0, 500.0001])) == pytest.approx(5.0, rel=1e-3)
    drift = drift_of(series([500.0, 500.0]), series([500.0, 500.0001]))
    assert drift.first is not None and drift.exceeds is None
    huge = range_of(np.array([-1.7e308, 1.7e308]))
    assert huge == math.inf or huge > 1.7e308


def test_no_number_at_all() -> None:
    """Empty series, and series without a common step, have no difference."""
    for a, b in (([], []), ([], [1.0]), ([math.nan], [math.nan])):
        assert drift_of(series(a), series(b)).first is None
    apart = drift_of(series([1.0], [0]), series([2.0], [1]))
    assert apart.matched == 0 and apart.first is None
    assert growth(np.zeros(0, np.int64), np.zeros(0)) == ()


def test_numbers_belong_together_by_attempt(tmp_path: Path) -> None:
    """One attempt more of another optimizer, and one number more within a step, put nothing out of step."""

    def write(name: str, more: bool) -> Path:
        builder = TraceBuilder(tmp_path / name)
        for update in range(6):
            if more and update == 2:
                builder.end_step(ordinal=1)
            builder.sample("loss", update)
            if more and update == 3:
                builder.sample("loss", 99.0)
            builder.end_step(ordinal=0)
        builder.sample("loss", 6.0)  # in a step that no attempt ends any more
        return builder.finish()

    a, b = open_trace(write("a.zarr", False)), open_trace(write("b.zarr", True))
    pairs = list(zip(a.processes, b.processes, strict=True))
    (drift,), only_a, only_b = compare_series(all_series(a), all_series(b), pairs, 0.01)
    assert (drift.a_count, drift.b_count, drift.matched, drift.first) == (7, 8, 7, None)
    assert (only_a, only_b) == ((), ())


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=20), st.integers(0, 1 << 20))
def test_pairing_is_what_a_dictionary_would_say(steps: list[tuple[int, int]], seed: int) -> None:
    """Each occurrence in a step of A is compared with the same occurrence in that step of B, and with no other; none is
    where one side logs several for each of the other's."""
    generator = np.random.default_rng(seed)
    sides = []
    for side in range(2):
        at = sorted(step for step, times in steps for _ in range(times if side else 1))
        sides.append(series(generator.integers(0, 3, len(at)).astype(float).tolist(), at))
    drift = drift_of(*sides)
    keyed = []
    for one in sides:
        seen: dict[int, int] = {}
        entries = {}
        for step, value in zip(one.steps.tolist(), one.values.tolist(), strict=True):
            seen[step] = seen.get(step, -1) + 1
            entries[step, seen[step]] = value
        keyed.append(entries)
    common = sorted(keyed[0].keys() & keyed[1].keys())
    if logs_more_often(*(Counter(step for step, _ in entries) for entries in keyed)):
        common = []
    unequal = [key for key in common if keyed[0][key] != keyed[1][key]]
    assert drift.matched == len(common)
    assert (None if drift.first is None else drift.first.step) == (unequal[0][0] if unequal else None)
    assert drift.largest == max((abs(keyed[0][key] - keyed[1][key]) for key in common), default=0.0)


def compared(tmp_path: Path, late: float = 0.0, noisy: bool = False, logged: float = 0.0) -> Comparison:
    """Two runs whose losses differ by ``late`` from step 10 on, after an op of step 4; what is logged by ``logged``."""
    for builder, side in both(tmp_path, 0, 1):
        for step in range(20):
            odd = bool(side and noisy and step >= 4)
            row = builder.op("aten.gelu.default", outputs=[f"h{step}{odd}"], module="critic")
            value = step + late * (step >= 10) * side
            builder.op("aten._local_scalar_dense.default", inputs=[row], value=value, site=PLACE)
            builder.sample("return", step + (logged * side if step >= 12 else 0))
            builder.end_step()
    return compare_in(tmp_path)


PLACE = ("train.py", 7, "train", "losses.append(value_loss.item())")


def named(comparison: Comparison) -> dict[str, Drift]:
    return {drift.name: drift for drift in comparison.drift}


def test_diff_reports_the_curves_that_differ(tmp_path: Path) -> None:
    """Logged scalars count from the first difference on, watched ones from their beginning; visible ones come first."""
    comparison = compared(tmp_path, late=1.0, noisy=True, logged=1e-9)
    assert [drift.name for drift in comparison.drift] == [PLACE[3], "return"]
    loss, logged = comparison.drift
    assert comparison.first_value.step == 4
    assert loss.first == loss.exceeds == DriftPoint(10, 10.0, 11.0) and loss.whole and loss.kind == "item"
    assert logged.first == DriftPoint(12, 12.0, 12 + 1e-9) and logged.exceeds is None and logged.matched == 20


def test_several_numbers_of_one_line_are_as_many_curves(tmp_path: Path) -> None:
    """Each has its own threshold: a small one that differs is not hidden by the range of a large one."""
    record = recorder(tmp_path)

    def program(late: float) -> Path:
        weight = torch.zeros(1, requires_grad=True)
        adam = torch.optim.SGD([weight], 0.1)

        def logged(model: torch.Tensor, actor: torch.Tensor) -> tuple[float, float]:
            return model.item(), actor.item()

        def train() -> None:
            for step in range(6):
                weight.sum().backward()
                adam.step()
                logged(torch.tensor(100.0 * step), torch.tensor(0.1 + late * (step >= 3)))

        return record(train).path

    comparison = compare(program(0.0), program(0.05))
    assert {drift.name: drift.exceeds for drift in comparison.drift} == {
        "actor.item()": DriftPoint(4, pytest.approx(0.1), pytest.approx(0.15))
    }
    series = [one for one in all_series(open_trace(comparison.a.path)) if one.kind == ITEM]
    assert {one.name: len(one) for one in series} == {"model.item()": 6, "actor.item()": 6}


def test_numbers_of_smaller_batches_are_not_paired(tmp_path: Path) -> None:
    """Four losses of a step and one are not of the same thing; how to compare such runs is the next command."""
    record = recorder(tmp_path)

    def program(size: int) -> Path:
        weight = torch.zeros(4, requires_grad=True)
        adam = torch.optim.SGD([weight], 0.1)

        def train() -> None:
            for _ in range(3):
                for part in torch.arange(16.0).reshape(4, 4).split(size):
                    loss = (weight * part).sum(1).mean()
                    loss.backward()
                    loss.item()
                weight.grad[0].item()
                adam.step()

        return record(train).path

    comparison = compare(program(4), program(1))
    assert (comparison.decisive.op, comparison.decisive.cause) == ("aten.split.Tensor", Cause.ARGUMENTS)
    assert not [drift.name for drift in comparison.drift if "loss" in drift.name]
    assert "rltrace record --level step --state 0: -o " in comparison.advice[0]
    assert comparison.advice[2].startswith("rltrace compare ") and comparison.advice[2].endswith(" --state")


def test_what_a_program_logs_decides_nothing(tmp_path: Path) -> None:
    """No op differs: the runs are identical, and a note says that logged numbers are not."""
    comparison = compared(tmp_path, logged=5.0)
    assert comparison.verdict is Verdict.IDENTICAL and comparison.agrees
    assert named(comparison)["return"].exceeds is not None
    assert any("return from step 12" in note and "do not decide the verdict" in note for note in comparison.notes)
    assert compared(tmp_path / "again").notes == () and compared(tmp_path / "more").drift == ()


def test_damage_in_a_series_decides_nothing_either(tmp_path: Path) -> None:
    """It is a part that cannot be read, and the ops are identical all the same."""
    for builder, _ in both(tmp_path):
        builder.op("aten.add.Tensor", outputs=["sum"])
        builder.sample("return", 1.0)
        builder.end_step()
    (tmp_path / "b.zarr/processes/0/series/c.0.0").write_bytes(b"?")
    comparison = compare_in(tmp_path)
    assert comparison.verdict is Verdict.IDENTICAL and [hole.side for hole in comparison.holes] == ["b"]


def test_what_pool_threads_watch_is_not_compared(tmp_path: Path) -> None:
    """Timing decides which of them takes which task."""
    for builder, side in both(tmp_path, 0, 1):
        builder.stream("rank0/main/pool:worker_0").sample("return", float(side))
        builder.stream("rank0/main/thread:actor").sample("return", float(side))
    traces = [open_trace(path) for path in paths_in(tmp_path)]
    pairs = list(zip(*(trace.processes for trace in traces), strict=True))
    drifts, *alone = compare_series(all_series(traces[0]), all_series(traces[1]), pairs, 0.01)
    assert [drift.stream for drift in drifts] == ["rank0/main/thread:actor"] and alone == [(), ()]


def test_the_tolerance_is_the_readers(tmp_path: Path) -> None:
    """With another share of the range the curves differ visibly from another step on."""
    a = series([float(k) for k in range(100)])
    b = series([k + k / 100 for k in range(100)])
    steps = [
        drift.exceeds and drift.exceeds.step for t in (0.5, 0.005, 0.001, 0) for drift in [drift_of(a, b, None, t)]
    ]
    assert steps[0] is None and steps[3] == 1 and steps[1] is not None and steps[2] is not None
    assert steps[1] > steps[2] > 1


def test_rows_far_from_the_difference_are_read_in_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search stays a search: of a long rest some segments are read, and a step is then given as "at the latest"."""
    module = import_module("rltrace.diff.compare")  # the package has a function of that name
    monkeypatch.setattr(module, "LOOK_AHEAD", 4)
    monkeypatch.setattr(module, "MAX_SEGMENTS", 3)
    read: list[int] = []
    original = item_series

    def counting(view: object, segments: list[int], **options: object) -> object:
        read.append(len(segments))
        return original(view, segments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "item_series", counting)
    for builder, side in both(tmp_path, 0, 1):
        for step in range(40):
            odd = bool(side and step >= 3)
            row = builder.op("aten.gelu.default", outputs=[f"h{step}{odd}"])
            builder.op(
                "aten._local_scalar_dense.default", inputs=[row], value=step + 1.0 * odd * (step > 5), site=PLACE
            )
            builder.end_step()
            builder.commit()
    (drift,) = compare_in(tmp_path).drift
    assert max(read) <= 6 and not drift.whole
    assert drift.first.step > 5
