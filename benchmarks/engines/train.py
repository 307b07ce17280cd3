"""A trainer: one update of transformers' Qwen3 on what ``generate.py`` wrote, in a padded batch.

    python train.py MODEL ROLLOUT.json FOUND.json [--places rope,attn,norm] [--dtype float32]

``FOUND.json``: how many sampled tokens there are, and of how many the log-probabilities are the generator's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rollout")
    parser.add_argument("found")
    parser.add_argument("--places", default="")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    rows = json.loads(Path(args.rollout).read_text())
    model = Qwen3ForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).train()
    import vllm_kernels

    rope = vllm_kernels.rope_is_exact(getattr(torch, args.dtype))
    if args.places:
        vllm_kernels.apply(model, set(args.places.split(",")))
    longest = max(len(row["prompt"]) + len(row["ids"]) for row in rows)
    ids, mask = torch.full((len(rows), longest), 2), torch.zeros(len(rows), longest, dtype=torch.long)
    old, acts = torch.zeros(len(rows), longest - 1), torch.zeros(len(rows), longest - 1, dtype=torch.bool)
    for at, row in enumerate(rows):
        tokens, first = row["prompt"] + row["ids"], len(row["prompt"]) - 1
        ids[at, : len(tokens)], mask[at, : len(tokens)] = torch.tensor(tokens), 1
        old[at, first : first + len(row["ids"])] = torch.tensor(row["log_probs"])
        acts[at, first : first + len(row["ids"])] = True
    logits = model(input_ids=ids, attention_mask=mask).logits
    new = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    (-torch.exp(new - old)[acts].mean()).backward()
    equal = int((new.detach() == old)[acts].sum())
    Path(args.found).write_text(json.dumps({"tokens": int(acts.sum()), "equal": equal, "rope": rope}))


if __name__ == "__main__":
    main()
