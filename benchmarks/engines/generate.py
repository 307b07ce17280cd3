"""A generator: vLLM on a CPU, with one tiny random model; writes the sequences and their tokens' log-probabilities.

python generate.py MODEL OUT.json [--requests few|many|shared] [--alone] [--batched N] [--seqs N] [--prefix]
                   [--blocks N --block-size N] [--dtype float32] [--core] [--parallel N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers import utils

# In every worker. Where the processor has AMX, small linear layers have a kernel of their own, which the trainers have
# not; and attention needs what oneDNN prepares, unless it may not use AMX.
utils._CPU_SGL_GEMM_MAX_WEIGHT_BYTES = 0
torch.cpu._init_amx()

Prompts = list[tuple[list[int], int]]


def write_samples(engine: Any, prompts: Prompts, out: str, *, alone: bool = False, seeds: bool = True) -> None:
    """Have an engine answer these prompts, together or one after the other, and write what it sampled."""
    from vllm import SamplingParams

    asked = [
        SamplingParams(max_tokens=n, logprobs=0, seed=3 + i if seeds else None, ignore_eos=True, detokenize=False)
        for i, (_, n) in enumerate(prompts)
    ]
    requests = [{"prompt_token_ids": ids} for ids, _ in prompts]
    batches = [[k] for k in range(len(requests))] if alone else [list(range(len(requests)))]
    rows = []
    for batch in batches:
        for done in engine.generate([requests[k] for k in batch], [asked[k] for k in batch], use_tqdm=False):
            ids = list(done.outputs[0].token_ids)
            found = [table[token].logprob for token, table in zip(ids, done.outputs[0].logprobs, strict=True)]
            rows.append({"prompt": list(done.prompt_token_ids), "ids": ids, "log_probs": found})
    Path(out).write_text(json.dumps(rows))


def prompts_of(name: str) -> Prompts:
    """Each with the number of tokens that follow it. Of ``many``, requests come and go; ``shared`` begin alike."""
    draw = random.Random(1)
    if name == "few":
        return [([5, 9, 33, 70], 16), ([8, 100, 4], 16), ([77, 12, 45, 200, 31, 6], 16)]
    if name == "many":
        return [
            ([draw.randrange(3, 256) for _ in range(draw.randrange(3, 40))], draw.randrange(2, 30)) for _ in range(12)
        ]
    head = [draw.randrange(3, 256) for _ in range(70)]
    return [(head + [draw.randrange(3, 256) for _ in range(draw.randrange(2, 6))], 8) for _ in range(4)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--requests", default="few")
    parser.add_argument("--alone", action="store_true", help="one request at a time")
    parser.add_argument("--batched", type=int, help="tokens of a batch, for prompts in chunks")
    parser.add_argument("--seqs", type=int, default=8)
    parser.add_argument("--prefix", action="store_true")
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--core", action="store_true", help="the engine and its worker in processes of their own")
    parser.add_argument("--parallel", type=int, default=1, help="workers, each with a part of every layer")
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(args.core or args.parallel > 1))
    if args.parallel > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(args.parallel)))
    from vllm import LLM

    more = {"max_num_batched_tokens": args.batched, "enable_chunked_prefill": True} if args.batched else {}
    more |= {"block_size": args.block_size} if args.block_size else {}
    engine = LLM(
        model=args.model,
        dtype=args.dtype,
        enforce_eager=True,
        max_model_len=128,
        seed=0,
        max_num_seqs=args.seqs,
        skip_tokenizer_init=True,
        num_gpu_blocks_override=args.blocks,
        enable_prefix_caching=args.prefix,
        kv_cache_memory_bytes=1 << 26,
        tensor_parallel_size=args.parallel,
        **more,
    )
    # A CPU's generator cannot be rewound in prompts in chunks, so these have no seeds.
    write_samples(engine, prompts_of(args.requests), args.out, alone=args.alone, seeds=not args.batched)


if __name__ == "__main__":
    main()
