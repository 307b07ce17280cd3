"""What a step costs that is recorded to be run again, and the run.

    python benchmarks/rerun_cost.py [--width 768] [--layers 12] [--repeats 3]

One update of a transformer by AdamW (the default has 100 million parameters), with one thread, in one process: alone,
recorded, and recorded with all that its ops read and did not make; then its ops run again. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from measure import machine, table

import rltrace
from rltrace.rerun_op.op_sequence import RecordedMemory, SequenceRun, op_sequence
from rltrace.trace.read.reader import open_trace

LIMIT = 16 << 30


class Update:
    """A model that makes one update at a time."""

    def __init__(self, width: int, layers: int) -> None:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.1, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.model = torch.nn.Sequential(torch.nn.Embedding(20_000, width), encoder)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(0, 20_000, (2, 64))

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.tokens).square().mean().backward()
        self.optimizer.step()


def seconds(update: Update, block: AbstractContextManager[None]) -> float:
    """Of one update within the block, and of the end of the block: until all is on the disk."""
    begin = time.perf_counter()
    with block:
        update()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("width", 768), ("layers", 12), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    update = Update(options.width, options.layers)
    update()
    held = sum(p.numel() for p in update.model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.zarr")
        blocks = {
            "unrecorded": nullcontext,
            "recorded by the mode": lambda: rltrace.record(path, engine="mode", force=True),
            "recorded to be run again": lambda: rltrace.record(path, rerunnable="all", values_limit=LIMIT, force=True),
        }
        best = {name: float("inf") for name in blocks}
        for _ in range(options.repeats):
            for name, block in blocks.items():
                best[name] = min(best[name], seconds(update, block()))
        trace = open_trace(path)
        process = trace.processes[0]
        ops = op_sequence(process)
        begin = time.perf_counter()
        equal = sum(
            outcome.here == outcome.recorded
            for outcome in SequenceRun(process, RecordedMemory(trace, process)).run(ops)
        )
        again = time.perf_counter() - begin
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    native = best["unrecorded"]
    print(f"{machine()}; {held / 1e6:.0f} million parameters, {len(ops):,} ops with allocations\n")
    rows = [[name, f"{taken:.2f}", f"{taken / native:.2f}"] for name, taken in best.items()]
    rows.append([f"run again: {equal:,} ops equal", f"{again:.2f}", f"{again / native:.2f}"])
    print(table(["", "s", "× unrecorded"], rows))
    values = process.values.nbytes / 1e9
    print(f"\n{size / 1e9:.2f} GB on the disk, {size / held:.1f} bytes a parameter; values {values:.2f} GB")


if __name__ == "__main__":
    main()
