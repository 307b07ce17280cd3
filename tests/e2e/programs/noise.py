"""Exploration noise for four environments more with each update: sixteen numbers and up are drawn by vector code."""

import torch

torch.manual_seed(7)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=2**-4)
for update in range(4):
    noise = torch.randn(4 * (update + 1))
    loss = (weight.sum() - noise).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
