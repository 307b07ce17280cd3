"""Links: who wrote the bytes an op reads. A link may be unknown or mixed; it may never be wrong."""

import gc
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from op_programs import small_training
from recorded import Record, Row, digest_of
from torch import nn

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import InputsMatch, Verdict
from rltrace.errors import UsageError
from rltrace.recorder import current_session
from rltrace.recorder.core.storages import SWEEP_BYTES, StorageTables, address_of
from rltrace.trace.format.schema import Kind, Origin, RowFlag, Step


def sources(row: Row) -> list[object]:
    """What each input leads to: a row, or the name of its origin."""
    return [link.row if link.origin is None else link.origin.name for link in row.inputs]


# --- producers ----------------------------------------------------------------------------------------------------


def test_chains_lead_to_the_op_before(record: Record) -> None:
    """Each op of a chain names the op that made its input; what no step has come between is not read again."""
    with record.block() as got:
        a = torch.randn(4)
        b = a * 2
        c = b + a
        c.sum()
    assert got.ops == ["randn", "mul", "add", "sum"]
    assert [sources(row) for row in got.rows] == [[], [0], [1, 0], [2]]
    assert all(link.digest is None and link.slot == 0 for row in got.rows for link in row.inputs)


def test_views_share_the_producer_of_their_storage(record: Record) -> None:
    """Reading through transposes, slices and reshapes leads to who wrote the memory."""
    with record.block() as got:
        a = torch.randn(4, 4)
        (a.t()[1:] + 1).unsqueeze(0).sum()
    assert got.ops == ["randn", "t", "slice", "add", "unsqueeze", "sum"]
    assert [sources(row) for row in got.rows] == [[], [0], [0], [0], [3], [3]]


def test_slots_are_places_among_the_digests_of_a_row(record: Record) -> None:
    """Second outputs; an op that both writes arguments and returns tensors has the digests of what it wrote first."""
    with record.block() as got:
        values, indices = torch.randn(5).sort()
        indices + 1
        values + 1
        norm = nn.BatchNorm1d(3)
        out = norm(torch.randn(8, 3))
        clones = [tensor.detach().clone() for tensor in (norm.running_mean, norm.running_var, out)]
    assert [(row.inputs[0].row, row.inputs[0].slot) for row in got.named("add")[:2]] == [(1, 1), (1, 0)]
    written = next(row for row in got.rows if "batch_norm" in row.op)
    for row, tensor in zip(got.named("clone"), clones, strict=True):
        (link,) = row.inputs
        assert link.row == written.index
        assert written.outputs[link.slot] == digest_of(tensor) == row.outputs[0]


def test_more_tensors_than_slots_make_no_wrong_link(record: Record) -> None:
    """Models have thousands of parameters; past what a slot can say, the slot is left open and the row stays right."""
    n = 2_100
    places = [0, 1, 1_022, 1_023, 1_024, 2_047, 2_099]
    with record.block() as got:
        tensors = [torch.zeros(1) for _ in range(n)]
        torch._foreach_add_(tensors, 1.0)
        for place in places:
            tensors[place] + 1
        parts = torch._foreach_mul(tensors, 2.0)
        for place in places:
            parts[place] + 2
    for name in ("_foreach_add_", "_foreach_mul"):
        row = got.one(name)
        readers = got.rows[row.index + 1 : row.index + 1 + len(places)]
        assert [reader.inputs[0].row for reader in readers] == [row.index] * len(places)
        assert [reader.inputs[0].slot for reader in readers] == [p if p < 1_023 else None for p in places]


def test_out_arguments_are_overwritten_and_produced(record: Record) -> None:
    """``out=`` is no input, even where it is one of the inputs; it is then the producer."""
    with record.block() as got:
        a, b = torch.ones(3), torch.ones(3)
        c = torch.zeros(3)
        torch.add(a, b, out=c)
        torch.add(a, b, out=a)
        a + c
    first, second, last = got.rows[3:]
    assert sources(first) == [0, 1, "OVERWRITTEN"]
    assert sources(second) == [0, 1, "OVERWRITTEN"]
    assert sources(last) == [4, 3]


OVERWRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copy_": lambda a, b: a.copy_(b),
    "fill_": lambda a, b: a.fill_(2.0),
    "fill_ by a tensor": lambda a, b: a.fill_(b[0]),
    "zero_": lambda a, b: a.zero_(),
    "normal_": lambda a, b: a.normal_(),
    "uniform_": lambda a, b: a.uniform_(),
    "bernoulli_": lambda a, b: a.bernoulli_(0.5),
    "random_": lambda a, b: a.random_(),
    "exponential_": lambda a, b: a.exponential_(),
    "_foreach_copy_": lambda a, b: torch._foreach_copy_([a], [b]),
    "_foreach_zero_": lambda a, b: torch._foreach_zero_([a]),
    "out=": lambda a, b: torch.mul(b, b, out=a),
}


def test_arguments_that_are_only_overwritten_are_no_inputs(record: Record) -> None:
    """Counting their old bytes would make a receiver of a cause."""
    with record.block() as got:
        for overwrite in OVERWRITES.values():
            a, b = torch.ones(3), torch.ones(3)
            overwrite(a, b)
            a + 1
    for name, last in zip(OVERWRITES, got.named("add"), strict=True):
        row = got.rows[last.index - 1]
        assert [link.origin for link in row.inputs].count(Origin.OVERWRITTEN) == 1, name
        assert all(link.digest is None for link in row.inputs), name
        assert sources(last) == [row.index], name


def test_slices_written_one_by_one_are_mixed_and_read(record: Record) -> None:
    """No one op wrote the buffer, so each op that reads it digests it."""
    kept: list[torch.Tensor] = []
    with record.block() as got:
        buffer = torch.zeros(4, 3)
        for i in range(4):
            buffer[i] = torch.randn(3)
        buffer.sum()
        kept.append(buffer)
    (link,) = got.one("sum").inputs
    assert link.origin is Origin.MIXED
    assert link.digest == digest_of(kept[0])


def test_the_slice_written_last_has_one_producer(record: Record) -> None:
    """Reading exactly what the last op wrote is a link to that op; another slice is mixed."""
    with record.block() as got:
        buffer = torch.zeros(4, 3)
        buffer[1] = torch.ones(3)
        buffer[1].sum()
        buffer[2].sum()
    written = got.one("copy_")
    exact, other = got.named("sum")
    assert sources(exact) == [written.index]
    assert sources(other) == ["MIXED"]


@pytest.mark.parametrize("verify", [False, True])
def test_a_part_has_its_offset(record: Record, native_library: Any, verify: bool) -> None:
    """Which part of what was written an op reads; nothing is noted of a view, or of a tensor that begins where its
    storage does."""
    options: Any = {"verify_inputs": True, "steps": (0, None)} if verify else {"engine": "native"}
    with record.block(**options) as got:
        whole = torch.randn(8, 4)
        mean, log_std = whole.chunk(2, -1)
        mean.sin()
        torch.add(log_std, whole[3, :2])
        whole[2:][1].cos()
    assert [i.offset for i in got.one("sin").inputs] == [0]
    assert [i.offset for i in got.one("add").inputs] == [2, 12]
    assert [i.offset for i in got.one("cos").inputs] == [12]
    assert len(got.raw.link_notes) == 3


def test_an_op_that_raises_leaves_no_note(record: Record) -> None:
    """The row after it has the number that it would have had."""
    with record.block() as got:
        x = torch.randn(4)
        with pytest.raises(RuntimeError):
            torch.mm(x[1:], x[2:])
        x.sin()
    assert got.ops == ["randn", "slice", "slice", "sin"]
    assert len(got.raw.link_notes) == 0


def test_the_last_of_several_writers_is_noted(record: Record, engine: str) -> None:
    """Whether or not a reader is the first one; and what no op wrote came from outside only where no op had it."""
    array = np.ones((4, 3), np.float32)
    with record.block(engine=engine) as got:
        own, outside = torch.zeros(4, 3), torch.from_numpy(array)
        for buffer in (own, outside):
            buffer[1].fill_(2.0)
            buffer[2].fill_(3.0)
            buffer.sum()
        outside.mul_(2.0)
        outside[0].fill_(1.0)
        outside.sum()
    fills = [row.index for row in got.named("fill_")]
    seen = [(row.inputs[0].origin, row.inputs[0].last_writer, row.inputs[0].from_outside) for row in got.named("sum")]
    assert seen == [(Origin.MIXED, fills[1], False), (Origin.MIXED, fills[3], True), (Origin.MIXED, fills[4], False)]


# --- from outside ---------------------------------------------------------------------------------------------------


def test_a_write_of_no_element_leaves_the_writer(record: Record, engine: str) -> None:
    """``buffer[n:].fill_(0)`` of a full buffer, as engines pad their batches."""
    with record.block(engine=engine) as got:
        buffer = torch.ones(4)
        buffer[4:].fill_(0)
        buffer[2:2].copy_(buffer[:0])
        buffer.sin()
    assert [sources(row) for row in got.named("sin")] == [[0]]
    assert got.named("sin")[0].inputs[0].digest is None


def test_lists_and_scalars_come_from_outside(record: Record) -> None:
    """``torch.tensor`` emits ``lift_fresh`` alone; the first op that uses the numbers reads them."""
    with record.block() as got:
        (torch.tensor([1.0, 2.0]) * 2).sum()
    (link,) = got.one("mul").inputs
    assert (link.origin, link.digest) == (Origin.OUTSIDE, digest_of(torch.tensor([1.0, 2.0])))


def test_what_was_there_before_is_outside_once_then_known(record: Record) -> None:
    """Tensors older than the recording: read at first use in a step, then known to be the same."""
    weight = torch.ones(3)
    with record.block() as got:
        weight + 1
        weight + 2
        rltrace.step()
        weight + 3
    first, second, third = (row.inputs[0] for row in got.named("add"))
    assert (first.origin, first.digest) == (Origin.OUTSIDE, digest_of(weight))
    assert (second.row, second.known, second.digest) == (0, True, None)
    assert (third.origin, third.digest) == (Origin.OUTSIDE, digest_of(weight))


def test_one_tensor_given_twice_is_read_twice(record: Record) -> None:
    """A row cannot refer to itself."""
    weight = torch.ones(3)
    with record.block() as got:
        weight * weight
    (row,) = got.rows
    assert sources(row) == ["OUTSIDE", "OUTSIDE"]
    assert [link.digest for link in row.inputs] == [digest_of(weight)] * 2
    assert not any(link.known for link in row.inputs)


def test_other_views_of_what_was_read_are_read_again(record: Record) -> None:
    """Known holds for the very same view."""
    weight = torch.ones(4, 4)
    with record.block() as got:
        weight + 1
        weight.t() + 2
        weight[1] + 3
        weight[1] + 4
    links = [row.inputs[0] for row in got.named("add")]
    assert [link.digest is not None for link in links] == [True, True, True, False]
    assert links[3].known and links[3].row == got.named("add")[2].index


# --- across steps -----------------------------------------------------------------------------------------------------


def test_parameters_are_read_at_first_use_in_a_step(record: Record) -> None:
    """Written by the optimizer in an earlier step: linked and read at once; known from then on in that step."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.5, foreach=False)
    with record.block() as got:
        for _ in range(2):
            loss = (parameter * 2 + parameter).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    muls = [row for row in got.named("mul") if row.line.startswith("loss =")]
    adds = [row for row in got.named("add") if row.line.startswith("loss =")]
    (update, _) = [row for row in got.rows if row.name == "add_"]
    first, again = muls[1].inputs[0], adds[1].inputs[1]
    assert (first.row, first.digest) == (update.index, update.outputs[0])
    assert (again.row, again.known, again.digest) == (muls[1].index, True, None)
    assert [muls[1].step, adds[1].step, update.step] == [1, 1, 0]


def test_a_new_step_reads_again_even_what_was_mixed(record: Record) -> None:
    """Storage of a replay buffer, filled slice by slice in an earlier step."""
    with record.block() as got:
        buffer = torch.zeros(4)
        buffer[0] = 1.0
        rltrace.step()
        buffer.sum()
        buffer.mean()
    (first,), (second,) = got.one("sum").inputs, got.one("mean").inputs
    assert first.origin is Origin.MIXED and first.digest is not None
    assert second.row == got.one("sum").index and second.known


# --- storages that change hands ---------------------------------------------------------------------------------------


def test_set_leads_to_the_other_storage(record: Record) -> None:
    """``set_`` writes nothing; it makes a tensor of another's memory."""
    with record.block() as got:
        t, other = torch.zeros(3), torch.ones(3)
        t.set_(other)
        t + 1
        other.mul_(2)
        t + 2
    assert [sources(row) for row in got.named("add")] == [[got.one("ones").index], [got.one("mul_").index]]
    assert got.one("set_").outputs == []


def test_shrinking_and_growing_back_marks_nothing(record: Record) -> None:
    """Memory that stays was written."""
    with record.block() as got:
        t = torch.ones(8)
        t.resize_(2)
        t + 1
        t.resize_(8)
        t + 2
    assert [row.marked for row in got.named("add")] == [False, False]


def test_a_storage_that_is_allocated_again_is_unwritten(record: Record, engine: str) -> None:
    """Once it has been freed; grown, the first part is as it was. What is written into it later is its producer."""
    with record.block(engine=engine) as got:
        t = torch.ones(1_000)
        t.untyped_storage().resize_(0)
        t.untyped_storage().resize_(4_000)
        t + 1
        t.zero_()
        t + 2
        t.untyped_storage().resize_(8_000)
        t + 3
        t.as_strided((2_000,), (1,)) + 4
    added = got.named("add")
    assert [row.marked for row in added] == [True, False, False, True]
    assert sources(added[1]) == [2]


def test_an_address_used_again_makes_no_wrong_link(record: Record) -> None:
    """Thousands of storages die and are born at the same addresses, some from outside: each link is checked.

    The program keeps, for each living tensor, the number that was put into it; the digest of the row a link leads to
    must be the digest of the tensor that was read.
    """
    rng = random.Random(3)
    expected: list[list[int]] = []
    with record.block() as got:
        alive: list[torch.Tensor] = [torch.full((3,), float(i)) for i in range(8)]
        for turn in range(2_500):
            place = rng.randrange(8)
            choice = rng.random()
            if choice < 0.1:
                alive[place] = torch.tensor([float(turn), 0.0, 1.0])
            elif choice < 0.2:
                alive[place] = torch.from_numpy(np.full(3, turn, dtype=np.float32))
            elif choice < 0.3:
                alive[place] = torch.empty(3).fill_(turn)
            elif choice < 0.4:
                alive[place].add_(1)
                continue
            a, b = alive[place], alive[rng.randrange(8)]
            expected.append([digest_of(a), digest_of(b)])
            alive[rng.randrange(8)] = torch.sub(a, b).remainder_(97.0)
    rows = got.named("sub")
    assert len(rows) == len(expected) > 2_000
    for row, digests in zip(rows, expected, strict=True):
        for link, true in zip(row.inputs, digests, strict=True):
            assert got.said(link) == true


def test_recording_frees_what_it_followed(record: Record) -> None:
    """Once the program lets go of a storage, its memory is free, recorder or not."""
    freed: list[bool] = []
    with record.block():
        import weakref

        t = torch.randn(1_000)
        reference = weakref.ref(t)
        raw = t.untyped_storage()._weak_ref()
        t * 2
        del t
        gc.collect()
        freed.extend((reference() is None, torch.UntypedStorage._expired(raw)))
        torch.UntypedStorage._free_weak_ref(raw)
    assert freed == [True, True]


@pytest.mark.filterwarnings("ignore")
def test_sparse_inputs_are_unknown_and_read(record: Record) -> None:
    """They have no storage to follow; what they hold is digested at every use."""
    with record.block() as got:
        s = torch.eye(3).to_sparse()
        torch.sparse.mm(s, torch.ones(3, 2))
        torch.sparse.mm(s, torch.ones(3, 2))
    links = [row.inputs[1] for row in got.named("_sparse_addmm")]
    assert [link.origin for link in links] == [Origin.UNKNOWN] * 2
    assert [link.digest for link in links] == [digest_of(torch.eye(3).to_sparse())] * 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, of what forward mode uses of it
def test_zero_tensors_of_forward_mode_are_survived(record: Record) -> None:
    """They have no memory at all."""
    with record.block() as got:
        zeros = torch._efficientzerotensor((3,))
        zeros + torch.ones(3)
        torch.func.jvp(lambda x: x.sin() * 2, (torch.ones(3),), (torch.ones(3),))
    assert "sin" in got.ops


def test_dead_storages_are_forgotten_by_their_bytes(tmp_path: Path, engine: str) -> None:
    """What torch keeps of them lies between the tensors of the program, whose memory could not be joined again."""
    with rltrace.record(tmp_path / "a.zarr", engine=engine):
        saved = [torch.ones(1 << 18) for _ in range(40)]  # 1 MiB each
        handles = current_session()._process.storages.handles
        assert len(handles) >= 40
        del saved
        for _ in range(40):
            torch.ones(1 << 18)
        assert len(handles) <= SWEEP_BYTES >> 20
        for _ in range(100):
            torch.ones(2)
        assert len(handles) >= 100


def test_one_sweep_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one, by another thread or a signal's handler, leaves the entries to the first."""
    tables = StorageTables()
    for _ in range(3):
        address = address_of(storage := torch.ones(2))
        raw: Any = storage.untyped_storage()
        tables.handles[address] = raw._weak_ref()
        tables.add_recent(address, 8)
        del storage, raw
    dead = list(tables.handles)
    expired: Callable[[int], bool] = torch.UntypedStorage._expired
    nested: list[list[int]] = []

    def interrupted(handle: int) -> bool:
        nested.append(tables.sweep())
        return expired(handle)

    monkeypatch.setattr(torch.UntypedStorage, "_expired", interrupted)
    assert tables.sweep() == dead
    assert nested == [[], [], []]
    assert not tables.handles


def test_every_input_is_read(record: Record) -> None:
    """Each input of each op that computes has a digest; rows and links are those of a recording without."""
    steps = (0, 2)
    plain, verified = (record(small_training, steps=steps, verify_inputs=verify) for verify in (False, True))
    assert verified.ops == plain.ops
    assert [row.outputs for row in verified.rows] == [row.outputs for row in plain.rows]
    idle = RowFlag.VIEW | RowFlag.ALLOCATION
    computing = [row for row in verified.rows if row.kind is Kind.OP and not row.flags & idle]
    inputs = [i for row in computing for i in row.inputs if i.origin is not Origin.OVERWRITTEN]
    assert len(inputs) > 100
    assert all(i.digest is not None and not i.known for i in inputs)
    for row, other in zip(plain.rows, verified.rows, strict=True):
        for link, checked in zip(row.inputs, other.inputs, strict=True):
            if not link.known and not row.flags & idle:
                assert (link.row, link.origin, link.slot) == (checked.row, checked.origin, checked.slot)


def test_every_verdict_rests_on_what_was_read(record: Record) -> None:
    """An op that computes otherwise in B: its inputs match by digest on both sides."""
    scale = [1.0]

    @torch.library.custom_op("verify_inputs::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * scale[0]

    def program() -> None:
        scaled(torch.ones(3) + 1).sum()

    found = {}
    for verify in (False, True):
        paths = []
        for scale[0] in (1.0, 2.0):
            paths.append(record(program, steps=(0, None), verify_inputs=verify).path)
        first = compare(*paths).first
        assert first.op == "verify_inputs.scaled.default"
        found[verify] = first.inputs_match
    assert found == {False: InputsMatch.INFERRED, True: InputsMatch.READ}


def test_a_window_is_needed(tmp_path: Path) -> None:
    """It costs as much again as recording, so it is asked for a few steps; without them it is refused."""
    with pytest.raises(UsageError, match="window"), rltrace.record(tmp_path / "a.zarr", verify_inputs=True):
        pass
    assert not (tmp_path / "a.zarr").exists()


HEADS = ("actor", "critic", "value")


def program(orders: Sequence[Sequence[int]], extra: float = 0.0) -> Callable[[], None]:
    """A trunk and a few heads that are gone through in each step's own order, forward and backward."""

    def run() -> None:
        torch.manual_seed(1)
        trunk = torch.nn.Linear(4, 8)
        heads = torch.nn.ModuleDict({name: torch.nn.Linear(8, 2) for name in HEADS})
        optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()])
        x = torch.randn(5, 4)
        for order in orders:
            losses = {}
            hidden = torch.tanh(trunk(x))
            detached = hidden.detach()
            for place in order:
                name = HEADS[place]
                losses[name] = (heads[name](detached) ** 2).mean() + extra * trunk.weight.sum()
            loss = hidden.pow(2).mean()
            for name in HEADS:
                loss = loss + losses[name]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


STRAIGHT = [(0, 1, 2)] * 4
OTHER = [(2, 0, 1), (1, 0, 2), (0, 1, 2), (2, 1, 0)]


def test_another_order_has_the_same_digest_and_other_numbers_have_another(record: Record) -> None:
    """The rows differ in every step that has another order; what they computed, in any order, does not."""
    a, b, other = (record(program(order, extra)) for order, extra in ((STRAIGHT, 0.0), (OTHER, 0.0), (OTHER, 1e-3)))
    differ = [x != y for x, y in zip(a.column(Step.VALUES), b.column(Step.VALUES), strict=True)]
    assert differ == [True, True, False, True]
    assert a.column(Step.ANY_ORDER) == b.column(Step.ANY_ORDER)
    assert all(a.column(Step.ANY_ORDER))
    assert not set(a.column(Step.ANY_ORDER)) & set(other.column(Step.ANY_ORDER))
    comparison = compare(a.path, b.path)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert comparison.first_value is None and comparison.structure.reordered
