"""Values read back are the values that were recorded, bit for bit, or they are a hole with a name."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import Memory, in_memory
from tampering import Files, change_first, kill_before, load, replace_chunk, store

from rltrace.digest import reference, seed_of
from rltrace.errors import HoleError
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import VALUE_INDEX
from rltrace.trace.format.schema import PLACEMENT_SHIFT, VALUE_CHUNK, PlacementBit, ValueIndex, ValueKind
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.values import GENERATOR, StoredPlacement, Values
from rltrace.trace.write.packers import NewValue, NewValues

DTYPES = ["bool", "uint8", "int64", "float16", "float32", "float64", "complex64", "complex128"]


def values_of(path: Path) -> Values:
    return open_trace(path).processes[0].values


def build(path: Path) -> tuple[Path, dict[int, np.ndarray]]:
    """A trace of a few small values in two commits, and what they are by digest."""
    builder = TraceBuilder(path)
    captured = {}
    for step in range(2):
        for i in range(3):
            array = np.arange(6, dtype=np.float32).reshape(2, 3) * (10 * step + i + 1)
            captured[builder.value(array)] = array
            builder.op("aten.mm.default", outputs=[builder.value(array)])
        builder.end_step()
        builder.commit()
    return builder.finish(), captured


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, dict[int, np.ndarray]]:
    return build(tmp_path / "values.zarr")


def test_no_values(tmp_path: Path) -> None:
    """A trace of which no values were asked for has none, and says so rather than fail."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["x"])
    values = values_of(builder.finish())
    assert not values
    assert (len(values), values.nbytes, values.get(5), values.request) == (0, 0, None, None)
    assert verify(tmp_path / "a.zarr").sound


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3), st.integers(0, 2**32), st.booleans()
        ),
        max_size=20,
    )
)
def test_any_values_read_back(tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple]) -> None:
    """Whatever the dtype, the shape and the commit: dtype, shape and bytes are recorded; the digest is of them."""
    builder = TraceBuilder(tmp_path_factory.mktemp("any") / "a.zarr")
    captured: dict[int, tuple[str, np.ndarray]] = {}
    for dtype, shape, seed, commits in wanted:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
        array = data.view(dtype).reshape(shape)
        captured[builder.value(array)] = dtype, array
        builder.op("aten.mm.default", outputs=["x"])
        if commits:
            builder.commit()
    values = values_of(builder.finish())
    assert sorted(captured) == values.digests.tolist()
    for digest, (dtype, array) in captured.items():
        value = values.get(digest)
        assert (value.dtype, value.shape, bytes(value.data)) == (dtype, array.shape, array.tobytes())
        assert value.raw.tobytes() == array.tobytes()
        assert reference.digest(bytes(value.data), seed_of(value.dtype, value.shape)) == digest
    assert values.get(1) is None
    assert all(digest in values for digest in captured) and 1 not in values
    assert verify(builder.path).sound


def test_large_and_many(tmp_path: Path) -> None:
    """A value of several chunks between a thousand small ones: all read back, in few files."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    large = np.random.default_rng(0).integers(0, 256, 2 * VALUE_CHUNK + 12345, np.uint8)
    digests = []
    for i in range(1500):
        digests.append(builder.value(np.array([i], np.int64)))
        if i == 700:
            digests.append(builder.value(large))
    builder.op("aten.cat.default", outputs=[digests[0]])
    values = values_of(builder.finish())
    assert len(values.index) == len(digests) == len(values)
    found = [values.get(digest) for digest in digests]
    assert [int(v.raw[0]) for v in found if v is not None and v.dtype == "int64"] == list(range(1500))
    assert found[701] is not None
    assert np.array_equal(found[701].raw, large)
    assert len([file for file in load(builder.path) if "/values/" in file]) == 3 + 3 + 2
    assert verify(builder.path).sound


def test_a_dtype_that_is_not_recorded(tmp_path: Path) -> None:
    """Bytes of a dtype whose size is not known are no value."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    value = builder.value(np.zeros(4, np.uint8), "quint8")
    builder.op("aten.mm.default", outputs=[value])
    with pytest.raises(HoleError, match=r"a quint8 tensor of shape \[4\] has no 4 bytes"):
        values_of(builder.finish()).get(value)


def test_placements(tmp_path: Path) -> None:
    """A row's tensors have their addresses, and whether they are lazily conjugated or negated."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["x"])
    builder.op("aten.mm.default", outputs=["x"])
    builder.commit()
    bits = (0, PlacementBit.CONJUGATED, PlacementBit.NEGATED, PlacementBit.CONJUGATED | PlacementBit.NEGATED)
    new = [
        NewValue(ValueKind.PLACEMENT, place // 2, 0, 1, place, 16 * place << PLACEMENT_SHIFT | bit, b"", 8 * place)
        for place, bit in enumerate(bits)
    ]
    builder.main.request_values()
    builder.main.writer.commit(0, None, values=NewValues(new))
    values = values_of(builder.finish())
    assert values.placements(0, 0) == values.placements(1, 1) == {}
    assert values.placements(0, 1) == {
        place: StoredPlacement(place // 2, 8 * place, 16 * place, place in (1, 3), place in (2, 3))
        for place in range(4)
    }
    assert len(values) == 0 and verify(builder.path).sound


def test_generators_inputs_and_what_was_left_out(tmp_path: Path) -> None:
    """States, inputs by their place, and the reason why a row's values are missing."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    state = builder.value(np.arange(64, dtype=np.uint8), kind=ValueKind.GENERATOR)
    weight = builder.value(np.ones((2, 2), np.float32), kind=ValueKind.INPUT, place=1)
    builder.op("aten.bernoulli.p", inputs=[("outside", "x"), ("outside", weight)], rng=state, outputs=["y"])
    builder.left_out("the limit was reached", values=2, size=99)
    builder.op("aten.mm.default", outputs=["z"])
    values = values_of(builder.finish())
    found = values.get(state)
    assert (found.dtype, found.shape, found.raw.tolist()) == (GENERATOR, (64,), list(range(64)))
    assert reference.digest(bytes(found.data), 0) == state
    assert values.inputs(0, 0) == {1: weight}
    assert values.inputs(0, 1) == {}
    assert (values.why_missing(0, 0), values.why_missing(0, 1)) == (None, "the limit was reached")
    assert sum(entry.bytes for entry in values.left_out) == 99


def test_memory_of_rows_that_can_be_run_again(tmp_path: Path) -> None:
    """Rows with a tensor are counted once each; memory is what is stored, and what only a checkpoint has is counted
    beside it, once for each content."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    held = builder.value(np.arange(12, dtype=np.uint8), kind=ValueKind.STORAGE)
    for _ in range(2):
        builder.op("aten.mm.default", outputs=["x"])
    builder.commit()
    layout = builder.main.tables.plain("layouts", ["uint8", [12], [], "cpu"])
    kinds = [(ValueKind.TENSOR, 5, 0, 0), (ValueKind.TENSOR, 6, 0, 1), (ValueKind.TENSOR, 5, 1, 0)]
    kinds += [(ValueKind.CONTENT, digest, row, 0) for row in (0, 1) for digest in (held, 7, 8)]
    new = [NewValue(kind, digest, 0, row, place, layout, b"") for kind, digest, row, place in kinds]
    builder.main.writer.commit(0, None, values=NewValues(new))
    values = values_of(builder.finish())
    assert (values.rerunnable_rows, values.memory_bytes) == (2, 12)


def test_a_shape_that_no_tensor_has(tmp_path: Path) -> None:
    """A shape that no tensor has is a hole that shows it."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    layout = builder.main.tables.plain("layouts", ["uint8", [-1, -4], [], "cpu"])
    builder.op("aten.mm.default", outputs=["x"])
    builder.commit()
    builder.main.request_values()
    builder.main.writer.commit(0, None, values=NewValues([NewValue(ValueKind.OUTPUT, 5, 0, 0, 0, layout, b"1234")]))
    with pytest.raises(HoleError, match=r"its shape is \[-1, -4\]"):
        values_of(builder.finish()).get(5)


def test_few_chunks_are_kept(small: tuple[Path, dict[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds the chunks that were used last; others are read again."""
    monkeypatch.setattr("rltrace.trace.read.values.CACHED_CHUNKS", 1)
    values = values_of(small[0])
    first, _, second, *_, last = small[1]
    for digest, read in ((first, 1), (second, 1), (last, 2), (last, 2), (first, 3)):
        before = len(values.index) and 2
        assert values.get(digest) is not None and values.counter.chunks - before == read


def reads_right(values: Values, captured: dict[int, np.ndarray], what: str) -> int:
    """How many of the values can be read; those that can are what was recorded."""
    read = 0
    for digest, array in captured.items():
        try:
            value = values.get(digest)
        except HoleError as error:
            assert f"{digest:016x}" in str(error)
            continue
        assert value is not None, f"{what}: {digest:016x} is said never to have been recorded"
        assert value.raw.tobytes() == array.tobytes(), f"{what}: read wrong"
        read += 1
    return read


def test_every_byte(small: tuple[Path, dict[int, np.ndarray]]) -> None:
    """A file of values with a byte changed, cut at any length or gone is a hole, never another value."""
    path, captured = small
    memory = Memory(load(path))
    files = [key for key in memory.files if "/values/" in key and "/c." in key]
    assert len(files) == 4
    with in_memory({path: memory}):
        assert reads_right(values_of(path), captured, "whole") == 6
        for key in files:
            whole = memory.files[key]
            changes = [whole[:length] for length in range(len(whole))]
            changes += [bytes([*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :]]) for at in range(len(whole))]
            for memory.files[key] in changes:
                trace = open_trace(path)
                assert reads_right(trace.processes[0].values, captured, key) == 3
                assert any(key in hole.why for hole in trace.holes)
            memory.files[key] = whole


def test_a_file_of_values_missing(small: tuple[Path, dict[int, np.ndarray]]) -> None:
    """``verify`` reports it, and the values of the other commit are read."""
    path, captured = small
    for key in [key for key in load(path) if "/values/" in key and "/c." in key]:
        data = (path / key).read_bytes()
        (path / key).unlink()
        assert any(f"{key} is missing" in damage for damage in verify(path).damage)
        assert reads_right(values_of(path), captured, key) == 3
        (path / key).write_bytes(data)
    assert verify(path).sound


@pytest.mark.parametrize(
    ("column", "number"),
    [
        (ValueIndex.KIND, 77),
        (ValueIndex.LAYOUT, 1 << 40),
        (ValueIndex.OFFSET, 1 << 60),
        (ValueIndex.OFFSET, 4),
        (ValueIndex.LENGTH, 1 << 60),
        (ValueIndex.LENGTH, 23),
        (ValueIndex.LENGTH, 0),
        (ValueIndex.DIGEST, 5),
    ],
)
def test_an_index_that_lies(small: tuple[Path, dict[int, np.ndarray]], column: ValueIndex, number: int) -> None:
    """A row that every checksum confirms and that is not true leads to no other value, and to no memory taken."""
    path, captured = small
    files: Files = load(path)
    key = "values/index/c.0.0"
    stored = chunk_codec.decode(VALUE_INDEX, files[f"processes/0/{key}"]).copy()
    stored[column, :6] = number
    store(replace_chunk(files, "processes/0/", key, stored), path)
    if column is ValueIndex.DIGEST:
        with pytest.raises(HoleError, match=f"{5:016x}"):
            values_of(path).get(5)
        captured = {digest: array for i, (digest, array) in enumerate(captured.items()) if i >= 3}
        assert reads_right(values_of(path), captured, "lie") == 3
    elif column is ValueIndex.KIND:
        assert reads_right(values_of(path), captured, "lie") in (3, 6)
    else:
        assert reads_right(values_of(path), captured, "lie") == 3
    assert verify(path).sound == (column is ValueIndex.KIND)


def test_records_that_make_no_sense(small: tuple[Path, dict[int, np.ndarray]]) -> None:
    """A record of values that cannot be true is damage of the journal, named; the others are read."""
    path, captured = small
    files = load(path)
    for change in ({"count": 5000}, {"chunk": -1}, {"bytes_files": [None]}, {"left_out": [{}]}, {"files": "x"}):
        store(change_first(files, "processes/0/", "values", change), path)
        trace = open_trace(path)
        assert any("values" in hole.why for hole in trace.holes), change
        values = trace.processes[0].values
        later = {digest: array for i, (digest, array) in enumerate(captured.items()) if i >= 3}
        assert reads_right(values, later, str(change)) == 3


def test_killed_between_data_and_journal(small: tuple[Path, dict[int, np.ndarray]]) -> None:
    """Without its journal record a commit's values do not exist; what came before is all there, and no damage."""
    path, captured = small
    kill_before(path, "processes/0/", "values")
    values = values_of(path)
    found = [values.get(digest) for digest in captured]
    assert [value is not None for value in found] == [True] * 3 + [False] * 3
    assert verify(path).sound


def test_zarr_reads_values(small: tuple[Path, dict[int, np.ndarray]]) -> None:
    """Without rltrace: the index and the bytes are plain arrays, as docs/reference/trace-format.md says."""
    path, captured = small
    process = zarr.open_group(str(path), mode="r")["processes/0"]
    index, data = process["values/index"], process["values/bytes"]
    names = index.attrs["columns"]
    read = {}
    for row in index[:]:
        entry = dict(zip(names, row.tolist(), strict=True))
        if entry["kind"]:
            part = data[entry["offset"] : entry["offset"] + entry["length"]]
            read[entry["digest"]] = part.tobytes()
    assert read == {digest: array.tobytes() for digest, array in captured.items()}
