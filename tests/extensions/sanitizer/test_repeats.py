"""``repeat``: ops are called again, those that give something else are named, and the program computes the same."""

import importlib.util
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import differences
from op_programs import PROGRAMS, Program, RandomProgram
from recorded import Record, Recorded
from torch.utils._python_dispatch import TorchDispatchMode

import rltrace
from rltrace.extensions.sanitizer import repeats
from rltrace.extensions.sanitizer.report import RepeatedOps, found_in
from rltrace.recorder.core.calls import op_tensors
from rltrace.trace.read.reader import open_trace


def repeated(record: Record, program: Program, times: int = 1) -> RepeatedOps:
    """What is found when each op of a program is called again."""
    with record.block(repeat=times) as got:
        program()
    return found_in(got.process)


def reasons(found: RepeatedOps) -> dict[str, str]:
    return {one.op: one.why for one in found.not_repeated}


# --- the program computes the same ------------------------------------------------------------------------------------


def unchanged(tmp_path: Path, program: Program) -> RepeatedOps:
    """Record a program with and without: all rows have to be equal. Returns what was found."""
    program()  # what only a first run loads, compiles or leaves set
    paths = [tmp_path / "plain.zarr", tmp_path / "repeated.zarr"]
    states = []
    for path, times in zip(paths, (0, 2), strict=True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with rltrace.record(path, repeat=times):
            program()
        states.append(torch.get_rng_state())
    assert differences(*paths) == []
    assert torch.equal(*states)
    return found_in(open_trace(paths[1]).processes[0])


@pytest.fixture(params=["each in turn", "two at once"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether calls are made two at once, small ones as well."""
    threads, at_once = torch.get_num_threads(), request.param == "two at once"
    if at_once:
        request.getfixturevalue("native_library")
        monkeypatch.setattr(repeats, "SHARED_AMONG_THREADS", 0)
    torch.set_num_threads(1 + at_once)
    yield at_once
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "many storages"])  # one op, 9,000 times
def test_programs_compute_the_same(tmp_path: Path, name: str, at_once: bool) -> None:
    """Their rows, digests and generators are those without; all of their ops that are repeated repeat themselves."""
    found = unchanged(tmp_path, PROGRAMS[name])
    assert found.calls + sum(one.calls for one in found.not_repeated)
    assert found.unequal == ()
    assert at_once or not found.at_once


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_compute_the_same(tmp_path: Path, seed: int, at_once: bool) -> None:
    """Views, writes in place and into parts, ``out=``, lists of tensors."""
    found = unchanged(tmp_path, lambda: RandomProgram(seed)())
    assert found.calls > 20
    assert found.unequal == ()
    assert bool(found.at_once) == at_once


@pytest.mark.usefixtures("at_once")
def test_a_warning_is_shown_once(record: Record) -> None:
    """Python shows a warning once for each line, and all calls of an op are on one, or show none."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with record.block(repeat=3):
            torch.add(torch.ones(3), 1, out=torch.empty(2))
    assert len([one for one in shown if "resized" in str(one.message)]) == 1


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy_ops")
@pytest.mark.parametrize("op", ["count", "race"])
def test_an_op_that_does_not_repeat_itself_is_named(record: Record, op: str) -> None:
    """With its line, the calls, the elements and the distance."""

    def program() -> None:
        x = torch.zeros(4)
        for _ in range(3):
            getattr(torch.ops.toy_ops, op)(x)
        x * 2

    found = repeated(record, program, times=2)
    assert (found.times, found.calls) == (2, 5)
    (unequal,) = found.unequal
    assert (unequal.op, unequal.calls, unequal.results, unequal.of) == (f"toy_ops.{op}.default", 3, (0,), 1)
    assert unequal.site.function.endswith("program")
    assert (unequal.dtype, unequal.elements, unequal.unequal) == ("float32", 4, 1)
    assert unequal.differing == 3 if op == "count" else unequal.differing
    assert unequal.ulp
    assert unequal.absolute


@pytest.mark.usefixtures("toy_ops")
def test_the_largest_distance_is_of_all_calls(record: Record) -> None:
    """The program has the first call's result, 1 more than its last one; the second of two more gives 2 more."""
    with record.block(repeat=2) as got:
        torch.ops.toy_ops.count(torch.zeros(1))
    assert found_in(got.process).unequal[0].absolute == 2


@pytest.mark.usefixtures("toy_ops")
def test_a_trace_without_its_row_names_no_op(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is not shown for another op."""
    with record.block(repeat=1) as got:
        torch.ops.toy_ops.count(torch.zeros(1))
    (kind,) = next(r for r in got.process.journal.records if r["type"] == "repeats")["kinds"]
    monkeypatch.setitem(kind, "row", 5)
    assert found_in(got.process).unequal == ()
    monkeypatch.delitem(kind, "row")
    assert found_in(got.process) is None


# --- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy_ops")
def test_calls_at_once_run_beside_each_other(native_library: Any) -> None:
    """In threads that have ended when the call returns; results are in the order of the calls."""
    tensors = torch.zeros(2), torch.zeros(2)
    threads = threading.active_count(), torch.get_num_threads()
    results, at_once = native_library.call_at_once("toy_ops::meet", "", [((x,), {}) for x in tensors])
    assert at_once
    assert [x.tolist() for x in tensors] == [[2, 1], [2, 0]]  # calls that were there; whether in this thread
    assert results == [None, None]
    assert (threading.active_count(), torch.get_num_threads()) == threads


def test_calls_at_once_have_the_state_of_their_caller(native_library: Any) -> None:
    """Grad mode, and errors of either call; a thread of another team would not know denormal numbers to be 0."""
    weight, x = torch.ones(2, requires_grad=True), torch.ones(3)
    two = [((weight, 1), {}), ((weight, 2), {"alpha": 3})]
    for context, grads in ((torch.enable_grad, True), (torch.no_grad, False)):
        with context():
            (first, second), at_once = native_library.call_at_once("aten::add", "Tensor", two)
        assert (first.requires_grad, second.requires_grad, at_once) == (grads, grads, True)
        assert (first.tolist(), second.tolist()) == ([2, 2], [7, 7])
    for calls in ([((x, weight), {}), two[0]], [two[0], ((x, weight), {})]):
        with pytest.raises(RuntimeError, match="must match"):
            native_library.call_at_once("aten::add", "Tensor", calls)
    if torch.set_flush_denormal(True):
        assert not native_library.call_at_once("aten::add", "Tensor", two)[1]
        torch.set_flush_denormal(False)


def test_calls_at_once_share_no_memory(
    record: Record, native_library: Any, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Not even what they may not write by the schema: oneDNN's backward of an LSTM writes into its workspace."""
    call, seen = native_library.call_at_once, []

    def spy(name: str, overload: str, calls: Any) -> Any:
        seen.append([{t.untyped_storage().data_ptr() for t in op_tensors(*one)} for one in calls])
        return call(name, overload, calls)

    monkeypatch.setattr(native_library, "call_at_once", spy)
    found = repeated(record, lambda: torch.nn.LSTM(8, 8)(torch.ones(4, 2, 8))[0].sum().backward(), times=3)
    assert found.unequal == ()
    assert bool(seen) == at_once
    assert all(first.isdisjoint(second) for first, second in seen)


@pytest.mark.usefixtures("native_library")
def test_only_what_torch_shares_among_threads_is_called_at_once(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ops, pointwise ones and draws are called one after the other."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with record.block(repeat=3) as got:
        x = torch.randn(1 << 16)
        x[:4].sort()
        torch.nn.functional.dropout(x.cos().cumsum(0))
    found = found_in(got.process)
    assert (found.unequal, found.at_once) == ((), ("aten.cumsum.default",))
    assert "3 more, large ones two at once" in found.described()[1]


# --- what is left out -------------------------------------------------------------------------------------------------


def test_what_computes_nothing_is_not_counted(record: Record) -> None:
    """Views, allocations, numbers that are read, and ops without results: ranges of the profiler would not end."""
    with record.block(repeat=1) as got, torch.profiler.record_function("update"):
        torch.empty(4).view(2, 2).fill_(1).t()[0, 0].item()
    found = found_in(got.process)
    assert (found.calls, found.not_repeated) == (1, ())


def test_draws_are_repeated_from_the_same_state(record: Record) -> None:
    """Of the default generator, of an own one, and of a function that takes none."""
    with record.block(repeat=1) as got:
        torch.rand(4)
        torch.randn(4, generator=torch.Generator().manual_seed(3))
        torch.nn.functional.dropout(torch.ones(100))
        torch.empty(4).normal_()
    found = found_in(got.process)
    assert found.calls >= 5
    assert (found.unequal, found.not_repeated) == ((), ())


def test_code_of_the_program_runs_once(record: Record) -> None:
    """Kernels in Python, dispatch modes and subclasses of Tensor may do anything."""
    ran: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            ran.append("mode")
            return func(*args, **(kwargs or {}))

    @torch.library.custom_op("sanitizer::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        ran.append("kernel")
        return x * 2

    with record.block(repeat=1) as got:
        twice(torch.ones(2))
        with Mode():
            torch.ones(2).sin()
    assert ran.count("kernel") == 1
    assert ran.count("mode") == 2
    assert reasons(found_in(got.process))["sanitizer.twice.default"] == repeats.IN_PYTHON


def test_an_op_that_is_too_large_is_left_out(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies would not fit into the memory that is free."""
    monkeypatch.setattr(repeats, "SMALL", 100)
    monkeypatch.setattr(repeats, "_free_bytes", lambda device: 1_000)
    found = repeated(record, lambda: torch.zeros(4).add_(1).expand(100, 4).contiguous().add_(1))
    assert reasons(found) == {"aten.clone.default": repeats.TOO_LARGE, "aten.add_.Tensor": repeats.TOO_LARGE}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_kernel_with_atomics_is_found(tmp_path: Path) -> None:
    """A launch is repeated in the memory of its arguments, which later ops find as its first call left it."""
    trace = tmp_path / "a.zarr"
    subprocess.run([sys.executable, Path(__file__).with_name("atomics.py"), trace], check=True)
    got = Recorded(trace)
    (unequal,) = found_in(got.process).unequal
    assert (unequal.op, unequal.calls, unequal.differing, unequal.dtype) == ("triton.total", 1, 1, "float32")
    assert got.named("mul")[0].inputs[0].row == got.named("total")[0].index
