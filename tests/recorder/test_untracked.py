"""Writes that pass torch by: the next op that reads is named, with the write as the cause, and never the kernel."""

import ctypes
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from children import forked
from recorded import Record
from torch import nn

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Finding, InputsMatch, Verdict
from rltrace.trace.format.schema import Kind

Write = Callable[[int], object]
Way = Callable[[], tuple[torch.Tensor, Write]]
"""Makes a tensor of four floats and what writes noise into it."""


def own() -> torch.Tensor:
    """Memory of torch's own, written by an op."""
    return torch.zeros(4).add_(1)


def poke(tensor: torch.Tensor, noise: int) -> None:
    ctypes.memset(tensor.data_ptr() + 4, noise, 4)


def numpy_alias() -> tuple[torch.Tensor, Write]:
    tensor = own()
    array = tensor.numpy()[1:]  # a view of an array that only it keeps alive
    return tensor, lambda noise: array.__setitem__(0, noise)


def array_protocol() -> tuple[torch.Tensor, Write]:
    tensor = nn.Parameter(own())
    array = np.asarray(tensor.detach())
    return tensor, lambda noise: array.__setitem__(1, noise)


def dlpack_alias() -> tuple[torch.Tensor, Write]:
    tensor = own()
    array = np.from_dlpack(tensor)
    return tensor, lambda noise: ctypes.memset(array.ctypes.data + 4, noise, 4)


def shared() -> tuple[torch.Tensor, Write]:
    tensor = own().share_memory_()
    return tensor, lambda noise: poke(tensor, noise)


def address() -> tuple[torch.Tensor, Write]:
    tensor = own()
    return tensor, lambda noise: poke(tensor, noise)


def from_numpy() -> tuple[torch.Tensor, Write]:
    array = np.ones(4, dtype=np.float32)
    return torch.from_numpy(array), lambda noise: array.__setitem__(1, noise)


def from_dlpack() -> tuple[torch.Tensor, Write]:
    array = np.ones(4, dtype=np.float32)
    return torch.from_dlpack(array), lambda noise: array.__setitem__(1, noise)


def frombuffer() -> tuple[torch.Tensor, Write]:
    array = bytearray(16)
    return torch.frombuffer(array, dtype=torch.float32), lambda noise: array.__setitem__(4, noise)


def from_file() -> tuple[torch.Tensor, Write]:
    """In a folder whose name is another in every run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        np.ones(4, dtype=np.float32).tofile(path)
        array = np.memmap(path, dtype=np.float32)
        return torch.from_file(str(path), True, 4), lambda noise: array.__setitem__(1, noise)


def between_steps(tensor: torch.Tensor, write: Write, noise: int) -> None:
    tensor * 2
    rltrace.step()
    tensor * 2
    write(noise)
    rltrace.step()
    tensor * 3


def before_the_first_read(tensor: torch.Tensor, write: Write, noise: int) -> None:
    rltrace.step()
    write(noise)
    tensor.view(2, 2).t() * 3


def between_two_reads(tensor: torch.Tensor, write: Write, noise: int) -> None:
    write(1)
    tensor * 2
    write(noise)
    tensor * 3


def behind_an_op(tensor: torch.Tensor, write: Write, noise: int) -> None:
    rltrace.step()
    tensor.detach().add_(1)
    write(noise)
    tensor * 3


def behind_an_op_on_a_part(tensor: torch.Tensor, write: Write, noise: int) -> None:
    tensor.detach()[2:].add_(1)
    write(noise)
    tensor * 3


MOMENTS = [between_steps, before_the_first_read, between_two_reads, behind_an_op, behind_an_op_on_a_part]


def found(record: Record, way: Way, moment: Callable[..., None], **options: object) -> Finding:
    """What two runs that differ in the noise alone are said to differ in first."""
    paths = [record(lambda noise=noise: moment(*way(), noise), **options).path for noise in (5, 6)]
    return compare(*paths).first


def crossed(ways: list[Way]) -> list[tuple[Way, Callable[..., None]]]:
    """Each way at one moment, and the first at all of them."""
    return [*((way, between_two_reads) for way in ways[1:]), *((ways[0], moment) for moment in MOMENTS)]


@pytest.mark.parametrize(("way", "moment"), crossed([numpy_alias, array_protocol, dlpack_alias, shared]))
def test_memory_that_was_handed_out(record: Record, way: Way, moment: Callable[..., None]) -> None:
    """torch's own memory with an alias that is known: digested at every use, so the first reader shows the write."""
    first = found(record, way, moment)
    assert (first.op, first.cause, first.inputs_match) == ("aten.mul.Tensor", Cause.UNTRACKED_WRITE, InputsMatch.DIFFER)
    assert first.identical_before > 0


@pytest.mark.parametrize(("way", "moment"), crossed([from_numpy, from_dlpack, frombuffer, from_file]))
def test_memory_of_others(record: Record, way: Way, moment: Callable[..., None]) -> None:
    """Foreign from the start: what comes in is outside, until one op has written all that is read."""
    first = found(record, way, moment)
    written = moment is behind_an_op
    assert (first.op, first.cause, first.inputs_match) == (
        "aten.mul.Tensor",
        Cause.UNTRACKED_WRITE if written else Cause.OUTSIDE,
        InputsMatch.DIFFER,
    )


@pytest.mark.parametrize("named", [False, True])
def test_the_place_of_a_file_is_no_difference(record: Record, named: bool) -> None:
    """Memory of files whose folders have other names, and the same content, is the same."""

    def program() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "memory")
            if named:
                mapped = torch.ops.aten.from_file(filename=path, shared=True, size=4, dtype=torch.float32)
            else:
                mapped = torch.from_file(path, shared=True, size=4)
            mapped[1:3] = torch.ones(2)
            mapped.sum()

    assert compare(record(program).path, record(program).path).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("moment", [between_steps, before_the_first_read], ids=lambda f: f.__name__)
def test_a_bare_address_is_found_at_the_first_read_of_a_step(record: Record, moment: Callable[..., None]) -> None:
    """Nothing shows that the memory was written; what an earlier step left is read again all the same."""
    assert found(record, address, moment).cause is Cause.UNTRACKED_WRITE


@pytest.mark.parametrize("moment", [between_two_reads, behind_an_op], ids=lambda f: f.__name__)
def test_a_bare_address_twice_within_a_step_is_not_known(record: Record, moment: Callable[..., None]) -> None:
    """A stale link, at an op that repeats itself: the kernel is not blamed. With every input read, or links checked, it
    is the write."""
    stale = found(record, address, moment)
    assert (stale.cause, stale.inputs_match) == (Cause.UNKNOWN, InputsMatch.UNKNOWN)
    for options in ({"steps": (0, None), "verify_inputs": True}, {"check_links": True}):
        read = found(record, address, moment, **options)
        assert (read.op, read.cause) == ("aten.mul.Tensor", Cause.UNTRACKED_WRITE)


STORAGE_WRITES: dict[str, Callable[[torch.Tensor, int], object]] = {
    "fill_": lambda t, noise: t.untyped_storage().fill_(noise),
    "copy_": lambda t, noise: t.untyped_storage().copy_(torch.full((4,), noise + 0.5).untyped_storage()),
    "item": lambda t, noise: t.untyped_storage().__setitem__(4, noise),
    "data": lambda t, noise: t.data.mul_(noise),
    "detach": lambda t, noise: t.detach().fill_(noise),
}


@pytest.mark.parametrize("name", STORAGE_WRITES)
def test_writes_through_storages_and_data_are_ops(record: Record, name: str) -> None:
    """They do not pass torch by: the op that writes is named, with its arguments, and its readers follow from it."""

    def write(tensor: torch.Tensor, _: object, noise: int) -> None:
        STORAGE_WRITES[name](tensor, noise)
        tensor * 3

    first = found(record, address, write)
    assert first.cause is Cause.ARGUMENTS
    assert first.op in {"aten.fill_.Scalar", "aten.full.default", "aten.mul_.Tensor"}


@pytest.mark.parametrize("change", ["data", "set_"])
def test_another_memory_under_the_same_tensor(record: Record, change: str) -> None:
    """``t.data = other``, ``t.set_(other)``: what is read then is the other's, and where that came from."""

    def swap(tensor: torch.Tensor, _: object, noise: int) -> None:
        tensor * 2
        other = torch.from_numpy(np.full(4, noise, dtype=np.float32))
        if change == "data":
            tensor.data = other
        else:
            tensor.set_(other)
        tensor * 3

    first = found(record, address, swap)
    assert (first.op, first.cause) == ("aten.mul.Tensor", Cause.OUTSIDE)


def test_another_process_writes_shared_memory(record: Record) -> None:
    """Hogwild: a forked process changes a parameter in the middle of a step."""

    def hogwild(tensor: torch.Tensor, _: object, noise: int) -> None:
        tensor * 2
        forked(lambda: poke(tensor, noise))
        tensor * 3

    first = found(record, shared, hogwild)
    assert (first.op, first.cause) == ("aten.mul.Tensor", Cause.UNTRACKED_WRITE)


def test_a_simulator_rewrites_its_buffer_within_a_step(record: Record) -> None:
    """The use at which the buffer differed is the one that is named, not the first and not a later one."""
    buffer = np.zeros(4, dtype=np.float32)

    def simulate(tensor: torch.Tensor, _: object, noise: int) -> None:
        observation = torch.from_numpy(buffer)
        for turn in range(9):
            buffer[:] = noise if turn == 6 else turn
            torch.mul(observation, tensor)

    first = found(record, address, simulate)
    muls = [row.index for row in record(lambda: simulate(own(), None, 5)).named("mul")]
    assert (first.a_index, first.cause) == (muls[6], Cause.OUTSIDE)


def test_once_the_array_is_gone_nothing_more_is_read(record: Record) -> None:
    """An alias costs a digest a use while it lives; what it may have written last is read once more, then known."""
    with record.block() as got:
        tensor = torch.zeros(4)
        array = tensor.numpy()
        tensor * 1
        tensor * 2
        array[1] = 3.0
        del array
        gc.collect()
        tensor * 3
        tensor * 4
        tensor.add_(1)
        tensor * 5
    links = [row.inputs[0] for row in got.named("mul")]
    assert [link.digest is not None for link in links] == [True, True, True, False, False]
    assert links[2].digest != links[1].digest
    assert links[3].known and not links[4].known


def test_handing_out_is_torchs_own_again_after_recording(record: Record) -> None:
    """What stood in for torch's methods is gone without a trace, and did what they do."""
    before = {**vars(torch.Tensor)}, {**vars(torch.UntypedStorage)}
    with record.block():
        tensor = torch.arange(3.0)
        assert tensor.numpy().tolist() == np.asarray(tensor).tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(RuntimeError, match="requires grad"):
            tensor.requires_grad_().numpy()
        with pytest.raises(RuntimeError, match="only available on CPU"):
            torch.ones(3, device="meta").share_memory_()
    assert ({**vars(torch.Tensor)}, {**vars(torch.UntypedStorage)}) == before


def test_a_windows_opening_rows_are_what_later_rows_lead_to(record: Record) -> None:
    """A parameter's first reader, through whatever view, is linked to the row that says what the window began with."""
    with record.block(steps=(1, 3)) as got:
        parameter = nn.Parameter(torch.ones(2, 2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(3):
            (parameter.t() * 2).sum().backward()
            (parameter * 3).sum()
            optimizer.step()
    (opening,) = [row for row in got.rows if row.kind is Kind.WINDOW and str(row.scalars[0]) == "parameter 0"]
    first = next(row for row in got.named("mul") if row.line.startswith("(parameter.t()"))
    second = next(row for row in got.named("mul") if row.line.startswith("(parameter * 3)"))
    for row in (first, second):
        assert (row.inputs[0].row, row.inputs[0].known) == (opening.index, False)
        assert row.inputs[0].digest is not None
    assert second.inputs[0].digest == opening.inputs[0].digest


def test_equal_runs_with_aliases_are_identical(record: Record) -> None:
    """Aliases that live, die and are written alike are no difference."""

    def program() -> None:
        for way in (numpy_alias, dlpack_alias, shared, from_numpy, frombuffer):
            for moment in MOMENTS:
                moment(*way(), 5)

    comparison = compare(record(program).path, record(program).path)
    assert comparison.verdict is Verdict.IDENTICAL
