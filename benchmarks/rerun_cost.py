"""What a step costs that is recorded to be run again, and the run.

    python benchmarks/rerun_cost.py [--width 768] [--layers 12] [--repeats 3]

One update of a transformer by AdamW (the default has 100 million parameters), with one thread, in one process: alone,
recorded, recorded with all that its ops read and did not make; then its ops run again, all of them and those of one
layer. Prints Markdown.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from measure import folder_size, lowest, machine, parse_options, table

import rltrace
from rltrace.extensions.repro.folder import take_out
from rltrace.extensions.repro.op_sequence import SequenceRun, op_sequence, ops_of
from rltrace.selectors import parse_selectors
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
    options = parse_options(__doc__, width=768, layers=12, repeats=3)
    torch.set_num_threads(1)
    update = Update(options.width, options.layers)
    update()
    held = sum(p.numel() for p in update.model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.zarr")
        again = partial(rltrace.record, rerunnable="all", values_limit=LIMIT, force=True)
        blocks = {
            "unrecorded": lambda: seconds(update, nullcontext()),
            "recorded by the mode": lambda: seconds(update, rltrace.record(path, engine="mode", force=True)),
            "recorded to be run again": lambda: seconds(update, again(path)),
        }
        best = lowest(blocks, options.repeats)
        trace = open_trace(path)
        process = trace.processes[0]
        ops = op_sequence(process)
        begin = time.perf_counter()
        run = SequenceRun(process)
        equal = sum(outcome.here == outcome.recorded for outcome in run.run(ops))
        taken_again = time.perf_counter() - begin
        begin = time.perf_counter()
        layer = f"*layers.{options.layers // 2}"
        wanted = ops_of(process, ops, parse_selectors([f"module={layer}", f"module={layer}.*"]))
        taken = take_out(process, SequenceRun(process), ops, wanted)
        taken_out = time.perf_counter() - begin
        of_layer = sum({id(data): len(data) for op in taken for data in op.call.contents.values()}.values())
        size, _ = folder_size(path)
    native = best["unrecorded"]
    print(f"{machine()}; {held / 1e6:.0f} million parameters, {len(ops):,} ops with allocations\n")
    rows = [[name, f"{taken:.2f}", f"{taken / native:.2f}"] for name, taken in best.items()]
    rows.append([f"run again: {equal:,} ops equal", f"{taken_again:.2f}", f"{taken_again / native:.2f}"])
    rows.append([f"one layer taken out: {len(taken)} ops", f"{taken_out:.2f}", f"{taken_out / native:.2f}"])
    print(table(["", "s", "× unrecorded"], rows))
    memory = process.values.memory_bytes / 1e9
    print(f"\n{size / 1e9:.2f} GB on the disk, {size / held:.1f} bytes a parameter; memory {memory:.2f} GB")
    print(f"one layer {of_layer / 1e6:.1f} MB of memory")


if __name__ == "__main__":
    main()
