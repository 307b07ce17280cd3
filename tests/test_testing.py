"""The builder makes true traces: what it is given is what a reader finds."""

from pathlib import Path

import pytest

from rltrace.extensions.archive.verify import verify
from rltrace.testing import In, TraceBuilder, digest
from rltrace.trace.format.schema import Column, Kind, Origin, Phase, RowFlag, Step
from rltrace.trace.read.reader import open_trace


def test_inputs_outputs_and_state(tmp_path: Path) -> None:
    """Every way to name an input, the generator's state and outputs come back as they were given."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["a", "b"])
    builder.op(
        "aten.foo.default",
        inputs=[0, ("outside", "x"), "mixed", "unknown", "overwritten", In(0, slot=1, digest="b"), In(0, known=True)],
        rng="state",
        outputs=[7],
    )
    rows = open_trace(builder.finish()).processes[0].streams[0].read(0, 2)
    links = list(rows.inputs(1))
    assert [link.distance for link in links] == [1, Origin.OUTSIDE, Origin.MIXED, Origin.UNKNOWN, -3, 1, 1]
    assert [link.digest for link in links] == [None, digest("x"), None, None, None, digest("b"), None]
    assert [(link.slot, link.known) for link in links[5:]] == [(1, False), (0, True)]
    assert rows.rng(1) == digest("state")
    assert rows.outputs(1) == [7]
    assert rows.outputs(0) == [digest("a"), digest("b")]


@pytest.mark.parametrize("value", [True, False, 3, -1, 0.5, float("-inf"), 1 - 2j])
def test_python_numbers(tmp_path: Path, value: complex) -> None:
    """The number that an op returned comes back with its type."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten._local_scalar_dense.default", value=value, integers=[9], floats=[9.0])
    found = open_trace(builder.finish()).processes[0].streams[0].read(0, 1).value(0)
    assert found == value
    assert type(found) is type(value)


def test_places_and_phases(tmp_path: Path) -> None:
    """Site, module, phase, kernel and kind are found where readers look for them."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    stack = [("model.py", 3, "forward", "return x @ w"), ("train.py", 9, "main", "loss = f(x)")]
    builder.op("aten.mm.default", site=stack, module="net.0", phase="forward", kernel={"library": "mkl"}, flags=1)
    builder.op("checkpoint", kind=Kind.CHECKPOINT)
    process = open_trace(builder.finish()).processes[0]
    rows, tables = process.streams[0].read(0, 2), process.tables
    row = rows.columns[0].tolist()
    frames = [tables["frames"].payloads[i] for i in tables["sites"].payloads[row[Column.SITE]]]
    assert [frame["function"] for frame in frames] == ["forward", "main"]
    assert tables["modules"].payloads[row[Column.MODULE]] == "net.0"
    assert tables["kernels"].payloads[row[Column.KERNEL]] == {"library": "mkl"}
    assert row[Column.PHASE] == Phase.FORWARD
    assert rows.flags(0) == RowFlag.MARKED
    assert rows.columns[1, Column.KIND] == Kind.CHECKPOINT


def test_steps_count_for_each_optimizer(tmp_path: Path) -> None:
    """Steps are numbered for the process, attempts for each optimizer."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for i in range(3):
        builder.op("aten.mm.default", outputs=[i])
        builder.end_step("Adam", 0, environment_steps=i)
        builder.op("aten.mm.default")
        builder.end_step("SGD", 1, skipped=1, recorded=False)
    steps = open_trace(builder.finish()).processes[0].steps
    assert steps[:, Step.STEP].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps[:, Step.COUNT].tolist() == [0, 0, 1, 1, 2, 2]
    assert steps[:, Step.END_ROW].tolist() == [1, 2, 3, 4, 5, 6]
    assert steps[:, Step.SKIPPED].tolist() == [0, 1] * 3


def test_two_builders_agree(tmp_path: Path) -> None:
    """The same rows make the same prefix digests, whatever was interned before them and wherever they were cut."""
    marks = []
    for name in ("a", "b"):
        builder = TraceBuilder(tmp_path / f"{name}.zarr")
        if name == "b":
            builder.process("rank1/main").stream().op("aten.other.default", module="else")
            builder.stream("rank0/main/thread:x").op("aten.other.default", module="else")
        for i in range(4):
            builder.op(f"aten.op{i}.default", outputs=[f"{i}"], module=f"m{i}")
            if name == "b":
                builder.commit()
        assert verify(builder.finish()).sound
        marks.append(open_trace(builder.path).processes[0].streams[0].marks[-1].tolist())
    assert marks[0] == marks[1]


def test_states(tmp_path: Path) -> None:
    """Builders leave traces in any state."""
    for state in ("complete", "stopped", "killed"):
        builder = TraceBuilder(tmp_path / f"{state}.zarr")
        builder.op("aten.mm.default")
        assert open_trace(builder.finish(state)).processes[0].state == state
