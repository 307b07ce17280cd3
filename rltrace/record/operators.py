"""What operators do that their schemas do not say: which make views, allocate, overwrite, or are written by others.

Owns these tables, by schema name, and nothing else. Each entry is checked by running the operator (``tests/record``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rltrace.trace.functional import FUNCTIONAL

VIEWS = frozenset(
    {
        "aten::detach",
        "aten::alias",
        "aten::_unsafe_view",
        "aten::_reshape_alias",
        "aten::lift_fresh",
        "aten::lift",
        "aten::_efficientzerotensor",  # zeros without memory: there is nothing to digest or to follow
        "_c10d_functional::_wrap_tensor_autograd",  # what it wraps may be on its way
        "aten::from_file",  # others can write the file at any time, so whoever reads it takes it from outside
    }
)
"""Make a view, or as little, though ``func.is_view`` does not say so on every version."""

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
"""Return memory that nobody has written (or, ``set_``, memory that this op did not write): never a digest."""

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
"""Write without reading what was there. Counting old bytes as an input makes a receiver of a cause."""

HIDDEN_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
}
"""Arguments that an op writes though its schema does not say so."""

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
"""Arguments that other processes write, maybe only once the op has returned (True: it does not read them), though its
schema does not say so. They have no digest in the op's row, and whoever reads them takes them from outside."""

IN_FLIGHT = frozenset(f"_c10d_functional::{name}" for name in FUNCTIONAL)
"""Return tensors that other processes may write once the op has returned, until ``ARRIVED`` has run on them."""

ARRIVED = frozenset({"_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors"})
"""Return what they are given when other processes have written it: only now are its bytes what was sent."""

LABELS = {
    "aten::from_file": (0,),
    "profiler::_record_function_enter": (0, 1),
    "profiler::_record_function_enter_new": (0, 1),
}
"""Arguments that say where something lies on this machine, or what a person calls it: a folder with a random name, a
time of day. Their values are no part of what is computed."""

SCRATCH = {
    "aten::mkldnn_rnn_layer": (3,),
    "aten::_ctc_loss": (1,),
    "aten::_cudnn_rnn": (3, 4),
    "aten::miopen_rnn": (3, 4),
}
"""Outputs that are a library's workspace: written in part, read back by the op's own backward. They have no digest;
what counts of them follows from the op's inputs. Found by filling fresh memory with one byte or another."""

COPIES = frozenset(
    {"aten::clone", "aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::contiguous", "aten::view_copy"}
)
"""Move bytes without computing: what nobody wrote in the source is unwritten in the destination as well."""

NON_BLOCKING = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::_to_copy"})
"""Copy, and where ``non_blocking`` is asked for may return before they have. On the device all stays in order; of a
copy to the host nobody knows when it is done but the program, which is to wait for it."""

RESIZES = frozenset({"aten::resize_", "aten::resize_as_"})
"""Allocations that give a tensor more memory and keep what it has."""


FACTORS = frozenset(
    f"aten::{name}{ending}"
    for name in ("addbmm", "addmm", "addmv", "addr", "baddbmm", "_addmm_activation")
    for ending in ("", "_")
)
"""Multiply their first tensor by ``beta`` and do not read it where that is 0, whatever it holds."""

IN_TRAINING = {
    "aten::rrelu_with_noise": ("noise",),
    "aten::rrelu_with_noise_": ("noise",),
    "aten::rrelu_with_noise_backward": ("noise",),
}
"""Arguments that are overwritten in training (or, by a backward, read) and left alone otherwise."""
