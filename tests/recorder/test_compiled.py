"""What torch.compile has made computes what it computes unrecorded, stays compiled, and is one op a region."""

import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Record, Recorded
from replayed import replay_block
from torch import nn

from rltrace.recorder.base import isolation
from rltrace.recorder.core.compiled import MODULE, code_fingerprint, draws_random_numbers, kernel_names
from rltrace.trace.format.schema import ValueIndex, ValueKind

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test compiles anew."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counted:
    """A backend that runs a graph as it is, and counts what it is given and how often that runs."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        self.graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])

        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return run


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))


def whole_step(backend: Any) -> list[torch.Tensor]:
    """Forward, backward and optimizer in one compiled function: the compiler pauses in it several times."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @torch.compile(backend=backend)
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return [step(torch.randn(4, 3)).detach() for _ in range(3)] + list(model.parameters())


def compiled_optimizer(backend: Any) -> list[torch.Tensor]:
    """Only the optimizer's step is compiled."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    step = torch.compile(optimizer.step, backend=backend)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        step()
    return list(model.parameters())


def made_within(backend: Any) -> list[torch.Tensor]:
    """A module is made in a compiled function, which the compiler leaves for a number; a draw follows."""
    model = net()

    @torch.compile(backend=backend)
    def run(x: torch.Tensor) -> torch.Tensor:
        h = model[0](x)
        h = h + 1 if h.sum().item() > 0 else h - 1
        torch._dynamo.graph_break()
        return model[3](model[1:3](h).sin())

    return [run(torch.randn(4, 3)) for _ in range(2)]


def whole_graph(backend: Any) -> list[torch.Tensor]:
    """Nothing may be left out of the graph."""
    model = net()
    run = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    return [run(torch.randn(size, 3)) for size in (2, 4, 7)]


def test_the_compiler_is_excluded_from_its_import_on(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that never loads it does not wait; one that does has it pass over all code of the recorder."""
    (tmp_path / "late_compiler.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(isolation, "COMPILER", "late_compiler")
    monkeypatch.setattr(isolation, "_excluded", weakref.WeakSet())
    before = []
    with record.block():
        isolation.exclude_new_modules()
        before.extend(isolation._excluded)
        __import__("late_compiler")
    assert not before
    assert {sys.modules["rltrace.recorder.core.op_recorder"], sys.modules["rltrace.digest"]} <= set(isolation._excluded)
    monkeypatch.setattr(isolation, "_excluded", weakref.WeakSet())
    isolation.exclude_new_modules()
    assert sys.modules["rltrace.recorder.core.op_recorder"] in isolation._excluded
    for name in ("rltrace.digest", "rltrace.portable_keys"):  # digests and keys handle ops, too
        functions = [each for each in vars(sys.modules[name]).values() if isinstance(each, types.FunctionType)]
        own = {function.__code__ for function in functions if function.__module__ == name}
        assert own and own <= set(isolation._codes(sys.modules[name]))


@pytest.mark.parametrize(
    ("program", "times"), [(whole_step, 1), (compiled_optimizer, 1), (made_within, 2), (whole_graph, 2)]
)
def test_the_compiler_makes_what_it_makes_unrecorded(
    record: Record, program: Callable[[Any], list[Any]], times: int
) -> None:
    """The same graphs, as many calls of them, the same bits; two recordings are the same."""
    plain = Counted()
    wanted = program(plain)
    seen: list[Counted] = []

    def run() -> None:
        torch._dynamo.reset()
        seen.append(Counted())
        assert all(map(torch.equal, program(seen[-1]), wanted))

    traces = [record(run) for _ in range(times)]
    assert [(counted.graphs, counted.calls) for counted in seen] == [(plain.graphs, plain.calls)] * times
    assert traces[0].chains == traces[-1].chains


@pytest.mark.parametrize(("program", "steps"), [(whole_step, 3), (compiled_optimizer, 3)])
def test_compiled_steps_are_counted(record: Record, program: Callable[[Any], list[Any]], steps: int) -> None:
    """An optimizer's step is an attempt whether it is compiled or not."""
    got = record(lambda: program("eager"))
    assert [count for _, count, _ in got.optimizers] == list(range(steps))
    plain = record(lambda: program(lambda graph, _: graph), compile="eager")
    assert [count for _, count, _ in plain.optimizers] == list(range(steps))


def test_steps_inside_of_a_graph_are_counted(record: Record) -> None:
    """Where an optimizer's step is one graph with what is around it, that graph's call is the attempt."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.5})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad, alpha=group["lr"])

    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = Plain([weight])
    counted = Counted()

    @torch.compile(backend=counted, fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        return x.sin() * weight

    got = record(lambda: [step(torch.ones(2)) for _ in range(3)])
    assert counted.calls == 3 and len(counted.graphs) == 1
    assert weight.tolist() == [-0.5, -0.5]
    assert got.optimizers == [("Plain#0", 0, 0), ("Plain#0", 1, 0), ("Plain#0", 2, 0)]
    assert [row.step for row in got.named("sub_")] == [0, 1, 2]


def test_nothing_is_poisoned(record: Record) -> None:
    """A function that was compiled before, while or after it was recorded goes on compiled, however often that is."""
    counted = Counted()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=counted)
    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        step()
        calls, counted.calls = counted.calls, 0
        for _ in range(9):  # more than there may be versions of one function
            record(step)
            record(step, level="step")
            step()
    assert calls > 1
    assert counted.calls == 27 * calls


def test_eager_runs_op_by_op_and_poisons_nothing(record: Record) -> None:
    """With ``compile="eager"`` there are the ops of the program itself; after it, what was compiled is again."""
    counted = Counted()

    @torch.compile(backend=counted, fullgraph=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    assert record(lambda: run(torch.ones(2)), compile="eager").ops == ["ones", "sin", "cos"]
    assert counted.calls == 0
    run(torch.ones(2))
    assert counted.calls == 1
    assert record(lambda: run(torch.ones(2)), compile="eager").ops == ["ones", "sin", "cos"]
    run(torch.ones(2))
    assert (counted.calls, len(counted.graphs)) == (2, 1)


def test_where_a_function_goes_on_after_a_pause_is_that_function(record: Record) -> None:
    """The compiler names the rest of it by a line number, which is no part of an op's identity."""

    @torch.compile(backend="eager")
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    got = record(lambda: run(torch.ones(2)))
    found = [frame["function"].rpartition(".")[2] for frame in got.one("cos").stack]
    assert found[:3] == ["forward", "run", "run"]


# --- Inductor ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("inductor")
def test_a_region_of_inductors_is_one_op(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward are an op each: inputs, what it wrote, outputs, generator, kernels; no more is seen."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    kept: list[list[torch.Tensor]] = []

    def program() -> None:
        torch.manual_seed(1)
        torch._dynamo.reset()
        weight, mean = torch.randn(4, 4, requires_grad=True), torch.zeros(4)

        @torch.compile(options={"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False})
        def run(x: torch.Tensor) -> torch.Tensor:
            mean.add_(x.mean(0))
            return nn.functional.dropout((x @ weight).sin(), 0.5)

        out = run(torch.randn(3, 4))
        out.sum().backward()
        kept.append([out.detach(), mean, weight.grad])

    program()
    first, second = record(program), record(program)
    assert all(torch.equal(a, b) for got in kept[1:] for a, b in zip(kept[0], got, strict=True))
    assert first.chains == second.chains

    forward, backward = first.named("compiled_graph")
    assert first.ops[first.ops.index("compiled_graph") + 1 :].count("mm") == 0
    assert (forward.phase.name, backward.phase.name) == ("INIT", "BACKWARD")
    assert [frame["function"].rpartition(".")[2] for frame in forward.stack[:2]] == ["run", "program"]
    assert {first.rows[link.row].name for link in forward.inputs if link.row is not None} == {"randn", "zeros"}
    assert first.one("sum").inputs[0].row == forward.index
    assert forward.index in [link.row for link in backward.inputs]
    assert (forward.rng is not None, backward.rng) == (True, None)
    assert forward.kernel["library"] == "Inductor"
    assert forward.kernel["vectors"] == str(sys.modules["torch._inductor.cpu_vec_isa"].pick_vec_isa())
    assert any("fused" in name for name in forward.kernel["names"])
    again = record(lambda: [kept[-1][1].sin(), kept[-1][0].sin()])
    written, returned = (row.inputs[0].digest for row in again.named("sin"))
    assert forward.outputs[0] == written and returned in forward.outputs[1:]


SOURCE = '''# AOT ID: ['0_forward']
aten = torch.ops.aten
cpp_fused_sin_0 = async_compile.cpp_pybinding(['float*'], r"""
#include "/tmp/someone/cache/prefix.h"
#pragma omp parallel num_threads(2)
""")

class Runner:
    def call(self, args):
        extern_kernels.mm(arg0_1, arg1_1, out=buf0)
        # Topologically Sorted Source Nodes: [sin]
        cpp_fused_sin_0(buf0)
        aten.randint.low_out(-9223372036854775808, 9223372036854775807, [1], out=buf1)
        buf3 = torch.ops.aten.convolution.default(buf1, arg2_1)
        triton_poi_fused_add_0.run(buf3, 4, stream=stream0)
        return (buf0, )
'''


def test_kernels_and_draws_are_found() -> None:
    """Kernels in the order of their calls, libraries' and operators' among them; draws by the operators called."""
    assert kernel_names(SOURCE) == [
        "extern_kernels.mm",
        "cpp_fused_sin_0",
        "aten.randint.low_out",
        "torch.ops.aten.convolution.default",
        "triton_poi_fused_add_0",
    ]
    assert kernel_names("") == []
    assert draws_random_numbers(SOURCE)
    assert not draws_random_numbers(SOURCE.replace("randint.low_out", "mul.out"))
    assert draws_random_numbers("aoti_torch_cpu_randint_low_out(buf1)")


def test_a_fingerprint_is_of_the_code_alone() -> None:
    """Where it lies, and what a comment counts, is nothing; what is parallel how is something."""
    elsewhere = SOURCE.replace("/tmp/someone", "/home/other/place").replace("0_forward", "7_forward")
    assert code_fingerprint(elsewhere) == code_fingerprint(SOURCE)
    assert code_fingerprint(SOURCE.replace("num_threads(2)", "num_threads(4)")) != code_fingerprint(SOURCE)


# --- what a region is called with -------------------------------------------------------------------------------------


class Graph:
    """Stands for what Inductor makes of one graph: adds its second input to its first, and returns their product."""

    source_code = SOURCE.replace("randint.low_out", "mul.out")
    mutated_input_idxs = (1,)

    def __init__(self) -> None:
        self.alive: list[bool] = []

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        count, first, second, third, _ = inputs
        inputs.clear()
        gone = weakref.ref(third)
        del third
        self.alive.append(gone() is not None)
        first.add_(second, alpha=count)
        return [first * second]


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Such a graph in place of Inductor's class."""
    module = types.ModuleType(MODULE)
    module.CompiledFxGraph = Graph
    monkeypatch.setitem(sys.modules, MODULE, module)
    return Graph()


def call(region: Graph, first: torch.Tensor) -> torch.Tensor:
    return region([2, first, torch.ones(3), torch.zeros(5), torch.ones(1)])[0]


def test_what_a_region_writes_is_its_own(record: Record, region: Graph) -> None:
    """Written inputs are followed, numbers are numbers, and the library's ops inside are no rows."""
    with record.block() as got:
        first = torch.ones(3)
        call(region, first).sin()
        first.cos()
    row = got.one("compiled_graph")
    assert row.integers == [2]
    assert [len(row.inputs), len(row.outputs), row.rng] == [4, 2, None]
    assert (got.one("sin").inputs[0].row, got.one("cos").inputs[0].row) == (row.index, row.index)
    assert {"add_", "mul"}.isdisjoint(got.ops)


def test_inputs_of_a_region_die_as_they_do_unrecorded(record: Record, region: Graph) -> None:
    """No tensor is held that the region has let go (but for the last of them)."""
    inputs: list[Any] = []

    def program() -> None:
        inputs[:] = [1, torch.ones(3), torch.ones(3), torch.zeros(5), torch.ones(1)]
        region(inputs)

    program()
    record(program)
    assert region.alive == [False, False]


def test_values_of_a_region_are_those_that_it_was_given(record: Record, region: Graph) -> None:
    """What it read, and what lay there before it wrote, is recorded although it empties its list."""
    got = record(lambda: call(region, torch.full((3,), 5.0)), values="op=inductor.compiled_graph", values_inputs=True)
    row = got.one("compiled_graph")
    values = got.process.values
    kept = [values.get(value) for value in row.outputs]
    assert [value.raw.tolist() for value in kept if value is not None] == [[7.0] * 3, [7.0] * 3]
    read = torch.full((3,), 5.0)
    digests = {int(entry[ValueIndex.DIGEST]) for entry in values.index if entry[ValueIndex.KIND] == ValueKind.INPUT}
    assert len(digests) == 4
    again = record(lambda: read.sin()).one("sin").inputs[0].digest
    assert again in digests


def test_a_region_that_raises_leaves_no_row(record: Record, region: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the program's, and what the region had read is read again."""

    def fail(self: Graph, inputs: list[Any]) -> list[torch.Tensor]:
        inputs.clear()
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(Graph, "__call__", fail)
    weight = torch.ones(3)
    with record.block() as got:
        with pytest.raises(ZeroDivisionError, match="mine"):
            call(region, weight)
        weight.sin()
    assert "compiled_graph" not in got.ops
    assert got.one("sin").inputs[0].digest is not None
    assert Graph.__call__ is fail


def test_a_replay_treats_compiled_functions_as_its_trace_does(record: Record, tmp_path: Path) -> None:
    """A was recorded with ``compile="eager"``: so is what its values are put into."""

    @torch.compile(backend=Counted(), fullgraph=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    def program() -> torch.Tensor:
        return run(torch.ones(2))

    a = record(program, compile="eager", values="all", values_inputs=True)
    with replay_block(a.path, "op=aten.sin", tmp_path / "b.zarr"):
        program()
    assert Recorded(tmp_path / "b.zarr").ops == ["ones", "sin", "cos"]
