"""Recorded values of one op: what stands beside what, what is measured, and what is said where there are none."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from views import opened

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.view import StreamView
from rltrace.query.values import OpValues, op_values, recording_commands
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import WRITES, Kind, ValueKind, within_stream
from rltrace.trace.read.reader import open_trace

ONE = np.array([1.0, 2.0, 3.0], np.float32)
OTHER = np.array([1.0, np.nextafter(np.float32(2), np.float32(3)), 3.0], np.float32)


def traced(
    path: Path,
    *outputs: NDArray[np.float32] | None,
    read: NDArray[np.float32] | None = None,
    names: tuple[str, ...] = (),
) -> RowAt:
    """A trace of one op that returned these; None: something that was not recorded, other on each side."""
    trace = TraceBuilder(path)
    stream = trace.stream()
    inputs: list[object] = []
    if read is not None:
        inputs = [In(digest=stream.value(read, kind=ValueKind.INPUT))]
    digests: list[object] = []
    for place, output in enumerate(outputs):
        digests.append(f"{path}" if output is None else stream.value(output, place=place))
    stream.op("aten.mm.default", inputs=inputs, outputs=digests, scalars=[{WRITES: list(names)}] if names else [])
    return row_at(opened(trace.finish()), 0)


def summary(values: OpValues) -> list[tuple[str, bool, bool, str]]:
    return [(p.what, p.equal, p.distances is not None or bool(p.elements), p.why) for p in values.pairs]


def test_what_differs_is_measured(tmp_path: Path) -> None:
    """An output that both sides recorded and that differs is measured; one that is equal is shown as it is."""
    a, b = traced(tmp_path / "a.zarr", ONE, ONE), traced(tmp_path / "b.zarr", OTHER, ONE)
    found = op_values(a, b)
    assert summary(found) == [("output 0", False, True, ""), ("output 1", True, True, "")]
    first = found.pairs[0].distances
    assert (first.differing, first.largest) == (1, 1)
    assert [element.a for element in found.pairs[1].elements] == ["1.0", "2.0", "3.0"]
    assert found.pairs[0].layout.a == "float32[3]" and found.any_recorded


def test_an_output_has_its_name(tmp_path: Path) -> None:
    """Where the row has one for it."""
    sides = (
        traced(tmp_path / f"{name}.zarr", array, ONE, names=("kernel", ""))
        for name, array in zip("ab", (ONE, OTHER), strict=True)
    )
    assert [pair.what for pair in op_values(*sides).pairs] == ["output 0 kernel", "output 1"]


def test_inputs_come_first(tmp_path: Path) -> None:
    """Inputs that were recorded are shown before outputs."""
    a, b = traced(tmp_path / "a.zarr", ONE, read=ONE), traced(tmp_path / "b.zarr", OTHER, read=ONE)
    assert [pair.what for pair in op_values(a, b).pairs] == ["input 0", "output 0"]


def test_one_side_alone(tmp_path: Path) -> None:
    """The values of a single row are shown as they are."""
    (pair,) = op_values(traced(tmp_path / "a.zarr", ONE), None).pairs
    assert pair.equal and len(pair.elements) == 3 and pair.layout.b == "float32[3]"


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    """Other shapes, a side that recorded nothing, a side that was not asked: a reason each, never a guess."""
    a, b = traced(tmp_path / "a.zarr", ONE, None), traced(tmp_path / "b.zarr", ONE[:2], ONE)
    assert summary(op_values(a, b)) == [
        ("output 0", False, False, "their dtypes or shapes differ"),
        ("output 1", False, False, "A: no selector of --values found it"),
    ]
    plain = traced(tmp_path / "plain.zarr", None)
    assert summary(op_values(plain, b))[0] == ("output 0", False, False, "A: its values were not recorded")


def test_nothing_asked_nothing_said_of_what_is_equal(tmp_path: Path) -> None:
    """Without --values only the outputs that differ are reported."""
    rows = [traced(tmp_path / name, None) for name in ("a.zarr", "b.zarr")]
    assert summary(op_values(rows[0], rows[1])) == [("output 0", False, False, "A: its values were not recorded")]
    assert op_values(rows[0], rows[0]).pairs == () and not op_values(rows[0], rows[0]).requested


@pytest.mark.parametrize("paired", [True, False])
def test_how_to_record(tmp_path: Path, paired: bool) -> None:
    """The commands name the op at its place in the code, its step and both programs, and end in how to look at it."""
    row = traced(tmp_path / "a.zarr", None)
    traced(tmp_path / "b.zarr", None)
    traces = tuple(open_trace(tmp_path / name) for name in (("a.zarr", "b.zarr") if paired else ("a.zarr",)))
    *record, look = recording_commands(traces, row)
    assert len(record) == len(traces)
    for command in record:
        assert (
            "rltrace record --steps 0:1 --until 0 --values op=aten.mm.default,site=train.py:train --values-inputs"
            in command
        )
    assert look == ("rltrace diff a-values.zarr b-values.zarr" if paired else "rltrace show a-values.zarr")


def test_an_event_has_no_values(tmp_path: Path) -> None:
    """No tensors of it can be recorded, so none is shown, and no command is offered that would record none."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    trace.event(Kind.ENVIRONMENT_STEP, "environment 0", digests={"observation": "x"})
    path = trace.finish()
    row = row_at(opened(path), 0)
    assert op_values(row, row) == OpValues((), False)
    assert recording_commands((open_trace(path),), row) == ()


def test_what_is_within_calls_of_jax_has_no_values(tmp_path: Path) -> None:
    """No command is offered that would record values within a call of JAX; for the call itself there is one."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    trace.stream(within_stream("rank0/main", "jit.update", "0" * 16)).op("tanh", outputs=["x"])
    trace.op("jit.update", outputs=["x"])
    read = open_trace(trace.finish())
    process = read.processes[0]
    rows = [row_at(StreamView(process, stream), 0) for stream in process.streams]
    found = {row.view.name: recording_commands((read,), row) for row in rows}
    assert [name for name, commands in found.items() if commands] == ["rank0/main"]
    assert "--values op=jit.update" in found["rank0/main"][0]
