"""A DataLoader with two workers that add noise to what they load."""

import os

import torch
from ending import end
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANT = os.environ.get("PLANT")


class Noisy(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.randn(4) * (0.2 if PLANT == "worker" and index == 9 else 0.1)
        return torch.full((4,), index / 64) + noise


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(net.parameters(), 0.02 if PLANT == "learner" else 0.01)
    for _ in range(2):
        for batch in DataLoader(Noisy(), 8, shuffle=True, num_workers=2):
            loss = (net(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    end(net.parameters())
