"""TRL's GRPO with vLLM in the same process: two updates of a tiny random model.

    python colocate.py MODEL FOUND.json

``FOUND.json``: the mean difference of log-probabilities as TRL finds it, and of how many tokens that vLLM computes too
the trainer's positions are others: TRL pads prompts on the left and gives no positions.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.models.qwen3 import modeling_qwen3

PROMPTS = ["t5 t9 t33 t70", "t8 t100 t4", "t77 t12 t45 t200 t31 t6", "t9 t9 t17"]
OWN = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
}


def count_moved(moved: list[int]) -> None:
    """Have every forward pass with gradient add how many of its tokens have other positions than their sequences
    give."""
    positions: list[torch.Tensor] = []

    def keep(module: Any, args: Any, given: dict[str, Any], _result: Any) -> None:
        if isinstance(module, modeling_qwen3.Qwen3RotaryEmbedding):
            positions.append(given.get("position_ids", args[-1]))
        elif isinstance(module, modeling_qwen3.Qwen3Model) and torch.is_grad_enabled():
            mask = given["attention_mask"]
            other = (positions[-1] != mask.cumsum(1) - 1) & (mask == 1)
            moved.append(int(other[:, :-1].sum()))  # the last token is never fed to vLLM

    torch.nn.modules.module.register_module_forward_hook(keep, with_kwargs=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("found")
    args = parser.parse_args()
    for name, value in OWN.items():
        os.environ[name] = value
    import vllm
    from trl import GRPOConfig, GRPOTrainer
    from vllm.model_executor.layers import utils

    utils._CPU_SGL_GEMM_MAX_WEIGHT_BYTES = 0  # as in generate.py; and a layer that it packs takes no new weights
    torch.cpu._init_amx()
    vllm.LLM.__init__ = partialmethod(vllm.LLM.__init__, enforce_eager=True)  # which TRL has no option for
    config = GRPOConfig(
        output_dir=str(Path(args.found).with_suffix(".trl")),
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.1,
        vllm_max_model_length=64,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=8,
        max_steps=2,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        learning_rate=1e-3,
        beta=0.0,
        gradient_accumulation_steps=1,
        vllm_importance_sampling_correction=True,
        seed=0,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "bfloat16"},
    )
    moved: list[int] = []
    count_moved(moved)
    trainer = GRPOTrainer(
        model=args.model,
        reward_funcs=lambda completions, **_: [float(len(set(text.split())) % 5) / 4 for text in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
    )
    trainer.train()
    means = [row[DIFFERENCE] for row in trainer.state.log_history if DIFFERENCE in row]
    Path(args.found).write_text(json.dumps({"mean": sum(means) / len(means), "moved": sum(moved)}))


DIFFERENCE = "sampling/sampling_logp_difference/mean"


if __name__ == "__main__":
    main()
