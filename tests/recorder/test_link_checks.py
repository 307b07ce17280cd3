"""``check_links``: memory that no recorded op wrote is noticed, with the ops around the write; nothing else is."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from children import run_threads
from op_programs import PROGRAMS
from recorded import Record, Recorded
from torch import distributed, nn
from torch.testing._internal.two_tensor import TwoTensor

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, InputsMatch
from rltrace.errors import UsageError
from rltrace.extensions.launches.foreign_calls import ForeignCalls
from rltrace.recorder.core import calls, op_info
from rltrace.recorder.core.storages import Storages, Writers
from rltrace.recorder.session.torch_patches import Aliases
from rltrace.report.link_checks import missed_faults
from rltrace.trace.format.records import FaultKind, LinkFault

Program = Callable[[], object]


@pytest.fixture(scope="module")
def operators() -> Iterator[None]:
    """Operators that write what their schemas call inputs."""
    library = torch.library.Library("link_checks", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: (x.add_(1), x * 2)[1], "CPU")
    library.define("fill(Tensor x, Tensor out) -> ()")
    library.impl("fill", lambda x, out: ctypes.memmove(out.data_ptr(), x.data_ptr(), 16) and None, "CPU")
    library.define("fails(Tensor(a!) x) -> ()")
    library.impl("fails", fail, "CPU")
    yield
    library._destroy()


def fail(tensor: torch.Tensor) -> None:
    poke(tensor, 9)
    raise RuntimeError


def poke(tensor: torch.Tensor, noise: int = 5) -> None:
    ctypes.memset(tensor.data_ptr() + 4, noise, 4)


def fill(tensor: torch.Tensor, noise: int) -> None:
    """Every byte: what chance left in uninitialised memory, a NaN among it, takes no part in the result."""
    ctypes.memset(tensor.data_ptr(), noise, tensor.nbytes)


def written() -> torch.Tensor:
    return torch.zeros(4).add_(1)


@contextmanager
def checked(record: Record, **options: object) -> Iterator[Recorded]:
    with record.block(check_links=True, **options) as found:
        yield found
    assert found.process.checks_links


def writes(record: Record, program: Program) -> list[LinkFault]:
    with checked(record) as found:
        program()
    return found.process.link_faults


# --- planted writes ---------------------------------------------------------------------------------------------------


def by_address() -> None:
    tensor = written()
    poke(tensor)
    tensor * 2


def into_unwritten_memory() -> None:
    tensor = torch.empty(4)
    poke(tensor)
    tensor * 2


def through_numpy() -> None:
    tensor = written()
    tensor.numpy()[1] = 7
    tensor * 2


def through_dlpack() -> None:
    tensor = written()
    poke(np.from_dlpack(tensor).ctypes and tensor)
    tensor * 2


def by_a_c_function() -> None:
    tensor = written()
    ctypes.CDLL(None).memset(ctypes.c_void_p(tensor.data_ptr()), 5, 8)
    tensor * 2


def through_a_view() -> None:
    tensor = written()
    poke(tensor)
    tensor.view(2, 2).t() * 2


def against_a_schema() -> None:
    tensor = written()
    torch.ops.link_checks.doubled(tensor)
    tensor * 2


def by_an_operator_without_returns() -> None:
    out = torch.zeros(4)
    torch.ops.link_checks.fill(written(), out)
    out * 2


BETWEEN_OPS = [by_address, into_unwritten_memory, through_numpy, through_dlpack, through_a_view]


@pytest.mark.parametrize("program", BETWEEN_OPS, ids=lambda f: f.__name__)
def test_a_write_between_two_ops(record: Record, program: Program) -> None:
    """The op that reads the memory next is named, with the last op that used and wrote it, and the one that made it."""
    with checked(record) as found:
        program()
    [write] = found.process.link_faults
    assert write.found == (0, found.one("mul").index) and write.input == 0 and write.kind is FaultKind.WRITE
    last = found.rows[0] if program is into_unwritten_memory else found.one("add_")
    assert write.used == write.writer == (0, last.index)
    assert (write.allocation, write.bytes, write.step) == ((0, 0), 16, 0)
    assert write.handed_out is (program in (through_numpy, through_dlpack))


@pytest.mark.parametrize("program", [against_a_schema, by_an_operator_without_returns], ids=lambda f: f.__name__)
def test_an_operator_that_writes_against_its_schema(operators: None, record: Record, program: Program) -> None:
    """It is named itself, as the one that wrote."""
    with checked(record) as found:
        program()
    [write] = found.process.link_faults
    row = next(row for row in found.rows if row.op.startswith("link_checks."))
    assert write.kind is FaultKind.OP and write.found == write.used == (0, row.index)
    assert write.input == (0 if program is against_a_schema else 1)


def test_a_write_that_no_op_reads_is_found_at_the_end_of_the_step(record: Record) -> None:
    """And at the end of the recording; each once."""

    def program() -> None:
        tensor, other = written(), written()
        poke(tensor)
        rltrace.step()
        poke(other)
        program.kept = tensor, other

    found = writes(record, program)
    assert [(write.found, write.step) for write in found] == [(None, 1), (None, 1)]
    assert [write.writer for write in found] == [(0, 1), (0, 3)]


def test_memory_inside_a_subclass(record: Record) -> None:
    """What a wrapper holds is checked (DTensor, FSDP's parameters): the storage of the wrapper has no bytes."""
    with checked(record) as found:
        inner = written()
        wrapper = TwoTensor(inner, written())
        wrapper * 2
        poke(inner)
        wrapper * 3
    [write] = [fault for fault in found.process.link_faults if fault.kind is FaultKind.WRITE]
    assert write.found == (0, found.named("mul")[-1].index) and write.input == 0


def test_one_page_of_large_memory_is_enough(record: Record) -> None:
    """An op that reads another part of a large buffer notices nothing, one that reads the changed part does."""
    with checked(record) as found:
        buffer = torch.zeros(1 << 20)
        buffer[-4:].fill_(1)
        poke(buffer[-4:])
        buffer[:4] * 2
        buffer[-4:] * 3
    [write] = found.process.link_faults
    assert write.found == (0, found.rows[-1].index)


# --- faults of the recorder, with their mending taken out -------------------------------------------------------------


def test_aliases_that_are_not_followed(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the patches that follow NumPy's aliases, a write through one is missed by links, and found here."""
    monkeypatch.setattr(Aliases, "install", lambda self: None)
    [write] = writes(record, through_numpy)
    assert not write.handed_out


def test_launches_that_are_not_seen(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C function that gets a tensor's address writes it in a row; without those rows the write is found here."""
    assert writes(record, by_a_c_function) == []
    monkeypatch.setattr(ForeignCalls, "install", lambda self: None)
    with checked(record) as found:
        by_a_c_function()
    [write] = found.process.link_faults
    assert (write.kind, write.found) == (FaultKind.WRITE, (0, found.one("mul").index))


def test_writes_that_schemas_hide(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the table of operators that write against their schema: batch norm's running statistics."""

    def program() -> None:
        norm = nn.BatchNorm1d(3)
        norm(torch.randn(4, 3))

    assert writes(record, program) == []
    monkeypatch.setattr(op_info, "HIDDEN_WRITES", {})
    with checked(record) as found:
        program()
    assert [write.input for write in found.process.link_faults] == [3, 4]
    assert all(write.kind is FaultKind.OP for write in found.process.link_faults)


def test_links_that_are_lost(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that calls memory outside data which a recorded op wrote, as with the tensors that a subclass wraps."""
    monkeypatch.setattr(Writers, "end_step", lambda self: (self.current.clear(), self.earlier.clear()))
    with checked(record) as found:
        tensor = torch.zeros(4).add_(1)
        rltrace.step()
        tensor * 2
    [fault] = found.process.link_faults
    assert (fault.kind, fault.found, fault.used) == (FaultKind.LINK, (0, 2), (0, 1))


def test_memory_that_torch_itself_fills_by_no_op(record: Record) -> None:
    """``ctc_loss`` makes a tensor of its list of lengths: ``empty``, and a loop in C++. So its reader is marked."""
    with checked(record) as found:
        nn.functional.ctc_loss(torch.randn(5, 1, 4).log_softmax(2), torch.tensor([[1, 2]]), (5,), (2,))
    [write] = found.process.link_faults
    assert write.kind is FaultKind.CALL and missed_faults(found.trace) == []
    assert found.rows[write.allocation[1]].name == "empty"
    assert found.rows[write.found[1]].marked


def test_only_one_call_may_fill_what_it_allocates(record: Record) -> None:
    """Not two calls in one line, nor the same one in a loop."""
    with checked(record) as got:
        [(x := torch.empty(4), poke(x), x * 2) for _ in range(2)]
    assert [fault.kind for fault in got.process.link_faults] == [FaultKind.WRITE] * 2


# --- clean programs ---------------------------------------------------------------------------------------------------


def threads() -> None:
    shared = torch.zeros(64)

    def add() -> None:
        for _ in range(20):
            shared.add_(1)
            shared.sum()

    run_threads(*(threading.Thread(target=add) for _ in range(3)))


SLOWER = ("single", "functional", "compiled", "many storages")
"""They have no kind of op that others here do not run."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in SLOWER])
def test_programs_of_every_kind(record: Record, name: str) -> None:
    """No write is missed in them, but of memory that they hand out; the rows are those of a recording without."""
    rows = []
    for checks in (True, False):
        torch.manual_seed(0)
        found = record(PROGRAMS[name], check_links=checks, engine="mode")
        assert missed_faults(found.trace) == []
        rows.append(found.ops)
    assert rows[0] == rows[1] or name == "scripted"  # which runs its first calls otherwise


def test_compiled_functions(record: Record) -> None:
    """A region is one op, and what is made while it is compiled has no memory."""
    torch.compiler.reset()
    function = torch.compile(lambda x: (x.sin() + 1).relu().sum(), backend="aot_eager")
    with checked(record) as got:
        weight = torch.randn(8, requires_grad=True)
        for _ in range(2):
            function(weight).backward()
    assert got.process.link_faults == []


def test_threads_take_turns(record: Record) -> None:
    """What another thread's op writes meanwhile is no fault."""
    assert writes(record, threads) == []


def test_an_op_that_raised_may_have_written(operators: None, record: Record) -> None:
    """It has no row, so what it did to memory is not known, and no fault of the op before or after."""
    with checked(record) as got:
        tensor = written()
        with pytest.raises(RuntimeError):
            torch.ops.link_checks.fails(tensor)
        tensor * 2
        with pytest.raises(RuntimeError):
            torch.ops.link_checks.fails(tensor)
        rltrace.step()
        tensor * 3
    assert got.process.link_faults == []


def test_windows_begin_anew(record: Record) -> None:
    """Ops outside of the window are not seen, and what they write is no finding."""
    with checked(record, steps=(2, 3)) as found:
        tensor = torch.zeros(4)
        for _ in range(4):
            tensor.add_(1)
            rltrace.step()
    assert found.ops == ["add_"] or found.ops[-1] == "add_"
    assert found.process.link_faults == []


def test_level_step_is_refused(tmp_path: Path) -> None:
    """There are no ops between which memory could be compared."""
    with pytest.raises(UsageError, match="check_links"), rltrace.record(tmp_path / "a", level="step", check_links=True):
        pass


# --- causes -----------------------------------------------------------------------------------------------------------


def noisy(noise: int, way: Callable[[torch.Tensor, int], object], make: Callable[[], torch.Tensor]) -> Program:
    def program() -> None:
        tensor = make()
        if noise:
            way(tensor, noise)
        (tensor * 2).sum()

    return program


@pytest.mark.parametrize(
    ("noises", "make"), [((0, 5), written), ((5, 0), lambda: torch.empty(4).fill_(1)), ((5, 6), lambda: torch.empty(4))]
)
def test_a_write_is_the_cause(record: Record, noises: tuple[int, int], make: Callable[[], torch.Tensor]) -> None:
    """Of A only, of B only, or of both to other bytes: never the kernel, and never uninitialised memory."""
    first = compare(*(record(noisy(noise, fill, make), check_links=True).path for noise in noises)).first
    assert (first.cause, first.inputs_match) == (Cause.UNTRACKED_WRITE, InputsMatch.DIFFER)
    assert "aten.mul.Tensor" in (first.op or "") and "changed without any recorded op" in first.explanation


def handed(tensor: torch.Tensor, noise: int) -> None:
    tensor.numpy()[1] = noise


@pytest.mark.parametrize("noises", [(0, 5), (5, 0)], ids=str)
def test_memory_that_one_side_hands_out(record: Record, engine: str, noises: tuple[int, int]) -> None:
    """Without any check: the side that handed it out digests it at the next use, and its writer's digest is known."""
    paths = [record(noisy(noise, handed, lambda: torch.tanh(torch.ones(3, 4))), engine=engine).path for noise in noises]
    first = compare(*paths).first_value
    assert (first.op, first.cause) == ("aten.mul.Tensor", Cause.UNTRACKED_WRITE)
    assert f"in {'A' if noises[0] else 'B'} its bytes are not those" in first.explanation


def test_a_storage_table_of_checks_is_not_the_recorders(record: Record) -> None:
    """What is checked does not depend on what the recorder knows of writers: its tables may be wrong."""
    original = Storages.record_write
    try:
        Storages.record_write = lambda *args, **kwargs: None
        [write] = writes(record, by_address)
    finally:
        Storages.record_write = original
    assert write.used is not None


# --- distributed programs ---------------------------------------------------------------------------------------------


def trained(shard: Callable[[nn.Module], object]) -> Program:
    """Three steps of a small model that ``shard`` distributes over the group."""

    def program() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).pow(2).mean().backward()
            optimizer.step()

    return program


def gathered() -> None:
    """As FSDP2 copies its shard into the memory that it gathers into."""
    pytest.importorskip("torch.distributed.fsdp")
    output, shard = torch.zeros(8).add_(1), torch.zeros(4).add_(2)
    torch.ops.fsdp.all_gather_copy_in([shard], output, [4], 4, 1)
    output * 2


def tensor_parallel(model: nn.Module) -> None:
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, distributed.init_device_mesh("cpu", (1,)), plan)


def wrappers_as_plain(patch: pytest.MonkeyPatch) -> None:
    """What DTensor wraps is not followed."""
    patch.setattr(calls, "inner_name", lambda kind: None)


def schemas_believed(patch: pytest.MonkeyPatch) -> None:
    """What schemas leave out is not known."""
    patch.setattr(op_info, "HIDDEN_WRITES", {})


@pytest.mark.parametrize(
    ("program", "take_out", "kind"),
    [(gathered, schemas_believed, FaultKind.OP), (trained(tensor_parallel), wrappers_as_plain, FaultKind.LINK)],
    ids=["FSDP2", "tensor parallelism"],
)
@pytest.mark.filterwarnings("ignore")
def test_distributed_programs(
    record: Record,
    group: None,
    monkeypatch: pytest.MonkeyPatch,
    program: Program,
    take_out: Callable[[pytest.MonkeyPatch], None],
    kind: FaultKind,
) -> None:
    """Nothing is found, unless what the recorder knows of them is taken out. Whole runs: ``test_collectives.py``."""
    assert writes(record, program) == []
    take_out(monkeypatch)
    assert kind in {fault.kind for fault in writes(record, program)}
