"""A mixture of experts whose router chooses other experts in training than it did in the rollout.

Two programs with the same weights: one samples sequences token by token with a key-value cache and writes them down,
the other makes an update on them, whole sequences at once. In bfloat16 they compute the same token up to a few parts in
a thousand. Where two experts are nearly as good as each other, that is enough for the router to take the other one.

python examples/router_replay.py rollout
python examples/router_replay.py train
"""

import argparse
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

# --- arguments ------------------------------------------------------------------------------------

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["rollout", "train"])
parser.add_argument("--file", type=Path, default="rollout.pt", help="what the rollout is written to and read from")
parser.add_argument("--seed", type=int, default=8)
parser.add_argument("--experts", type=int, default=16)
parser.add_argument("--chosen", type=int, default=2, help="experts that a token goes through")
parser.add_argument("--group", type=int, default=4, help="sequences sampled for each prompt")
parser.add_argument("--new-tokens", type=int, default=16, help="at most; a sequence ends with token 0 as well")
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--device", default="cpu")
args = parser.parse_args()

# --- seeding: both programs begin with the same weights -------------------------------------------

torch.manual_seed(args.seed)

# --- policy ---------------------------------------------------------------------------------------

END, PAD = 0, 1
PROMPTS = [[7, 3], [11, 5, 8, 2, 9], [4, 4, 6, 13, 2, 17, 3, 12]]  # of three lengths

config = Qwen3MoeConfig(
    vocab_size=32,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_experts=args.experts,
    num_experts_per_tok=args.chosen,
    moe_intermediate_size=64,
    norm_topk_prob=True,
    initializer_range=0.2,  # a policy with opinions, as a trained one
    eos_token_id=END,
    pad_token_id=PAD,
)
policy = Qwen3MoeForCausalLM(config).to(args.device, getattr(torch, args.dtype))


def padded(sequences, side):
    """Sequences of several lengths as one tensor, and a mask of what in it are tokens."""
    ids = pad_sequence([torch.tensor(each) for each in sequences], True, PAD, side)
    mask = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in sequences], True, 0, side)
    return ids.to(args.device), mask.to(args.device)


def log_probabilities(logits, taken):
    """Of the tokens that were taken: logits [..., vocabulary], taken [...]."""
    return logits.float().log_softmax(-1).gather(-1, taken[..., None]).squeeze(-1)


# --- the rollout ----------------------------------------------------------------------------------

if args.what == "rollout":
    prompts, mask = padded(PROMPTS, "left")
    sampled = policy.generate(
        prompts,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=args.new_tokens,
        num_return_sequences=args.group,
        return_dict_in_generate=True,
        output_logits=True,
    )
    new = sampled.sequences[:, prompts.shape[1] :]
    generated = log_probabilities(torch.stack(sampled.logits, 1), new).cpu()
    rollout = []
    for number, (tokens, each) in enumerate(zip(new.tolist(), generated, strict=True)):
        length = tokens.index(END) + 1 if END in tokens else len(tokens)
        prompt = PROMPTS[number // args.group]
        reward = sum(token % 2 for token in tokens[:length]) / length  # odd tokens are good tokens
        rollout.append((prompt + tokens[:length], len(prompt), each[:length].clone(), reward))
    torch.save(rollout, args.file)
    print(f"{len(rollout)} sequences, reward {sum(reward for *_, reward in rollout) / len(rollout):.4f}")

# --- the update -----------------------------------------------------------------------------------

if args.what == "train":
    sequences, begins, old, rewards = zip(*torch.load(args.file), strict=True)
    rewards = torch.tensor(rewards).view(-1, args.group)
    advantages = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()

    optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    ids, mask = padded(sequences, "right")
    logits = policy(ids, attention_mask=mask, use_cache=False).logits
    now = log_probabilities(logits[:, :-1], ids[:, 1:]).cpu()
    now = [each[begin - 1 : len(s) - 1] for each, begin, s in zip(now, begins, sequences, strict=True)]
    differences = torch.cat(now) - torch.cat(old)
    ratio = differences.exp()
    advantage = torch.cat([a.expand(len(each)) for a, each in zip(advantages, old, strict=True)])
    clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
    loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    gap = differences.abs()
    print(f"mean |logprob difference| {gap.mean().item():.3e}  largest {gap.max().item():.3e}")
    print(f"ratio of an update that is on-policy: from {ratio.min().item():.3f} to {ratio.max().item():.3f}")
