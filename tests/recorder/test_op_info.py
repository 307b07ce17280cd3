"""What is known of an operator from its schema and from tables: the roles of ops, and what they write and read."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from overloads import Example, examples, filled, flat, overloads, same_bytes
from torch._ops import OpOverload

from rltrace.recorder.core import op_info
from rltrace.recorder.core.op_info import Factor, OpPlan, Role, WrittenPlaces, make_plan, written_places
from rltrace.recorder.core.storages import PARTIAL_WRITES

OP = torch.ops.aten

pytestmark = pytest.mark.filterwarnings("ignore")


def plan(func: Any) -> OpPlan:
    return make_plan(1, func)


def test_tables_name_operators_that_there_are() -> None:
    """A name that is misspelt would never be found."""
    pytest.importorskip("torch.distributed.fsdp")
    names = "VIEWS", "ALLOCATIONS", "OVERWRITES", "COPIES", "RESIZES", "HIDDEN_WRITES", "IN_TRAINING"
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    for table in (PARTIAL_WRITES, *(getattr(op_info, name) for name in names)):
        assert set(table) <= known


ROLES = {
    Role.COMPUTE: [OP.addmm.default, OP.zeros.default, OP.add_.Tensor, OP.view_copy.default],
    Role.VIEW: [
        *(OP.view.default, OP.t.default, OP.detach.default, OP._unsafe_view.default, OP.lift_fresh.default),
        *(OP.squeeze_.default, OP.split.Tensor),
    ],
    Role.ALLOCATION: [OP.empty.memory_format, OP.empty_like.default, OP.resize_.default, OP.set_.source_Tensor],
    Role.NUMBER: [OP._local_scalar_dense.default],
}


@pytest.mark.parametrize("role", ROLES, ids=str)
def test_roles(role: Role) -> None:
    """Computes, views, allocates, or hands a number to Python."""
    assert {str(func): plan(func).role for func in ROLES[role]} == dict.fromkeys(map(str, ROLES[role]), role)


@pytest.mark.parametrize(
    ("func", "writes"),
    [
        (OP.add.Tensor, {}),
        (OP.add_.Tensor, {"self": False}),
        (OP.add.out, {"out": True}),
        (OP.copy_.default, {"self": True}),
        (OP.normal_.default, {"self": True}),
        (OP.index_put_.default, {"self": False}),
        (OP.sort.values, {"values": True, "indices": True}),
        (OP._foreach_add_.Scalar, {"self": False}),
        (OP._foreach_copy_.default, {"self": True}),
        (OP.native_batch_norm.default, {"running_mean": False, "running_var": False}),
        (OP._native_batch_norm_legit.default, {"running_mean": False, "running_var": False}),
        (OP.native_dropout.default, {}),
    ],
    ids=str,
)
def test_writes(func: Any, writes: dict[str, bool]) -> None:
    """Which arguments an op writes; True: without reading them."""
    assert plan(func).writes == writes


def test_fused_optimizers_write_what_their_schema_says() -> None:
    """Parameters, moments and, where a scaler is at work, gradients."""
    assert set(plan(OP._fused_adam_.default).writes) == {"self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"}


def test_places_are_counted_over_lists_and_names() -> None:
    """Among all tensors of a call, in order; None and numbers take no place."""
    x = torch.ones(2)
    fused = plan(OP._foreach_addcmul_.Scalar)
    assert written_places(fused, ([x, x], [x, x], [x, x]), {}).all == (0, 1)
    out = plan(OP.add.out)
    places = written_places(out, (x, x), {"alpha": 2, "out": x})
    assert (places.all, places.unread) == ((2,), (2,))
    norm = plan(OP.native_batch_norm.default)
    noisy = plan(OP.rrelu_with_noise.default)
    assert written_places(noisy, (x, x, 0.1, 0.3, True), {}) == WrittenPlaces((1,), (1,))
    assert written_places(noisy, (x, x, 0.1, 0.3, False), {}) == WrittenPlaces((), (1,))
    back = plan(OP.rrelu_with_noise_backward.default)
    assert written_places(back, (x, x, x, 0.1, 0.3, True, False), {}) == WrittenPlaces((), ())
    assert written_places(back, (x, x, x, 0.1, 0.3, False, False), {}) == WrittenPlaces((), (2,))
    assert written_places(norm, (x, None, None, x, x, True, 0.1, 1e-5), {}).all == (1, 2)
    assert written_places(norm, (x, x, x, None, None, True, 0.1, 1e-5), {}).all == ()


@pytest.mark.parametrize(
    ("numbers", "factor"),
    [
        ({}, None),
        ({"alpha": 2}, None),
        ({"beta": 0}, Factor(False, 1)),
        ({"beta": 0, "alpha": 2}, Factor(False, 2)),
        ({"beta": 0.0, "alpha": 2}, Factor(True, 1)),
        ({"beta": 0.0, "alpha": 0.5}, Factor(True, 2)),
    ],
    ids=str,
)
def test_where_the_factor_of_an_input_is(numbers: dict[str, Any], factor: Factor | None) -> None:
    """Counted from the end of the call's numbers of its type; flags are no numbers."""
    x = torch.ones(2)
    assert written_places(plan(OP.addmm.default), (x, x, x), numbers).factor == factor
    activated = {**numbers, "use_gelu": True}
    assert written_places(plan(OP._addmm_activation.default), (x, x, x), activated).factor == factor
    assert written_places(plan(OP.add.Tensor), (x, x), numbers).factor is None


def test_what_returns_tensors_of_its_own() -> None:
    """Besides the arguments it writes."""
    new = OP.add.Tensor, OP._foreach_add.Scalar, OP.native_batch_norm.default, OP.rrelu_with_noise.default
    assert all(plan(func).returns_new for func in new)
    assert not any(plan(func).returns_new for func in (OP.add_.Tensor, OP.add.out, OP._foreach_add_.Scalar))


def test_what_draws_says_so() -> None:
    """By torch's own tag."""
    drawing = OP.rand, OP.normal_, OP.native_dropout, OP.randperm, OP.multinomial
    assert all(plan(func.default).draws for func in drawing)
    assert not any(plan(func).draws for func in (OP.add.Tensor, OP.zeros.default, OP.softmax.int))


def test_higher_order_operators_have_a_plan() -> None:
    """They have no schema; what they do inside is not seen."""
    cond = plan(torch.ops.higher_order.cond)
    assert (cond.role, cond.name, cond.writes) == (Role.COMPUTE, "cond", {})


# --- arguments that are only overwritten ------------------------------------------------------------------------------

GIVEN_NONSENSE = {
    "aten::_convert_indices_from_csr_to_coo",
    "aten::_embedding_bag_forward_only",
    "aten::_weight_norm_interface",
    "aten::_weight_norm_interface_backward",
}
"""Do not check arguments that no caller gives them together, and then leave part of their result as it was."""

TRIES = 8

DOES_NOT_FIT = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What ops raise for arguments that were guessed wrong."""


def outcomes(op: OpOverload, example: Example, out: dict[str, torch.dtype]) -> Iterator[tuple[Any, Any]]:
    """What ``op`` writes and returns over memory of one byte and of another."""
    args, kwargs = example.fresh()
    sized = {name: torch.empty(0, dtype=dtype) for name, dtype in out.items()}
    op(*args, **kwargs, **sized)
    for byte in (0x55, 0xAA):
        args, kwargs = example.fresh()
        given = {name: filled(t.shape, t.dtype, byte) for name, t in sized.items()}
        torch.manual_seed(0)
        yield op(*args, **kwargs, **given), list(given.values())


def out_overloads() -> Iterator[tuple[OpOverload, list[str]]]:
    for op in overloads():
        names = [a.name for a in op._schema.arguments if a.is_out]
        single = all(str(a.type) == "Tensor" for a in op._schema.arguments if a.is_out)
        if names and single and op._schema.name not in op_info.ALLOCATIONS | GIVEN_NONSENSE:
            yield op, names


def tried(op: OpOverload, names: list[str]) -> bool | None:
    """Whether both outcomes are equal; None where no call was found that works.

    What reads old bytes differs each time. A few ops (``linalg_lstsq``) do not always repeat themselves.
    """
    for example in examples(op):
        for dtypes in ([example.dtype] * len(names), [example.dtype, *[torch.int64] * len(names)], [torch.bool]):
            pairs = (tuple(outcomes(op, example, dict(zip(names, dtypes, strict=False)))) for _ in range(TRIES))
            try:
                pair = next(pairs)
            except DOES_NOT_FIT:
                continue
            if sum(t.numel() for t in flat(pair[0])):
                return same_bytes(*pair) or any(same_bytes(*again) for again in pairs)
    return None


def test_no_out_argument_is_read() -> None:
    """Every ``out=`` overload that torch has and that a call can be guessed for: hundreds."""
    found = {str(op): tried(op, names) for op, names in out_overloads()}
    assert [name for name, equal in found.items() if equal is False] == []
    assert sum(equal is True for equal in found.values()) > 500


def pairs_over(op: OpOverload, places: list[int]) -> Iterator[list[tuple[Any, list[Any]]]]:
    """Of each call that works, over memory of one byte and of another at these places: what it returns, and they."""
    for example in examples(op):
        pair = []
        for byte in (0x55, 0xAA):
            args, kwargs = example.fresh()
            for place in places:
                given = [filled(t.shape, t.dtype, byte) for t in flat(args[place])]
                args[place] = given if isinstance(args[place], list) else given[0]
            torch.manual_seed(0)
            with contextlib.suppress(*DOES_NOT_FIT):
                pair.append((op(*args, **kwargs), [args[place] for place in places]))
        if len(pair) == 2:
            yield pair


def test_the_table_of_overwrites_is_right() -> None:
    """Every overload of every op in it gives the same over other bytes."""
    seen = set()
    for op in overloads():
        if op._schema.name not in op_info.OVERWRITES or any(a.is_out for a in op._schema.arguments):
            continue
        written = [name for name, unread in plan(op).writes.items() if unread]
        for pair in pairs_over(op, [i for i, a in enumerate(op._schema.arguments) if a.name in written]):
            assert same_bytes(*pair), op
            seen.add(op._schema.name)
    assert seen == op_info.OVERWRITES


def test_the_table_of_ops_that_read_only_a_shape_is_right() -> None:
    """Every overload of every op in it gives the same whatever its first tensor holds."""
    seen = set()
    for op in overloads():
        if not plan(op).shape_only or any(a.is_out for a in op._schema.arguments):
            continue
        for (one, _), (other, _) in pairs_over(op, [0]):
            assert same_bytes(one, other), op
            seen |= op_info.SHAPE_ONLY & {op._schema.name, f"{op._schema.name}.{op._schema.overload_name}"}
    assert seen == op_info.SHAPE_ONLY


@pytest.mark.parametrize(
    "name",
    ["add_.Tensor", "mul_.Tensor", "masked_fill_.Scalar", "index_put_.default", "scatter_.value", "tril_.default"],
)
def test_ops_that_are_not_in_it_read_what_they_write(name: str) -> None:
    """What is left of the old bytes shows, so they are inputs."""
    base, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, base), overload)
    assert not any(plan(op).writes.values())
    old, new = torch.zeros(3, 3), torch.ones(3, 3)
    args: dict[str, tuple[Any, ...]] = {
        "masked_fill_.Scalar": (torch.eye(3) == 1, 2.0),
        "index_put_.default": ([torch.tensor([1])], torch.ones(3)),
        "scatter_.value": (0, torch.zeros(1, 3, dtype=torch.int64), 2.0),
        "tril_.default": (),
    }
    given = args.get(name, (torch.full((3, 3), 2.0),))
    assert not torch.equal(op(old, *given), op(new, *given))
