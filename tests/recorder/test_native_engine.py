"""The native engine writes the rows that the mode in Python writes, cell by cell; what it cannot do, Python does.

Which engine records a block of a program, and what the trace says of it.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import cached, differences, write_library
from op_programs import PROGRAMS, Program, RandomProgram
from recorded import Recorded
from torch import distributed, nn
from torch.distributed import _functional_collectives

import rltrace
from rltrace.errors import UsageError
from rltrace.recorder.core.native_engine import CONSTANTS, handed_facts
from rltrace.trace.format.activation_rows import ModuleCall, OpRows
from rltrace.trace.format.schema import ValueIndex
from rltrace.trace.read.reader import open_trace

Both = Callable[..., Recorded]


def captured(path: Path) -> list[object]:
    """The values and activation rows that a trace holds besides its rows."""
    [process] = open_trace(path).processes
    index = process.values.index
    places = index[:, [column for column in ValueIndex if column is not ValueIndex.OFFSET]]
    calls, ops = process.activations.calls(0), process.activations.ops(0)
    owners: list[tuple[int, ModuleCall | OpRows]] = [(call.number, call) for call in calls]
    owners += [(row, ops[row]) for row in ops]
    rows = [
        (number, tensor.part, tensor.name, tensor.whole, tensor.digests.tolist())
        for number, owner in owners
        for tensor in owner.tensors
    ]
    values = map(process.values.get, process.values.digests.tolist())
    return [places.tolist(), [value and bytes(value.data) for value in values], rows]


@pytest.fixture
def both(tmp_path: Path, native_library: Any) -> Both:
    """Record a program under both engines, and compare; returns what the native one recorded."""
    count = iter(range(1_000))

    def record(program: Program, **options: Any) -> Recorded:
        number = next(count)
        program()  # what only a first run loads, compiles or leaves set
        paths = [tmp_path / f"{number}-{engine}.zarr" for engine in ("mode", "native")]
        for path, engine in zip(paths, ("mode", "native"), strict=True):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            with rltrace.record(path, engine=engine, **options):
                program()
        assert differences(*paths) == []
        assert captured(paths[0]) == captured(paths[1])
        return Recorded(paths[1])

    return record


# --- programs of every kind -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_equal(both: Both, name: str) -> None:
    """Rows, cells, steps and tables of both engines, id by id."""
    assert both(PROGRAMS[name]).rows


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
def test_rows_of_a_distributed_program_are_equal(both: Both) -> None:
    """DTensors, collectives in flight, and what a process group does while the program waits for it."""
    placing = pytest.importorskip("torch.distributed.tensor")
    mesh = distributed.init_device_mesh("cpu", (1,))

    def program() -> None:
        model = placing.distribute_module(nn.Linear(4, 3), mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batch = placing.distribute_tensor(torch.randn(2, 4), mesh, [placing.Shard(0)])
        for _ in range(2):
            loss = model(batch).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = _functional_collectives.all_reduce(torch.ones(4), "sum", distributed.group.WORLD)
        (total.view(2, 2) + 1).sin()
        distributed.reduce_scatter_tensor(part := torch.empty(4), total + 0)
        part.cos()

    got = both(program)
    assert got.one("cos").inputs[0].row is not None


# --- random programs --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_have_equal_rows(both: Both, seed: int) -> None:
    """Whatever is combined with whatever."""
    both(lambda: RandomProgram(seed)())


# --- hooks ------------------------------------------------------------------------------------------------------------


def training() -> None:
    """Two steps of two layers, and two products of one line in each."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        losses = [model(torch.randn(5, 4)).mul(scale).square().mean() for scale in (2, 3)]
        optimizer.zero_grad()
        sum(losses, torch.zeros(())).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"values": ("op=addmm",), "values_inputs": True}, {"addmm": 8}),
        ({"values": ("op=mul.Tensor,step=1,phase=forward",)}, {"mul.Tensor": 4}),
        ({"values": ("module=*2,phase=forward,op=addmm",)}, {"addmm": 4}),
        ({"values": ("op=mul.Tensor,nth=1,phase=forward",)}, {"mul.Tensor": 20}),
        ({"values": ("step=1", "phase=backward,op=mm")}, None),
        ({"rows": ("module=*", "op=bernoulli_")}, {"bernoulli_.float": 4}),
        ({"rows": ("op=mul.Tensor",), "values": ("op=mul.Tensor,nth=1",)}, {"mul.Tensor": 20}),
        ({"rerunnable": ("op=addmm,step=0",)}, {"addmm": 4}),
        ({"rerunnable": ("step=1",)}, None),
        ({"repeat": 1}, None),
    ],
)
def test_hooks_see_the_ops_that_they_want(both: Both, options: Mapping[str, Any], seen: Mapping[str, int]) -> None:
    """And no others; what they record is equal. ``seen``: by operator, how many; None: not counted."""
    found = both(training, **options)
    facts = found.process.facts
    assert facts["engine.native.handed"] < facts["engine.native.ops"]
    if seen is not None:
        most = [part.rpartition(", a hook: ") for part in facts["engine.native.handed.most"].split("; ")]
        assert {op.removeprefix("aten::"): int(count) for op, _, count in most} == seen
        assert facts["engine.native.handed"] == sum(seen.values())


# --- what Python does -------------------------------------------------------------------------------------------------


def test_what_the_library_cannot_do_is_counted(both: Both) -> None:
    """By operator and reason, in a fact of the trace. It reads generators and objects, but no object that is a text."""
    facts = both(lambda: torch.randn(2).to_sparse() + torch.ones(2).to_sparse()).process.facts
    assert (facts["engine.native"], facts["engine.native.ops"], facts["engine.native.handed"]) == (True, 5, 1)
    assert facts["engine.native.handed.most"] == "aten::add.Tensor, a tensor that is not plain: 1"
    assert both(PROGRAMS["random draws"]).process.facts["engine.native.handed"] == 0
    facts = both(PROGRAMS["objects"]).process.facts
    assert facts["engine.native.handed.most"] == "rltrace_objects::text, an object: 2"


def test_an_error_of_the_recorder_stays_its_own(
    tmp_path: Path, native_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program computes on; the recording ends and says why."""
    from rltrace.recorder.core.native_engine import NativeRecorder

    def broken(*_: object) -> Any:
        raise ValueError("the recorder's own")

    monkeypatch.setattr(NativeRecorder, "layout_of", broken)
    results = []
    with (
        pytest.raises(rltrace.errors.RecordError, match="the recorder's own"),
        rltrace.record(tmp_path / "a.zarr", engine="native"),
    ):
        results.append((torch.ones(3, 5) * 2).sum().item())
    assert results == [30.0]


def facts(path: Path) -> dict[str, Any]:
    """The facts of the engine, without their common beginning."""
    (process,) = open_trace(path).processes
    return {name[7:]: value for name, value in process.facts.items() if name.startswith("engine.")}


def record(path: Path, **options: Any) -> dict[str, Any]:
    """Record two ops, and read the facts."""
    with rltrace.record(path, **options):
        torch.ones(2).add_(1)
    return facts(path)


def test_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python records, and the reason is in the trace, without the home folder's path; where it is required, none is."""
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "home/cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = record(tmp_path / "a.zarr")
    assert found.pop("native.why_not").startswith("no native engine is built for torch ")
    assert found == {"native": False, "hides_mode": False}
    write_library(cached(tmp_path / "home/cache"), content=b"damaged")
    assert "that in ~/cache/engine/torch" in record(tmp_path / "b.zarr")["native.why_not"]
    with pytest.raises(UsageError, match="the native engine is required: no native engine is built"):
        record(tmp_path / "c.zarr", engine="native")
    assert not (tmp_path / "c.zarr").exists()


def test_with_the_library(tmp_path: Path, native_library: Any) -> None:
    """It counts all ops of the block, and those that Python recorded."""
    assert record(tmp_path / "a.zarr", engine="native") == {"native": True, "native.ops": 2, "native.handed": 0}
    assert record(tmp_path / "b.zarr")["native"] is True
    assert native_library.constants() == CONSTANTS


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engine": "mode"}, "--engine mode"),
        ({"steps": (0, None), "verify_inputs": True}, "--verify-inputs needs Python at every op"),
        ({"check_links": True}, "--check-links needs Python at every op"),
        ({"values": "all"}, "--values needs Python at every op"),
        ({"rows": ("op=ones", "all")}, "--rows needs Python at every op"),
    ],
)
def test_python_is_chosen(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    """By the option, or by one for which Python has to see every op: then the native engine cannot be required."""
    assert record(tmp_path / "a.zarr", **options) == {"native": False, "native.why_not": why}
    if "engine" not in options:
        with pytest.raises(UsageError, match=f"the native engine is required: {why}"):
            record(tmp_path / "b.zarr", **options, engine="native")


def test_other_levels_and_words(tmp_path: Path) -> None:
    """No engine is named where no ops are recorded."""
    assert record(tmp_path / "a.zarr", level="step") == {}
    for options, words in (
        ({"level": "step", "engine": "native"}, "with level step it cannot"),
        ({"engine": "x"}, "none of auto"),
    ):
        with pytest.raises(UsageError, match=words):
            record(tmp_path / "b.zarr", **options)


class Counts:
    """A stream's recorder in the library: what it counted."""

    def __init__(self, ops: int, handed: dict[tuple[str, str], int]) -> None:
        self.ops, self.handed = ops, handed


def test_counts_are_summed_over_streams() -> None:
    """Those that Python recorded by operator and reason, the three most frequent in words."""
    first = Counts(10, {("a", "an object"): 1, ("b", "sparse"): 2, ("c", "sparse"): 3})
    assert handed_facts([first, Counts(5, {("a", "an object"): 4, ("d", "sparse"): 1})]) == {
        "engine.native.ops": 15,
        "engine.native.handed": 11,
        "engine.native.handed.most": "a, an object: 5; c, sparse: 3; b, sparse: 2",
    }
    assert handed_facts([Counts(3, {})]) == {"engine.native.ops": 3, "engine.native.handed": 0}
    assert handed_facts([]) == {}
