"""What is known of an operator from its schema alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rltrace.recorder.core import op_info
from rltrace.recorder.core.op_info import Factor, OpPlan, Role, WrittenPlaces, make_plan, written_places
from rltrace.recorder.core.storages import PARTIAL_WRITES

OP = torch.ops.aten


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
