"""An op that is called on another tensor: another part of one, another result, what another call wrote."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from views import both, context_of, views_in

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import Cause, Comparison, InputsMatch, Verdict
from rltrace.diff.base.row_diff import Difference
from rltrace.diff.causes.classify import judge
from rltrace.diff.causes.inputs import match_inputs
from rltrace.diff.causes.operands import another_operand
from rltrace.testing import In
from rltrace.trace.format.schema import Origin

Tensors = Sequence[torch.Tensor]


def normalized() -> Tensors:
    x = torch.randn(4, 4, requires_grad=True)
    norm = torch.nn.LayerNorm(4)
    torch.nn.init.normal_(norm.weight)
    norm(x).square().sum().backward()
    assert norm.weight.grad is not None and norm.bias.grad is not None
    return norm.weight.grad, norm.bias.grad


def projected() -> Tensors:
    q, k, v = torch.nn.Linear(4, 12)(torch.randn(2, 3, 4)).view(2, 3, 3, 4).unbind(2)
    return q, k, v


def written_in_part() -> Tensors:
    buffer = torch.zeros(2, 4)
    buffer[0] = torch.rand(4)
    buffer[1] = torch.rand(4)
    return buffer[:, :2], buffer[:, 2:]


def x() -> torch.Tensor:
    return torch.rand(8, 4)


KINDS: dict[str, tuple[Callable[[], Tensors], str, str]] = {
    "unbind": (lambda: x().unbind(), "elements 0 to 3 of what aten.rand", "elements 4 to 7 in B"),
    "column": (lambda: (lambda y: [y[:, 1], y[:, 3]])(x()), "column 1 of what aten.rand", "column 3 in B"),
    "rows of columns": (
        lambda: (lambda y: [y[2:4, :2], y[4:6, 1:3]])(x()),
        "columns 0 to 1 of rows 2 to 3 of what aten.rand",
        "columns 1 to 2 of rows 4 to 5 in B",
    ),
    "one element": (lambda: (lambda y: [y[0, 0], y[1, 2]])(x()), "element 0 of what aten.rand", "element 6 in B"),
    "projection": (projected, "columns 0 to 3 of what aten.addmm", "columns 4 to 7 in B"),
    "var_mean": (lambda: torch.var_mean(x(), dim=0), "result 0 of aten.var_mean", "result 1 in B"),
    "aminmax": (lambda: torch.aminmax(x(), dim=0), "result 0 (min) of aten.aminmax", "result 1 (max) in B"),
    "layer norm": (normalized, "result 1 of aten.native_layer_norm_backward", "result 2 in B"),
    "loop": (
        lambda: [torch.rand(4).exp() for _ in range(2)],
        "what the 1st call of aten.exp.default",
        "and what the 2nd call wrote (row 3) in B",
    ),
    "lines": (
        lambda: [
            torch.rand(4),
            torch.ones(4) * 3,
        ],
        "what aten.rand.default at",
        "and what aten.mul.Tensor at",
    ),
    "written in part": (
        written_in_part,
        "columns 0 to 1 of what several ops wrote in, the last of them",
        "columns 2 to 3 in B",
    ),
    "from outside": (
        lambda: [torch.rand(4), torch.from_numpy(np.arange(4, dtype=np.float32))],
        "is what aten.rand.default at",
        "wrote in A, and came from outside in B",
    ),
}


def compared(folder: Path, way: str, run: Callable[[int], object]) -> Comparison:
    """``run(0)`` against ``run(1)``."""
    paths = []
    options: Any = {"verify_inputs": True, "steps": (0, None)} if way == "verified" else {"engine": way}
    for k, side in enumerate("ab"):
        torch.manual_seed(0)
        paths.append(folder / f"{side}.zarr")
        with rltrace.record(paths[-1], **options):
            run(k)
    return compare(*paths)


def runs(folder: Path, made: Callable[[], Tensors], way: str) -> Comparison:
    """``exp`` of the first tensor in A, of the second one in B."""
    return compared(folder, way, lambda k: made()[k].exp())


@pytest.fixture(params=["native", "verified"])
def way(request: pytest.FixtureRequest) -> str:
    """By the native engine, where its library is there; and with every input digested, in Python."""
    if request.param == "native":
        request.getfixturevalue("native_library")
    return str(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_another_tensor(tmp_path: Path, kind: str) -> None:
    """The op is found, and which tensor it was given on each side is said."""
    made, in_a, in_b = KINDS[kind]
    found = runs(tmp_path, made, "mode")
    value = found.first_value
    assert found.verdict is Verdict.DIVERGED and value is not None
    assert (value.op, value.cause, value.inputs_match) == ("aten.exp.default", Cause.ARGUMENTS, InputsMatch.DIFFER)
    assert value.explanation.startswith("it was called on another tensor: input 0 (float32[")
    assert in_a in value.explanation and in_b in value.explanation, value.explanation


@pytest.mark.parametrize("windows", [((1, 2), (1, 2)), (None, (1, 2)), ((1, None), None)])
def test_in_a_window(tmp_path: Path, windows: tuple[Any, Any]) -> None:
    """The operand is named in a step that both sides recorded, whatever they recorded besides."""
    paths = []
    for k, (side, steps) in enumerate(zip("ab", windows, strict=True)):
        torch.manual_seed(0)
        paths.append(tmp_path / f"{side}.zarr")
        net = torch.nn.Linear(4, 4)
        with rltrace.record(paths[-1], steps=steps):
            for step in range(3):
                means = net(torch.ones(2, 4) * step).chunk(2, -1)
                means[k if step == 1 else 0].exp()
                rltrace.step()
    value = compare(*paths).first_value
    assert (value.step, value.op, value.cause) == (1, "aten.exp.default", Cause.ARGUMENTS)
    assert "columns 0 to 1 of what aten.addmm" in value.explanation and "columns 2 to 3 in B" in value.explanation


def given_by_a_set(k: int) -> list[torch.Tensor]:
    """Two tensors that calls of lists have written, in B in another order, as a set has it."""
    weights = [torch.ones(2), torch.zeros(3)]
    sources = [torch.full_like(each, place + 5) for place, each in enumerate(weights)]
    order = [1, 0] if k else [0, 1]
    torch._foreach_copy_([weights[place] for place in order], [sources[place] for place in order])
    torch._foreach_add_([weights[place] for place in order], [sources[place] for place in order], alpha=2)
    return weights


def test_lists_whose_tensors_are_each_treated_alone(tmp_path: Path, way: str) -> None:
    """The same tensors in another order, of other shapes too, are no difference, and it is said what orders a set."""

    def run(k: int) -> None:
        for weight in given_by_a_set(k):
            weight.exp().sum().item()

    found = compared(tmp_path, way, run)
    assert found.verdict is Verdict.SAME_VALUES
    assert found.structure.reordered == 2
    (note,) = [note for note in found.notes if "in another order" in note]
    assert note.startswith("2 calls in rank0/main got the same tensors in another order")
    assert note.endswith("PYTHONHASHSEED is not set, so a set of strings has another order in each process")


def test_lists_in_another_order_of_which_one_tensor_differs(tmp_path: Path, way: str) -> None:
    """What differs is named, not what only has another place; of two with one layout it is not known which is which."""

    def run(k: int, changed: Sequence[int] = (2,)) -> None:
        data = [np.full(2, 5 + place + 10 * k * (place in changed), np.float32) for place in range(4)]
        sources, weights = [torch.from_numpy(each) for each in data], [torch.zeros(2) for _ in data]
        order = [2, 0, 1, 3] if k else range(4)
        torch._foreach_copy_([weights[place] for place in order], [sources[place] for place in order])

    value = compared(tmp_path, way, run).first_value
    assert value is not None and value.cause is Cause.OUTSIDE
    assert value.explanation.startswith("input 6 (float32[2]) came from outside (no recorded op wrote it) and differs")
    assert "it got the others in another order; PYTHONHASHSEED is not set" in value.explanation
    (tmp_path / "two").mkdir()
    two = compared(tmp_path / "two", way, lambda k: run(k, (1, 2))).first_value
    assert two is not None and "it got the others" not in two.explanation


@pytest.mark.parametrize("view", [lambda t: t.unsqueeze(-1), lambda t: t[:2]], ids=["unsqueeze", "slice"])
def test_a_view_of_outside_data_on_one_side(tmp_path: Path, way: str, view: Callable[..., torch.Tensor]) -> None:
    """The forgotten ``unsqueeze`` of rewards: in another shape, bytes from outside are not known to be others."""

    def run(k: int) -> None:
        rewards = torch.from_numpy(np.arange(4, dtype=np.float32))
        (rewards if k else view(rewards)) + torch.ones(1)

    value = compared(tmp_path, way, run).first_value
    assert value is not None and (value.cause, value.inputs_match) == (Cause.ARGUMENTS, InputsMatch.UNKNOWN)
    assert value.explanation.startswith("it was called with different tensors: ")
    assert "float32[4] in B) came from outside" in value.explanation
    assert "before it, only A runs aten." in value.explanation


@pytest.mark.parametrize("verify", [False, True])
def test_a_lazy_conjugation_on_one_side(tmp_path: Path, verify: bool) -> None:
    """``.mT`` in place of ``.mH``: the op reads the same memory, and other numbers; no byte of it was written."""
    x = torch.complex(torch.arange(4.0).reshape(2, 2), torch.ones(2, 2))
    paths = [tmp_path / f"{side}.zarr" for side in "ab"]
    for k, path in enumerate(paths):
        with rltrace.record(path, **({"verify_inputs": True, "steps": (0, 1)} if verify else {})):
            h = x @ x
            (h.mT if k else h.mH) @ h
    value = compare(*paths).first_value
    assert value is not None and (value.cause, value.op) == (Cause.CONTROL_FLOW, "aten.mm.default")
    assert value.explanation.startswith("it reads what A alone conjugates or negates lazily, by aten._conj.default at ")


def test_lists_with_one_tensor_in_place_of_another(tmp_path: Path, way: str) -> None:
    """Each tensor got what the other should have: what reads it differs, and the call that did so is named."""

    def run(k: int) -> None:
        weights = [torch.ones(2), torch.zeros(2)]
        sources = [torch.full((2,), 5.0), torch.full((2,), 6.0)]
        torch._foreach_copy_(weights, sources[::-1] if k else sources)
        weights[0].exp()

    found = compared(tmp_path, way, run)
    assert found.verdict is Verdict.DIVERGED
    assert found.first_value is not None
    assert (found.first_value.op, found.first_value.cause) == ("aten.exp.default", Cause.ARGUMENTS)
    assert "aten._foreach_copy_.default" in found.first_value.explanation
    assert "which got the same tensors in another order; PYTHONHASHSEED is not set" in found.first_value.explanation


@pytest.mark.parametrize("is_computed_so", [False, True])
def test_an_order_that_matters(tmp_path: Path, way: str, is_computed_so: bool) -> None:
    """``cat`` of the same tensors in another order: the order leads, and where they were computed in that order, too,
    which op of A is that of B."""

    def run(k: int) -> None:
        order = [2, 0, 1] if k else [0, 1, 2]
        parts = {place: torch.full((2,), float(place)).exp() for place in (order if is_computed_so else range(3))}
        torch.cat([parts[place] for place in order])

    found = compared(tmp_path, way, run)
    assert found.verdict is Verdict.DIVERGED
    assert found.first_value is not None and found.first_value.op == "aten.cat.default"
    why = found.first_value.explanation
    assert why.startswith("it got the same tensors in another order: input 0 of A is input 1 of B, input 1 of A is ")
    assert ("wrote (row 1) in B, which is A's row 5" in why) == is_computed_so, why
    assert why.count("PYTHONHASHSEED") == 1


@pytest.mark.parametrize("kind", ["projection", "layer norm", "loop", "written in part", "from outside"])
def test_another_tensor_in_every_way(tmp_path: Path, kind: str, way: str) -> None:
    """However the two were recorded."""
    made, in_a, in_b = KINDS[kind]
    explanation = runs(tmp_path, made, way).first_value.explanation
    assert in_a in explanation and in_b in explanation, explanation


def test_another_layout(tmp_path: Path) -> None:
    """A transposed view holds other bytes than what it is a view of: its layout is the argument that differs."""
    value = runs(tmp_path, lambda: (lambda y: [y, y.t()])(torch.rand(4, 4)), "mode").first_value
    assert value.cause is Cause.ARGUMENTS
    assert "called with different tensors: float32[4,4] " in value.explanation, value.explanation


@pytest.mark.parametrize("row", [3, 5])
def test_a_buffer_from_outside(tmp_path: Path, way: str, row: int) -> None:
    """Torch wrote one row of it, and another one came from outside with other numbers."""

    def run(k: int) -> None:
        array = np.arange(32, dtype=np.float32).reshape(8, 4)
        array[row, 1] += k
        buffer = torch.from_numpy(array)
        buffer[0].fill_(1.0)
        buffer.exp()

    value = compared(tmp_path, way, run).first_value
    assert value.cause is Cause.OUTSIDE
    why = "differs, though the ops that wrote a part of it are equal: what came from outside is another"
    assert value.explanation == f"input 0 (float32[8,4]) {why}"


def test_equal_bytes_in_another_shape(tmp_path: Path, way: str) -> None:
    """Copied on one side, and read from outside on the other, as a column: no value that both computed differs."""

    def run(k: int) -> None:
        numbers = torch.from_numpy(np.arange(8))
        (numbers if k else numbers.clone())[:, None].float().exp()

    found = compared(tmp_path, way, run)
    assert found.verdict is Verdict.SAME_VALUES and found.first is not None
    assert "affects results" not in found.first.explanation


def test_equal_bytes_at_another_offset(tmp_path: Path) -> None:
    """A kernel may take another path there: it is said beside the cause, and is none."""
    for trace, side in both(tmp_path):
        trace.op(MM, inputs=[In(digest="x", offset=3 if side == "b" else 0)], outputs=[side])
    a, b = views_in(tmp_path)
    rows = row_at(a, 0), row_at(b, 0)
    found = judge(context_of(a, b, [(0, 0)]), *rows, Difference(outputs=True)).judgement
    assert (found.cause, found.inputs_match) == (Cause.COMPUTATION, InputsMatch.READ)
    assert "input 0 (float32[4]) begins at storage offset 0 in A, 3 in B, and kernels choose" in found.explanation


def test_a_loop_over_a_set_of_strings(tmp_path: Path) -> None:
    """Modules made in another order get each other's numbers: each call is paired with that of its own module, and the
    first op that computes with other weights is found, with the setting that orders the set."""

    def run(k: int) -> None:
        names = ("left", "right")
        heads = torch.nn.ModuleDict({name: torch.nn.Linear(4, 2) for name in (names[::-1] if k else names)})
        given = torch.ones(3, 4)
        torch.cat([heads[name](given) for name in names])

    value = compared(tmp_path, "mode", run).first_value
    assert (value.op, value.cause) == ("aten.addmm.default", Cause.ARGUMENTS)
    assert value.module == "ModuleDict.left" or str(value.module).endswith("left"), value.module
    assert "PYTHONHASHSEED" in value.explanation


# --- random programs --------------------------------------------------------------------------------------------------
#
# One op is called on one of two tensors; what a program computes is the truth that a comparison is checked against.


WRONG = frozenset({Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION, Cause.UNTRACKED_WRITE, Cause.UNKNOWN})
"""Causes that nothing in these programs is."""

ACTIONS = 24

USES: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    torch.exp,
    torch.neg,
    lambda t: t * 2.0,
    lambda t: t.sum(),
    lambda t: torch.stack([t, t + 1]),
)


class OperandProgram:
    """The program of a seed: tensors, views of them, several results of one op, writes in place, memory of NumPy; then
    one op on one of two tensors of a shape, and some ops on what it returned."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.result: list[bytes] = []
        """What each op computed from the exchanged one on."""

    def run(self, other: int) -> bool:
        """Run it; ``other``: 0 or 1, which of the two tensors; False where there are no two of one shape."""
        self._random = random.Random(self._seed)
        torch.manual_seed(self._seed)
        self._tensors: list[torch.Tensor] = [torch.rand(4, 6), torch.rand(6, 4)]
        for _ in range(ACTIONS):
            made = self._random.choice(list(self._actions()))()
            new = [t for t in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(t, torch.Tensor)]
            self._tensors = [*self._tensors[-20:], *(t for t in new if t.is_floating_point() and t.numel())]
        pairs = [(x, y) for n, x in enumerate(self._tensors) for y in self._tensors[:n] if x.shape == y.shape]
        self.result = []
        if not pairs:
            return False
        given, use = self._random.choice(pairs)[other], self._random.choice(USES)
        found = use(given)
        self._keep(found)
        for _ in range(3):
            found = self._random.choice([torch.tanh, lambda t: t + self._tensors[0].sum(), torch.abs])(found)
            self._keep(found)
        return True

    def _keep(self, tensor: torch.Tensor) -> None:
        self.result.append(tensor.detach().contiguous().numpy().tobytes())

    def _actions(self) -> Iterator[Callable[[], Any]]:
        r = self._random
        t, u = r.choice(self._tensors), r.choice(self._tensors)
        flat = t.numel()
        yield lambda: torch.rand(4, 6)
        yield lambda: torch.from_numpy(np.random.default_rng(r.randrange(3)).random((4, 6)).astype(np.float32))
        yield lambda: t.exp()
        yield lambda: t.chunk(2, -1) if t.dim() else t
        yield lambda: t.split(2) if t.dim() else t
        yield lambda: t.unbind() if t.dim() else t
        yield lambda: t.t() if t.dim() == 2 else t
        yield lambda: t.reshape(-1)[r.randrange(flat) :]
        yield lambda: t[..., None]
        yield lambda: torch.var_mean(t, dim=0) if t.dim() and t.shape[0] > 1 else t
        yield lambda: torch.aminmax(t)
        yield lambda: t.sort() if t.dim() else t
        yield lambda: torch.linalg.qr(t) if t.dim() == 2 else t
        yield lambda: torch._foreach_mul([t, u], 1.5)
        yield lambda: t.clone()
        yield lambda: t.add_(0.5) if self._is_writable(t) else t
        yield lambda: t.reshape(-1)[: flat // 2].fill_(r.random()) if t.is_contiguous() else t
        yield lambda: t.copy_(torch.rand(t.shape)) if self._is_writable(t) else t
        yield lambda: torch.mul(t, 0.5, out=torch.empty_like(t))
        yield rltrace.step

    @staticmethod
    def _is_writable(tensor: torch.Tensor) -> bool:
        """Whether no two of its elements share memory."""
        return all(stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)


def compared_seed(seed: int, folder: Path) -> tuple[Comparison | None, bool]:
    """The comparison of the two runs of a program, and whether they computed the same; None: it has no two tensors."""
    paths, results = [], []
    for k, side in enumerate("ab"):
        program = OperandProgram(seed)
        paths.append(folder / f"{seed}{side}.zarr")
        with rltrace.record(paths[-1]):
            ran = program.run(k)
        if not ran:
            return None, True
        results.append(program.result)
    return compare(*paths), results[0] == results[1]


def fault(found: Comparison, is_equal: bool) -> str:
    """What is wrong with a comparison; "" where nothing is."""
    value = found.first_value
    if is_equal:
        if value is not None and "it was called with different tensors" in value.explanation:
            return ""  # equal numbers in another layout are another call
        return "" if found.verdict in (Verdict.IDENTICAL, Verdict.SAME_VALUES) else f"{found.verdict}: {value}"
    if found.verdict is not Verdict.DIVERGED or value is None:
        return f"{found.verdict}, and other values were computed"
    return f"{value.cause}: {value.explanation}" if value.cause in WRONG else ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(tmp_path: Path, seed: int) -> None:
    """One op on one of two tensors: where they hold other bytes, no cause says that its inputs match."""
    found, is_equal = compared_seed(seed, tmp_path)
    assert found is None or fault(found, is_equal) == ""


# --- what is said of the writers --------------------------------------------------------------------------------------


MM = "aten.mm.default"


@pytest.mark.parametrize(
    ("a", "b", "pairs", "cause", "why"),
    [
        (In(0), In(0), [(0, 0)], None, ""),
        (In(0, offset=2), In(0), [(0, 0)], Cause.ARGUMENTS, "elements 2 to 5 of what aten.mm.default at"),
        (In(0, slot=1), In(0), [(0, 0)], Cause.ARGUMENTS, "is result 1 of aten.mm.default at"),
        (In(1), In(0), [(0, 0), (1, 1)], Cause.ARGUMENTS, "what the 2nd call of aten.mm.default at"),
        (In(1), In(0), [(0, 0)], Cause.CONTROL_FLOW,
         "(row 1), which only A runs, and in B was last written by aten.mm"),
        (In(0), In(1), [(0, 0)], Cause.CONTROL_FLOW,
         "and in B was last written by aten.mm.default at train.py:12 (train) (row 1), which only B runs"),
        (In(1), In(1), [], Cause.CONTROL_FLOW, "(row 1), which only A runs, and in B was last written by aten.mm"),
        (In(1), "outside", [(1, 1)], Cause.ARGUMENTS, "(row 1) wrote in A, and came from outside in B"),
        (In(1), "outside", [(1, 3)], Cause.CONTROL_FLOW,
         "(row 1), which B runs only after it, and in B came from outside"),
        ("outside", In(1), [], Cause.CONTROL_FLOW,
         "in A came from outside, and in B was last written by aten.mm.default at"),
        ("outside", "outside", [], None, ""),
        ("unknown", In(0), [(0, 0)], None, ""),
        ("mixed", "mixed", [(0, 0)], None, ""),
        (In(origin=Origin.MIXED, last_writer=1), In(0), [(0, 0), (1, 1)], Cause.ARGUMENTS,
         "what the 2nd call of aten.mm.default at"),
        (In(origin=Origin.MIXED, last_writer=1), In(0), [(0, 0)], Cause.CONTROL_FLOW, "which only A runs"),
    ],
)  # fmt: skip
def test_who_wrote_it(
    tmp_path: Path, a: Any, b: Any, pairs: list[tuple[int, int]], cause: Cause | None, why: str
) -> None:
    """Where both sides run both ops, it is another argument; where one side alone runs one of them, control flow."""

    for trace, (read, side) in both(tmp_path, (a, "a"), (b, "b")):
        trace.op(MM, outputs=["x", "y"])
        trace.op(MM, outputs=[f"z {side if not pairs else ''}"])
        trace.op(MM, inputs=[read], outputs=[side])
    views = views_in(tmp_path)
    rows, context = (row_at(views[0], 2), row_at(views[1], 2)), context_of(*views, pairs)
    (operand,) = match_inputs(context, *rows)
    found = another_operand(context, *rows, operand, Difference(outputs=True))
    assert (found and found.cause) == cause
    assert found is None or why in found.explanation, found.explanation
