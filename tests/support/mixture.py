"""A small mixture-of-experts policy with a cache, its rollout and its training: two programs over the same tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, EXPERTS, CHOSEN = 24, 16, 8, 3
PAD = 0


class Router(nn.Module):
    """Gives the experts that each token goes to, and with which weights."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = self.score(hidden.reshape(-1, WIDTH)).softmax(-1).topk(CHOSEN, dim=-1)
        return weights, chosen


class Mixture(nn.Module):
    """A layer: the mean over the sequence so far, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 3)
        self.keep = nn.Dropout(0.0)

    def forward(self, hidden: Tensor, past: list[Tensor] | None, mask: Tensor) -> Tensor:
        hidden = self.keep(hidden)
        sums = (hidden * mask[..., None]).cumsum(1)
        counts = mask.cumsum(1)[..., None]
        if past is not None:
            sums, counts = sums + past[0], counts + past[1]
            past[:] = [sums[:, -1:].detach(), counts[:, -1:].detach()]
        hidden = hidden + torch.tanh(sums / counts.clamp(min=1))
        weights, chosen = self.router(hidden)
        flat = hidden.reshape(-1, WIDTH)
        mixed = torch.einsum("nd,nkde->nke", flat, self.up[chosen]).mul(weights[..., None]).sum(1)
        return hidden + mixed.view_as(hidden)


class Policy(nn.Module):
    """``forward(input_ids)`` for whole sequences; with ``cache``, for what comes next."""

    def __init__(self, layers: int = 2, *, anew: bool = False, take: Callable[[Tensor], Tensor] | None = None) -> None:
        """``anew``: layers are computed again for the gradients. ``take``: of what the head is given."""
        super().__init__()
        self.anew = anew
        self.take = take
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Mixture() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: Any = None) -> dict[str, Tensor]:
        tokens = input_ids.shape[1]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -tokens:]
        hidden = self.embed(input_ids)
        for number, layer in enumerate(self.layers):
            past = None if cache is None else cache[number]
            if self.anew:
                hidden = checkpoint(layer, hidden, past, mask, use_reentrant=False)
            else:
                hidden = layer(hidden, past, mask)
        hidden = self.norm(hidden)
        return {"logits": self.head(hidden if self.take is None else self.take(hidden))}


@dataclass
class Rollout:
    """Sequences that were sampled, padded on the left."""

    ids: Tensor
    mask: Tensor


def make(seed: int = 0, **options: Any) -> Policy:
    torch.manual_seed(seed)
    return Policy(**options)


@torch.no_grad()
def sample(policy: Policy, new: int = 5) -> Rollout:
    """Tokens one by one, with a cache, after prompts of two lengths. The last one is never fed."""
    ids = torch.tensor([[PAD, PAD, 5, 6], [3, 9, 2, 7], [PAD, 4, 8, 1]])
    mask = (ids != PAD).long()
    cache = [[torch.zeros(len(ids), 1, WIDTH), torch.zeros(len(ids), 1, 1)] for _ in policy.layers]
    fed = ids
    torch.manual_seed(7)
    for _ in range(new):
        logits = policy(fed, mask, cache)["logits"][:, -1]
        fed = 1 + torch.multinomial(logits[:, 1:].softmax(-1), 1)
        ids, mask = torch.cat([ids, fed], 1), torch.cat([mask, torch.ones_like(fed)], 1)
    return Rollout(ids, mask)


def unpadded(rollout: Rollout) -> list[Tensor]:
    return [ids[mask.bool()] for ids, mask in zip(rollout.ids, rollout.mask, strict=True)]


def batch(rollout: Rollout, order: list[int]) -> tuple[Tensor, Tensor]:
    """Some of the sequences as a trainer has them: whole, in another order, padded on the right."""
    chosen = [unpadded(rollout)[i] for i in order]
    ids = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=PAD)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in chosen], batch_first=True)
    return ids, mask


@dataclass
class Trained:
    """What a trainer computed."""

    logits: list[Tensor]
    gradients: dict[str, Tensor]


def train(policy: Policy, rollout: Rollout, orders: list[list[int]]) -> Trained:
    """A pass forward and back over each of the batches."""
    logits = []
    for order in orders:
        ids, mask = batch(rollout, order)
        found = policy(ids, mask)["logits"]
        if found.shape[:2] == ids.shape:
            found_of_ids = found.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1) * mask
        else:
            found_of_ids = found.log_softmax(-1)[..., 0]
        found_of_ids.sum().backward()
        logits.append(found.detach().clone())
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return Trained(logits, gradients)
