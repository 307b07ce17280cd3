"""Values injected at origins alone: what an op was given decides, and a repair never covers for another difference."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from replayed import replay_block, run

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.rerun.account import Account
from rltrace.rerun.plan import InjectionFilter
from rltrace.trace.format.schema import Column
from rltrace.trace.read.reader import open_trace

STEPS = (0, 1000)

Program = Callable[[bool], object]


def replay(
    folder: Path, program: Program, inject: str, only: InjectionFilter | None = None
) -> tuple[object, object, object, Account]:
    """What A, B and B with A's values at origins return, and the account."""
    a, b, c = (folder / f"{name}.zarr" for name in "abc")
    found = []
    for make, is_b in (
        (lambda: rltrace.record(a, steps=STEPS, verify_inputs=True, values="all", values_inputs=True), False),
        (lambda: rltrace.record(b), True),
        (lambda: replay_block(a, inject, c, only=only or InjectionFilter(), origins=True), True),
    ):
        found.append(run(make(), program, is_b))
    account = found[2][1].account
    assert open_trace(c).holes == ()
    return found[0][0], found[1][0], found[2][0], account


@pytest.mark.parametrize("inject", ["op=exp", "op=mul"])
def test_a_receiver_is_left_as_it_is(tmp_path: Path, inject: str) -> None:
    """``exp`` only passes on what ``mul`` made otherwise: nothing is injected there, and that is counted. ``mul`` gets
    the same tensor, and another number: it is where the difference begins."""

    def program(is_b: bool) -> list[float]:
        x = torch.ones(3) * (2.0 + is_b)
        return x.exp().tolist()

    a, b, c, account = replay(tmp_path, program, inject)
    assert a != b
    assert c == (b if inject == "op=exp" else a)
    assert (account.selected, account.injected, account.propagated) == (1, inject == "op=mul", inject == "op=exp")
    assert account.complete


def test_a_receiver_becomes_an_origin_once_its_inputs_are_as_in_a(tmp_path: Path) -> None:
    """Two ops in a row that compute otherwise: with A's value at the first, the second is given what it was in A."""

    def program(is_b: bool) -> list[float]:
        return (torch.ones(3) * (2.0 + is_b)).add(1.0 + is_b).tolist()

    a, _, c, account = replay(tmp_path, program, "all")
    assert a == c
    assert account.propagated == 0
    assert [kind.op for kind in account.other] == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_data_from_outside_is_not_given_by_an_op(tmp_path: Path) -> None:
    """An op that takes in other data is an origin: the data is what is injected."""
    data = torch.zeros(3)

    def program(is_b: bool) -> list[float]:
        seen = data.numpy().copy()
        seen += is_b
        return torch.from_numpy(seen).exp().tolist()

    a, b, c, account = replay(tmp_path, program, "op=exp")
    assert a == c != b
    assert account.other[0].parts == ("outside",)


def test_rows_by_number(tmp_path: Path) -> None:
    """Of three calls of one line the second alone."""

    def program(is_b: bool) -> list[list[float]]:
        return [(torch.ones(2) * (k + is_b)).tolist() for k in range(3)]

    with rltrace.record(tmp_path / "probe.zarr"):
        program(False)
    process = open_trace(tmp_path / "probe.zarr").processes[0]
    names = process.tables["ops"].payloads
    ops = process.streams[0].read_segment(process.streams[0].segments[0]).column(Column.OP)
    _, second, _ = (row for row, op in enumerate(ops) if names[op] == "aten.mul.Tensor")
    a, b, c, account = replay(tmp_path, program, "all", InjectionFilter(rows={"rank0/main": frozenset([second])}))
    assert (account.selected, account.injected) == (1, 1)
    assert [x == y for x, y in zip(a, c, strict=True)] == [False, True, False]  # type: ignore[call-overload]
    assert [x == y for x, y in zip(b, c, strict=True)] == [True, False, True]  # type: ignore[call-overload]


def test_memory_that_was_never_written_is_not_asked_for(tmp_path: Path) -> None:
    """An op that may read unwritten bytes is an origin whatever they are: no trace holds them."""

    def program(is_b: bool) -> list[float]:
        buffer = torch.empty(4)
        buffer.view(-1)[:2].fill_(1.0)
        return (buffer[:4] * (2.0 + is_b))[:2].tolist()

    a, b, c, account = replay(tmp_path, program, "op=mul")
    assert a == c != b
    assert account.propagated == 0


def test_all_at_origins_is_a_lockstep(tmp_path: Path) -> None:
    """With values at every origin the run is A, as one with values at every op is."""

    def program(is_b: bool) -> list[float]:
        x = torch.rand(3) * (1.0 + is_b)
        return (x.tanh() + torch.rand(3) * (3.0 - is_b)).tolist()

    a, b, c, account = replay(tmp_path, program, "all")
    assert a == c != b
    assert account.propagated == 0
    found = compare(tmp_path / "a.zarr", tmp_path / "c.zarr")
    assert found.verdict in (Verdict.DIVERGED, Verdict.IDENTICAL)  # the factors, which are arguments, are B's own
    assert found.first_value is None or all(pair.a == pair.b for pair in found.first_value.outputs)


@pytest.mark.parametrize("inject", ["op=mul", "all"])
def test_generators_stay_in_step(tmp_path: Path, inject: str) -> None:
    """A value that is injected at an op that draws leaves the generator where A's was."""

    def program(is_b: bool) -> list[float]:
        return (torch.rand(3) * (1.0 + is_b) + torch.rand(3)).tolist()

    a, b, c, _ = replay(tmp_path, program, inject)
    assert a == c != b
