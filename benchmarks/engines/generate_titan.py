"""A generator: TorchTitan's own Qwen3 inside vLLM; writes what ``generate.py`` writes.

python generate_titan.py MODEL OUT.json
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
import generate
import titan_on_cpu  # noqa: F401
import train_titan
import transformers
import vllm.transformers_utils.config
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.config import CompileConfig, OverrideConfig
from torchtitan.experiments.rl.models import vllm_registry
from torchtitan.models.qwen3 import parallelize_qwen3
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from vllm import LLM

# Which it imports from an older vLLM.
vllm.transformers_utils.config.PretrainedConfig = transformers.PretrainedConfig


def main() -> None:
    model, out = sys.argv[1:]
    spec = ModelSpec(
        name="qwen3",
        flavor="tiny",
        model=train_titan.config_of(model, packed=False),
        parallelize_fn=parallelize_qwen3,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=Qwen3StateDictAdapter,
    )
    path = str(Path(model).resolve())
    vllm_registry.register_to_vllm(
        spec,
        parallelism=vllm_registry.InferenceParallelismConfig(),
        compile_config=CompileConfig(enable=False),
        override=OverrideConfig(),
        checkpoint_config=CheckpointManager.Config(enable=True, initial_load_in_hf=True, initial_load_path=path),
    )
    engine = LLM(
        model=model,
        config_format=vllm_registry.TORCHTITAN_CONFIG_FORMAT,
        hf_overrides={"architectures": [vllm_registry.VLLM_MODEL_NAME]},
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=128,
        seed=0,
        max_num_seqs=8,
        skip_tokenizer_init=True,
        num_gpu_blocks_override=64,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 26,
    )
    generate.write_samples(engine, generate.prompts_of("few"), out)


if __name__ == "__main__":
    main()
