"""An op of each kind that a CPU kernel setting may change."""

import torch

torch.manual_seed(0)
x = ((torch.arange(64 * 784) * 7919 % 1009).float() - 500).div(128).reshape(64, 784)
for op in (torch.sigmoid, lambda x: x.softmax(-1), lambda x: torch.nn.functional.layer_norm(x, (784,)), torch.exp):
    op(x)
torch.nn.functional.gelu(x)
x @ x.t()
torch.nn.functional.batch_norm(x, None, None, training=True)
torch.randn(100).mul(2)
