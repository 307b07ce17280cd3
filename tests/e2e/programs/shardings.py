"""One model under several shardings: ``shardings.py HOW [TWIST]``.

HOW is ``whole`` (one process), ``double`` (likewise, in float64) or ``mesh``: four ranks in a mesh of 2 by 2, with
tensor parallelism over one dimension and FSDP2 over the other. TWIST is ``init`` (a parameter begins otherwise),
``scale`` (an output is scaled) or ``rate`` (of one parameter group).
"""

import sys

import torch
from torch import distributed, nn

HOW, TWIST = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
STEPS, WIDTH, BATCH = 2, 7, 16
"""An odd width: the two ranks' shards have different sizes."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(12, WIDTH)
        self.down = nn.Linear(WIDTH, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.down(torch.tanh(self.up(x)))
        return self.head(hidden * 1.01 if TWIST == "scale" else hidden)


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(BATCH, 12, generator=generator), torch.randn(BATCH, 3, generator=generator)) for _ in "ab"]
    if TWIST == "init":
        with torch.no_grad():
            model.down.weight[4, 5] += 1e-3
    if HOW == "double":
        model = model.double()
        batches = [(x.double(), y.double()) for x, y in batches]
    if HOW == "mesh":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        hidden = ColwiseParallel(use_local_output=False)  # a local tensor would not know that sizes differ
        parallelize_module(model, mesh["tp"], {"up": hidden, "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        batches = [(x.chunk(2)[mesh.get_local_rank("dp")], y.chunk(2)[mesh.get_local_rank("dp")]) for x, y in batches]
    rest = [*model.up.parameters(), *model.head.parameters()]
    down = {"params": [*model.down.parameters()], **({"lr": 2e-3} if TWIST == "rate" else {})}
    optimizer = torch.optim.Adam([{"params": rest}, down], lr=1e-3, foreach=False)
    for inputs, targets in batches:
        optimizer.zero_grad()
        (model(inputs) - targets).pow(2).mean().backward()
        optimizer.step()
    if HOW == "mesh":
        distributed.destroy_process_group()


main()
