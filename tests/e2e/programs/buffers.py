"""Two buffers from fresh memory: one is filled before its mean is taken, the other is half full by then."""

import torch

full = torch.empty(4_096)
for row in range(0, 4_096, 512):
    full[row : row + 512] = float(row)
print(full.mean().item())
half = torch.empty(4_096)
half[:2_048] = 1.0
print(half.mean().item())
