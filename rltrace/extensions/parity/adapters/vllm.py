"""Facts of vLLM: which slot of the KV cache each token fills, and its predecessor; what its layers have fused.

Owns what is read of vLLM, and for which versions that holds. A request is followed through the block tables alone, so
that continuous batching, chunked prefill, a prefix cache and preemption need no case of their own.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from rltrace.errors import UsageError
from rltrace.extensions.parity.adapters import check_version
from rltrace.extensions.parity.adapters.checkpoint_names import (
    ATTENTION,
    READ,
    CheckpointNames,
    modules_of,
    named,
    of_rank,
    summed_points,
)
from rltrace.extensions.parity.capture.call_facts import Called, Point, sources
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.activation_rows import BEGINS, PREVIOUS_SLOT, SAMPLED, SLOT, Part

if TYPE_CHECKING:
    from rltrace.extensions.parity.token_keys import Numbers
    from rltrace.recorder.base.options import RecordOptions


def start(options: RecordOptions, token: str) -> None:
    """Record facts in this process; called when it has imported vLLM. Raises UsageError for other versions."""
    check_version("vllm", "0.32")
    names = CheckpointNames(modules_of)
    sources.add(batch_facts, lambda call: points(names, call), has_points)


def follow_runner(options: RecordOptions, token: str) -> None:
    """Know which runner executes a model; called when the process has imported the module of runners."""
    runners = sys.modules["vllm.v1.worker.gpu_model_runner"]
    Patches().wrap(runners.GPUModelRunner, "execute_model", _executing)


def _executing(execute: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    _running.runner = weakref.ref(runner)
    return execute(runner, *args, **kwargs)


_running = threading.local()
"""Of each thread, the runner that last executed a model, and of its cache the shape and the size of a block."""


def _block_size(shape: tuple[int, ...], fits: Callable[[int], bool]) -> int:
    """Slots of a block of a cache of this shape. Raises UsageError where a batch does not say it."""
    known, size = getattr(_running, "block", ((), 0))
    if known == shape and fits(size):
        return int(size)
    fitting = [size for size in set(shape) if fits(size)]
    if len(fitting) != 1:
        raise UsageError(f"the size of a block of vLLM's KV cache is not certain: one of {sorted(set(shape))}")
    _running.block = shape, fitting[0]
    return fitting[0]


def batch_facts() -> Mapping[str, torch.Tensor]:
    """Facts of the batch that vLLM computes now; empty: it computes none. In a warm-up, no token has a slot."""
    context = sys.modules.get("vllm.forward_context")
    if context is None or not context.is_forward_context_available():
        return {}
    forward = context.get_forward_context()
    metadata = forward.attn_metadata
    if not metadata:
        return {SLOT: torch.zeros(0, dtype=torch.int64), PREVIOUS_SLOT: torch.zeros(0, dtype=torch.int64)}
    if isinstance(metadata, list):
        raise UsageError("facts of vLLM's batches in several micro-batches are unknown")
    layer, attention = next(iter(metadata.items()))
    shape = forward.no_compile_layers[layer].kv_cache.shape
    starts, lengths = _numbers(attention.query_start_loc), _numbers(attention.seq_lens)
    token = np.arange(starts[-1])
    request = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    positions = lengths[request] - (starts[request + 1] - token)
    table, own = _numbers(attention.block_table), _numbers(attention.slot_mapping)[: len(token)]
    size = _block_size(shape, lambda size: np.array_equal(slots_of(table, size, request, positions), own))
    before = np.where(positions == 0, BEGINS, slots_of(table, size, request, np.maximum(positions - 1, 0)))
    facts = {SLOT: torch.from_numpy(own), PREVIOUS_SLOT: torch.from_numpy(before)}
    runner = _running.runner() if hasattr(_running, "runner") else None
    prompts = None if runner is None else runner.input_batch.num_prompt_tokens[: len(starts) - 1]
    if prompts is None or len(prompts) < len(starts) - 1:
        return facts
    return facts | {SAMPLED: torch.from_numpy((positions >= prompts[request]).astype(np.int64))}


KINDS: Final = ("Attention", "LogitsProcessor", "RMSNorm", "Sampler")
"""Classes whose calls have points, besides those of layers that pack projections or hold a rank's part."""


def has_points(module: torch.nn.Module) -> bool:
    """Whether ``points`` may find any of a module's calls."""
    own = vars(module)
    packs = own.get("tp_size", 1) > 1 or len(own.get("output_partition_sizes") or ()) > 1
    return packs or type(module).__name__ in KINDS


def points(names: CheckpointNames, call: Called) -> list[Point]:
    """The projections that a linear layer packs, as ``packed_modules_mapping`` of the model names them; of a norm that
    adds its input to the residual first, this sum as its input; the names of attention and of the head; what the
    sampler returns of the sampled tokens, by its mode: log-probabilities before or after temperature, or logits; and
    which tensors are a rank's part."""
    module, result, kind = call.module, call.result, type(call.module).__name__
    if kind == "Attention" and (around := _names(names, call)[0]):
        return _attention(call, around)
    if kind == "LogitsProcessor" and module.scale == 1.0 and module.soft_cap is None:
        return [named("lm_head")]
    if kind == "Sampler" and result.logprobs_tensors is not None:
        return [(Part.OUTPUT, f"/{module.logprobs_mode}", result.logprobs_tensors.logprobs[:, :1])]
    if not isinstance(result, tuple) or not isinstance(result[0], torch.Tensor):
        return []
    own = vars(module)  # ``getattr`` would ask the module for what it does not have, which takes as long as all else
    rank, count, sizes = own.get("tp_rank", 0), own.get("tp_size", 1), own.get("output_partition_sizes") or ()
    around, last = _names(names, call) if len(sizes) > 1 else ("", "")
    packed = getattr(type(call.root), "packed_modules_mapping", {}).get(last) if last else None
    if packed and len(packed) == len(sizes):
        copies = own.get("num_kv_head_replicas", 1)
        parts = zip(
            packed, result[0].split_with_sizes(list(sizes), -1), [1, *[copies] * (len(packed) - 1)], strict=True
        )
        return [(Part.OUTPUT, of_rank(f"{around}.{name}", rank // n, count // n), x) for name, x, n in parts]
    if count > 1 and own.get("input_is_parallel", False) and call.args:
        return [(Part.INPUT, of_rank("", rank, count), call.args[0])]
    if count > 1 and not own.get("gather_output", True):
        return [(Part.OUTPUT, of_rank("", rank, count), result[0])]
    return summed_points(result) if kind == "RMSNorm" else []


def _names(names: CheckpointNames, call: Called) -> tuple[str, str]:
    """What is before the last dot of the called module's name in the checkpoint, and after it."""
    around, _, last = (names.of(call) or "").rpartition(".")
    return around, last


def _attention(call: Called, around: str) -> list[Point]:
    """Of the module that has the projections, ``around``: their sizes say how many ranks have the same heads."""
    name, packed = f"{around}.{ATTENTION}", getattr(call.root.get_submodule(around), "qkv_proj", None)
    count = getattr(packed, "tp_size", 1)
    if packed is None or count == 1:
        return [named(name)]
    each = [(packed.tp_rank // n, count // n) for n in (1, packed.num_kv_head_replicas, packed.num_kv_head_replicas)]
    read = zip(READ, call.args, each, strict=False)
    inputs: list[Point] = [(Part.INPUT, of_rank(f"{name}/{one}", *of), x) for one, x, of in read]
    return [*inputs, (Part.OUTPUT, of_rank(name, *each[0]), call.result)]


def slots_of(table: Numbers, size: int, request: Numbers, positions: Numbers) -> Numbers:
    """The slots of these positions of these requests, [n]; -1 where the table is too short.

    ``table``: [requests, blocks], numbers of blocks; ``size``: slots of a block.
    """
    block = positions // size
    slots: Numbers = np.where(
        block < table.shape[1], table[request, np.minimum(block, table.shape[1] - 1)] * size + positions % size, -1
    )
    return slots


def _numbers(tensor: Any) -> Numbers:
    array: Numbers = tensor.detach().cpu().numpy().astype(np.int64)
    return array
