"""Four ranks learn together; one reuses a buffer in which the rows of an older batch are left.

Each rank has a shard of the data. Shard 2 is three samples short, so the last batch of its epoch is, too, at step 40:
it is filled up with zeros. ``--reuse`` allocates the batch once instead of at every step, which is the same everywhere
but there: three rows of step 39 are still in it.

torchrun --standalone --nproc-per-node 4 examples/stale_rows.py --reuse
"""

import argparse
import os

import numpy as np
import torch
from torch import distributed, nn

BATCH, FEATURES, EPOCH = 16, 8, 41
SHORT = {2: 3}
"""Samples that a shard lacks, by rank."""


def samples(rank):
    """The shard of a rank: features and a target in each row."""
    generator = np.random.default_rng(rank)
    features = generator.standard_normal((BATCH * EPOCH - SHORT.get(rank, 0), FEATURES)).astype(np.float32)
    return np.concatenate([features, np.sin(features.sum(1, keepdims=True))], 1)


def batches(shard, reuse):
    """The batches of an epoch, as arrays of BATCH rows."""
    batch = np.zeros((BATCH, FEATURES + 1), np.float32)
    for start in range(0, len(shard), BATCH):
        if not reuse:
            batch = np.zeros_like(batch)
        rows = shard[start : start + BATCH]
        batch[: len(rows)] = rows
        yield batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reuse", action="store_true", help="allocate the batch once")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()

    np.random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shard, step = samples(rank), 0
    while step < args.steps:
        for batch in batches(shard, args.reuse):
            rows = torch.from_numpy(batch)
            loss = (model(rows[:, :-1]) - rows[:, -1:]).square().mean()
            logged = loss.item()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad)
                parameter.grad /= ranks
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    if rank == 0:
        print(f"loss of rank 0 after {step} steps: {logged:.6f}")
    distributed.destroy_process_group()


if __name__ == "__main__" and "RANK" in os.environ:
    main()
