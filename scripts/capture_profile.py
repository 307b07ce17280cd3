"""Record a small training program under torch.profiler and write down both: what a test of joining the two needs.

    python scripts/capture_profile.py -o tests/record/data/profile-h100.json.gz     on a machine with a GPU

Not yet run on a GPU: there is no such file in the repository so far. On a CPU (``--device cpu``) it works as well, and
the tests call it so. The program has eager ops, backward passes, foreach and fused optimizers, attention, copies,
memsets and, where Triton is there, a compiled function. Provenance (GPU, driver, versions, date) goes into the file;
nothing of the machine beyond that.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import rltrace
from rltrace import fingerprint
from rltrace.record.kernels.kineto import events_of
from rltrace.record.kernels.profiled import Event, join
from rltrace.trace.reader import open_trace
from rltrace.trace.schema import Column, Kind

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
    """Rows and events of the program, and where they come from."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    if device != "cpu":
        torch.zeros(1, device=device)
        if with_compiled:
            compiled(device)  # compiled before anything is looked at
    with tempfile.TemporaryDirectory() as folder:
        with rltrace.record(Path(folder, "a.zarr")), profile(activities=activities) as profiler:
            program(device)
            if with_compiled:
                compiled(device)
            if device != "cpu":
                torch.cuda.synchronize()
        ops = recorded_ops(Path(folder, "a.zarr"))
    facts = fingerprint.facts()
    told = {name: facts[name] for name in TOLD if facts.get(name) is not None}
    provenance = {"by": "scripts/capture_profile.py", "date": datetime.now(UTC).date().isoformat(), **told}
    return {
        "provenance": provenance,
        "ops": ops,
        "events": [list(event) for event in events_of(profiler)],
    }


def recorded_ops(path: Path) -> list[str]:
    """Operators of the rows of the first stream that are ops."""
    process = open_trace(path).processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    kinds = rows.column(Column.KIND) == Kind.OP
    return [str(process.tables["ops"].payloads[number]) for number in rows.column(Column.OP)[kinds]]


def events(captured: dict[str, Any]) -> list[Event]:
    """The events of a capture, as they were."""
    return [Event(*fields[:7], tuple(fields[7]), tuple(fields[8]), *fields[9:]) for fields in captured["events"]]


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
    joined = join(events(captured), captured["ops"])
    launched = sum(map(len, joined.launches))
    bare = [op for op, launches in zip(captured["ops"], joined.launches, strict=False) if not launches]
    print(
        f"{len(captured['ops'])} rows, {len(captured['events'])} events, {launched} launches; {joined.why or 'joined'}"
    )
    print(f"rows that launched nothing: {sorted(set(bare))}")


if __name__ == "__main__":
    main()
