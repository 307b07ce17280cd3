"""The true set of rows that depend on unwritten memory, found by running under two fills of fresh memory.

What is compared here is not the recorder's own word: a bare dispatch mode hashes what every op returned and wrote, once
with all fresh memory filled by one byte and once by another. Whatever differs read uninitialised memory.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
import torch
from engines import hide_modes
from recorded import Record, Recorded, memory_filled
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.trace.format.schema import RowFlag

Program = Callable[[], object]
FILLS = (85, 170)


def fills_work() -> bool:
    """Whether fresh memory of torch's is filled so here (glibc alone does it)."""
    if not sys.platform.startswith("linux"):
        return False
    seen = set()
    for byte in FILLS:
        with memory_filled(byte):
            seen.add(torch.empty(1_000, dtype=torch.uint8)[-1].item())
    return len(seen) == 2


pytestmark = pytest.mark.skipif(not fills_work(), reason="this C library does not fill fresh memory on demand")


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
    for byte in FILLS:
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


def indexed() -> None:
    """Indexing over all rows, masks and their complements, scatters."""
    k = torch.empty(4, 2)
    k[torch.tensor([2, 0, 3, 1])] = torch.randn(4, 2)
    filled_and_read(k)
    mask = torch.tensor([[True, False], [False, True]])
    m = torch.empty(2, 2).masked_fill_(mask, 1.0)
    m.masked_scatter_(~mask, torch.randn(4))
    filled_and_read(m)
    filled_and_read(torch.empty(3).scatter_(0, torch.tensor([1, 0, 2]), torch.randn(3)))
    filled_and_read(torch.empty(3).index_copy_(0, torch.tensor([1, 0, 2]), torch.randn(3)))


def overwritten() -> None:
    """Every way to overwrite the whole of it."""
    filled_and_read(torch.cat([torch.ones(2), torch.ones(2)], out=torch.empty(4)))
    filled_and_read(torch.addmm(torch.empty(2, 2), torch.randn(2, 2), torch.randn(2, 2), beta=0))
    filled_and_read(torch.baddbmm(torch.empty(2, 2, 2), torch.randn(2, 2, 2), torch.randn(2, 2, 2), beta=0.0))
    lists = [torch.empty(2), torch.empty(3)]
    torch._foreach_copy_(lists, [torch.ones(2), torch.ones(3)])
    torch._foreach_add_(lists, 1.0)
    filled_and_read(torch.cat(lists))
    other = torch.Tensor(2, 2)
    torch.empty(0).set_(other.untyped_storage(), 0, (4,), (1,)).normal_()
    filled_and_read(other)
    filled_and_read(torch.empty(2).resize_(6).zero_())
    filled_and_read(torch.empty(2, dtype=torch.complex64).copy_(torch.ones(2)).real)
    for make in (torch.empty_like, lambda t: t.new_empty(t.shape), lambda t: torch.empty_strided((2, 2), (1, 2))):
        filled_and_read(make(torch.ones(2, 2)).copy_(torch.randn(2, 2)))


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


CLEAN = [rollout, indexed, overwritten, modules]


@pytest.mark.parametrize("program", CLEAN, ids=lambda f: f.__name__)
def test_what_is_filled_before_it_is_read_is_not_marked(record: Record, program: Program) -> None:
    """Nothing that computes differs over other fresh memory, nothing is marked, and two runs are identical."""
    ops, differing = truth(program)
    got = [recorded(record, program, byte) for byte in FILLS]
    rows = got[0].rows
    assert [row.op for row in rows] == ops
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


@pytest.mark.parametrize("program", DIRTY, ids=lambda f: f.__name__)
def test_what_differs_is_marked_or_follows_from_a_mark(record: Record, program: Program) -> None:
    """What the fills change is marked, or computes with what a row changed by them wrote; the first is the origin."""
    ops, differing = truth(program)
    got = [recorded(record, program, byte) for byte in FILLS]
    rows = got[0].rows
    assert [row.op for row in rows] == ops
    values = {i for i in differing if not rows[i].flags & (RowFlag.VIEW | RowFlag.ALLOCATION)}
    assert values
    for i in values:
        assert rows[i].marked or {link.row for link in rows[i].inputs} & values or rows[i].name == "full", ops[i]
    first = compare(got[0].path, got[1].path).first
    assert first.cause is Cause.UNKNOWN
    origin = first.a_index
    assert (
        origin is not None and rows[origin].marked and "it reads memory that no recorded op wrote" in first.explanation
    )
    checked = compare(*(recorded(record, program, byte, check_links=True).path for byte in FILLS)).first
    assert (checked.cause, checked.a_index) == (Cause.UNINITIALISED, origin)
    computed = {i for i in values if rows[i].name not in ("clone", "copy_", "_to_copy")}
    assert origin in values and origin <= min(computed)


def test_garbage_that_nothing_computes_with_is_counted_and_listed(record: Record) -> None:
    """Marked rows alone differ: no verdict, and not hidden."""

    def program() -> None:
        buffer = torch.empty(4)
        buffer[:2] = 1.0
        buffer.clone()
        buffer.mean()
        buffer[:2].sum()

    comparison = compare(*(recorded(record, program, byte).path for byte in FILLS))
    assert comparison.verdict is Verdict.IDENTICAL
    assert (comparison.marked.rows, comparison.marked.differing) == (2, 2)
    assert comparison.marked.first is not None and "aten.clone.default" in comparison.marked.first


def test_a_true_difference_in_a_strided_buffer_is_found(record: Record) -> None:
    """Another value in a buffer that strided writes filled differs unmarked, at the op that brought it in."""

    def program(value: float) -> None:
        buffer = torch.empty(4, 3)
        data = torch.arange(12.0).reshape(4, 3)
        data.view(-1)[5] = torch.tensor(value)
        for i in range(3):
            buffer[:, i] = data[:, i]
        (buffer * 2).sum()

    paths = [recorded(record, lambda v=v: program(v), byte).path for v, byte in zip((1.5, 2.5), FILLS, strict=True)]
    comparison = compare(*paths)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first.cause is Cause.OUTSIDE
    assert comparison.marked.rows == 0
