"""Uninitialised memory: what may hold such bytes is marked, what holds none is not.

What is marked is compared with what truly differs over other fresh memory, and with a model: random programs on small
buffers, followed byte by byte in NumPy beside the recorder.
"""

import copy
import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from engines import hide_modes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from recorded import Record, Recorded, memory_filled
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.trace.format.schema import Origin, RowFlag

Fill = Callable[[torch.Tensor], Any]


def test_reading_fresh_memory_is_marked(record: Record) -> None:
    """``empty`` is an allocation without a digest; its first reader is marked, what follows from that is not."""
    with record.block() as got:
        total = torch.empty(4).sum()
        total + 1
    allocation, read, after = got.rows
    assert allocation.flags & RowFlag.ALLOCATION and allocation.outputs == []
    assert read.marked and len(read.outputs) == 1
    assert not after.marked


@pytest.mark.filterwarnings("ignore::UserWarning")  # eager quantization has moved to torchao
def test_packing_fresh_memory_writes_nothing(record: Record) -> None:
    """torch's quantized operators write what their schemas say: a layer's first, empty parameters have no digest."""
    with record.block() as got:
        weight = torch._empty_affine_quantized([1, 1], scale=1, zero_point=0, dtype=torch.qint8)
        torch.ops.quantized.linear_prepack(weight)
        torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(torch.ones(1, 1), 0.5, 0, torch.qint8))
    empty, full = got.named("linear_prepack")
    assert (empty.marked, empty.outputs) == (True, [])
    assert (full.marked, full.outputs) == (False, [])


def test_a_buffer_read_before_it_is_full_is_marked_until_it_is(record: Record) -> None:
    """Preallocated rollouts: filled step by step, touched as a whole in between."""
    with record.block() as got:
        buffer = torch.empty(3, 2)
        for i in range(3):
            buffer[i] = float(i)
            buffer[: i + 1].sum()
            buffer.mean()
    assert [row.marked for row in got.named("sum")] == [False] * 3
    assert [row.marked for row in got.named("mean")] == [True, True, False]
    assert not any(row.marked for row in got.named("fill_"))


FILLS: dict[str, Fill] = {
    "fill_": lambda b: b.fill_(1.0),
    "copy_": lambda b: b.copy_(torch.ones(4, 6)),
    "normal_": lambda b: b.normal_(),
    "out=": lambda b: torch.mul(torch.ones(4, 6), 2.0, out=b),
    "two halves": lambda b: (b[:2].fill_(1.0), b[2:].zero_()),
    "column by column": lambda b: [b[:, i].fill_(i) for i in range(6)],
    "every other column": lambda b: (b[:, ::2].fill_(1.0), b[:, 1::2].fill_(2.0)),
    "through the transpose": lambda b: [b.t()[i].fill_(i) for i in range(6)],
    "tiles of a matrix product": lambda b: [
        torch.mm(torch.ones(2, 3), torch.ones(3, 3), out=b[2 * i : 2 * i + 2, 3 * j : 3 * j + 3])
        for i in range(2)
        for j in range(2)
    ],
    "as other numbers": lambda b: [b.view(torch.int32)[i].fill_(i) for i in range(4)],
    "as bytes": lambda b: (b.view(torch.uint8)[:, :12].fill_(0), b.view(torch.uint8)[:, 12:].fill_(0)),
    "index_put_ of all rows": lambda b: b.__setitem__(torch.arange(4), torch.ones(6)),
    "index_put_ of all places": lambda b: b.__setitem__((torch.arange(4)[:, None], torch.arange(6)), 2.0),
    "index_put_ of all columns": lambda b: b.__setitem__((slice(None), torch.arange(6)), 2.0),
    "index_put_ by a mask": lambda b: b.__setitem__(torch.ones(4, 6, dtype=torch.bool), 2.0),
    "index_copy_": lambda b: b.index_copy_(0, torch.tensor([3, 1, 0, 2]), torch.ones(4, 6)),
    "index_fill_": lambda b: b.index_fill_(1, torch.arange(6), 3.0),
    "scatter_": lambda b: b.scatter_(1, torch.arange(6).expand(4, 6), torch.ones(4, 6)),
    "put_": lambda b: b.put_(torch.arange(24), torch.ones(24)),
    "masked_fill_ of both halves": lambda b: [b.masked_fill_(torch.ones(4, 6).triu() == i, 1.0) for i in range(2)],
    "foreach": lambda b: torch._foreach_copy_([b[:2], b[2:]], [torch.ones(2, 6), torch.ones(2, 6)]),
    "index_reduce_ without itself": lambda b: b.index_reduce_(
        0, torch.arange(4), torch.ones(4, 6), "mean", include_self=False
    ),
    "scatter_reduce_ without itself": lambda b: b.scatter_reduce_(
        1, torch.arange(6).expand(4, 6), torch.ones(4, 6), "sum", include_self=False
    ),
    "masked_scatter_ beside masked_fill_": lambda b: b.masked_fill_(torch.ones(4, 6).triu() == 0, 1.0).masked_scatter_(
        torch.ones(4, 6).triu() == 1, torch.ones(24)
    ),
    "masked_scatter_": lambda b: b.masked_scatter_(torch.ones(4, 6, dtype=torch.bool), torch.ones(24)),
    "real and imaginary parts": lambda b: [part.fill_(1.0) for part in torch.view_as_complex(b.view(4, 3, 2)).t()],
    "set_ of another tensor": lambda b: torch.empty(0).set_(b.untyped_storage(), 0, (24,), (1,)).fill_(1.0),
    "its storage": lambda b: b.untyped_storage().fill_(0),
    "another one's storage": lambda b: b.untyped_storage().copy_(torch.ones(24).untyped_storage()),
    "cat with out=": lambda b: torch.cat([torch.ones(2, 6), torch.ones(2, 6)], out=b),
    "split": lambda b: [part.zero_() for part in b.split(2)],
    "unbind": lambda b: [part.zero_() for part in b.unbind(1)],
    "overlapping windows": lambda b: b.view(-1).unfold(0, 5, 1).fill_(1.0),
    "after growing": lambda b: b.resize_(5, 6).zero_(),
}


def marked(record: Record, fills: dict[str, Fill]) -> set[str]:
    """Those of several ways to fill a buffer after which reading it is marked."""

    def program() -> None:
        for fill in fills.values():
            buffer = torch.empty(4, 6)
            fill(buffer)
            buffer.mean()

    means = record(program).named("mean")
    return {name for name, row in zip(fills, means, strict=True) if row.marked}


UNREAD: dict[str, Fill] = {
    "addmm_": lambda b: b.addmm_(torch.ones(4, 3), torch.ones(3, 6), beta=0),
    "addmm_ by a float": lambda b: b.addmm_(torch.ones(4, 3), torch.ones(3, 6), beta=0.0, alpha=0.5),
    "addmm": lambda b: torch.addmm(b, torch.ones(4, 3), torch.ones(3, 6), beta=0, alpha=2),
    "addmm with out=": lambda b: torch.addmm(b, torch.ones(4, 3), torch.ones(3, 6), beta=0, out=torch.empty(4, 6)),
    "baddbmm": lambda b: torch.baddbmm(b.view(2, 2, 6), torch.ones(2, 2, 3), torch.ones(2, 3, 6), beta=0),
    "addbmm": lambda b: torch.addbmm(b, torch.ones(2, 4, 3), torch.ones(2, 3, 6), beta=0),
    "addmv": lambda b: torch.addmv(b[0], torch.ones(6, 3), torch.ones(3), beta=0),
    "addr": lambda b: torch.addr(b, torch.ones(4), torch.ones(6), beta=0),
    "rrelu in training": lambda b: torch.rrelu(torch.ones(4, 6), training=True),
    "rrelu": lambda b: torch.rrelu(torch.ones(4, 6)),
}


def test_what_is_not_read_marks_nothing(record: Record) -> None:
    """A factor of 0 takes any input, and attention layers give it fresh memory; a mark would hide the product."""
    with record.block() as got:
        for use in UNREAD.values():
            use(torch.empty(4, 6))
    assert [(row.op, row.line) for row in got.rows if row.marked] == []
    rows = [row for row in got.rows if row.name.startswith(("add", "badd"))]
    assert [row.inputs[0].origin for row in rows] == [Origin.OVERWRITTEN] * 8


SHAPES: dict[str, Fill] = {
    "bernoulli": lambda b: torch.bernoulli(b, p=0.5),
    "dropout in vmap": lambda b: torch.func.vmap(torch.dropout, (0, None, None), randomness="different")(
        torch.ones(4, 6), 0.5, True
    ),
    "rand_like": torch.rand_like,
    "zeros_like": torch.zeros_like,
    "new_full": lambda b: b.new_full((2,), 3.0),
}


def test_ops_that_use_only_a_shape_read_nothing(record: Record, engine: str) -> None:
    """What they return does not come from fresh memory: no mark, and another seed is the cause of another draw."""

    def program(seed: int) -> None:
        torch.manual_seed(seed)
        for use in SHAPES.values():
            use(torch.empty(4, 6)).sum()

    got, other = (record(lambda seed=seed: program(seed), engine=engine) for seed in (0, 1))
    assert [row.op for row in got.rows if row.marked] == []
    rows = [row for row in got.rows if row.name in ("bernoulli", "rand_like", "zeros_like", "new_full")]
    assert [row.inputs[0].origin for row in rows] == [Origin.OVERWRITTEN] * 5
    first = compare(got.path, other.path).first
    assert (first.op, first.cause) == ("aten.bernoulli.p", Cause.RNG)


PARTS: dict[str, Fill] = {
    "one row": lambda b: b[1].fill_(1.0),
    "all but one column": lambda b: b[:, :5].fill_(1.0),
    "every other column": lambda b: b[:, ::2].fill_(1.0),
    "index_put_ of some rows": lambda b: b.__setitem__(torch.tensor([0, 1, 3, 3]), torch.ones(6)),
    "index_put_ by a mask": lambda b: b.__setitem__(torch.ones(4, 6).tril() == 1, 2.0),
    "index_put_ of some columns": lambda b: b.__setitem__((slice(None), torch.arange(5)), 2.0),
    "index_put_ that adds": lambda b: b.index_put_((torch.arange(4),), torch.ones(6), accumulate=True),
    "overlapping windows": lambda b: b.view(-1)[:20].unfold(0, 5, 1).fill_(1.0),
    "overlapping strides": lambda b: b.as_strided((6, 6), (1, 1)).zero_(),
    "scatter_reduce_": lambda b: b.scatter_reduce_(1, torch.arange(6).expand(4, 6), torch.ones(4, 6), "sum"),
    "index_reduce_ of some rows": lambda b: b.index_reduce_(
        0, torch.arange(3), torch.ones(3, 6), "mean", include_self=False
    ),
    "index_add_": lambda b: b[:2].index_add_(0, torch.tensor([0, 1]), torch.ones(2, 6)),
    "scatter_": lambda b: b.scatter_(0, torch.zeros(1, 6, dtype=torch.int64), 1.0),
    "scatter_ that multiplies": lambda b: b.scatter_(1, torch.arange(6).expand(4, 6), 2.0, reduce="multiply"),
    "fill_diagonal_": lambda b: b.fill_diagonal_(1.0),
    "masked_fill_": lambda b: b.masked_fill_(torch.eye(4, 6) == 1, 1.0),
    "resized": lambda b: b.zero_().resize_(5, 6),
}


@pytest.mark.filterwarnings("ignore")
def test_a_buffer_is_marked_until_it_is_full(record: Record) -> None:
    """One uninitialised element is enough; once it is full, however, a false mark would hide a true difference."""
    assert marked(record, FILLS) == set()
    assert marked(record, PARTS) == set(PARTS)


def test_indexing_is_a_marked_row_where_it_leaves_something(record: Record) -> None:
    """The digest of what it wrote covers uninitialised bytes then. Where it writes everything, nothing in its row
    depends on what was there."""
    with record.block() as got:
        buffer = torch.empty(4, 6)
        buffer[torch.tensor([0, 1])] = torch.ones(6)
        buffer[torch.arange(4)] = torch.ones(6)
    part, all_of_it = got.named("index_put_")
    assert (part.marked, all_of_it.marked, all_of_it.inputs[0].digest) == (True, False, None)


def test_every_allocation_is_followed(record: Record) -> None:
    """All the ways to ask for memory."""
    ways: list[Callable[[], torch.Tensor]] = [
        lambda: torch.empty_like(torch.ones(3)),
        lambda: torch.ones(3).new_empty(3),
        lambda: torch.empty_strided((3,), (1,)),
        lambda: torch.ones(1).new_empty_strided((3,), (1,)),
        lambda: torch.empty((3, 4, 5, 6), memory_format=torch.channels_last),
        lambda: torch.Tensor(5),
        lambda: torch.nn.Linear(3, 3, bias=False).to_empty(device="cpu").weight.detach(),
    ]
    with record.block() as got:
        for allocate in ways:
            allocate().mean()
    assert [row.marked for row in got.named("mean")] == [True] * len(ways)


def test_values_of_marked_rows_are_in_a_separate_chain(record: Record) -> None:
    """Two runs over different garbage have equal structure and equal values; only the marked chain differs."""
    chains = []
    for garbage in (1.0, 2.0):
        bytes_before = torch.full((1_000,), garbage)

        def program(source: torch.Tensor = bytes_before) -> None:
            buffer = torch.empty(1_000)
            ctypes.memmove(buffer.data_ptr(), source.data_ptr(), 4_000)
            buffer[:10] = 3.0
            torch.where(torch.arange(1_000) < 10, buffer, torch.zeros(1_000)).sum().item()
            (buffer * 2)[:10].sum().item()

        chains.append(record(program).chains)
    (structure_a, values_a, marked_a), (structure_b, values_b, marked_b) = chains
    assert structure_a == structure_b
    assert values_a == values_b
    assert marked_a != marked_b


# --- the true set of rows that depend on unwritten memory -------------------------------------------------------------

Program = Callable[[], object]
BYTES = (85, 170)
"""That fresh memory is filled with. What differs between the two read uninitialised memory: not by the recorder's own
word, but by a bare dispatch mode, which hashes what every op returned and wrote."""


def fills_work() -> bool:
    """Whether fresh memory of torch's is filled so here (glibc alone does it)."""
    if not sys.platform.startswith("linux"):
        return False
    seen = set()
    for byte in BYTES:
        with memory_filled(byte):
            seen.add(torch.empty(1_000, dtype=torch.uint8)[-1].item())
    return len(seen) == 2


needs_fills = pytest.mark.skipif(not fills_work(), reason="this C library does not fill fresh memory on demand")


def content(tensor: torch.Tensor) -> bytes:
    """Its bytes, or those of its parts."""
    if tensor.is_sparse or tensor.layout is torch.sparse_csr:
        parts = (tensor._values(),) if tensor.is_sparse else (tensor.values(),)
        return b"".join(content(part) for part in parts)
    if tensor.is_nested or tensor.is_quantized or tensor._is_zerotensor():
        return b""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).view(-1)
    return bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b""


class Oracle(TorchDispatchMode):
    """Hashes everything that ops return and write; shares nothing with the recorder."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        bits = sha256()
        named = [*zip(func._schema.arguments, args, strict=False)]
        named += [(a, kwargs[a.name]) for a in func._schema.arguments if kwargs and a.name in kwargs]
        written = [value for a, value in named if a.alias_info is not None and a.alias_info.is_write]
        for tensor in tree_leaves((result, written)):
            if isinstance(tensor, torch.Tensor):
                bits.update(content(tensor))
            else:
                bits.update(repr(tensor).encode())
        self.rows.append((str(func), bits.hexdigest()))
        return result


def truth(program: Program) -> tuple[list[str], set[int]]:
    """The ops of a program, and which of them (by number) gave other bytes over other fresh memory."""
    logs = []
    for byte in BYTES:
        torch.manual_seed(0)
        hide_modes(Oracle)
        with memory_filled(byte), Oracle() as oracle:
            program()
        logs.append(oracle.rows)
    assert [op for op, _ in logs[0]] == [op for op, _ in logs[1]]
    return [op for op, _ in logs[0]], {i for i, (a, b) in enumerate(zip(*logs, strict=True)) if a != b}


def recorded(record: Record, program: Program, byte: int, **options: object) -> Recorded:
    def seeded() -> None:
        with memory_filled(byte):
            program()

    torch.manual_seed(0)
    return record(seeded, **options)


def filled_and_read(buffer: torch.Tensor) -> None:
    (buffer * 2).sum().item()


# --- programs ---------------------------------------------------------------------------------------------------------


def rollout() -> None:
    """A preallocated rollout, filled step by step and read whole at its end."""
    observations, dones = torch.empty(5, 3), torch.empty(5, dtype=torch.bool)
    for step in range(5):
        observations[step] = torch.randn(3)
        dones[step] = step == 3
    filled_and_read(observations * ~dones[:, None])


def filled_in_every_way() -> None:
    for fill in FILLS.values():
        buffer = torch.empty(4, 6)
        fill(buffer)
        filled_and_read(buffer)
    for use in UNREAD.values():
        use(torch.empty(4, 6))


def modules() -> None:
    """Initialisation of parameters in fresh memory, padding, decompositions, deep copies, layers forth and back."""
    layer = nn.Linear(3, 3).to_empty(device="cpu")
    for init in (nn.init.orthogonal_, nn.init.xavier_uniform_, nn.init.trunc_normal_, nn.init.eye_, nn.init.dirac_):
        init(torch.empty(3, 3, 3) if init is nn.init.dirac_ else layer.weight)
    nn.init.zeros_(layer.bias)
    twin = copy.deepcopy(layer)
    filled_and_read(twin(functional.pad(torch.randn(2, 1), (1, 1))).detach())
    filled_and_read(torch.linalg.qr(torch.randn(3, 3)).R)
    torch.linalg.svd(torch.randn(3, 3)).S.sum().item()
    net = nn.Sequential(nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.RReLU(), nn.Flatten(), nn.Linear(4, 2))
    recurrent = nn.LSTM(2, 3, batch_first=True)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    out = net(torch.randn(4, 1, 3)) + recurrent(torch.randn(4, 5, 2))[0].mean()
    x = torch.randn(2, 3, 4)
    (out.sum() + attention(x, x, x)[0].sum() + net.eval()(torch.randn(4, 1, 3)).sum()).backward()


def over_other_memory(record: Record, program: Program) -> tuple[Any, list[Recorded]]:
    """What truly differs over other fresh memory, and recordings over each, which have the ops of the truth."""
    ops, differing = truth(program)
    got = [recorded(record, program, byte) for byte in BYTES]
    assert [row.op for row in got[0].rows] == ops
    return differing, got


CLEAN = [rollout, filled_in_every_way, modules]


@needs_fills
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("program", CLEAN, ids=lambda f: f.__name__)
def test_what_is_filled_before_it_is_read_is_not_marked(record: Record, program: Program) -> None:
    """Nothing that computes differs over other fresh memory, nothing is marked, and two runs are identical."""
    differing, got = over_other_memory(record, program)
    rows = got[0].rows
    beside = RowFlag.VIEW | RowFlag.ALLOCATION
    computing = {i for i in differing if not rows[i].flags & beside and not rows[i].op.startswith(BESIDE)}
    assert {row.index for row in rows if row.marked} == partly_filled(rows, differing)
    assert computing == {row.index for row in rows if row.marked}
    assert compare(got[0].path, got[1].path).verdict is Verdict.IDENTICAL


BESIDE = ("aten.mkldnn_rnn_layer.", "aten.rrelu_with_noise.")
"""Hand on a workspace, or noise that they left alone: neither has a digest in a row."""


def partly_filled(rows: list[Any], differing: set[int]) -> set[int]:
    """Ops that write a part of a buffer: what they leave is in their own digest, and the row is marked for it."""
    names = ("masked_fill_", "index_put_", "scatter_", "index_copy_")
    return {row.index for row in rows if row.index in differing and row.name in names}


def half_full() -> None:
    """The mean of a buffer that is half full, and what follows from it."""
    half = torch.empty(8)
    half[:4] = 1.0
    mean = half.mean()
    (mean * 2).sum()


def copies() -> None:
    """Garbage carried on by copies of all kinds before anyone computes with it."""
    source = torch.empty(4, 2)
    source[:, 0] = 1.0
    deep = copy.deepcopy([source.clone(), nn.Parameter(source)])
    stacked = deep[0].to(torch.float64).t().contiguous()
    stacked[0].sum()
    deep[1].detach()[:, 1].sum() + 1


def in_place() -> None:
    """Computed upon in place: from then on it is a result, if one of garbage."""
    fresh = torch.empty(3)
    fresh.nan_to_num_().mul_(0.5).clamp_(-1, 1)
    fresh.sum()
    beside = torch.zeros(3)
    beside.add_(fresh)
    torch.stack([beside, torch.ones(3)]).max().item()


def a_number() -> None:
    """Read into Python, and on from there."""
    number = torch.empty(1, dtype=torch.int64).item()
    torch.full((2,), number).sum()


DIRTY = [half_full, copies, in_place, a_number]


@needs_fills
@pytest.mark.parametrize("program", DIRTY, ids=lambda f: f.__name__)
def test_what_differs_is_marked_or_follows_from_a_mark(record: Record, program: Program) -> None:
    """What the fills change is marked, or computes with what a row changed by them wrote; the first is the origin."""
    differing, got = over_other_memory(record, program)
    rows = got[0].rows
    values = {i for i in differing if not rows[i].flags & (RowFlag.VIEW | RowFlag.ALLOCATION)}
    assert values
    for i in values:
        assert rows[i].marked or {link.row for link in rows[i].inputs} & values or rows[i].name == "full", rows[i].op
    first = compare(got[0].path, got[1].path).first
    assert first.cause is Cause.UNKNOWN
    origin = first.a_index
    assert (
        origin is not None and rows[origin].marked and "it reads memory that no recorded op wrote" in first.explanation
    )
    checked = compare(*(recorded(record, program, byte, check_links=True).path for byte in BYTES)).first
    assert (checked.cause, checked.a_index) == (Cause.UNINITIALISED, origin)
    computed = {i for i in values if rows[i].name not in ("clone", "copy_", "_to_copy")}
    assert origin in values and origin <= min(computed)


@needs_fills
def test_garbage_that_nothing_computes_with_is_counted_and_listed(record: Record) -> None:
    """Marked rows alone differ: no verdict, and not hidden."""

    def program() -> None:
        buffer = torch.empty(4)
        buffer[:2] = 1.0
        buffer.clone()
        buffer.mean()
        buffer[:2].sum()

    comparison = compare(*(recorded(record, program, byte).path for byte in BYTES))
    assert comparison.verdict is Verdict.IDENTICAL
    assert (comparison.marked.rows, comparison.marked.differing) == (2, 2)
    assert comparison.marked.first is not None and "aten.clone.default" in comparison.marked.first


@needs_fills
def test_a_true_difference_in_a_strided_buffer_is_found(record: Record) -> None:
    """Another value in a buffer that strided writes filled differs unmarked, at the op that brought it in."""

    def program(value: float) -> None:
        buffer = torch.empty(4, 3)
        data = torch.arange(12.0).reshape(4, 3)
        data.view(-1)[5] = torch.tensor(value)
        for i in range(3):
            buffer[:, i] = data[:, i]
        (buffer * 2).sum()

    paths = [recorded(record, lambda v=v: program(v), byte).path for v, byte in zip((1.5, 2.5), BYTES, strict=True)]
    comparison = compare(*paths)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first.cause is Cause.OUTSIDE
    assert comparison.marked.rows == 0


# --- a model ----------------------------------------------------------------------------------------------------------


Places = NDArray[np.int64]
Numbers = Sequence[int]
Instruction = tuple[str, tuple[int, int, int, int]]


@dataclass
class Known:
    """A tensor and, for each of its elements, which element of its buffer that is."""

    tensor: torch.Tensor
    buffer: NDArray[np.bool_]
    """Which elements of the memory have been written."""
    places: Places

    @property
    def unwritten(self) -> bool:
        return not bool(self.buffer[self.places].all())

    @property
    def overlaps(self) -> bool:
        return len(np.unique(self.places)) < self.places.size


@dataclass
class Machine:
    """Runs instructions on torch and on the model alike."""

    known: list[Known] = field(default_factory=list)
    expected: list[bool] = field(default_factory=list)
    """For each read, whether its row must be marked."""

    def run(self, program: Sequence[Instruction]) -> None:
        for name, numbers in [("empty", (3, 2, 0, 0)), *program]:
            INSTRUCTIONS[name](self, numbers)
        for known in list(self.known):
            self.read(known)

    def pick(self, number: int) -> Known:
        """One of the latest tensors, mostly."""
        return self.known[-1 - number % (len(self.known) if number > 50 else min(len(self.known), 4))]

    def read(self, known: Known) -> None:
        self.expected.append(known.unwritten)
        torch.sum(known.tensor)

    def add(self, tensor: torch.Tensor, written: bool) -> None:
        """A tensor with memory of its own, as ops return it."""
        places = _places_of(tensor)
        size = int(places.max()) + 1 if places.size else 0
        self.known.append(Known(tensor, np.full(size, written), places))

    def view(self, of: Known, tensor: torch.Tensor, places: Places) -> None:
        assert tensor.shape == places.shape
        self.known.append(Known(tensor, of.buffer, places))


def _places_of(tensor: torch.Tensor) -> Places:
    """Of a tensor that begins where its memory does."""
    size = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
    return _strided(np.arange(size), tuple(tensor.shape), tuple(tensor.stride()), 0)


def _strided(base: Places, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Places:
    view = np.lib.stride_tricks.as_strided(base[offset:], shape, [8 * s for s in strides])
    return np.array(view, dtype=np.int64)


# --- instructions -------------------------------------------------------------------------------------------------


def empty(machine: Machine, n: Numbers) -> None:
    shape = (n[0] % 4 + 1, n[1] % 4 + 1)
    if n[2] % 4 == 0:
        machine.add(torch.empty(shape), False)
    elif n[2] % 4 == 1:
        machine.add(torch.empty_strided(shape, (1, shape[0])), False)
    elif n[2] % 4 == 2:
        machine.add(machine.pick(n[3]).tensor.new_empty(shape), False)
    else:
        machine.add(torch.zeros(shape), True)


def view(machine: Machine, n: Numbers) -> None:
    """One of the ways to look at a part of a tensor, or at all of it otherwise."""
    known = machine.pick(n[0])
    t, p = known.tensor, known.places
    if t.dim() == 0 or t.numel() == 0:
        return
    match n[1] % 10:
        case 0:
            machine.view(known, t[n[2] % len(t) :], p[n[2] % len(t) :])
        case 1:
            machine.view(known, t.transpose(0, -1), p.swapaxes(0, -1))
        case 2:
            machine.view(known, t[n[2] % len(t)], p[n[2] % len(t)])
        case 3:
            size = n[2] % len(t) + 1
            step = n[3] % 2 + 1
            windows = np.lib.stride_tricks.sliding_window_view(p, size, axis=0)[::step]
            machine.view(known, t.unfold(0, size, step), np.array(windows))
        case 4:
            machine.view(known, t[..., n[2] % 2 :: 2], p[..., n[2] % 2 :: 2])
        case 5:
            if t.is_contiguous():
                machine.view(known, t.view(-1), p.reshape(-1))
        case 6:
            if t.dim() == 2:
                machine.view(known, t.diagonal(), p.diagonal())
        case _:
            of = len(known.buffer)
            shape, strides = (n[2] % 4 + 1, n[3] % 4 + 1), (n[3] // 4 % 3 + 1, n[2] // 4 % 2 + 1)
            if (shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1] < of:
                places = _strided(np.arange(of), shape, strides, 0)
                machine.view(known, t.as_strided(shape, strides, 0), places)


def write(machine: Machine, n: Numbers) -> None:
    """Overwrite a view whole."""
    known = machine.pick(n[0])
    if known.overlaps and n[1] % 6 >= 3:
        return  # out= refuses some of them
    t = known.tensor
    ways: list[Callable[[], Any]] = [
        lambda: t.fill_(1.0),
        lambda: t.zero_(),
        lambda: t.copy_(torch.ones(t.shape)),
        lambda: torch.mul(torch.ones(t.shape), 2.0, out=t),
        lambda: torch._foreach_copy_([t], [torch.ones(t.shape)]),
        lambda: t.normal_(),
    ]
    ways[n[1] % 6]()
    known.buffer[known.places] = True


def write_through(machine: Machine, n: Numbers) -> None:
    """Overwrite a view that was made for it."""
    before = len(machine.known)
    view(machine, n)
    if len(machine.known) > before:
        write(machine, (0, n[3], 0, 0))


def write_some(machine: Machine, n: Numbers) -> None:
    """Overwrite what an index, a mask or a diagonal chooses."""
    known = machine.pick(n[0])
    t, p = known.tensor, known.places
    if t.dim() == 0 or t.numel() == 0 or known.overlaps:
        return
    rows = np.array([n[2] % len(t), n[3] % len(t)])
    chosen = (np.arange(t.numel()).reshape(p.shape) * (n[2] + 1)) % 3 == n[3] % 3
    match n[1] % 6:
        case 0:
            t[torch.from_numpy(rows)] = 1.0
            known.buffer[p[rows]] = True
        case 1:
            t.index_fill_(0, torch.from_numpy(rows), 2.0)
            known.buffer[p[rows]] = True
        case 2:
            t.masked_fill_(torch.from_numpy(chosen), 3.0)
            known.buffer[p[chosen]] = True
        case 3:
            t[torch.from_numpy(chosen)] = 4.0
            known.buffer[p[chosen]] = True
        case 4:
            t.masked_scatter_(torch.from_numpy(chosen), torch.ones(t.numel()))
            known.buffer[p[chosen]] = True
        case _:
            t.scatter_(0, torch.from_numpy(np.full((1, *t.shape[1:]), rows[0])), 5.0)
            known.buffer[p[rows[0]]] = True


def change(machine: Machine, n: Numbers) -> None:
    """Compute in place: reads what is there, which is then written, if only as the result of a marked row."""
    known = machine.pick(n[0])
    if known.overlaps:
        return
    known.tensor.add_(1) if n[1] % 2 else known.tensor.nan_to_num_()
    known.buffer[known.places] = True


def duplicate(machine: Machine, n: Numbers) -> None:
    """Copies compute nothing: what is uninitialised in the source is uninitialised in the copy."""
    known = machine.pick(n[0])
    if known.overlaps or known.tensor.numel() == 0:
        return
    if n[1] % 3 == 0:
        tensor = known.tensor.clone()
    elif n[1] % 3 == 1:
        tensor = known.tensor.to(torch.float64).to(torch.float32)
    else:
        tensor = known.tensor.contiguous()
        if tensor is known.tensor:
            return
    places = _places_of(tensor)
    buffer = np.ones(int(places.max()) + 1, dtype=bool)
    buffer[places] = known.buffer[known.places]
    machine.known.append(Known(tensor, buffer, places))


def move(machine: Machine, n: Numbers) -> None:
    """``copy_`` from one view into another of the same shape, of other memory."""
    target = machine.pick(n[0])
    fitting = [k for k in machine.known if k.tensor.shape == target.tensor.shape and k.buffer is not target.buffer]
    if target.overlaps or not fitting:
        return
    source = fitting[n[1] % len(fitting)]
    target.tensor.copy_(source.tensor)
    target.buffer[target.places] = source.buffer[source.places]


def deep(machine: Machine, n: Numbers) -> None:
    """A deep copy has memory of its own, all of it, and looks at the same part."""
    known = machine.pick(n[0])
    twin = copy.deepcopy(known.tensor)
    machine.known.append(Known(twin, known.buffer.copy(), known.places))


def read(machine: Machine, n: Numbers) -> None:
    machine.read(machine.pick(n[0]))


INSTRUCTIONS: dict[str, Callable[[Machine, Numbers], None]] = {
    "empty": empty,
    "view": view,
    "write": write,
    "write_through": write_through,
    "write_some": write_some,
    "change": change,
    "duplicate": duplicate,
    "move": move,
    "deep": deep,
    "read": read,
}

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(INSTRUCTIONS)), st.tuples(*[st.integers(0, 64)] * 4)), min_size=1, max_size=25
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs=st.lists(PROGRAMS, min_size=1, max_size=12))
def test_marks_are_those_of_the_model(record: Record, programs: list[list[Instruction]]) -> None:
    """Never less than the model, or a difference of garbage would be a verdict; never more, or it would hide one."""
    machines = [Machine() for _ in programs]
    with record.block() as got:
        for machine, program in zip(machines, programs, strict=True):
            machine.run(program)
    marks = iter([row.marked for row in got.named("sum")])
    for machine in machines:
        assert list(islice(marks, len(machine.expected))) == machine.expected
