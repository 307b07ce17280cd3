"""GRPO in one file, with a small transformer: one policy, computed in two ways.

The generator decodes token by token with a key-value cache, in a batch padded on the left: `generate` of transformers.
The trainer runs the whole sequences at once. Both claim to compute the log-probabilities of the same tokens with the
same weights; that they do not agree to the bit makes the ratio of an on-policy update another number than 1.

python examples/trainer_generator.py
python examples/trainer_generator.py --batch-invariant
"""

import argparse
import itertools

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, Qwen3Config, Qwen3ForCausalLM
from transformers.masking_utils import sdpa_mask

# --- arguments ------------------------------------------------------------------------------------

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--batch-invariant", action="store_true", help="the same sums for a token, whatever it is run with")
parser.add_argument("--updates", type=int, default=2)
parser.add_argument("--group", type=int, default=4, help="sequences sampled for each prompt")
parser.add_argument("--new-tokens", type=int, default=12, help="at most; a sequence ends with token 0 as well")
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--device", default="cpu")
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

torch.manual_seed(args.seed)

# --- policy ---------------------------------------------------------------------------------------

END, PAD = 0, 1
PROMPTS = [[7, 3], [11, 5, 8, 2, 9], [4, 4, 6, 13, 2, 17, 3, 12]]  # of three lengths

config = Qwen3Config(
    vocab_size=32,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    eos_token_id=END,
    pad_token_id=PAD,
)
policy = Qwen3ForCausalLM(config).to(args.device, getattr(torch, args.dtype))
optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)

# --- the same sums, whatever the batch ------------------------------------------------------------


def row_by_row(forward):
    """Each row goes through the kernel alone: it cannot choose its way by how many there are."""

    def each(rows):
        return torch.cat([forward(row) for row in rows.reshape(-1, rows.shape[-1]).split(1)]).view(*rows.shape[:-1], -1)

    return each


def token_by_token(module, query, key, value, attention_mask, scaling, **_):
    """Each token attends alone, to the keys that it may see and no others, laid out in one way.

    query: [batch, heads, tokens, D]; attention_mask: [batch, 1, tokens, keys], true where a key may be seen.
    """
    attended = []
    for s, t in itertools.product(range(query.shape[0]), range(query.shape[2])):
        seen = attention_mask[s, 0, t]
        keys, values = (each[s : s + 1, :, seen].contiguous() for each in (key, value))
        attended.append(attention(query[s : s + 1, :, t : t + 1], keys, values, scale=scaling, enable_gqa=True))
    return torch.cat(attended).view(query.shape[0], query.shape[2], query.shape[1], -1), None


if args.batch_invariant:  # all else works on each number, or each row, by itself already
    for module in policy.modules():
        if isinstance(module, nn.Linear):
            module.forward = row_by_row(module.forward)
    AttentionInterface.register("token by token", token_by_token)
    AttentionMaskInterface.register(
        "token by token", lambda **asked: sdpa_mask(**asked | {"allow_is_causal_skip": False})
    )
    policy.set_attn_implementation("token by token")

# --- training -------------------------------------------------------------------------------------


def padded(sequences, side):
    """Sequences of several lengths as one tensor, and a mask of what in it are tokens."""
    ids = pad_sequence([torch.tensor(each) for each in sequences], True, PAD, side)
    mask = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in sequences], True, 0, side)
    return ids.to(args.device), mask.to(args.device)


def log_probabilities(logits, taken):
    """Of the tokens that were taken: logits [..., vocabulary], taken [...]."""
    return logits.float().log_softmax(-1).gather(-1, taken[..., None]).squeeze(-1)


prompts, prompts_mask = padded(PROMPTS, "left")
for update in range(args.updates):
    # the rollout: sampled from the policy itself, with a cache
    sampled = policy.generate(
        prompts,
        attention_mask=prompts_mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=args.new_tokens,
        num_return_sequences=args.group,
        return_dict_in_generate=True,
        output_logits=True,
    )
    new = sampled.sequences[:, prompts.shape[1] :]
    generated = log_probabilities(torch.stack(sampled.logits, 1), new)

    # each sequence without its padding, its log-probabilities in the rollout, and its reward
    sequences, old, rewards = [], [], []
    for number, (tokens, each) in enumerate(zip(new.tolist(), generated, strict=True)):
        length = tokens.index(END) + 1 if END in tokens else len(tokens)
        sequences.append(PROMPTS[number // args.group] + tokens[:length])
        old.append(each[:length])
        rewards.append(sum(token % 2 for token in tokens[:length]) / length)  # odd tokens are good tokens
    rewards = torch.tensor(rewards, device=args.device).view(-1, args.group)
    advantages = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()

    # the update: whole sequences at once
    ids, mask = padded(sequences, "right")
    logits = policy(ids, attention_mask=mask, use_cache=False).logits
    trained = log_probabilities(logits[:, :-1], ids[:, 1:])
    trained = [each[len(s) - len(o) - 1 : len(s) - 1] for each, s, o in zip(trained, sequences, old, strict=True)]
    losses = []
    for new, before, advantage in zip(trained, old, advantages, strict=True):
        ratio = (new - before).exp()
        losses.append(-torch.min(ratio * advantage, ratio.clamp(1 - args.clip, 1 + args.clip) * advantage))
    optimizer.zero_grad()
    torch.cat(losses).mean().backward()
    optimizer.step()

    gap = (torch.cat(trained) - torch.cat(old)).abs()
    print(
        f"update {update}  reward {rewards.mean().item():.4f}"
        f"  mean |logprob difference| {gap.mean().item():.3e}  largest {gap.max().item():.3e}"
    )
