"""The series of a trace are those that its program had, whatever they are made of."""

from pathlib import Path

import numpy as np

from rltrace.diff.metrics.series import KINDS, Series, all_series, attempts_of, chosen_segments
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import SAMPLE_CHUNK
from rltrace.trace.read.reader import open_trace


def read(path: Path, *names: str) -> dict[str, Series]:
    found = all_series(open_trace(path), names)
    assert [list(KINDS).index(series.kind) for series in found] == sorted(list(KINDS).index(s.kind) for s in found)
    return {series.name: series for series in found}


def points(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_numbers_that_were_read_out_and_those_that_were_recorded(tmp_path: Path) -> None:
    """A place that reads a number out is a series under its source line; so is what was watched, under its name."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    place = ("train.py", 7, "train", "losses.append(loss.item())")
    for step in range(4):
        builder.op("aten._local_scalar_dense.default", site=place, value=step / 2)
        builder.op("aten._local_scalar_dense.default", site=("train.py", 9, "train", "n.item()"), value=step)
        builder.op("aten._local_scalar_dense.default", site=("train.py", 3, "train", "if done:"), value=step > 1)
        builder.sample("return", -step)
        builder.end_step()
        builder.commit()
    found = read(builder.finish())
    assert set(found) == {"return", "losses.append(loss.item())", "n.item()"}  # a bool is a decision
    assert points(found["losses.append(loss.item())"]) == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    assert points(found["n.item()"]) == [(step, float(step)) for step in range(4)]
    assert points(found["return"]) == [(step, float(-step)) for step in range(4)]
    assert found["n.item()"].place == "train.py:9" and found["n.item()"].whole and not found["n.item()"].is_flat


def test_names_choose(tmp_path: Path) -> None:
    """Globs find names and places, whatever their case."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for name in ("Return/mean", "return/max", "lr"):
        builder.sample(name, 1.0)
    builder.op("aten._local_scalar_dense.default", site=("train.py", 7, "f", "loss.item()"), value=1.0)
    path = builder.finish()
    assert set(read(path, "return*")) == {"Return/mean", "return/max"}
    assert set(read(path, "lr", "train.py:*")) == {"lr", "loss.item()"}
    assert not read(path, "nothing")


def test_what_a_thread_watches_is_its_own_series(tmp_path: Path) -> None:
    """Two threads under one name are two series; an optimizer whose attempts two threads make is one."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    thread = builder.stream("rank0/main/thread:actor")
    builder.sample("return", 1.0)
    thread.sample("return", 2.0)
    builder.sample("optimizer:0/group:0/lr", 0.5, "learning-rate")
    builder.commit()
    thread.sample("optimizer:0/group:0/lr", 0.25, "learning-rate", step=3)
    found = all_series(open_trace(builder.finish()))
    assert [(series.name, series.stream, points(series)) for series in found] == [
        ("return", "rank0/main", [(0, 1.0)]),
        ("return", "rank0/main/thread:actor", [(0, 2.0)]),
        ("optimizer:0/group:0/lr", "rank0/main", [(0, 0.5), (3, 0.25)]),
    ]


def test_effective_rates(tmp_path: Path) -> None:
    """The rate of each attempt, 0 where it was skipped: as the steps say, or a scaler where they do not know."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for step in range(8):
        ordinal = step % 2
        if step in (0, 1):
            builder.sample(f"optimizer:{ordinal}/group:0/lr", 0.5, "learning-rate")
        if step == 4:
            builder.sample("optimizer:0/group:0/lr", 0.25, "learning-rate")
        skips = {2: 1, 5: 2}.get(step, 0)
        if skips == 2:
            builder.sample("scaler:1/skipped:1", 1.0, "scaler")
        builder.sample("scaler:0/skipped:0", float(skips == 1), "scaler")
        builder.end_step(ordinal=ordinal, skipped=skips)
    path = builder.finish()
    found = read(path)
    assert points(found["optimizer:0/group:0/effective-lr"]) == [(0, 0.5), (2, 0.0), (4, 0.25), (6, 0.25)]
    assert points(found["optimizer:1/group:0/effective-lr"]) == [(1, 0.5), (3, 0.5), (5, 0.0), (7, 0.5)]
    assert attempts_of(open_trace(path).processes[0], 1)[1].tolist() == [False, False, True, False]


def test_rates_that_always_took_effect_are_listed_once(tmp_path: Path) -> None:
    """Without a skipped attempt there is nothing to add."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.sample("optimizer:0/group:0/lr", 0.5, "learning-rate")
    builder.sample("scaler:0/skipped:0", 0.0, "scaler")
    builder.end_step()
    assert "optimizer:0/group:0/effective-lr" not in read(builder.finish())


def test_odd_numbers(tmp_path: Path) -> None:
    """NaN, infinities and the sign of zero are what they were."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    odd = [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324]
    for value in odd:
        builder.sample("x", value)
    for value in (float("nan"), float("nan")):
        builder.sample("flat", value)
    found = read(builder.finish())
    assert found["x"].values.tobytes() == np.array(odd).tobytes() and found["flat"].is_flat


def test_damage_makes_a_series_that_is_not_whole(tmp_path: Path) -> None:
    """What can be read is read; that some is missing is said."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for number in range(SAMPLE_CHUNK + 5):
        builder.sample("x", number)
    path = builder.finish()
    (path / "processes/0/series/c.0.0").write_bytes(b"?")
    found = read(path)["x"]
    assert found.values.tolist() == [SAMPLE_CHUNK + k for k in range(5)] and not found.whole


def test_a_newer_kind_is_passed_over(tmp_path: Path) -> None:
    """A trace of a newer version is read as far as it is understood."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.sample("x", 1.0, "kind of tomorrow")
    builder.sample("y", 1.0)
    assert set(read(builder.finish())) == {"y"}


def test_long_streams_are_read_in_places(tmp_path: Path) -> None:
    """A bounded number of segments is read, evenly spaced, the ends among them, and from a row on if asked."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for step in range(20):
        builder.op("aten._local_scalar_dense.default", value=float(step))
        builder.end_step()
        builder.commit()
    trace = open_trace(builder.finish())
    stream = trace.processes[0].streams[0]
    assert chosen_segments(stream, 20) == list(range(20))
    assert chosen_segments(stream, 3) == [0, 10, 19] and chosen_segments(stream, 1) == [19]
    assert chosen_segments(stream, 4, start=15) == [15, 16, 18, 19] and chosen_segments(stream, 9, start=20) == []
    (series,) = all_series(trace, segments=3)
    assert series.values.tolist() == [0.0, 10.0, 19.0] and not series.whole
