"""Static facts of an operator, read once from its schema.

Owns the classes of operators (views, allocations, overwrites).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from rltrace.recorder.core.regions import RegionInputs, region_of
from rltrace.recorder.core.storages import PARTIAL_WRITES
from rltrace.trace.format.collectives import FUNCTIONAL

# --- operators --------------------------------------------------------------------------------------------------------
#
# Behaviour of operators that their schemas do not state, by schema name. Each entry is checked by running the operator
# (``tests/recorder``).


OF_TORCH = frozenset(
    {
        *("aten", "prim", "prims", "profiler", "quantized", "_quantized", "quantization"),
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp"),
    }
)
"""Namespaces of operators whose schemas, with what is below, say what they write."""

VIEWS = frozenset(
    {
        "aten::detach",
        "aten::alias",
        "aten::_unsafe_view",
        "aten::_reshape_alias",
        "aten::lift_fresh",
        "aten::lift",
        "aten::_efficientzerotensor",  # zeros without memory: there is nothing to digest or to follow
        "_c10d_functional::_wrap_tensor_autograd",  # wraps a tensor that may still be in flight
        "aten::from_file",  # other programs can write the file at any time, so its bytes are outside data
    }
)
"""Return a view, or compute as little, though ``func.is_view`` is not True on every version."""

ALLOCATIONS = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::empty_quantized",
        "aten::_make_dep_token",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::_empty_affine_quantized",
        "aten::resize_",
        "aten::resize_as_",
        "aten::set_",
    }
)
"""Return unwritten memory (or, ``set_``, memory that this op did not write): never a digest."""

OVERWRITES = frozenset(
    {
        "aten::copy_",
        "aten::_foreach_copy_",
        "aten::fill_",
        "aten::zero_",
        "aten::_foreach_zero_",
        "aten::normal_",
        "aten::uniform_",
        "aten::random_",
        "aten::exponential_",
        "aten::geometric_",
        "aten::cauchy_",
        "aten::log_normal_",
        "aten::bernoulli_",
        "aten::_cummax_helper",
        "aten::_cummin_helper",
    }
)
"""Write without reading the old bytes. With those as an input, an origin would look like a propagated difference."""

SHAPE_ONLY = frozenset(
    {
        *(f"aten::{name}_like" for name in ("zeros", "ones", "full", "rand", "randn", "randint")),
        *(f"aten::new_{name}" for name in ("zeros", "ones", "full")),
        *(
            f"aten::{name}"
            for name in ("copy", "fill", "zero", "normal_functional", "uniform", "random", "exponential")
        ),
        *(f"aten::{name}" for name in ("geometric", "cauchy", "log_normal")),
        "aten::bernoulli.p",
    }
)
"""Use only shape, dtype and device of their first tensor, not its bytes. Named by overload where others do read it."""

HIDDEN_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "fsdp::all_gather_copy_in": ("all_gather_output",),
}
"""Arguments that an op writes, against its schema."""

ARRIVING: Mapping[str, Mapping[str, bool]] = MappingProxyType(
    {
        "c10d::allreduce_": {"tensors": False},
        "c10d::allreduce_coalesced_": {"tensors": False},
        "c10d::reduce_": {"tensors": False},
        "c10d::broadcast_": {"tensors": False},
        "c10d::allgather_": {"output_tensors": True},
        "c10d::_allgather_base_": {"output_tensor": True},
        "c10d::allgather_coalesced_": {"output_lists": True},
        "c10d::allgather_into_tensor_coalesced_": {"outputs": True},
        "c10d::gather_": {"output_tensors": True},
        "c10d::scatter_": {"output_tensors": True},
        "c10d::reduce_scatter_": {"output_tensors": True},
        "c10d::_reduce_scatter_base_": {"output_tensor": True},
        "c10d::reduce_scatter_tensor_coalesced_": {"outputs": True},
        "c10d::alltoall_": {"output_tensors": True},
        "c10d::alltoall_base_": {"output": True},
        "c10d::recv_": {"tensors": True},
        "c10d::recv_any_source_": {"tensors": True},
    }
)
"""Arguments that other processes write, perhaps after the op has returned, against its schema (True: the op does not
read them). They have no digest in the op's row; to later readers they are outside data."""

IN_FLIGHT = frozenset(f"_c10d_functional::{name}" for name in FUNCTIONAL)
"""Return tensors that other processes may write once the op has returned, until ``ARRIVED`` has run on them."""

ARRIVED = frozenset({"_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors"})
"""Return their inputs once other processes have written them: only now do they hold the bytes that were sent."""

LABELS = {
    "aten::from_file": (0,),
    "profiler::_record_function_enter": (0, 1),
    "profiler::_record_function_enter_new": (0, 1),
}
"""Arguments with a path on this machine or a label for people: a folder with a random name, a time of day. They do not
affect the result."""

SCRATCH = {
    "aten::mkldnn_rnn_layer": (3,),
    "aten::_ctc_loss": (1,),
    "aten::_cudnn_rnn": (3, 4),
    "aten::miopen_rnn": (3, 4),
}
"""Outputs that are a library's workspace: partly written, read only by the op's backward. They have no digest; their
written bytes follow from the op's inputs. Found by filling fresh memory with different bytes."""

COPIES = frozenset(
    {"aten::clone", "aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::contiguous", "aten::view_copy"}
)
"""Move bytes without computing: unwritten elements of the source are unwritten in the destination as well."""

NON_BLOCKING = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::_to_copy"})
"""Copies that may return early if ``non_blocking``. On the device all stays in order; of a copy to the host only the
program, which has to wait for it, knows when it is done."""

RESIZES = frozenset({"aten::resize_", "aten::resize_as_"})
"""Allocations that enlarge a tensor's memory and preserve its content."""


FACTORS = frozenset(
    f"aten::{name}{ending}"
    for name in ("addbmm", "addmm", "addmv", "addr", "baddbmm", "_addmm_activation")
    for ending in ("", "_")
)
"""Multiply their first tensor by ``beta``; do not read it where that is 0."""

IN_TRAINING = {
    "aten::rrelu_with_noise": ("noise",),
    "aten::rrelu_with_noise_": ("noise",),
    "aten::rrelu_with_noise_backward": ("noise",),
}
"""Arguments that are overwritten in training (by a backward: read), and unused otherwise."""


# --- plans ------------------------------------------------------------------------------------------------------------


class Role(Enum):
    """How a row of the op is written."""

    COMPUTE = "compute"
    VIEW = "view"
    ALLOCATION = "allocation"
    NUMBER = "number"
    IN_FLIGHT = "in flight"
    ARRIVED = "arrived"
    TO_HOST = "to host"


@dataclass(slots=True)
class OpPlan:
    """One operator overload, as the recorder sees it."""

    id: int
    """In table "ops"."""
    func: OpOverload
    """Kept alive, so that its ``id()`` stays unique."""
    name: str
    role: Role
    is_view: bool
    computes: bool
    draws: bool
    """Tagged ``nondeterministic_seeded``: draws from a generator."""
    writes: Mapping[str, bool]
    """Names of the arguments it writes; True: without reading them."""
    arguments: tuple[str, ...]
    """Names of all arguments that can be passed by position, in order."""
    may_reshape: bool
    """What it writes may have another layout afterwards: ``out=``, and the arguments of a custom op."""
    writes_any: bool
    copies: bool
    partial: bool
    """Writes only some elements of its outputs (``storages.PARTIAL_WRITES``)."""
    arrives: bool
    """Other processes write its outputs (``ARRIVING``)."""
    resizes: bool
    returns_new: bool
    """Returns tensors besides the arguments it writes."""
    aliased: tuple[bool, ...]
    """Which of several returns are arguments that it wrote; empty where none is."""
    scratch: tuple[int, ...]
    """Which of several returns are workspaces."""
    results: tuple[str, ...]
    """Names of several returned values that are no arguments, "" for one without a name; empty where none has one."""
    schema: str
    """``aten::addmm``; empty for a higher-order operator."""
    shape_only: bool = False
    """Its first tensor is not read (``SHAPE_ONLY``)."""
    is_custom: bool = False
    """Not torch's: its schema may leave out what it writes (``OpRecorder._input``)."""
    is_launch: bool = False
    """Code outside torch: what it may write it may also leave as it is, or write in part (``kernel_launches``)."""

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments of one call by name."""
        return {**dict(zip(self.arguments, args, strict=False)), **(kwargs or {})}


def _names_of_results(schema: torch.FunctionSchema) -> tuple[str, ...]:
    names = tuple(r.name or "" for r in schema.returns if r.alias_info is None or not r.alias_info.is_write)
    return names if len(names) > 1 and any(names) else ()


def plan_of_call(
    plan: OpPlan, args: Sequence[Any], kwargs: Mapping[str, Any] | None, on_device: Sequence[bool]
) -> OpPlan:
    """The plan for one call: a non-blocking copy to the host is not done when the op returns.

    ``on_device``: which of the call's tensors are on a device.
    """
    if plan.schema not in NON_BLOCKING or not any(on_device):
        return plan
    named = plan.named(args, kwargs)
    if not named.get("non_blocking"):
        return plan
    device = named.get("device")
    to_host = device is not None and torch.device(device).type == "cpu"
    if plan.writes_any:
        to_host = not all(on_device[: len(on_device) // 2])
    return replace(plan, role=Role.TO_HOST, computes=False) if to_host else plan


class WrittenPlaces(NamedTuple):
    """Places of written tensors, among the tensors of a call in order."""

    all: tuple[int, ...]
    unread: tuple[int, ...]
    """Places of tensors that are not read, whether or not they are written."""
    factor: Factor | None = None


class Factor(NamedTuple):
    """The number that a call multiplies its first tensor by."""

    is_float: bool
    from_end: int
    """Its place among the call's numbers of that type, counted from the end; 1 is the last one."""


def make_plan(op_id: int, func: OpOverload) -> OpPlan:
    """Read the schema of ``func``. Works for ATen, custom and higher-order operators alike."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator or a compiled region: ops inside are not seen
        region = region_of(func)
        return OpPlan(
            op_id,
            func,
            op_name(func) if region is None else region.name,
            Role.COMPUTE,
            is_view=False,
            computes=True,
            draws=region is not None and region.draws,
            writes={} if region is None else region.written,
            arguments=() if region is None else tuple(region.written),
            may_reshape=False,
            writes_any=region is not None and region.writes,
            copies=False,
            partial=False,
            arrives=False,
            resizes=False,
            returns_new=region is None or region.returns_new,
            aliased=(),
            scratch=(),
            results=(),
            schema="",
            is_launch=region is not None and bool(region.written),
        )
    hidden = HIDDEN_WRITES.get(schema.name, ())
    overwrites = schema.name in OVERWRITES
    writes = {
        a.name: overwrites or a.is_out
        for a in schema.arguments
        if (a.alias_info is not None and a.alias_info.is_write) or a.name in hidden
    }
    arriving = ARRIVING.get(schema.name, {})
    writes.update(arriving)
    aliased = tuple(r.alias_info is not None and r.alias_info.is_write for r in schema.returns)
    role, is_custom = _role(func), schema.name.partition("::")[0] not in OF_TORCH
    plan = OpPlan(
        id=op_id,
        func=func,
        name=op_name(func),
        role=role,
        is_view=role is Role.VIEW,
        computes=role is Role.COMPUTE,
        draws=torch.Tag.nondeterministic_seeded in func.tags,
        writes=writes,
        arguments=tuple(a.name for a in schema.arguments if not a.kwarg_only),
        may_reshape=is_custom or any(a.is_out for a in schema.arguments),
        writes_any=bool(writes),
        copies=schema.name in COPIES,
        partial=schema.name in PARTIAL_WRITES,
        resizes=schema.name in RESIZES,
        arrives=bool(arriving),
        returns_new=not arriving and (not writes or bool(hidden) or not all(aliased)),
        aliased=aliased if len(aliased) > 1 and any(aliased) else (),
        scratch=SCRATCH.get(schema.name, ()),
        results=_names_of_results(schema),
        schema=schema.name,
        shape_only=not SHAPE_ONLY.isdisjoint((schema.name, f"{schema.name}.{schema.overload_name}")),
        is_custom=is_custom,
    )
    return plan if getattr(func, "global_layouts", None) is None else _on_distributed_tensors(plan)


def _on_distributed_tensors(plan: OpPlan) -> OpPlan:
    """The plan for a row on distributed tensors: the ops that compute, draw and write are later rows."""
    return replace(
        plan, role=Role.VIEW, is_view=True, computes=False, draws=False, writes={}, writes_any=False, arrives=False
    )


def written_places(plan: OpPlan, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> WrittenPlaces:
    """Places of the tensors in ``args`` and ``kwargs``, in order, that the op writes, and of those it does not read."""
    if args and type(args[0]) is RegionInputs:
        return WrittenPlaces(args[0].written, ())
    written: list[int] = []
    unread = [0] if plan.shape_only else []
    in_training = IN_TRAINING.get(plan.schema, ())
    trains = bool(in_training) and bool(plan.named(args, kwargs).get("training"))
    at = 0
    for name, value in [*zip(plan.arguments, args, strict=False), *(kwargs or {}).items()]:
        end = at + _tensors_in(value)
        if name in plan.writes and (trains or name not in in_training):
            written += range(at, end)
        if plan.writes.get(name) or (name in in_training and (name in plan.writes or not trains)):
            unread += range(at, end)
        at = end
    factor = _factor(args, kwargs or {}) if plan.schema in FACTORS else None
    return WrittenPlaces(tuple(written), tuple(unread), factor)


def _factor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Factor | None:
    beta = kwargs.get("beta")
    if type(beta) not in (int, float):
        return None
    names = list(kwargs)
    later = [kwargs[name] for name in names[names.index("beta") :]]
    return Factor(type(beta) is float, sum(type(value) is type(beta) for value in later))


def _tensors_in(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_tensors_in(item) for item in value)
    return int(isinstance(value, torch.Tensor))


def op_name(func: OpOverload) -> str:
    """``aten.addmm.default``."""
    return str(func)


def _role(func: OpOverload) -> Role:
    name = func._schema.name
    if name == "aten::_local_scalar_dense":
        return Role.NUMBER
    if name in ALLOCATIONS:
        return Role.ALLOCATION
    if name in IN_FLIGHT:
        return Role.IN_FLIGHT
    if name in ARRIVED:
        return Role.ARRIVED
    if name in VIEWS or func.is_view or torch.Tag.inplace_view in func.tags:
        return Role.VIEW
    return Role.COMPUTE


# --- results ----------------------------------------------------------------------------------------------------------
#
# The results of an op in the order of its row's digests: written arguments, then returned tensors. The hot path
# (``OpRecorder.observe``) has the same order.


def results_of(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], out: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(written, returned): the tensors with a digest in the op's row, in order.

    ``tensors``: those among its arguments. ``out``: its return value.
    """
    if not plan.computes or plan.arrives:
        return [], []
    return [tensors[place] for place in written_places(plan, args, kwargs).all], new_results(plan, out)


def new_results(plan: OpPlan, out: Any) -> list[torch.Tensor]:
    """The returned tensors, without those that are arguments."""
    if not plan.returns_new:
        return []
    if plan.aliased and isinstance(out, tuple):
        out = [item for item, aliased in zip(out, plan.aliased, strict=True) if not aliased]
    return list(flat_tensors(out))


def flat_tensors(out: Any) -> Iterator[torch.Tensor]:
    """The tensors that an op returned, in order."""
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (tuple, list)):
        for item in out:
            yield from flat_tensors(item)
