"""Names of the functional collectives."""

from __future__ import annotations

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
