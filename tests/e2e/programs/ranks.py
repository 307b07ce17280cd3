"""Two ranks that meet in collectives of every kind, then train one model with DistributedDataParallel.

``torchrun … ranks.py FOLDER``: each rank leaves its weights in FOLDER.
"""

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional

FOLDER = Path(sys.argv[1])
STEPS = 6


def meet(rank: int, world: int) -> None:
    """Each way of sending something, and an op that reads what came."""
    distributed.barrier()
    gathered = [None] * world
    distributed.all_gather_object(gathered, {"rank": rank, "pickled": "longer" * rank})
    work = distributed.all_reduce(total := torch.full((4,), rank + 1.0), async_op=True)
    torch.ones(3).cos()  # while it is on its way
    work.wait()
    total.sin()
    distributed.broadcast(sent := torch.arange(3.0) * rank, src=1)
    sent.tan()
    distributed.all_gather(parts := [torch.empty(3) for _ in range(world)], sent + rank)
    torch.cat(parts)
    pair = distributed.new_group([0, 1])
    distributed.all_reduce(most := torch.ones(2) * rank, op=distributed.ReduceOp.MAX, group=pair)
    most.sqrt()
    reduced = functional.all_reduce(torch.ones(4) * (rank + 1), "sum", distributed.group.WORLD)
    (reduced + 1).exp()
    if rank == 0:
        distributed.send(torch.ones(5), dst=1)
    else:
        distributed.recv(message := torch.zeros(5), src=0)
        message.neg()


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 8, generator=generator), torch.randn(16, 2, generator=generator)


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    meet(rank, distributed.get_world_size())
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        inputs, targets = batch(generator)
        inputs = inputs * 1.0
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    (FOLDER / f"rank{rank}.weights").write_bytes(weights)
    distributed.destroy_process_group()


main()
