"""Watching changes nothing: what a program computes, keeps, raises and warns of is the same recorded and not."""

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded import PassingMode, Record
from torch import nn

Program = Callable[[], Any]

pytestmark = pytest.mark.filterwarnings("ignore")


def bits(value: Any) -> Any:
    """Nested results as something that compares bit by bit."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [bits(part) for part in value.unbind()]
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        return str(value.layout), str(dense.dtype), tuple(dense.shape), dense.contiguous().numpy().tobytes()
    if isinstance(value, (list, tuple)):
        return [bits(part) for part in value]
    return repr(value)


def same(record: Record, program: Program, **options: Any) -> list[str]:
    """Run a program unrecorded and recorded; its results, and the generator after it, must be equal. Ops recorded."""
    torch.manual_seed(1)
    plain = bits(program()), torch.get_rng_state().tolist()
    torch.manual_seed(1)
    got = record(program, **options)
    assert (bits(got.returned), torch.get_rng_state().tolist()) == plain
    return got.ops


# --- gradients, references, versions ----------------------------------------------------------------------------------


def test_gradients_are_stolen_as_ever(record: Record) -> None:
    """AccumulateGrad takes a gradient over when nothing else holds it: one ``detach``, no copy, version 0."""

    def program() -> list[int]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        model(torch.randn(5, 3)).pow(2).sum().backward()
        return [p.grad._version for p in model.parameters() if p.grad is not None]

    ops = same(record, program)
    assert program() == [0] * 4
    assert {"new_empty_strided", "clone"}.isdisjoint(ops)


def test_outputs_die_when_the_program_lets_go(record: Record) -> None:
    """No strong reference to a result, an input, a view or a gradient outlives its op."""

    def program() -> int:
        def made() -> list[weakref.ref[torch.Tensor]]:
            x = torch.randn(4, 4, requires_grad=True)
            y = (x @ x).exp()
            parts = torch._foreach_mul([y.detach(), x.detach()], 2.0)
            view = y.t()[1:]
            y.sum().backward()
            return [weakref.ref(t) for t in (x, y, *parts, view, x.grad)]

        return sum(reference() is not None for reference in made())

    gc.disable()
    try:
        assert record(program).returned == 0
    finally:
        gc.enable()


def versions_are_untouched() -> list[int]:
    """Of leaves, views, results, buffers: what autograd checks before backward."""
    x = torch.randn(3, 3)
    y = x * 2
    view = y[0]
    y.add_(1)
    view.mul_(2)
    norm = nn.BatchNorm1d(3)
    norm(x)
    return [t._version for t in (x, y, view, norm.running_mean)]


def saved_tensors_changed_in_place_are_still_found_out() -> str:
    """The error that a wrong program gets, word for word."""
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        y.sum().backward()
    return str(caught.value)


def inference_tensors_are_left_alone() -> torch.Tensor:
    """They have no version, and may not be changed outside."""
    with torch.inference_mode():
        x = torch.randn(3)
        y = x.t() if x.dim() > 1 else x.exp()
        assert y.is_inference()
        return (y[::2] * 2).add_(1)


# --- exceptions -----------------------------------------------------------------------------------------------------


def test_exceptions_of_ops_are_the_programs_own(record: Record) -> None:
    """Type and words; the op that raised is no row, and the rows after it have their own cells."""

    def program() -> list[str]:
        x, words = torch.ones(2, 3), []
        for i in range(3):
            with pytest.raises(RuntimeError) as caught:
                torch.ops.aten.addmm(x, x, x, beta=0.5, alpha=float(i))
            words.append(str(caught.value))
            x.mul_(float(i + 1))
        return words

    plain = program()
    got = record(program)
    assert got.returned == plain
    assert got.ops == ["ones", *["mul_"] * 3]
    assert [row.floats for row in got.named("mul_")] == [[1.0], [2.0], [3.0]]
    assert [row.inputs[0].row for row in got.named("mul_")] == [0, 1, 2]


def test_what_an_op_read_before_it_raised_is_read_again(record: Record) -> None:
    """No row stands for that reading, so no later row may lean on it."""
    weight = torch.ones(2, 3)
    with record.block() as got:
        with pytest.raises(RuntimeError):
            torch.mm(weight, weight)
        weight + 1
    (link,) = got.one("add").inputs
    assert link.digest is not None and not link.known


def test_errors_in_backward_pass_through(record: Record) -> None:
    """From the program's own code inside of the engine."""

    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("mine")

    def program() -> None:
        x = torch.ones(1, requires_grad=True)
        with pytest.raises(ZeroDivisionError, match="mine"):
            Raising.apply(x).backward()
        x.detach().sin()

    got = record(program)
    assert got.one("sin").phase.name == "OTHER"
    assert len(got.one("sin").stack) <= len(got.one("clone").stack)


# --- what torch can do ------------------------------------------------------------------------------------------------


def functional_transforms() -> list[Any]:
    """``grad``, ``vmap``, ``jvp``, ``jacrev``, one in another."""
    f, x, w = torch.func, torch.randn(4, 3), torch.randn(3)

    def loss(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (w * row).sin().sum()

    return [
        f.grad(loss)(w, x[0]),
        f.vmap(f.grad(loss), (None, 0))(w, x),
        f.jvp(lambda v: v.exp() * w, (w,), (torch.ones(3),)),
        f.jacrev(lambda v: (v * w).tanh())(w),
        f.hessian(lambda v: loss(v, x[1]))(w),
        f.functionalize(lambda v: v.clone().add_(1).mul_(2))(w),
    ]


def higher_order_ops() -> list[torch.Tensor]:
    """``torch.cond`` is one row."""
    x = torch.randn(3)
    return [torch.cond(p, torch.sin, torch.cos, (x,)) for p in (torch.tensor(True), torch.tensor(False))]


def custom_ops_and_functions() -> list[Any]:
    """With autograd of their own."""

    @torch.library.custom_op("rltrace_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_autograd(
        lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )

    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 0.5

    x = torch.randn(3, requires_grad=True)
    y = Clip.apply(cube(x))
    y.sum().backward()
    return [y, x.grad]


def subclasses() -> list[Any]:
    """Wrappers with a dispatch of their own, jagged tensors. Torch functions: ``test_torch_function.py``."""
    from torch.testing._internal.two_tensor import TwoTensor

    out = (TwoTensor(torch.randn(3), torch.randn(3)) * 2).exp()
    out.add_(1)
    jagged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    values = torch.randn(6, 3, requires_grad=True)
    parts = torch.nested.nested_tensor_from_jagged(values, lengths=torch.tensor([1, 5]))
    torch.stack([part.square().sum() for part in parts.unbind()]).sum().backward()  # writes to a jagged gradient
    return [out.a, out.b, list((jagged * 2).relu().unbind()), values.grad]


def sparse_and_nested_tensors() -> list[Any]:
    """Products, sums, gradients; conversions; all layouts."""
    x = torch.randn(4, 4).relu()
    coo = x.to_sparse().requires_grad_()
    torch.sparse.mm(coo, x).sum().backward()
    csr = x.to_sparse_csr()
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    return [coo.grad, (coo.detach() + coo.detach()).coalesce(), csr @ x, x.to_sparse_bsr((2, 2)) @ x, nested * 2]


def lazy_modules() -> list[Any]:
    """Parameters and buffers without a shape until the first call."""
    net = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    return [net(torch.randn(4, 5)), *net.parameters(), *net.buffers()]


def sparse_scalars() -> list[Any]:
    """Sums of sparse tensors beside sums of dense ones."""
    x = torch.randn(3, 3)
    return [x.sum(), torch.sparse.sum(x.to_sparse()), torch.sparse.sum(x.to_sparse(), 0), x.sum(0)]


def quantised_complex_and_narrow_tensors() -> list[Any]:
    """Lazy conjugates and negations, float8, bfloat16, autocast."""
    x = torch.randn(4, 4)
    z = torch.fft.fft(x)
    q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    with torch.autocast("cpu", torch.bfloat16):
        product = x @ x
    return [
        (z.conj() @ z.t()).abs(),
        z.conj().imag + 1,
        torch.view_as_real(z.conj().resolve_conj()),
        q.dequantize(),
        x.to(torch.float8_e4m3fn).to(torch.float32),
        product.float(),
    ]


def saved_tensor_hooks_and_anomaly_mode() -> list[Any]:
    """Packing and unpacking; detection with its own stack keeping."""
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), lambda a: torch.from_numpy(a)):
        y = (x.detach().requires_grad_() * 2).exp()
    with torch.autograd.detect_anomaly(check_nan=True):
        x.exp().sum().backward()
    return [y.detach(), x.grad]


def serialised_and_copied_tensors() -> list[Any]:
    """Nothing of the recorder clings to a tensor or a module."""
    net = nn.Linear(2, 2)
    net(torch.ones(1, 2))
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    names = sorted(vars(net)), sorted(vars(net.weight))
    return [list(loaded.values()), copy.deepcopy(net).weight, pickle.loads(pickle.dumps(net.bias)), names]


def symbolic_shapes() -> list[Any]:
    """Ops on shapes that are not known yet are no rows, and nothing asks a symbol for its value."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) @ x.t() * x.shape[0] + torch.ones(x.shape[0], x.shape[0])

    graph = make_fx(scaled, tracing_mode="symbolic")(torch.randn(2, 3))
    shapes = ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(nn.Linear(3, 2), (torch.randn(2, 3),), dynamic_shapes=shapes)
    symbols = [str(node.meta["val"].shape) for node in exported.graph.nodes if "val" in node.meta]
    assert any("s" in shape for shape in symbols)
    return [graph(torch.randn(5, 3)), exported.module()(torch.randn(4, 3))]


PROGRAMS: dict[Program, set[str]] = {
    functional_transforms: {"sin"},
    versions_are_untouched: set(),
    saved_tensors_changed_in_place_are_still_found_out: set(),
    inference_tensors_are_left_alone: set(),
    higher_order_ops: {"cond"},
    custom_ops_and_functions: {"cube"},
    subclasses: set(),
    sparse_and_nested_tensors: set(),
    lazy_modules: set(),
    sparse_scalars: set(),
    quantised_complex_and_narrow_tensors: set(),
    saved_tensor_hooks_and_anomaly_mode: set(),
    serialised_and_copied_tensors: set(),
    symbolic_shapes: {"sin", "addmm"},
}
"""Programs, and ops that have rows in them."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_compute_the_same(record: Record, program: Program) -> None:
    """The same bits, and the same state of the generator; where ops are named, they have rows."""
    assert PROGRAMS[program] <= set(same(record, program))


def test_recording_imports_no_compiler(record: Record) -> None:
    """The default of a dispatch mode would import it at the first op: close to a second."""
    import subprocess
    import sys

    code = (
        "import sys, torch, rltrace, tempfile, pathlib\n"
        "with rltrace.record(pathlib.Path(tempfile.mkdtemp()) / 'a.zarr'):\n"
        "    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n"
        "print([m for m in ('torch._dynamo', 'torch._inductor', 'zarr', 'sympy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]", result.stdout


def test_a_thread_without_python_is_of_the_stream_where_backward_is(record: Record) -> None:
    """The autograd engine's own threads have no frames: such an op has the site of the call of backward."""
    import sys

    from rltrace.recorder.base.intern_tables import Tables
    from rltrace.recorder.core.call_sites import Sites

    sites = Sites(Tables())
    frame = sys._getframe()
    assert sites.make((1,), None, frame) == sites.make((2,), frame)


def test_torchscript_runs_alike_from_its_first_call_on(record: Record) -> None:
    """It measures, then optimises: the ops of its calls are others from call to call, and the same in every run."""

    def program() -> list[Any]:
        torch.manual_seed(1)

        @torch.jit.script
        def run(x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = x * 0.5 + torch.sigmoid(x)
            return x.sum()

        results: list[Any] = []
        for _ in range(4):
            x = torch.randn(3, requires_grad=True)
            run(x).backward()
            results.append(x.grad)
        return results

    same(record, program)
    assert record(program).chains == record(program).chains


# --- functions that ask for a mode ------------------------------------------------------------------------------------


def gradients(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor | None]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    function(*leaves).backward()
    return [leaf.grad for leaf in leaves]


def weighted_loss(logits: torch.Tensor) -> torch.Tensor:
    target = torch.arange(500) % 7
    target[::9] = -100
    return nn.functional.cross_entropy(logits, target, torch.arange(1.0, 8.0), label_smoothing=0.1)


CHOOSING: dict[str, Program] = {
    "eigvalsh": lambda: torch.linalg.eigvalsh((a := torch.randn(12, 12)) @ a.T),
    "svdvals": lambda: torch.linalg.svdvals(torch.randn(12, 12)),
    "norms": lambda: [torch.linalg.matrix_norm(torch.randn(12, 12), order) for order in (2, -2, "nuc")],
    "cond": lambda: torch.linalg.cond(torch.randn(12, 12)),
    "prod": lambda: gradients(torch.prod, torch.rand(64) + 0.5),
    "prod of rows": lambda: gradients(lambda x: x.prod(1).sum(), torch.rand(8, 8) + 0.5),
    "negative zeros of max": lambda: gradients(lambda x: -x.max(), torch.rand(9)),
    "negative zeros of median": lambda: gradients(lambda x: -x.median(), torch.rand(9)),
    "weighted loss": lambda: gradients(weighted_loss, torch.randn(500, 7)),
}
"""Functions that take another way under a dispatch mode, with other bits."""


@pytest.mark.parametrize("name", CHOOSING)
def test_functions_that_ask_for_a_mode_see_none(record: Record, native_library: Any, engine: str, name: str) -> None:
    """What torch chooses under a mode it does not choose under the recorder's, which the library hides."""
    same(record, CHOOSING[name], engine=engine)


def test_a_mode_of_the_program_is_seen(record: Record, native_library: Any, engine: str) -> None:
    """It changes the choice, as it does unrecorded; beside the recorder's, too."""

    def program() -> Any:
        with PassingMode():
            under = CHOOSING["eigvalsh"]()
        return under, CHOOSING["eigvalsh"]()

    same(record, program, engine=engine)
