"""Names of collectives."""

from typing import Final

FUNCTIONAL: Final = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_out",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_coalesced_",
    "all_to_all_single",
    "batch_p2p_ops",
    "broadcast",
    "broadcast_",
    "irecv",
    "isend",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out",
)
"""In namespace ``_c10d_functional``: they return before the communication has finished."""


NAMESPACES: Final = "c10d.", "_c10d_functional.", "_c10d_functional_autograd."

WITHIN: Final = "_c10d_functional_autograd._wrap_tensor", "c10d.check_for_nan"
"""Ops of these namespaces that exchange nothing."""


def brings_data(op: str) -> bool:
    """Whether an op exchanges data with other processes, or waits for such data."""
    return op.startswith(NAMESPACES) and not op.startswith(WITHIN)
