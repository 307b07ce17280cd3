"""A layer of batch normalisation, whose sums depend on how many threads share them."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=2**-4)
for _ in range(2):
    loss = model(torch.randn(64, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
