"""Two ranks that train four models in turn: replicated, sharded, tensor parallel, and with experts.

``alone.py [SCALE]``: rank 0 scales the batch of iteration 3 by that number.
"""

import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SCALE = float((*sys.argv[1:], 1)[0])
ITERATIONS, RANK, WORLD = 5, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Exchange(torch.autograd.Function):
    """Tokens to the rank of their expert, or back; their gradients the other way."""

    @staticmethod
    def forward(context, tokens: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        context.splits = sent, received
        distributed.all_to_all_single(out := tokens.new_empty(sum(received), 8), tokens.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(context, gradient: torch.Tensor):
        sent, received = context.splits
        return Exchange.apply(gradient, received, sent), None, None


class Experts(nn.Module):
    """One expert on each rank. Each token goes to that which its first number names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.expert = nn.Linear(8, 8)
        torch.manual_seed(2)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(chosen := (tokens[:, 0] > 0).long(), stable=True)
        sent = torch.bincount(chosen, minlength=WORLD)
        distributed.all_to_all_single(received := torch.empty_like(sent), sent)
        sent, received = sent.tolist(), received.tolist()
        tokens = Exchange.apply(tokens[order], sent, received)
        return self.head(Exchange.apply(torch.tanh(self.expert(tokens)), received, sent)[torch.argsort(order)])


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))


def sharded() -> nn.Module:
    model, mesh = mlp(), init_device_mesh("cpu", (WORLD,))
    for part in (model[0], model[3], model):
        fully_shard(part, mesh=mesh)
    return model


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
    return parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})


distributed.init_process_group("gloo")
models = [nn.parallel.DistributedDataParallel(mlp()), sharded(), tensor_parallel(), Experts()]
optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
generators = [torch.Generator().manual_seed(0 if i == 2 else RANK) for i in range(len(models))]
ranks = torch.zeros(WORLD)
torch.manual_seed(RANK)
for iteration in range(ITERATIONS):
    for model, optimizer, generator in zip(models, optimizers, generators, strict=True):
        tokens, targets = torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)
        if RANK == 0 and iteration == 3:
            tokens = tokens * SCALE
        loss = (model(tokens) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        distributed.all_gather_into_tensor(ranks, torch.full((1,), float(RANK)))  # every time what is there already
        ranks.sum()
distributed.destroy_process_group()
