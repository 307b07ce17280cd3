"""Agents that do not depend on each other move in the order of a set of their names."""

import torch

names = ["red", "green", "blue", "black", "white"]
agents = {name: torch.full((3,), float(number)) for number, name in enumerate(names)}
moved = {}
for name in set(names):
    moved[name] = agents[name] * 2
print(torch.stack([moved[name] for name in names]).sum().item())
