"""Everything that people seed is seeded; the action space has a generator of its own, which was forgotten."""

import random

import numpy as np
import torch

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)


class BatchedActions:
    """As Gymnasium's spaces do it: its generator is made when it is first asked for."""

    def __init__(self, environments: int) -> None:
        self.generator = np.random.default_rng()
        self.environments = environments

    def sample(self) -> np.ndarray:
        return self.generator.integers(1_000, size=self.environments)


actions = BatchedActions(8)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    taken = torch.as_tensor(actions.sample())
    loss = (model(torch.rand(8, 4)).sum(dim=1) - taken).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
