"""Two ranks that train together in one way after the other, STEPS optimizer steps each.

``RANK=0 … collectives.py [changed]``: in step CHANGED_AT of each way, in turn, rank 1 computes with another number, or
rank 0 runs an op more.
"""

import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional

CHANGED = sys.argv[1:] == ["changed"]
STEPS, CHANGED_AT = 2, 1
RANK, WORLD = int(os.environ["RANK"]), 2


def planted(tensor: torch.Tensor, step: int) -> torch.Tensor:
    """A batch, or a parameter: as it is, or with the difference of this way."""
    rank, how = ((1, "value"), (0, "op"))[[way.__name__ for way in WAYS].index(threading.current_thread().name) % 2]
    here = CHANGED and rank == RANK and step == CHANGED_AT
    tensor = tensor * (1.001 if here and how == "value" else 1.0)
    return tensor * 1.001 if here and how == "op" else tensor


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(seed: int = RANK) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The number, inputs and targets of each step."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        yield step, torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)


def train(model: nn.Module, plant=planted, seed: int = RANK) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, inputs, targets in batches(seed):
        loss = (model(plant(inputs, step)) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def mesh(name: str = "dp"):
    return distributed.init_device_mesh("cpu", (WORLD,), mesh_dim_names=(name,))


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh())
    train(model)


def fsdp1() -> None:
    """Flat parameters, of which the storages are freed and allocated again."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    train(FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"), use_orig_params=True))


def tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = parallelize_module(mlp(), mesh("tp"), {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def plant(inputs: torch.Tensor, step: int) -> torch.Tensor:
        with torch.no_grad():
            part = model[0].weight.to_local()
            part.copy_(planted(part, step))
        return inputs

    train(model, plant, seed=0)


def sequence_parallel() -> None:
    """Activations are sharded too: gathered before the first layer, scattered after the second."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
    train(parallelize_module(mlp(), mesh("tp"), plan))


def messages() -> None:
    """Two stages of a pipeline by send and recv: rank 0 has the first layers, rank 1 the last."""
    stage = mlp()[:2] if RANK == 0 else mlp()[2:]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step, inputs, targets in batches(0):
        optimizer.zero_grad()
        if RANK == 0:
            hidden = stage(planted(inputs, step))
            distributed.send(hidden.detach(), 1)
            distributed.recv(gradient := torch.empty_like(hidden), 1)
            hidden.backward(gradient)
        else:
            distributed.recv(received := torch.empty(8, 16), 0)
            hidden = received.requires_grad_()
            (stage(hidden) - planted(targets, step)).pow(2).mean().backward()
            distributed.send(hidden.grad, 0)
        optimizer.step()


def pipeline() -> None:
    """The same by torch's pipeline: messages in batches, two microbatches on their way."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    part = mlp()[:2] if RANK == 0 else mlp()[2:]
    stage = PipelineStage(part, RANK, WORLD, torch.device("cpu"))  # it learns shapes by computing with empty memory
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda output, target: (output - target).pow(2).mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for step, inputs, targets in batches(0):
        optimizer.zero_grad()
        schedule.step(planted(inputs, step)) if RANK == 0 else schedule.step(target=planted(targets, step))
        optimizer.step()


SENT = [[5, 3], [2, 6]]
"""Tokens that a rank sends to the expert of each rank."""


class Exchange(torch.autograd.Function):
    """Tokens to their experts, or back; their gradients the other way."""

    @staticmethod
    def forward(context, tokens: torch.Tensor, back: bool) -> torch.Tensor:
        context.back = back
        splits = [ranks[RANK] for ranks in SENT], SENT[RANK]
        received, sent = splits[::-1] if back else splits
        distributed.all_to_all_single(out := torch.empty(sum(received), 8), tokens.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return Exchange.apply(gradient, not context.back), None


class Experts(nn.Module):
    """One expert on each rank, to which tokens of every rank go."""

    def __init__(self, exchange) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.expert, self.head, self.exchange = nn.Linear(8, 8), nn.Linear(8, 4), exchange

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.exchange(torch.tanh(self.expert(self.exchange(tokens, False))), True))


def experts() -> None:
    train(Experts(Exchange.apply))


def functional_experts() -> None:
    world = distributed.group.WORLD
    train(Experts(lambda tokens, _: functional.all_to_all_single_autograd(tokens, None, None, world)))


def average(_state, bucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook: the mean of the gradients, computed by another thread as it is with gloo's."""
    work, summed = distributed.all_reduce(bucket.buffer(), async_op=True), torch.futures.Future()
    mean = summed.then(lambda future: future.value() / WORLD)
    threading.Thread(target=lambda: (work.wait(), summed.set_result(bucket.buffer())), name="reduce").start()
    return mean


def replicas() -> None:
    model = nn.parallel.DistributedDataParallel(mlp())
    model.register_comm_hook(None, average)
    train(model)


def compressed() -> None:
    """torch's hook that reduces gradients in half precision."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = nn.parallel.DistributedDataParallel(mlp())
    model.register_comm_hook(None, fp16_compress_hook)
    train(model)


def factorized() -> None:
    """torch's hook that reduces gradients as products of two matrices: three collectives, each begun by the last."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = nn.parallel.DistributedDataParallel(mlp())
    options = {"start_powerSGD_iter": 0, "use_error_feedback": False, "warm_start": False}
    state = powerSGD_hook.PowerSGDState(None, **options)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model)


def coalesced() -> None:
    """Collectives of several tensors as one; the second is waited for late, after a probe of what is in flight."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, inputs, _ in batches():
        optimizer.zero_grad()
        model(planted(inputs, step)).pow(2).mean().backward()
        first, second, third, fourth = gradients = [p.grad for p in model.parameters()]
        halves = [torch.empty_like(gradient[: len(gradient) // 2]) for gradient in (first, third)]
        with distributed._coalescing_manager():
            for half, gradient in zip(halves, (first, third), strict=True):
                distributed.reduce_scatter_tensor(half, gradient)
        with distributed._coalescing_manager():
            for half, gradient in zip(halves, (first, third), strict=True):
                distributed.all_gather_into_tensor(gradient, half)
        with distributed._coalescing_manager(async_ops=True) as works:
            distributed.all_reduce(second)
            distributed.all_reduce(fourth)
        (second * 2 + 1).sum()
        works.wait()
        other = torch.empty_like(gradients[0])
        sent = distributed.P2POp(distributed.isend, gradients[0] * 1, 1 - RANK)
        received = distributed.P2POp(distributed.irecv, other, 1 - RANK)
        for work in distributed.batch_isend_irecv([sent, received]):
            work.wait()
        gradients[0].add_(other)
        optimizer.step()


def sums() -> None:
    """Gradients are reduced by every kind of sum, in flight while others are computed."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, inputs, _ in batches():
        optimizer.zero_grad()
        model(planted(inputs, step)).pow(2).mean().backward()
        first, *others = [p.grad for p in model.parameters()]
        work = distributed.all_reduce(first, async_op=True)
        second = functional.all_reduce(others[0], "sum", distributed.group.WORLD)
        probes = torch.empty(4), second.elem, torch.empty(2).resize_(4)  # nothing has written them yet
        sum((probe * 2 + 1).sum() for probe in probes)
        third, fourth = functional.all_reduce_coalesced(others[1:], "sum", distributed.group.WORLD)
        distributed.reduce_scatter_tensor(half := torch.empty(8), second + 0)
        distributed.all_gather_into_tensor(whole := torch.empty(16), half)
        distributed.all_gather(parts := [torch.empty(4, 16), torch.empty(4, 16)], third)
        scattered = functional.reduce_scatter_tensor(torch.cat([fourth, fourth]), "sum", 0, distributed.group.WORLD)
        work.wait()
        for p, gradient in zip(model.parameters(), (first, whole, sum(parts), scattered), strict=True):
            p.grad.copy_(gradient)
        optimizer.step()


WAYS = (
    fsdp,
    fsdp1,
    tensor_parallel,
    sequence_parallel,
    messages,
    pipeline,
    experts,
    functional_experts,
    replicas,
    compressed,
    factorized,
    coalesced,
    sums,
)

distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
for way in WAYS:
    thread = threading.Thread(target=way, name=way.__name__)  # a stream for each
    thread.start()
    thread.join()
distributed.destroy_process_group()
