"""Facts of SGLang: which slot of the KV cache each token fills, and its predecessor; what its layers have fused.

Read in the sources of the version below and never run, as its kernels need a GPU: whatever does not fit them is
recorded as unknown. One worker alone; speculative decoding, captured graphs and the head's logits have no facts.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from rltrace.errors import UsageError
from rltrace.extensions.parity.adapters import check_version
from rltrace.extensions.parity.adapters.checkpoint_names import (
    ATTENTION,
    READ,
    CheckpointNames,
    modules_of,
    packed_points,
    summed_points,
)
from rltrace.extensions.parity.capture.call_facts import Called, Point, sources
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.activation_rows import BEGINS, PREVIOUS_SLOT, SLOT, Part

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions

STACKED: Final = "bitsandbytes_stacked_params_mapping"
"""An attribute of a model's class: by projection, the layer that packs it and the place there."""
SEVERAL: Final = ("EXTEND", "MIXED")
"""Modes of a batch that has several tokens of a request."""


def start(options: RecordOptions, token: str) -> None:
    """Record facts in this process; called when it has imported SGLang. Raises UsageError for other versions."""
    check_version("sglang", "0.5.23")
    names = CheckpointNames(modules_of)
    sources.add(batch_facts, lambda call: points(names, call))


def follow_runner(options: RecordOptions, token: str) -> None:
    """Know which batch is computed; called when the process has imported the module of runners."""
    Patches().wrap(sys.modules["sglang.srt.model_executor.model_runner"].ModelRunner, "_forward_raw", _computing)


def _computing(forward: Any, runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    outer, _running.batch = getattr(_running, "batch", None), (runner, batch)
    try:
        return forward(runner, batch, *args, **kwargs)
    finally:
        _running.batch = outer


_running = threading.local()
"""Of each thread, the runner and the batch that it computes now."""


def batch_facts() -> Mapping[str, torch.Tensor]:
    """Facts of the batch that SGLang computes now; empty: it computes none, or captures a graph."""
    if getattr(_running, "batch", None) is None:
        return {}
    runner, batch = _running.batch
    parallel = sys.modules["sglang.srt.runtime_context"].get_parallel()
    if parallel.tp_size * parallel.pp_size != 1:
        raise UsageError("facts of several workers of SGLang are unknown")
    mode, own, positions = batch.forward_mode.name, batch.out_cache_loc, batch.positions
    request = torch.arange(len(batch.req_pool_indices), device=own.device)
    if mode in SEVERAL:
        request = request.repeat_interleave(batch.extend_seq_lens.to(own.device))
    elif mode != "DECODE":
        raise UsageError(f"facts of SGLang's batches in mode {mode} are unknown")
    table, row = runner.req_to_token_pool.req_to_token, batch.req_pool_indices[request]
    if positions.shape != own.shape or row.shape != own.shape or not torch.equal(table[row, positions].to(own), own):
        raise UsageError("the slots of SGLang's batch are not those of its table of requests")
    before = table[row, (positions - 1).clamp(min=0)].to(torch.int64)
    return {SLOT: own.to(torch.int64), PREVIOUS_SLOT: torch.where(positions == 0, BEGINS, before)}


def points(names: CheckpointNames, call: Called) -> list[Point]:
    """The projections that a linear layer packs, as the model's class names them; of a norm that adds its input to the
    residual first, this sum; what attention reads and returns; and the sampled tokens' log-probabilities."""
    result, kind = call.result, type(call.module).__name__
    around, _, last = (names.of(call) or "").rpartition(".")
    if kind == "RadixAttention" and isinstance(result, torch.Tensor):
        read = zip(READ, call.args, strict=False)
        inputs = [(Part.INPUT, f"{around}.{ATTENTION}/{name}", x) for name, x in read if isinstance(x, torch.Tensor)]
        return [*inputs, (Part.OUTPUT, f"{around}.{ATTENTION}", result)]
    if kind == "Sampler":
        return _sampled(*call.args[:3])
    stacked: Mapping[str, tuple[str, int]] = getattr(type(call.root), STACKED, {})
    packed = sorted((place, name) for name, (layer, place) in stacked.items() if layer == last)
    if packed and isinstance(result, tuple):
        sizes: Any = call.module.output_partition_sizes
        return packed_points(around, [name for _, name in packed], sizes, result[0])
    return summed_points(result) if kind == "RMSNorm" else []


def _sampled(output: Any, sampling: Any, is_asked: bool) -> list[Point]:
    """Of greedy sampling, they are those before temperature."""
    before = sys.modules["sglang.srt.layers.sampler"].SGLANG_RETURN_ORIGINAL_LOGPROB or sampling.is_all_greedy
    mode = "raw_logprobs" if before else "processed_logprobs"
    return [(Part.OUTPUT, f"/{mode}", output.next_token_logprobs[:, None])] if is_asked else []
