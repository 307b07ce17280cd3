"""Rows of tensors read back are those recorded, call by call and op by op, or are reported missing."""

import contextlib
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import Memory, in_memory
from tampering import _spec, change_first, kill_before, load, replace_chunk, store, tamper

from rltrace.digest import reference, seed_of
from rltrace.digest.activation_rows import MAX_COPIED_BYTES, row_digests
from rltrace.errors import RltraceError
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format import chunk_codec
from rltrace.trace.format.activation_rows import ModuleCall, OpRows, Part
from rltrace.trace.format.schema import CALL_CHUNK, DIGEST_CHUNK, ActivationColumn, ModuleCallColumn, TensorOwner
from rltrace.trace.read.activations import Activations
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.write.packers import TENSOR, bits_of

DTYPES = ["bool", "uint8", "int64", "float16", "float32", "complex128"]
STREAMS = (0, 1)
BASE = "processes/0/"


def activations_of(path: Path) -> Activations:
    return open_trace(path).processes[0].activations


def build(path: Path) -> Path:
    """Two commits, each with a call around another one and an op; a third one with a call on another thread."""
    builder = TraceBuilder(path)
    for step in range(2):
        x = np.arange(12, dtype=np.float32).reshape(2, 2, 3) + step
        with builder.call("Net", {"ids": np.array([[step, 7]]), "x": x}, "Net", "forward", grad=bool(step)) as outer:
            builder.op("aten.embedding.default", outputs=[f"e{step}"])
            with builder.call("Net.head", {"input": x}, "Linear", "forward") as inner:
                row = builder.op("aten.addmm.default", outputs=[f"h{step}"])
                builder.op_rows(row, {"mat1": x.reshape(4, 3)}, {"": x.reshape(4, 3) * 2})
                inner[""] = x * 2
            outer["logits"], outer["past.0"] = x * 2, (np.ones((2, 3), np.uint16), "bfloat16")
        builder.end_step()
        if step:
            thread = builder.stream("rank0/main/thread:loader")
            with thread.call("Net.head", {"input": x}) as given:
                thread.op("aten.addmm.default", outputs=["t"])
                given[""] = x
            builder.rows_left_out("the limit was reached", 9)
        builder.commit()
    return builder.finish()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return build(tmp_path / "a.zarr")


Recorded = dict[tuple[str, int, int], Any]


def recorded_in(trace: Trace) -> Recorded:
    """All calls and ops that can be read, as plain values."""
    activations = trace.processes[0].activations
    found: Recorded = {}
    for stream in STREAMS:
        found |= {("call", stream, call.number): plain(call) for call in activations.calls(stream)}
        found |= {("op", stream, row): plain(op) for row, op in activations.ops(stream).items()}
    return found


def plain(owner: ModuleCall | OpRows) -> list[Any]:
    own = [value for name, value in vars(owner).items() if name != "tensors"]
    tensors = [
        [value.tolist() if name == "digests" else value for name, value in vars(t).items()] for t in owner.tensors
    ]
    return [own, tensors]


def test_nothing_asked_for(tmp_path: Path) -> None:
    """A trace without rows of tensors has none, and says so rather than fail."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["x"])
    activations = activations_of(builder.finish())
    assert not activations
    assert (activations.request, activations.left_out) == (None, ())
    assert (list(activations.calls(0)), dict(activations.ops(0))) == ([], {})
    assert verify(tmp_path / "a.zarr").sound


def test_calls_and_ops_read_back(small: Path) -> None:
    """What was handed to the writer: numbers, parents, rows of the stream, names, shapes, digests of rows."""
    activations = activations_of(small)
    calls = activations.calls(0)
    assert [(c.number, c.parent, c.module, c.kind, c.step, c.phase, c.grad) for c in calls] == [
        (0, None, "Net", "Net", 0, "forward", False),
        (1, 0, "Net.head", "Linear", 0, "forward", False),
        (2, None, "Net", "Net", 1, "forward", True),
        (3, 2, "Net.head", "Linear", 1, "forward", False),
    ]
    assert [(c.first_row, c.end_row) for c in calls] == [(0, 2), (1, 2), (2, 4), (3, 4)]
    assert [(t.part.name, t.name, t.dtype, t.shape, t.axes) for t in calls[0].tensors] == [
        ("INPUT", "ids", "int64", (1, 2), (0,)),
        ("INPUT", "x", "float32", (2, 2, 3), (0, 1)),
        ("OUTPUT", "logits", "float32", (2, 2, 3), (0, 1)),
        ("OUTPUT", "past.0", "bfloat16", (2, 3), (0,)),
    ]
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    wanted = [reference.digest(row.tobytes(), seed_of("float32", (3,))) for row in x]
    assert calls[0].tensors[1].digests.reshape(-1).tolist() == wanted
    assert activations.ops(0)[1].tensors[0].digests.tolist() == wanted
    assert set(activations.ops(0)) == {1, 3}
    assert len(activations.calls(1)) == 1
    value = open_trace(small).processes[0].values.get(calls[2].tensors[0].whole)
    assert value.raw.tolist() == [[1, 7]]
    assert activations.why_missing(0, 4, 5) == "the limit was reached"
    assert activations.why_missing(0, 0, 3) is None
    assert verify(small).sound


def test_a_tensor_without_rows(tmp_path: Path) -> None:
    """An empty batch is recorded, and read back as one."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    row = builder.op("aten.mm.default", outputs=["x"])
    builder.op_rows(row, {"mat1": np.zeros((0, 3), np.float32)}, {"": np.zeros((2, 3), np.float32)})
    shapes = [(tensor.shape, tensor.digests.shape) for tensor in activations_of(builder.finish()).ops(0)[row].tensors]
    assert shapes == [((0, 3), (0,)), ((2, 3), (2,))]


@settings(max_examples=25)
@given(st.data())
def test_rows_of_any_tensor(data: st.DataObject) -> None:
    """Whatever dtype, shape and axes: a row's digest is that of a tensor of the row's own shape and bytes."""
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    if shape and data.draw(st.booleans()):
        shape[-1] = data.draw(st.sampled_from([1, 2 * MAX_COPIED_BYTES, 5_000]))
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))) if shape else []
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(size).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    array = raw.view(dtype).reshape(shape)
    found = row_digests(array.tobytes(), dtype, shape, array.itemsize, axes)
    assert found.shape == tuple(shape[axis] for axis in axes)
    inner = [length for axis, length in enumerate(shape) if axis not in axes]
    for index in list(np.ndindex(found.shape))[:20]:
        at = tuple(index[axes.index(axis)] if axis in axes else slice(None) for axis in range(len(shape)))
        assert found[index] == reference.digest(np.ascontiguousarray(array[at]).tobytes(), seed_of(dtype, inner))


def reads_right(trace: Trace, whole: Recorded, what: str) -> int:
    """How many calls and ops can be read; those that can are what was recorded, as a whole."""
    found = recorded_in(trace)
    for key, value in found.items():
        assert value == whole.get(key), f"{what}: {key} reads wrong"
    return len(found)


def test_every_byte(small: Path) -> None:
    """Each byte of each file of rows changed, each file cut: reported, and nothing reads wrong."""
    memory = Memory(load(small))
    files = [key for key in memory.files if "/activations/" in key and "/c." in key]
    assert len(files) == 3 * 3
    with in_memory({small: memory}):
        whole = recorded_in(open_trace(small))
        assert len(whole) == 7
        for key in files[::3] + files[1::3]:  # the third commit's are like the first's
            data = memory.files[key]
            changes = [data[:length] for length in range(0, len(data), 3)]
            changes += [bytes([*data[:at], data[at] ^ 1 << at % 8, *data[at + 1 :]]) for at in range(len(data))]
            for memory.files[key] in changes:
                trace = open_trace(small)
                assert 4 <= reads_right(trace, whole, key) < len(whole)
                assert any(key in hole.why for hole in trace.holes)
            memory.files[key] = data


def test_a_file_missing_or_another_one(small: Path) -> None:
    """``verify`` reports it; the calls and ops of the other commit are read."""
    whole = recorded_in(open_trace(small))
    files = [key for key in load(small) if "/activations/" in key and "/c." in key]
    for key in files:
        data = (small / key).read_bytes()
        (small / key).unlink()
        assert any(f"{key} is missing" in damage for damage in verify(small).damage)
        assert 3 <= reads_right(open_trace(small), whole, key) < len(whole)
        twin = key.replace("/c.0", "/c.1") if "/c.0" in key else key.replace("/c.1", "/c.0")
        (small / key).write_bytes((small / twin).read_bytes() if twin != key else b"")
        assert 3 <= reads_right(open_trace(small), whole, key) < len(whole)
        assert not verify(small).sound
        (small / key).write_bytes(data)
    assert verify(small).sound


@pytest.mark.parametrize(
    ("array", "column", "number"),
    [
        ("calls", ModuleCallColumn.FLAGS, 0),
        ("calls", ModuleCallColumn.STREAM, 1 << 63),
        ("calls", ModuleCallColumn.PARENT, 1 << 40),
        ("calls", ModuleCallColumn.MODULE, 1 << 60),
        ("calls", ModuleCallColumn.STEP, 1 << 60),
        ("calls", ModuleCallColumn.FIRST_ROW, 1 << 50),
        ("calls", ModuleCallColumn.TENSORS, 1 << 50),
        ("tensors", ActivationColumn.OWNER, 77),
        ("tensors", ActivationColumn.NUMBER, 1 << 40),
        ("tensors", ActivationColumn.TENSORS, 1),
        ("tensors", ActivationColumn.LAYOUT, 1 << 62),
        ("tensors", ActivationColumn.AXES, 1 << 63),
        ("tensors", ActivationColumn.OFFSET, 1 << 60),
        ("tensors", ActivationColumn.COUNT, 1 << 60),
    ],
)
def test_an_index_that_lies(small: Path, array: str, column: int, number: int) -> None:
    """Rows that every checksum confirms and that make no sense take no memory and are no call: all are reported."""
    files = load(small)
    key = f"activations/{array}/c.0.0"
    stored = chunk_codec.decode(_spec(key), files[BASE + key]).copy()
    used = np.flatnonzero(stored[0])
    stored[column, used] = number
    store(replace_chunk(files, BASE, key, stored), small)
    trace = open_trace(small)
    later = {key: value for key, value in recorded_in(trace).items() if value[0][0] >= 2 or key[1] == 1}
    assert len(later) >= 4  # the other commit's
    assert not verify(small).sound


@pytest.mark.parametrize(
    ("array", "number", "column", "add", "why"),
    [
        ("tensors", 1, ActivationColumn.NUMBER, 40, "of row 41 .*: there is no such row"),
        ("tensors", 1, ActivationColumn.AXES, 1 << 40, "of row 1 .*: its description is inconsistent"),
        ("tensors", 1, ActivationColumn.PART, 2, "of row 1 .*: its description is inconsistent"),
        ("calls", 1, ModuleCallColumn.PARENT, 1, "of call 1 .*: its description is inconsistent"),
        ("calls", 1, ModuleCallColumn.FIRST_ROW, 2, "of call 1 .*: its description is inconsistent"),
        ("calls", 1, ModuleCallColumn.END_ROW, 3, "of call 1 .*: its description is inconsistent"),
        ("calls", 1, ModuleCallColumn.STEP, (1 << 48) + 1, "of call 1 .*: its description is inconsistent"),
    ],
)
def test_one_number_that_lies(small: Path, array: str, number: int, column: int, add: int, why: str) -> None:
    """The call, or the op, is lost and named, and nothing else is."""
    whole, files = recorded_in(open_trace(small)), load(small)
    key = f"activations/{array}/c.0.0"
    stored = chunk_codec.decode(_spec(key), files[BASE + key]).copy()
    owner = (TensorOwner.OP, ActivationColumn.OWNER) if array == "tensors" else (number, ModuleCallColumn.NUMBER)
    stored[column, stored[owner[1]] == owner[0]] += np.uint64(add)
    store(replace_chunk(files, BASE, key, stored), small)
    trace = open_trace(small)
    del whole["op" if array == "tensors" else "call", 0, number]
    assert recorded_in(trace) == whole
    [hole] = trace.holes
    assert re.search(why, hole.why)


@pytest.mark.parametrize("shape", [[0, 1 << 47, 1 << 47, 3], [0] + [1] * 80, [0, -1, 3], ["nested"], [1 << 60, 3]])
def test_a_shape_that_no_tensor_has(tmp_path: Path, shape: list[Any]) -> None:
    """A shape that no tensor has is damage with a name, not an error of another library."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.main.request_activations()
    row = builder.op("aten.mm.default", outputs=["x"])
    layout = builder.main.tables.plain("layouts", ["float32", shape, [], "cpu"])
    name = builder.main.tables.plain("names", "self")
    axes = tuple(range(min(len(shape) - 1, 60)))
    tensor = TENSOR.pack(Part.INPUT, name, layout, bits_of(axes), 5, 0, 0)
    builder.main.stream().activations.add_op(row, tensor)
    path = builder.finish()
    assert dict(activations_of(path).ops(0)) == {}
    assert any("row 0 of stream 0" in damage for damage in verify(path).damage)


def test_lies_at_random(small: Path) -> None:
    """A trace tampered with at random, every checksum made to fit, is read or refused; nothing crashes."""
    files = load(small)
    with in_memory({small: (memory := Memory(files))}):
        for seed in range(300):
            memory.files = tamper(files, random.Random(seed))
            memory.renamed()
            with contextlib.suppress(RltraceError):
                trace = open_trace(small)
                recorded_in(trace)
                trace.processes[0].activations.read_all(STREAMS)


def test_records_that_make_no_sense(small: Path) -> None:
    """A record of rows of tensors that cannot be true is damage of the journal, named; the other one is read."""
    files = load(small)
    for kind, change in (
        ("activations", {"calls": {"count": 5_000, "chunk": 0, "files": []}}),
        ("activations", {"digests": {"count": -1, "chunk": 0, "files": []}}),
        ("activations", {"tensors": 5}),
        ("activations", {"left_out": [{}]}),
        ("activation_request", {"axes": [1, 0]}),
        ("activation_request", {"axes": [64]}),
        ("activation_request", {"selectors": [1]}),
        ("activation_request", {"limit": -1}),
    ):
        store(change_first(files, BASE, kind, change), small)
        trace = open_trace(small)
        assert any(kind in hole.why for hole in trace.holes), change
        assert len(recorded_in(trace)) >= 3


def test_killed_between_data_and_journal(small: Path) -> None:
    """Without its journal record a commit's rows do not exist; what came before is all there, and no damage."""
    whole = recorded_in(open_trace(small))
    kill_before(small, BASE, "values")
    trace = open_trace(small)
    assert reads_right(trace, whole, "killed") == 3
    assert trace.processes[0].state == "killed"
    assert verify(small).sound


def test_zarr_reads_rows(small: Path) -> None:
    """Without rltrace: three plain arrays, as docs/reference/trace-format.md says."""
    process = zarr.open_group(str(small), mode="r")["processes/0"]
    tensors, digests = process["activations/tensors"], process["activations/digests"]
    names = tensors.attrs["columns"]
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    own = None
    for row in tensors[:]:
        entry = dict(zip(names, row.tolist(), strict=True))
        if entry["owner"] == 2 and entry["number"] == 1 and entry["part"] == 0:
            own = digests[entry["offset"] : entry["offset"] + entry["count"]].tolist()
    assert own == row_digests(x.tobytes(), "float32", x.shape, 4, (0,)).tolist()
    assert process["activations/calls"].attrs["columns"] == [column.name.lower() for column in ModuleCallColumn]


def test_several_chunks_of_one_commit(tmp_path: Path) -> None:
    """More calls, tensors and rows than a chunk holds: each reads back as it was, and the last ones too."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    large = [np.arange(DIGEST_CHUNK - 5, dtype=np.int16).reshape(-1, 1) + add for add in range(3)]
    for number in range(CALL_CHUNK + 9):
        with builder.call("Net", {"x": large[number] if number < 3 else np.array([[number]], np.int32)}):
            builder.op("aten.mm.default")
    activations = activations_of(builder.finish())
    calls = activations.calls(0)
    assert [call.number for call in calls] == list(range(CALL_CHUNK + 9))
    for number, array in [*enumerate(large), (3, np.array([[3]], np.int32)), (CALL_CHUNK + 8, None)]:
        array = np.array([[number]], np.int32) if array is None else array
        wanted = row_digests(array.tobytes(), str(array.dtype), array.shape, array.itemsize, (0,))
        assert calls[number].tensors[0].digests.reshape(-1).tolist() == np.frombuffer(wanted, np.uint64).tolist()
    assert activations.tensor_count == CALL_CHUNK + 9
    assert activations.digest_count == 3 * (DIGEST_CHUNK - 5) + CALL_CHUNK + 6
