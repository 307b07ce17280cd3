"""``values``: what selected ops returned, wrote and read is recorded as it was at that op, and nothing else changes."""

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_programs import small_training
from recorded import Record, Recorded
from torch import nn

import rltrace
from rltrace.digest import reference, seed_of
from rltrace.errors import SelectorError, UsageError
from rltrace.extensions.archive.verify import verify
from rltrace.recorder.capture import capture_queue
from rltrace.recorder.capture.capture_queue import ValueQueue
from rltrace.selectors import parse_selectors
from rltrace.trace.format.records import ValueRequest
from rltrace.trace.format.schema import LIMIT, RowFlag, ValueIndex, ValueKind
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.values import Value
from rltrace.trace.write.packers import NewValue


def values_of(found: Recorded, row: int) -> list[Value | None]:
    return [found.process.values.get(digest) for digest in found.rows[row].outputs]


def torch_bytes(tensor: torch.Tensor) -> bytes:
    """Logical bytes by another way than the recorder's: element by element, through a list of bytes."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor.detach().resolve_conj().resolve_neg())
    return bytes(plain.flatten().view(torch.uint8).tolist()) if plain.numel() else b""


def test_all_outputs_of_a_training_run(record: Record) -> None:
    """Everything asked for: each output of each row is there under its digest, and each state drawn from."""
    found = record(small_training, values="all")
    values = found.process.values
    assert values.left_out == ()
    kept = 0
    for row in found.rows:
        for digest in row.outputs:
            value = values.get(digest)
            assert value is not None, row.op
            assert reference.digest(bytes(value.data), seed_of(value.dtype, value.shape)) == digest
            kept += 1
        if row.rng is not None:
            state = values.get(row.rng)
            assert reference.digest(bytes(state.data), 0) == row.rng
    assert kept > 100
    assert verify(found.path).sound


def test_nothing_else_changes(record: Record) -> None:
    """Rows, links and prefix digests are those of a recording without values."""
    plain, keeping = record(small_training), record(small_training, values="all", values_inputs=True)
    assert keeping.rows == plain.rows
    assert np.array_equal(keeping.stream.marks[-1], plain.stream.marks[-1])
    assert plain.process.value_request is None
    assert not plain.process.values


def odd_tensors() -> dict[str, Callable[[], torch.Tensor]]:
    """One op each that returns a tensor of another kind."""
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "plain": lambda: base + 1,
        "scalar": lambda: base.sum(),
        "empty": lambda: torch.zeros(0, 3),
        "transposed": lambda: base.t().clone(),
        "channels last": lambda: nn.functional.conv2d(
            torch.ones(1, 2, 4, 4).to(memory_format=torch.channels_last), torch.ones(3, 2, 2, 2)
        ),
        "bool": lambda: base > 3,
        "int8": lambda: base.to(torch.int8),
        "int64": lambda: base.argsort(),
        "float16": lambda: base.half(),
        "bfloat16": lambda: base.bfloat16(),
        "float8": lambda: base.to(torch.float8_e4m3fn),
        "float64": lambda: base.double(),
        "complex": lambda: torch.complex(base, base),
        "conjugated": lambda: torch.complex(base, base).conj().resolve_conj(),
        "expanded": lambda: torch.ones(3, 1).expand(3, 4).contiguous(),
        "large": lambda: torch.arange(200_000, dtype=torch.int64).flip(0),
    }


def test_every_kind_of_tensor(record: Record) -> None:
    """dtype, shape and bytes of the op's result, whatever its dtype, shape and strides."""
    with record.block(values="all") as found:
        made = {kind: make() for kind, make in odd_tensors().items()}
    for kind, wanted in made.items():
        dtype, shape = str(wanted.dtype)[6:], tuple(wanted.shape)
        value = found.process.values.get(reference.digest(torch_bytes(wanted), seed_of(dtype, shape)))
        assert value is not None, kind
        assert (value.dtype, value.shape, bytes(value.data)) == (dtype, shape, torch_bytes(wanted)), kind
        if wanted.is_floating_point():
            assert np.array_equal(value.numbers, wanted.double().numpy(), equal_nan=True), kind


def test_how_inputs_lie_in_memory(record: Record) -> None:
    """Who shares a storage, where, how it is aligned, and lazy conjugates; of what lies plainly nothing is said."""
    x = torch.arange(40.0)
    buffer = np.zeros(40, np.float32)
    shift = -(buffer.ctypes.data // 4) % 16 + 3  # so many elements further it lies 12 bytes behind a multiple of 64
    given_by_numpy = torch.from_numpy(buffer[shift : shift + 4])
    z = torch.complex(torch.ones(2, 2), torch.ones(2, 2))
    with record.block(values="all", values_inputs=True) as found:
        torch.add(torch.ones(2), torch.ones(2))
        x[8:12].add_(x[4:8])
        torch.mul(given_by_numpy, x[:4])
        torch.mm(z.conj(), z)

    def lying(row: int) -> dict[int, tuple[int, int, int, bool, bool]]:
        places = found.process.values.placements(0, row)
        return {k: (p.with_, p.offset, p.alignment, p.conjugated, p.negated) for k, p in places.items()}

    assert lying(found.one("add").index) == {}
    assert lying(found.one("add_").index) == {0: (0, 16, 16, False, False), 1: (0, 0, 16, False, False)}
    assert lying(found.one("mul").index) == {0: (0, 0, 12, False, False)}
    assert lying(found.one("mm").index) == {0: (0, 0, 0, True, False), 1: (0, 0, 0, False, False)}
    assert verify(found.path).sound


def test_inputs_of_every_kind(record: Record) -> None:
    """Views, conjugates, negatives and what another op wrote earlier: each as the op read it, by its place."""
    base = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    read: list[tuple[torch.Tensor, ...]] = []
    with record.block(values="op=add", values_inputs=True) as found:
        for pair in ((base[1:, ::2], base.conj()[1:, ::2]), (base.imag[0], base.conj().imag[0])):
            torch.add(*pair)
            read.append(tuple(map(torch_bytes, pair)))
    rows = found.named("add")
    for row, wanted in zip(rows, read, strict=True):
        digests = found.process.values.inputs(0, row.index)
        assert sorted(digests) == [0, 1]
        kept = [found.process.values.get(digests[place]) for place in (0, 1)]
        assert tuple(bytes(value.data) for value in kept if value is not None) == wanted


def test_written_in_place(record: Record) -> None:
    """What an op wrote is recorded as it left it, and what it read of it as it found it, whatever is written later."""
    with record.block(values=["op=add_", "op=mul_", "op=mul.out", "op=_foreach*"], values_inputs=True) as found:
        x = torch.zeros(3)
        for i in range(4):
            x.add_(i + 1)
        y = torch.ones(2, 3)
        y[1].mul_(5)
        torch.mul(y, 2, out=y)
        torch._foreach_add_([x, y], 1.0)
    values = found.process.values

    def numbers(digest: int) -> list[Any]:
        value = values.get(digest)
        return value.numbers.tolist()

    sums = [(numbers(values.inputs(0, r.index)[0])[0], numbers(r.outputs[0])[0]) for r in found.named("add_")]
    assert sums == [(0.0, 1.0), (1.0, 3.0), (3.0, 6.0), (6.0, 10.0)]
    row = found.one("mul_")
    assert (numbers(values.inputs(0, row.index)[0]), numbers(row.outputs[0])) == ([1.0] * 3, [5.0] * 3)
    row = found.one("mul")
    assert numbers(values.inputs(0, row.index)[0]) == [[1.0] * 3, [5.0] * 3]
    assert 2 not in values.inputs(0, row.index)  # only overwritten
    assert numbers(row.outputs[0]) == [[2.0] * 3, [10.0] * 3]
    row = found.named("_foreach_add_")[0]
    assert [numbers(d)[0] for d in values.inputs(0, row.index).values()] == [10.0, [2.0] * 3]
    assert [numbers(d)[0] for d in row.outputs] == [11.0, [3.0] * 3]


def test_one_value_once(record: Record) -> None:
    """A hundred equal results are one value, recorded where it was met first."""
    found = record(lambda: [torch.ones(50) + 1 for _ in range(100)], values="op=add")
    values = found.process.values
    assert (len(values), values.nbytes) == (1, 200)
    assert values.index[:, [ValueIndex.KIND, ValueIndex.ROW]].tolist() == [
        [ValueKind.OUTPUT, found.named("add")[0].index]
    ]


def test_a_value_of_more_than_half_the_limit_is_left_out_alone(record: Record) -> None:
    """The cache of an engine would take the room of all others."""
    with record.block(values="op=add", values_limit=1 << 12) as found:
        for size in (10, 1 << 11, 20):
            torch.ones(size) + 1
    kept = [value is not None for row in found.named("add") for value in values_of(found, row.index)]
    assert kept == [True, False, True]


def test_the_limit(record: Record) -> None:
    """From the first value on that does not fit, none is recorded; the trace says how many, how much, of which rows."""
    with record.block(values="op=add", values_limit=3 * (400 + capture_queue.OVERHEAD) + 100) as found:
        for i in range(10):
            torch.full((100,), float(i)) + 1
        torch.ones(1) + 5
    kept = [value is not None for row in found.named("add") for value in values_of(found, row.index)]
    assert kept == [True] * 3 + [False] * 8
    rows = [row.index for row in found.named("add")]
    assert [(e.why, e.stream, e.first, e.last, e.values, e.bytes) for e in found.process.values.left_out] == [
        (LIMIT, 0, rows[3], rows[10], 8, 7 * 400 + 4)
    ]
    assert found.process.values.why_missing(0, rows[5]) == LIMIT


def refused() -> dict[str, Callable[[], object]]:
    return {
        "sparse": lambda: torch.eye(3).to_sparse() * 2,
        "csr": lambda: torch.eye(3).to_sparse_csr() * 2,
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2,
        "meta": lambda: torch.ones(3, device="meta") * 2,
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }


@pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage|deprecated):UserWarning")
@pytest.mark.parametrize("kind", refused())
def test_what_has_no_plain_bytes(record: Record, kind: str) -> None:
    """It is left out by name, and everything else is recorded as ever."""
    found = record(lambda: (refused()[kind](), torch.ones(2) + 7), values=["op=mul", "op=quantize*", "op=add"])
    (entry,) = found.process.values.left_out
    assert entry.why.startswith(("a tensor that consists of several", "the tensor has no memory"))
    assert [value is not None for value in values_of(found, found.one("add").index)] == [True]


OPS = ["op=aten.*mm*", "op=add*", "op=mul", "op=_foreach*", "nth=0", "nth=1:", "kernel=ATen*", "kernel=*thread*"]
PLACES = ["module=0", "module=*", "module=3", "site=*:small*", "site=*adam*", "phase=backward", "phase=optimizer"]
PLACES += ["phase=forward", "stream=*main*", "stream=x", "step=1", "step=0:1", "step=5:"]
SELECTORS = st.lists(
    st.lists(st.sampled_from(OPS + PLACES), min_size=1, max_size=3).map(",".join), min_size=1, max_size=3
)


@settings(max_examples=8, deadline=None)
@given(SELECTORS)
def test_a_selector_records_what_it_finds(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Values are recorded of the rows that the same selector finds in the trace, and of no other."""
    path = tmp_path_factory.mktemp("selected") / "a.zarr"
    with rltrace.record(path, values=texts, values_inputs=True):
        small_training()
    process = open_trace(path).processes[0]
    stream = process.streams[0]
    rows = stream.read(0, stream.rows)
    wanted = RowMask(parse_selectors(texts), stream.name, process.words)
    mask = wanted.compute(rows) if wanted.is_possible else np.zeros(len(rows), bool)
    found = set()
    for row in np.flatnonzero(mask).tolist():
        if rows.flags(row) & (RowFlag.VIEW | RowFlag.ALLOCATION):
            continue
        assert all(process.values.get(digest) is not None for digest in rows.outputs(row))
        read = [link for link in rows.inputs(row) if link.distance != -3]
        assert len(process.values.inputs(0, row)) == len(read)
        found.add(row)
    assert set(process.values.index[:, ValueIndex.ROW].tolist()) <= found


def test_no_tensor_is_held_and_no_version_moves(record: Record) -> None:
    """Results die with the program's last reference, gradients are stolen as without recording, versions stay."""
    seen: list[tuple[int, int]] = []

    def program() -> None:
        weight = nn.Parameter(torch.ones(4, 4))
        out = (weight @ torch.ones(4, 2)).relu()
        died = weakref.ref(out)
        grown = out.sum()
        grown.backward()
        seen.append((weight._version, weight.grad._version))
        weight.grad.add_(1)
        seen.append((weight._version, weight.grad._version))
        del out, grown
        gc.collect()
        assert died() is None

    record(program)
    record(program, values="all", values_inputs=True)
    plain, keeping = seen[:2], seen[2:]
    assert plain == keeping == [(0, 0), (0, 1)]


def test_more_than_the_disk_takes_at_once(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are committed as they come together, and the program waits rather than fill its memory."""
    monkeypatch.setattr(capture_queue, "FLUSH_BYTES", 1 << 14)
    monkeypatch.setattr(capture_queue, "MAX_PENDING_BYTES", 1 << 16)
    most = []
    add = ValueQueue.add

    def kept(self: ValueQueue, value: NewValue) -> None:
        add(self, value)
        most.append(self.pending_bytes)

    monkeypatch.setattr(ValueQueue, "add", kept)
    found = record(lambda: [torch.full((1000,), float(i)) for i in range(300)], values="op=full")
    assert len(found.process.values) == 300
    assert max(most) <= (1 << 16) + 3 * 4100
    assert len(found.process.value_parts) > 5


def test_an_interrupted_row_leaves_no_values() -> None:
    """Values of a row that will never be are taken back; those of finished rows are not."""
    queue = ValueQueue(ValueRequest(("all",), True, 1 << 20))
    for row, digest in ((0, 5), (1, 6), (1, 7)):
        queue.add(NewValue(ValueKind.OUTPUT, digest, 0, row, 0, 0, b"abcd"))
    queue.forget(0, 1)
    assert [queue.knows(digest) for digest in (5, 6, 7)] == [True, False, False]
    assert [value.digest for value in queue.take(0, 99).values] == [5]
    assert queue.pending_bytes == 0


def test_rows_and_their_values_are_taken_together() -> None:
    """A commit takes the values of the rows that it takes, and leaves those of rows to come."""
    queue = ValueQueue(ValueRequest(("all",), False, 1 << 20))
    for row in range(4):
        queue.add(NewValue(ValueKind.OUTPUT, row + 1, 0, row, 0, 0, b"x"))
        queue.add(NewValue(ValueKind.OUTPUT, row + 11, 1, row, 0, 0, b"x"))
    assert [value.row for value in queue.take(0, 3).values] == [0, 1, 2]
    assert [value.row for value in queue.take(0, 4).values] == [3]
    assert len(queue.take(1, 9).values) == 4


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are remembered for a while, not for ever: memory stays flat."""
    monkeypatch.setattr(capture_queue, "MAX_KNOWN", 10)
    queue = ValueQueue(ValueRequest(("all",), False, 1 << 30))
    for digest in range(1000):
        queue.add(NewValue(ValueKind.OUTPUT, digest, 0, digest, 0, 0, b""))
    known = [digest for digest in range(1000) if queue.knows(digest)]
    assert 10 <= len(known) <= 20
    assert all(b == a + 1 for a, b in pairwise(known))


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    """A selector that makes no sense, and a level that has no ops, are refused before anything is made."""
    for error, options in ((SelectorError, {"values": "opp=mm"}), (UsageError, {"values": "all", "level": "step"})):
        with pytest.raises(error), rltrace.record(tmp_path / "a.zarr", **options):
            pass
    assert not (tmp_path / "a.zarr").exists()
