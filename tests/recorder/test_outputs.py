"""What a row says of its op's results: digests of what it returned and wrote, generator states, Python numbers."""

import math
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest
import torch
from recorded import Record, digest_of
from torch import nn

import rltrace.recorder.digests.rng_state as generators
from rltrace.extensions.archive.verify import verify
from rltrace.trace.format.schema import RowFlag

# --- digests --------------------------------------------------------------------------------------------------------


def test_every_returned_tensor_is_digested(record: Record) -> None:
    """One, several, a list of them; None among them has no digest."""
    kept: list[torch.Tensor] = []
    with record.block() as got:
        x = torch.randn(4, 4)
        kept.extend(torch.linalg.qr(x))
        kept.extend(torch._foreach_mul([x, x], 2.0))
        y = x.clone().requires_grad_()
        nn.functional.conv1d(y.view(1, 4, 4), torch.ones(2, 4, 3)).sum().backward()
    assert got.one("linalg_qr").outputs == [digest_of(t) for t in kept[:2]]
    assert got.one("_foreach_mul").outputs == [digest_of(t) for t in kept[2:]]
    assert len(got.one("convolution_backward").outputs) == 1


def test_views_and_allocations_have_no_digest(record: Record) -> None:
    """A view returns bytes that are there already; fresh memory holds anything."""
    with record.block() as got:
        x = torch.ones(4, 4)
        x.t(), x[0], x.view(16), x.unsqueeze(0), x.expand(2, 4, 4), x.detach(), x.split(2), x.as_strided((2,), (1,))
        torch.empty(3), torch.empty_like(x), x.new_empty(2), torch.empty_strided((2,), (1,))
        x.squeeze_(), x.t_(), x.unsqueeze_(0)
    first = got.one("ones")
    rest = [row for row in got.rows if row is not first]
    assert len(rest) == 15
    assert all(row.outputs == [] for row in rest)
    assert all(row.flags & (RowFlag.VIEW | RowFlag.ALLOCATION) for row in rest)


OPTIMIZERS = [("SGD", "foreach"), ("SGD", ""), ("Adam", "foreach"), ("Adam", "fused"), ("RMSprop", "")]


@pytest.mark.parametrize(("kind", "way"), OPTIMIZERS, ids=str)
def test_optimizers_leave_digests_of_all_they_write(record: Record, kind: str, way: str) -> None:
    """Parameters, moments: ``_foreach_*_`` and ``_fused_adam_`` return nothing; their schemas say what they write."""
    parameters = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.1, **({way: True} if way else {"foreach": False}))
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    got = record(optimizer.step)
    written = {d for row in got.rows if row.name.endswith("_") for d in row.outputs}
    moments = [m for p in parameters for name, m in optimizer.state[p].items() if name != "step" and m is not None]
    assert len(moments) == {"SGD": 0, "RMSprop": 2, "Adam": 4}[kind]
    assert {digest_of(t) for t in (*parameters, *moments)} <= written


def test_an_in_place_op_has_one_digest(record: Record) -> None:
    """What it returns is what it wrote, and is said once."""
    with record.block() as got:
        torch.ones(3).mul_(2)
        torch.add(torch.ones(3), 1, out=torch.zeros(3))
        torch.sort(torch.randn(5), out=(torch.zeros(5), torch.zeros(5, dtype=torch.int64)))
    assert got.one("mul_").outputs == [digest_of(torch.full((3,), 2.0))]
    assert got.one("add").outputs == [digest_of(torch.full((3,), 2.0))]
    assert len(got.one("sort").outputs) == 2


def test_ops_that_return_nothing_and_write_nothing_are_rows(record: Record) -> None:
    """``aten::equal`` returns a Python bool, ``_assert_async`` nothing at all."""
    with record.block() as got:
        torch.equal(torch.ones(2), torch.ones(2))
        torch._assert_async(torch.ones(1))
    assert got.one("equal").outputs == []
    assert got.ops[-1] == "_assert_async"


def test_custom_ops_are_one_row(record: Record) -> None:
    """Returned tensors and mutated arguments are digested; what they do inside is theirs."""

    @torch.library.custom_op("rltrace_tests::scale", mutates_args=("count",))
    def scale(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count += 1
        return (x * 2).exp()

    def program() -> list[torch.Tensor]:
        count = torch.zeros(1)
        scaled = scale(torch.ones(3), count)
        count + 1
        return [count, scaled]

    got = record(program)
    row = got.one("scale")
    assert got.ops == ["zeros", "ones", "scale", "add"]
    assert row.outputs == [digest_of(t) for t in got.returned]
    assert got.one("add").inputs[0].row == row.index


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("values", [(), "all"], ids=["plain", "values"])
def test_a_custom_op_resizes_what_it_writes(record: Record, size: int, values: str) -> None:
    """The digest is of all that it has left; with ``--values-inputs`` the input is as it was."""

    @torch.library.custom_op("rltrace_tests::resize", mutates_args=("a",))
    def resize(a: torch.Tensor) -> None:
        a.resize_(size).fill_(3)

    with record.block(values=values, values_inputs=bool(values)) as got:
        a = torch.full((4,), 5.0)
        resize(a)
        a + 1
    row = got.one("resize")
    assert row.outputs == [digest_of(torch.full((size,), 3.0))]
    assert got.one("add").inputs[0].row == row.index
    assert verify(got.path).sound
    if values:
        assert [*got.process.values.inputs(0, row.index).values()] == [digest_of(torch.full((4,), 5.0))]


# --- generators -----------------------------------------------------------------------------------------------------

DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(9, (3,)),
    "randperm": lambda: torch.randperm(5),
    "normal_": lambda: torch.ones(3).normal_(),
    "uniform_": lambda: torch.ones(3).uniform_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((3,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(4), 2),
    "native_dropout": lambda: torch.native_dropout(torch.ones(4), 0.5, True),
    "poisson": lambda: torch.poisson(torch.ones(3)),
    "_standard_gamma": lambda: torch._standard_gamma(torch.ones(3)),
    "rand_like": lambda: torch.rand_like(torch.ones(3)),
    "rrelu": lambda: nn.functional.rrelu(-torch.rand(4), training=True),
}


def test_what_draws_has_the_state_it_drew_from(record: Record) -> None:
    """Equal states have equal digests; the state after a draw has another one."""
    with record.block() as got:
        for draw in DRAWS.values():
            for seed in (1, 1, 2):
                torch.manual_seed(seed)
                draw()
                draw()
                torch.zeros(())  # ends a turn
    rows = iter(got.rows)
    for name in DRAWS:
        first, again, other = (
            [row.rng for row in takewhile(lambda row: row.op != "aten.zeros.default", rows) if row.rng is not None]
            for _ in range(3)
        )
        assert len(first) >= 2, name
        assert first == again, name
        assert not set(first) & set(other), name
        assert len(set(first)) == len(first), name


def test_what_does_not_draw_has_none(record: Record) -> None:
    """Not even in the neighbourhood of a draw."""
    with record.block() as got:
        torch.zeros(3).add_(1).sum()
        nn.functional.dropout(torch.ones(3), 0.5, training=False)
    assert all(row.rng is None for row in got.rows)


EXPLICIT: dict[str, Callable[[torch.Generator], Any]] = {
    "randn": lambda g: torch.randn(3, generator=g),
    "randperm": lambda g: torch.randperm(5, generator=g),
    "normal_": lambda g: torch.ones(3).normal_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(4), 2, generator=g),
    "poisson": lambda g: torch.poisson(torch.ones(3), generator=g),
    "gamma": lambda g: torch._standard_gamma(torch.ones(3), generator=g),
    "binomial": lambda g: torch.binomial(torch.ones(3), torch.ones(3) / 2, generator=g),
}


def test_an_explicit_generator_is_the_one_that_counts(record: Record) -> None:
    """Given by name or by place: its state, whatever the default generator does meanwhile."""
    states: list[int] = []
    with record.block() as got:
        generator = torch.Generator().manual_seed(7)
        for draw in EXPLICIT.values():
            for seed in (1, 2):
                torch.manual_seed(seed)
                states.append(generators.state_digest(generator))
                draw(generator)
    assert [row.rng for row in got.rows if row.rng is not None] == states
    assert len(set(states)) == len(states)


def test_cached_normals_are_part_of_the_state() -> None:
    """``normal_`` of a few elements leaves half of a pair behind."""
    generator = torch.Generator().manual_seed(3)
    other = torch.Generator().manual_seed(3)
    assert generators.state_digest(generator) == generators.state_digest(other)
    torch.empty(1).normal_(generator=generator)
    torch.empty(2).normal_(generator=other)
    assert generators.state_digest(generator) != generators.state_digest(other)


def test_an_untouched_generator_is_known_as_that(request: pytest.FixtureRequest) -> None:
    """As it was when recording began: the same word in every process, until it is drawn from or seeded."""
    import random

    import numpy as np

    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    request.addfinalizer(lambda: (random.setstate(kept[0]), np.random.set_state(kept[1]), torch.set_rng_state(kept[2])))
    watched = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        watched.append(generators.GlobalGenerators())
    first, last = (found.states() for found in watched)
    assert last == (generators.UNTOUCHED, 0, generators.UNTOUCHED, generators.UNTOUCHED)
    assert first == generators.all_states()
    for place, draw in ((0, lambda: torch.rand(1)), (2, random.random), (3, np.random.rand)):
        draw()
        assert last[place] == generators.UNTOUCHED
        assert watched[1].states()[place] == generators.all_states()[place] != generators.UNTOUCHED


@pytest.mark.parametrize(
    ("seed", "offset", "unused"), [(0, 0, True), (2**64 - 1, 0, True), (7, 4, False), (7, 2**40, False)]
)
def test_a_devices_generator_that_was_not_drawn_from(seed: int, offset: int, unused: bool) -> None:
    """Its state is a seed and an offset; with an offset of 0 nothing has been drawn since it was seeded."""
    assert generators.is_unused(seed.to_bytes(8, "little") + offset.to_bytes(8, "little")) is unused


# --- Python numbers -------------------------------------------------------------------------------------------------


def test_item_has_its_number(record: Record) -> None:
    """Of every type: exactly the Python number that the program got; one beyond 63 bits, of a uint64, as a float."""
    numbers: list[Any] = [True, False, 3, 0, -(2**63), 2**63 - 1, 2.5, -0.0, math.inf, -math.inf]
    numbers += [1 + 2j, 0j, complex(0.0, -0.0), math.nan]
    narrow = torch.tensor([0.1], dtype=torch.bfloat16)
    seen: list[Any] = []
    with record.block() as got:
        seen.extend(torch.tensor([n]).item() for n in numbers)
        seen.append(narrow.item())
        torch.tensor([2**63 + 2**40], dtype=torch.uint64).item()
    numbers.append(narrow.double().item())
    *rows, large = got.named("_local_scalar_dense")
    assert large.value == float(2**63 + 2**40)
    assert [repr(row.value) for row in rows] == [repr(n) for n in seen] == [repr(n) for n in numbers]
    assert not any(row.outputs for row in rows)


def test_values_do_not_shift_the_arguments_of_later_rows(record: Record) -> None:
    """A row with a value does not shift the cells of those after it."""
    with record.block() as got:
        x = torch.ones(2)
        for i in range(4):
            x.add_(i, alpha=2)
            x.sum().item()
            x.to(torch.int64).sum().item()
            x.mul_(0.5)
    assert [row.integers for row in got.named("add_")] == [[i, 2] for i in range(4)]
    assert [row.floats for row in got.named("mul_")] == [[0.5]] * 4
    kinds = [type(row.value) for row in got.named("_local_scalar_dense")]
    assert kinds == [float, int] * 4


OVERLAPPING: dict[str, Callable[[torch.Tensor], object]] = {
    "a window moved on by one": lambda t: t[:, :-1].copy_(t[:, 1:]),
    "every other one to the front": lambda t: t[0, :4].copy_(t[0, ::2]),
    "minus its own first column": lambda t: t.sub_(t[:, :1]),
    "one step down and right": lambda t: t[1:, 1:].add_(t[:-1, :-1]),
    "a view of other width": lambda t: t.view(torch.int32)[:, 1:].copy_(t[:, :-1].view(torch.int32)),
    "among three": lambda t: t[:, 1:].addcmul_(t[:, :-1], torch.ones(3, 7)),
}
APART: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda t: t.add_(1.0),
    "with itself": lambda t: t.add_(t),
    "with another wrapper of itself": lambda t: t.add_(t[:]),
    "one row from another": lambda t: t[0].copy_(t[2]),
    "interleaved": lambda t: t[:, ::2].copy_(t[:, 1::2]),
    "from a copy": lambda t: t[:, :-1].copy_(t[:, 1:].clone()),
    "from other memory": lambda t: t.copy_(torch.ones(8)),
    "nothing at all": lambda t: t[:0].copy_(t[:0]),
}


def flagged(record: Record, changes: dict[str, Callable[[torch.Tensor], object]]) -> list[bool]:
    """Of the row before each ``rand`` and of the last one, whether it has the flag; no other row has it."""
    got = record(lambda: [change(torch.rand(3, 8)) for change in changes.values()])
    flags = [bool(row.flags & RowFlag.OVERLAPPING) for row in got.rows]
    ends = [*(row.index for row in got.named("rand")[1:]), len(flags)]
    found = [flags[end - 1] for end in ends]
    assert sum(found) == sum(flags)
    return found


def test_what_an_op_writes_while_it_reads_it_at_another_place_is_flagged(record: Record) -> None:
    """That row alone; not element by element in place, or between parts that share nothing, in any order the same."""
    assert flagged(record, OVERLAPPING) == [True] * len(OVERLAPPING)
    assert flagged(record, APART) == [False] * len(APART)
