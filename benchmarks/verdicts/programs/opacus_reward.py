"""opacus DP-SGD on a reward model of pairs: gradients of every sample, clipping, noise, Poisson batches."""

import random

import numpy as np
import torch
from ending import end
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

random.seed(8)
np.random.seed(8)
torch.manual_seed(8)


class Reward(nn.Module):
    """One number for a sequence of 12 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.mix = nn.Conv1d(16, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mixed = self.norm(self.mix(self.words(tokens).transpose(1, 2)))
        return self.head(functional.gelu(mixed).mean(dim=2)).squeeze(1)


class Preference(nn.Module):
    """How much rather the first of two sequences is chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.reward = Reward()

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        return self.reward(pairs[:, 0]) - self.reward(pairs[:, 1])


pairs = torch.randint(40, (96, 2, 12))
chosen = (pairs[:, 0].sum(1) > pairs[:, 1].sum(1)).float()
model = Preference()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
    data_loader=DataLoader(TensorDataset(pairs, chosen), batch_size=16),
    noise_multiplier=0.8,
    max_grad_norm=1.0,
)
for _ in range(8):
    for batch, target in loader:
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(batch), target).backward()
        optimizer.step()
end(model.parameters())
