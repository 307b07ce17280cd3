"""A trainer: one update of TorchTitan's Qwen3 on vLLM's rollout, packed as its batcher packs; counts equal
log-probabilities.

python train_titan.py MODEL ROLLOUT.json FOUND.json [--places rope,norm,attn] [--dtype float32]
torchrun --nproc-per-node 2 train_titan.py … --sharded    # FSDP2 over gloo, as its PolicyTrainer builds the model
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import titan_on_cpu  # noqa: F401
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torchtitan.components.loss import compute_logprobs
from torchtitan.config import CommConfig, CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.experiments.rl.components.batcher import BatchConfig, Batcher
from torchtitan.experiments.rl.losses import GRPOLoss
from torchtitan.experiments.rl.types import RolloutTurnID, TrainingSample, TrainingSampleGroup
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import VarlenAttention
from torchtitan.models.qwen3 import (
    _EMBEDDING_INIT,
    _LINEAR_INIT,
    Qwen3Model,
    _build_qwen3_layers,
    _qwen3_norm,
    parallelize_qwen3,
)
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.module import Module


class PackedAttention(Module):
    """Its attention over packed sequences, which has no kernel for a CPU, by torch's for each sequence."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, attention_masks: Any, scale: float, **_: Any) -> Tensor:
        cuts = attention_masks.cu_seq_q.tolist()
        parts = []
        for begin, end in pairwise(cuts):
            own = (x[:, begin:end].transpose(1, 2) for x in (q, k, v))
            made = functional.scaled_dot_product_attention(*own, scale=scale, is_causal=True, enable_gqa=True)
            parts.append(made.transpose(1, 2))
        return torch.cat(parts, dim=1)


def config_of(path: str, *, packed: bool = True) -> Qwen3Model.Config:
    """``packed``: with attention that a CPU has."""
    found = json.loads((Path(path) / "config.json").read_text())
    size, vocabulary = found["hidden_size"], found["vocab_size"]
    rope = CosSinRoPE.Config(
        dim=found["head_dim"],
        max_seq_len=found["max_position_embeddings"],
        theta=found["rope_parameters"]["rope_theta"],
    )
    layers = _build_qwen3_layers(
        n_layers=found["num_hidden_layers"],
        dim=size,
        n_heads=found["num_attention_heads"],
        n_kv_heads=found["num_key_value_heads"],
        head_dim=found["head_dim"],
        hidden_dim=found["intermediate_size"],
        fuse_qkv=True,
        attn_backend="varlen",
        rope=rope,
    )
    for layer in layers if packed else ():
        layer.attention.inner_attention = PackedAttention.Config()
    return Qwen3Model.Config(
        vocab_size=vocabulary,
        dim=size,
        norm=_qwen3_norm(size),
        enable_weight_tying=False,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=size, param_init=_EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=size, out_features=vocabulary, param_init=_LINEAR_INIT),
        layers=layers,
    )


def model_of(path: str, dtype: torch.dtype, config: Qwen3Model.Config) -> Qwen3Model:
    model = config.build()
    with torch.no_grad():
        model.init_states()
        for parameter in model.parameters():  # not the tables of rope, which it keeps in float32
            parameter.data = parameter.data.to(dtype)
    weights = {name: x.to(dtype) for name, x in load_file(Path(path) / "model.safetensors").items()}
    model.load_state_dict(Qwen3StateDictAdapter(config, path).from_hf(weights))
    return model


class Sharded:
    """The model in shards, of which each rank has one."""

    def __init__(self) -> None:
        ranks = dist_utils.init_distributed(CommConfig(), base_folder="out")
        self.parallelism = ParallelismConfig(
            data_parallel_shard_degree=ranks, spmd_backend="partial_dtensor", enable_sequence_parallel=False
        )
        dist_utils.set_spmd_backend(self.parallelism.spmd_backend)
        self._dims = ParallelDims.from_config(self.parallelism, ranks)
        self.context = dist_utils.get_spmd_context(parallel_dims=self._dims, spmd_typechecking=False)
        self.training = TrainingConfig(dtype="bfloat16", seq_len=64, local_batch_size=1)

    def model(self, path: str) -> Any:
        config = config_of(path)
        config.update_from_config(config=self)
        model = parallelize_qwen3(
            model_of(path, torch.bfloat16, config),
            parallel_dims=self._dims,
            training=self.training,
            parallelism=self.parallelism,
            compile_config=CompileConfig(enable=False),
            ac_config=None,
            dump_folder="out",
        )
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo adds only
        return model


def sample_of(number: int, row: dict[str, Any]) -> TrainingSample:
    prompt, ids = len(row["prompt"]), len(row["ids"])
    return TrainingSample(
        min_policy_version=0,
        max_policy_version=0,
        rollout_id=RolloutTurnID(group_id=0, rollout_id=number, turn_id=0),
        token_ids=row["prompt"] + row["ids"],
        loss_mask=[False] * prompt + [True] * ids,
        logprobs=[0.0] * prompt + row["log_probs"],
        advantage=[0.0] * prompt + [(-1.0) ** number] * ids,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rollout")
    parser.add_argument("found")
    parser.add_argument("--places", default="")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sharded", action="store_true", help="run by torchrun")
    args = parser.parse_args()
    rows, dtype = json.loads(Path(args.rollout).read_text()), getattr(torch, args.dtype)
    sharded = Sharded() if args.sharded else None
    model = (sharded.model(args.model) if sharded else model_of(args.model, dtype, config_of(args.model))).train()
    import vllm_kernels

    rope = vllm_kernels.rope_is_exact(dtype)
    if args.places:
        vllm_kernels.apply_to_titan(model, set(args.places.split(",")))
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if sharded else (1, 0)
    longest = max(len(row["prompt"]) + len(row["ids"]) for row in rows)
    config = Batcher.Config(batch=BatchConfig(local_batch_size=1, seq_len=max(48 if sharded else 64, longest)))
    batcher = config.build(num_prompts_per_train_step=1, dp_degree=ranks, pad_id=2)
    samples = [sample_of(number, row) for number, row in enumerate(rows)]
    group = TrainingSampleGroup(group_id=0, training_samples=samples, metrics=[])
    batch = batcher.add_training_samples(training_sample_group=group)
    loss_of, counts = GRPOLoss.Config().build(), torch.zeros(2, dtype=torch.int64)
    for micro in (micros[rank] for micros in batch.microbatches):
        with sharded.context() if sharded else nullcontext():
            masks = model.get_attention_masks(micro.positions)
            logits = model(micro.token_ids, attention_masks=masks, positions=micro.positions)
            old, acts = micro.generator_logprobs, micro.loss_mask
            given = {"generator_logprobs": old, "advantages": micro.advantages, "loss_mask": acts}
            loss, _ = loss_of(logits, micro.labels, batch.num_global_valid_tokens, **given)
            loss.backward()
        same = (compute_logprobs(logits, micro.labels).detach() == old)[acts]
        counts += torch.stack([acts.sum(), same.sum()])
    if sharded:
        dist.all_reduce(counts)
    tokens, equal = counts.tolist()
    if rank == 0:
        Path(args.found).write_text(json.dumps({"tokens": tokens, "equal": equal, "rope": rope}))
    if sharded:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
