"""Record a small training program with the profiler beside it and write down both: what a test of joining them needs.

    python scripts/capture_profile.py -o tests/extensions/kernels/data/profile-h100.json.gz     on a machine with a GPU

What is written are the events that ``rltrace record --kernels`` itself joined, by the very functions that it calls, and
what came of it. A test takes every such file in ``tests/extensions/kernels/data``; not yet run on a GPU, so there is
none so far. On a CPU (``--device cpu``) it works as well, and the tests call it so. The program has eager ops, backward
passes, foreach and fused optimizers, attention, copies, memsets and, where Triton is there, a compiled function.
Provenance (GPU, driver, versions, date) goes into the file; nothing of the machine beyond that.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import rltrace
from rltrace import fingerprint
from rltrace.extensions.kernels.profiler import cycles, kineto
from rltrace.extensions.kernels.profiler.launch_matching import Joined, ProfilerEvent, join
from rltrace.trace.read.reader import open_trace

TOLD = ("torch.version", "torch.cuda", "cuda.devices", "cuda.driver", "cuda.cudnn", "package.triton", "host.cpu")


def program(device: str) -> None:
    """A policy update, an update of a small transformer, copies and a memset."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 4)).to(device)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).to(device)
    observations = torch.randn(128, 8).to(device)
    for optimizer in (
        torch.optim.Adam(policy.parameters(), foreach=True),
        torch.optim.Adam(policy.parameters(), fused=True),
    ):
        distribution = torch.distributions.Categorical(logits=policy(observations))
        actions = distribution.sample()
        loss = -(distribution.log_prob(actions) * observations[:, 0]).mean() - 0.01 * distribution.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        loss.item()
    second = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.randn(4, 10, 32, device=device)).pow(2).sum().backward()
    second.step()
    buffer = torch.zeros(1_000, device=device)
    buffer[::2].copy_(torch.arange(500.0))
    buffer.cpu()


def compiled(device: str) -> None:
    """Two fused elementwise kernels, made by Inductor."""
    fused = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).softmax(-1))
    fused(torch.randn(64, 128, device=device))


def capture(device: str, *, with_compiled: bool = False) -> dict[str, Any]:
    """Rows and events of the program, what was launched for each row, and where all that comes from."""
    if device != "cpu":
        torch.zeros(1, device=device)
        program(device)  # libraries choose, allocate and compile at their first calls
        if with_compiled:
            compiled(device)
        torch.cuda.synchronize()
    taken: list[tuple[list[ProfilerEvent], list[str], Joined]] = []

    def joined(
        events: Sequence[ProfilerEvent], ops: Sequence[str], raised: Sequence[int] = (), **named: bool
    ) -> Joined:
        taken.append((list(events), list(ops), join(events, ops, raised, **named)))
        return taken[-1][2]

    kinds = kineto.devices() if device != "cpu" else ("cpu",)
    with tempfile.TemporaryDirectory() as folder, looking_at(kinds, joined):
        with rltrace.record(Path(folder, "a.zarr"), kernels=(0, None)):
            program(device)
            if with_compiled:
                compiled(device)
        told = open_trace(Path(folder, "a.zarr")).processes[0].launches
    if len(taken) != 1:
        raise SystemExit(f"{len(taken)} cycles, not one: {told.unknown}")
    [(events, ops, found)] = taken
    facts = fingerprint.facts()
    known = {name: facts[name] for name in TOLD if facts.get(name) is not None}
    return {
        "provenance": {"by": "scripts/capture_profile.py", "date": datetime.now(UTC).date().isoformat(), **known},
        "ops": ops,
        "events": [list(event) for event in events],
        "launched": [[launch.name for launch in launches] for launches in found.launches],
        "why": found.why,
        "lost": sorted(found.lost),
        "strays": [list(stray) for stray in found.strays],
    }


@contextmanager
def looking_at(kinds: tuple[str, ...], joined: Callable[..., Joined]) -> Iterator[None]:
    """The recorder's profiler looks at these devices, in one cycle, and its events are handed to ``joined``."""
    before = kineto.devices, kineto._module, cycles.CYCLE_ROWS, cycles.join
    kineto.devices, cycles.CYCLE_ROWS, cycles.join = (lambda: kinds), 1 << 20, joined  # type: ignore[assignment,misc]
    if kinds == ("cpu",):
        kineto._module = lambda kind: SimpleNamespace(synchronize=lambda: None)
    try:
        yield
    finally:
        kineto.devices, kineto._module, cycles.CYCLE_ROWS, cycles.join = before  # type: ignore[misc]


def events(captured: dict[str, Any]) -> list[ProfilerEvent]:
    """The events of a capture, as they were."""
    return [
        ProfilerEvent(*fields[:7], tuple(fields[7]), tuple(fields[8]), *fields[9:]) for fields in captured["events"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compiled", action="store_true", help="a function of torch.compile, too")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    captured = capture(options.device, with_compiled=options.compiled)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(options.output, "wt", encoding="utf-8") as file:
        json.dump(captured, file)
    launched = sum(map(len, captured["launched"]))
    bare = {op for op, names in zip(captured["ops"], captured["launched"], strict=False) if not names}
    size = options.output.stat().st_size
    print(
        f"{len(captured['ops'])} rows, {len(captured['events'])} events, {launched} launches, {size:,} bytes;"
        f" {captured['why'] or 'joined'}"
    )
    print(f"rows that launched nothing: {sorted(bare)}")
    print(f"launched for no row: {captured['strays']}")


if __name__ == "__main__":
    main()
