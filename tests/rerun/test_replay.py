"""A's values put into B make B what A was, its bits, gradients and ops; or it is said what did not fit."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replayed import Replayed, Runs, replay, replay_block, run
from torch import nn

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.errors import HoleError, UsageError
from rltrace.extensions.archive.verify import verify

WRONG = [0.0]
"""How far the ops below are off; each program sets it."""


@torch.library.custom_op("follow::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (1.0 + WRONG[0])


scaled.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)


@torch.library.custom_op("follow::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor) -> None:
    x.mul_(1.0 + WRONG[0])


@torch.library.custom_op("follow::several_", mutates_args=("xs", "y"))
def several_(xs: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    for x in xs:
        x.add_(1.0 + WRONG[0])
    y.add_(WRONG[0])
    return y * 3 + WRONG[0]


def repaired(runs: Runs, done: int = 1) -> None:
    """All that was asked for happened, and the replay is A, bit for bit and row for row, where B was not."""
    assert runs.account.missed == ()
    assert (runs.account.selected, runs.account.injected) == (done, done)
    assert runs.account.complete
    assert not same(runs.a, runs.b)
    assert same(runs.a, runs.replayed)
    assert compare(runs.path_a, runs.path_c).verdict is Verdict.IDENTICAL
    assert verify(runs.path_c).sound


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def training(is_b: bool) -> list[torch.Tensor]:
    """An op that is off in one step of four."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        WRONG[0] = 0.01 if is_b and step == 2 else 0.0
        hidden = scaled(model(torch.randn(5, 4)))
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


# --- what is injected -----------------------------------------------------------------------------------------------


def test_a_new_output(replayed: Replayed) -> None:
    """One op, in one step: the weights at the end are A's, and so is every row."""
    repaired(replayed(training, "op=follow.scaled,step=2"))


def test_in_place(replayed: Replayed) -> None:
    """The memory of an argument: what another view of it shows are A's bytes; versions are as ever."""

    def program(is_b: bool) -> list[object]:
        WRONG[0] = 0.5 * is_b
        x = torch.ones(3, 4)
        row = x[1]
        scale_(row)
        return [x.sum(), row.clone(), x._version, row._version]

    runs = replayed(program, "op=follow.scale_")
    repaired(runs)
    assert runs.replayed[2:] == runs.b[2:]


def test_lists_written_and_a_tensor_returned(replayed: Replayed) -> None:
    """Written arguments first, in their order, then what was returned."""

    def program(is_b: bool) -> list[torch.Tensor]:
        WRONG[0] = 2.0 * is_b
        xs, y = [torch.zeros(2), torch.ones(1, 3)], torch.full((4,), 7.0)
        return [*xs, y, several_(xs, y)]

    repaired(replayed(program, "op=follow.several_"))


@pytest.mark.parametrize("which", ["foreach", "out", "fused"])
def test_ops_of_torch_that_write(replayed: Replayed, which: str) -> None:
    """``_foreach_*_``, ``out=`` and a fused optimizer: what another scalar makes of them is undone."""

    def program(is_b: bool) -> list[torch.Tensor]:
        amount = torch.tensor(3.0 if is_b else 2.0)  # same signature, another value
        tensors = [torch.arange(3.0), torch.ones(2, 2)]
        if which == "foreach":
            torch._foreach_mul_(tensors, amount)
        elif which == "out":
            torch.mul(tensors[0], amount, out=tensors[1].resize_(3))
        else:
            parameters = [nn.Parameter(t) for t in tensors]
            for p in parameters:
                p.grad = torch.ones_like(p) * amount
            torch.optim.Adam(parameters, lr=0.1, fused=True).step()
            return [p.detach().clone() for p in parameters]
        return [t.clone() for t in tensors]

    op = {"foreach": "_foreach_mul_", "out": "mul.out", "fused": "_fused_adam*"}[which]
    runs = replayed(program, [f"op={op}", "op=ones_like", "op=mul.Tensor"])
    assert runs.account.complete
    assert same(runs.a, runs.replayed) and not same(runs.a, runs.b)


def test_a_number_that_decides(replayed: Replayed) -> None:
    """Control flow forks on ``item()``: with A's number B goes A's way."""

    def program(is_b: bool) -> torch.Tensor:
        WRONG[0] = 0.5 * is_b
        x = scaled(torch.ones(2))
        return x * 2 if x.sum().item() < 2.5 else torch.zeros(7)

    runs = replayed(program, "op=_local_scalar_dense")
    assert runs.account.complete
    assert runs.replayed.shape == runs.a.shape == (2,)
    assert runs.b.shape == (7,)


def test_the_state_of_a_generator(replayed: Replayed) -> None:
    """A draw from another state: from the first draw on the whole sequence is A's."""

    def program(is_b: bool) -> list[torch.Tensor]:
        if is_b:
            torch.manual_seed(17)
        own = torch.Generator().manual_seed(1 + is_b)
        return [torch.randn(3), torch.rand(2), torch.randn(5, generator=own), torch.randint(9, (4,), generator=own)]

    runs = replayed(program, "op=randn*", inputs=False)
    assert runs.account.selected == 2
    repaired(runs, done=2)


def test_data_from_outside(replayed: Replayed) -> None:
    """An observation that came in through NumPy: every reader of that memory sees A's."""

    def program(is_b: bool) -> list[torch.Tensor]:
        observation = np.array([1.0, 2.0 + is_b, 3.0], np.float32)
        x = torch.from_numpy(observation)
        doubled = x * 2
        return [doubled, x.clone(), torch.tensor(observation.tolist())]

    runs = replayed(program, "op=mul")
    repaired(runs)


def test_without_inputs_only_results_are_put_in(replayed: Replayed) -> None:
    """A's trace without inputs: the op's result is A's, the memory from outside stays."""

    def program(is_b: bool) -> list[torch.Tensor]:
        x = torch.from_numpy(np.array([1.0, 2.0 + is_b], np.float32))
        return [x * 2, x + 0]

    runs = replayed(program, "op=mul", inputs=False)
    assert runs.account.complete
    assert same(runs.replayed[0], runs.a[0])
    assert same(runs.replayed[1], runs.b[1])


ODD = {
    "bfloat16": lambda x: x.bfloat16(),
    "float8": lambda x: x.to(torch.float8_e5m2),
    "complex": lambda x: torch.complex(x, x.flip(0)),
    "complex128": lambda x: torch.complex(x, x.flip(0)).to(torch.complex128),
    "scalar": lambda x: x.sum(),
    "empty": lambda x: x[:0].clone(),
    "nan": lambda x: x.sub(2).log(),
    "channels last": lambda x: x.view(1, 2, 2, 2).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("kind", ODD)
def test_every_kind_of_tensor(replayed: Replayed, kind: str) -> None:
    """Whatever dtype and strides: the bytes are A's, and the strides are those the op gave."""

    def program(is_b: bool) -> tuple[list[int], tuple[int, ...]]:
        made = ODD[kind](torch.arange(8.0) + 3.0 * is_b)
        plain = torch.empty(made.shape, dtype=made.dtype).copy_(made)
        return plain.view(torch.uint8).flatten().tolist() if plain.ndim else plain.tolist(), made.stride()

    op = {"complex": "complex", "scalar": "sum", "empty": "clone", "nan": "log"}.get(kind, "_to_copy")
    runs = replayed(program, f"op={op}")
    assert runs.account.complete, runs.account
    assert runs.replayed[0] == runs.a[0]
    assert runs.replayed[1] == runs.b[1]


# --- autograd -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "derivative"), [("tanh", lambda y: 1 - y * y), ("exp", lambda y: y), ("reciprocal", lambda y: -y * y)]
)
def test_gradients_flow_as_if_the_op_had_computed_it(replayed: Replayed, op: str, derivative: object) -> None:
    """What the backward of an op makes of its own result is made of A's result."""

    def program(is_b: bool) -> list[torch.Tensor]:
        x = (torch.tensor([0.3, 0.7]) + 0.1 * is_b).requires_grad_()
        y = getattr(torch, op)(x)
        y.sum().backward()
        assert x.grad is not None
        return [y.detach().clone(), x.grad]

    runs = replayed(program, f"op={op}", inputs=False)
    assert runs.account.complete
    assert same(runs.replayed[0], runs.a[0])
    assert torch.allclose(runs.replayed[1], derivative(runs.a[0]))  # type: ignore[operator]
    assert not torch.allclose(runs.replayed[1], derivative(runs.b[0]))  # type: ignore[operator]


def test_gradcheck_through_injected_ops(tmp_path: Path) -> None:
    """A replay of a run with its own values changes nothing: numerical and analytical gradients agree as before."""

    def program(_: bool) -> bool:
        x = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
        return torch.autograd.gradcheck(lambda x: (x.tanh() @ torch.ones(3, 2, dtype=torch.float64)).exp(), (x,))

    runs = replay(tmp_path, program, ["op=tanh", "op=mv", "op=exp", "op=mm"])
    assert runs.replayed is True
    assert runs.account.complete
    assert runs.account.selected > 10


def test_versions_and_aliases(replayed: Replayed) -> None:
    """Version counters, what is whose base, and which memory is shared are those of the run without injections."""

    def program(is_b: bool) -> list[object]:
        WRONG[0] = 0.5 * is_b
        leaf = torch.ones(4, requires_grad=True)
        x = scaled(leaf)
        view = x.view(2, 2)
        with torch.no_grad():
            x.detach()[0] = 5
        y = scaled(view)
        y.sum().backward()
        scale_(x.data)
        return [x._version, view._version, view._base is x, view.data_ptr() == x.data_ptr(), y._version, leaf.grad, y]

    runs = replayed(program, "op=follow.*")
    assert runs.account.complete
    assert runs.replayed[:5] == runs.b[:5] == runs.a[:5]
    assert same(runs.replayed[5:], runs.a[5:])


def test_where_b_had_other_values_is_counted(replayed: Replayed) -> None:
    """With all of A's values injected, the ops that compute otherwise are counted, and none that only receive."""

    def program(is_b: bool) -> list[torch.Tensor]:
        results = []
        for i in range(5):
            WRONG[0] = 0.5 * (is_b and i > 1)
            x = scaled(torch.ones(2) * i)
            y = (x * 2 + 1).sin()
            scale_(y)
            results.append(y)
        return results

    runs = replayed(program, "all")
    repaired(runs, done=runs.account.selected)
    found = [(kind.op, kind.count) for kind in runs.account.other]
    assert found == [("follow.scaled.default", 3), ("follow.scale_.default", 3)]


# --- where it is injected -------------------------------------------------------------------------------------------


def test_more_ops_in_b_shift_nothing(replayed: Replayed) -> None:
    """Log lines in B, of the same operator too: the injection finds its op by its place in the code."""

    def program(is_b: bool) -> list[torch.Tensor]:
        results = []
        for i in range(3):
            WRONG[0] = 0.5 * is_b
            x = torch.ones(2) * (i + 1)
            if is_b:
                scaled(x).norm()
                x.mean()
            results.append(scaled(x))
        return results

    runs = replayed(program, "op=follow.scaled")
    assert runs.account.complete
    assert runs.account.selected == 3
    assert same(runs.a, runs.replayed)


def test_a_step_more_of_another_optimizer(replayed: Replayed) -> None:
    """Steps are known by the attempt they follow, not by number: an attempt more in B shifts none of the next ones."""

    def program(is_b: bool) -> list[torch.Tensor]:
        weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
        optimizers = [torch.optim.SGD([w], lr=0.1) for w in weights]
        results = []
        for step in range(4):
            WRONG[0] = 0.5 * (is_b and step == 3)
            if is_b and step == 1:
                optimizers[1].step()
            results.append(scaled(weights[0]).detach())
            results[-1].sum()
            weights[0].sum().backward()
            optimizers[1].step()
            optimizers[0].step()
        return results

    runs = replayed(program, "op=follow.scaled,step=6:")
    assert runs.account.selected == 1
    assert runs.account.complete
    assert same(runs.a, runs.replayed)


def test_an_op_that_raises_first(replayed: Replayed) -> None:
    """A call that raises has no row, so it is none of the occurrences: the one after it at the same place is meant."""

    def program(is_b: bool) -> list[torch.Tensor]:
        WRONG[0] = 0.5 * is_b
        x, results = scaled(torch.ones(3)), []
        for other in (torch.ones(4), torch.full((3,), 2.0), torch.ones(5), torch.full((3,), 3.0)):
            try:
                results.append(x * other)
            except RuntimeError:
                continue
        return results

    repaired(replayed(program, ["op=mul", "op=follow.scaled"]), done=3)


def test_threads(replayed: Replayed) -> None:
    """Each thread's ops get what the thread of that name had in A."""

    def program(is_b: bool) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}

        def work(number: int) -> None:
            x = torch.ones(3) * number
            for _ in range(20):
                x = scaled(x)
            found[number] = x

        WRONG[0] = 0.5 * is_b
        threads = [threading.Thread(target=work, args=(n,), name=f"t{n}") for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[n] for n in sorted(found)]

    runs = replayed(program, "op=follow.scaled")
    assert runs.account.selected == runs.account.injected == 60
    assert same(runs.a, runs.replayed) and not same(runs.a, runs.b)


# --- what cannot be injected ----------------------------------------------------------------------------------------


def shape(is_b: bool) -> None:
    torch.ones(3 + is_b) * 2


def dtype(is_b: bool) -> None:
    torch.ones(3, dtype=torch.float64 if is_b else torch.float32) * 2


def absent(is_b: bool) -> None:
    torch.ones(3) * 2 if not is_b else torch.zeros(3)


def later(is_b: bool) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(1 if is_b else 2):
        weight.grad = torch.ones(3)
        optimizer.step()
    torch.ones(3) * 2


def raises(is_b: bool) -> None:
    try:
        torch.ones(3) * (torch.ones(4) if is_b else torch.ones(3))
    except RuntimeError:
        torch.zeros(2)


def threadless(is_b: bool) -> None:
    if is_b:
        torch.zeros(1)
        return
    thread = threading.Thread(target=lambda: torch.ones(3) * 2, name="gone")
    thread.start()
    thread.join()


def made_of_several(is_b: bool) -> None:
    x = torch.eye(3)
    (x.to_sparse() if is_b else x) * 2


def of_another_kind(is_b: bool) -> None:
    torch.ones(2, dtype=torch.int64 if is_b else torch.float32).sum().item()


@pytest.mark.parametrize(
    ("program", "op", "words"),
    [
        (shape, "mul", "float32[4] here and float32[3] in A"),
        (dtype, "mul", "float64[3] here and float32[3] in A"),
        (absent, "mul", "made no such call"),
        (later, "mul", "did not reach this step"),
        (raises, "mul", "the op raised an error"),
        (threadless, "mul", "no such stream"),
        (made_of_several, "mul", "consists of several"),
        (of_another_kind, "_local_scalar_dense", "a int here and a float in A"),
    ],
)
def test_what_does_not_fit_is_reported(replayed: Replayed, program: object, op: str, words: str) -> None:
    """The injection does not happen, the program goes on as without it, and the account says why."""
    runs = replayed(program, f"op={op}", inputs=False)
    assert not runs.account.complete
    assert (runs.account.selected, runs.account.injected) == (1, 0)
    (entry,) = runs.account.missed
    assert words in entry.why
    assert op in entry.op


@pytest.mark.parametrize(
    ("limit", "inject", "words"),
    [
        (1 << 30, "op=add", "lacks the values of 1 of the 1 selected ops"),
        (1 << 30, "op=nosuch", "finds no op"),
        (10, "op=mul", "the limit was reached"),
    ],
)
def test_what_a_does_not_have_is_refused(tmp_path: Path, limit: int, inject: str, words: str) -> None:
    """Values that were not recorded, with the reason, or of which no op is found: nothing runs."""

    def program(_: bool) -> None:
        torch.ones(3) * 2
        torch.ones(2) + 1

    run(rltrace.record(tmp_path / "a.zarr", values="op=mul", values_limit=limit), program, False)
    with pytest.raises(UsageError, match=words), replay_block(tmp_path / "a.zarr", inject, tmp_path / "c.zarr"):
        pytest.fail("the program was run")
    assert not (tmp_path / "c.zarr").exists()


def test_damage_in_the_way(tmp_path: Path) -> None:
    """A value that cannot be read is named in the account; rows that cannot stop a replay before it begins."""
    a = tmp_path / "a.zarr"
    found = []
    for i in range(2):
        made = replay_block(a, "op=mul", tmp_path / "b.zarr") if i else rltrace.record(a, values="op=mul")
        found.append(run(made, lambda is_b: torch.ones(3) * (2 + is_b), bool(i)))
        chunk = a / "processes/0/values/bytes/c.0"
        chunk.write_bytes(chunk.read_bytes()[:-1])
    account = found[1][1].account
    assert (account.selected, account.injected) == (1, 0)
    assert "cannot be read" in account.missed[0].why
    rows = a / "processes/0/streams/0/rows/c.0.0"
    rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(HoleError), replay_block(a, "op=mul", tmp_path / "c.zarr"):
        pytest.fail("the program was run")


# --- any program ----------------------------------------------------------------------------------------------------


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from("msatv"), min_size=3, max_size=12), st.data())
def test_the_true_origins_repair_and_no_fewer(
    tmp_path_factory: pytest.TempPathFactory, ops: list[str], data: st.DataObject
) -> None:
    """Random ops, some of them off in B: A's values at all of those repair B, at all but one they do not."""
    places = data.draw(st.lists(st.integers(0, len(ops) - 1), min_size=1, max_size=3, unique=True))

    def program(is_b: bool) -> torch.Tensor:
        x, total = torch.linspace(0.1, 0.9, 6), torch.zeros(6)
        for i, op in enumerate(ops):
            if op == "m":
                x = x * 0.9
            elif op == "s":
                x = x.sin()
            elif op == "a":
                x.add_(0.1)
            elif op == "t":
                x = x.view(2, 3).t().reshape(6)
            else:
                x = x.flip(0)
            WRONG[0] = 0.01 if is_b and i in places else 0.0
            x = scaled(x)
            total += x
        return total

    chosen = [f"op=follow.scaled,nth={place}" for place in places]
    runs = replay(tmp_path_factory.mktemp("all"), program, chosen)
    repaired(runs, done=len(places))
    for left_out in range(len(places)):
        rest = [text for i, text in enumerate(chosen) if i != left_out]
        if rest:
            runs = replay(tmp_path_factory.mktemp("fewer"), program, rest)
            assert runs.account.complete
            assert not same(runs.a, runs.replayed)
