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


@pytest.mark.parametrize(
    "table",
    [
        op_info.VIEWS,
        op_info.ALLOCATIONS,
        op_info.OVERWRITES,
        op_info.COPIES,
        op_info.RESIZES,
        op_info.HIDDEN_WRITES,
        PARTIAL_WRITES,
        op_info.IN_TRAINING,
    ],
)
def test_tables_name_operators_that_there_are(table: Any) -> None:
    """A name that is misspelt would never be found."""
    pytest.importorskip("torch.distributed.fsdp")
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    assert set(table) <= known


@pytest.mark.parametrize(
    ("func", "role"),
    [
        (OP.addmm.default, Role.COMPUTE),
        (OP.view.default, Role.VIEW),
        (OP.t.default, Role.VIEW),
        (OP.detach.default, Role.VIEW),
        (OP._unsafe_view.default, Role.VIEW),
        (OP.lift_fresh.default, Role.VIEW),
        (OP.squeeze_.default, Role.VIEW),
        (OP.split.Tensor, Role.VIEW),
        (OP.empty.memory_format, Role.ALLOCATION),
        (OP.empty_like.default, Role.ALLOCATION),
        (OP.resize_.default, Role.ALLOCATION),
        (OP.set_.source_Tensor, Role.ALLOCATION),
        (OP._local_scalar_dense.default, Role.NUMBER),
        (OP.zeros.default, Role.COMPUTE),
        (OP.add_.Tensor, Role.COMPUTE),
        (OP.view_copy.default, Role.COMPUTE),
    ],
    ids=str,
)
def test_roles(func: Any, role: Role) -> None:
    """Computes, views, allocates, or hands a number to Python."""
    assert plan(func).role is role


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


@pytest.mark.parametrize(
    ("func", "new"),
    [
        (OP.add.Tensor, True),
        (OP.add_.Tensor, False),
        (OP.add.out, False),
        (OP._foreach_add_.Scalar, False),
        (OP._foreach_add.Scalar, True),
        (OP.native_batch_norm.default, True),
        (OP.rrelu_with_noise.default, True),
    ],
    ids=str,
)
def test_what_returns_tensors_of_its_own(func: Any, new: bool) -> None:
    """Besides the arguments it writes."""
    assert plan(func).returns_new is new


def test_what_draws_says_so() -> None:
    """By torch's own tag."""
    drawing = (
        OP.rand.default,
        OP.normal_.default,
        OP.native_dropout.default,
        OP.randperm.default,
        OP.multinomial.default,
    )
    assert all(plan(func).draws for func in drawing)
    assert not any(plan(func).draws for func in (OP.add.Tensor, OP.zeros.default, OP.softmax.int))


def test_higher_order_operators_have_a_plan() -> None:
    """They have no schema; what they do inside is not seen."""
    cond = plan(torch.ops.higher_order.cond)
    assert (cond.role, cond.name, cond.writes) == (Role.COMPUTE, "cond", {})
