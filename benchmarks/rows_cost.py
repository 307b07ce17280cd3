"""What keeping rows of tensors costs a recording, in time and on disk.

    python benchmarks/rows_cost.py [--repeats 5]

Two training programs, a small transformer's updates and Stable-Baselines3 PPO, recorded in turn with and without rows,
in one process with one thread; the lowest time of each counts, by the clock of that thread alone, so that a busy
machine shows less (what the thread behind it writes and compresses is not in it). Prints Markdown.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import lowest, machine, parse_options, table
from torch import nn

import rltrace
from rltrace.digest.activation_rows import row_digests
from rltrace.report.info import trace_sizes
from rltrace.trace.read.reader import open_trace

ARMS: dict[str, dict[str, Any]] = {
    "recorded": {},
    "with a selector that finds nothing": {"rows": "op=nosuch"},
    "with rows of one module's calls": {"rows": "module=*.head"},
    "with rows of all modules' calls": {"rows": "module=?*"},
    "with rows of every forward's calls and ops": {"rows": ("module=?*", "module=?*,phase=forward,op=*")},
    "with rows of all modules' calls and ops": {"rows": ("module=?*", "module=?*,op=*")},
    "with all rows": {"rows": "all"},
    "with all rows and all values": {"rows": "all", "values": "all"},
}


class Transformer(nn.Module):
    """Two layers over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(self.embed(ids)))
        return out


def transformer() -> None:
    """Ten updates of eight sequences of 32 tokens."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        ids = torch.randint(0, 128, (8, 32))
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ppo() -> None:
    """Two rollouts of 256 steps of CartPole, and their updates."""
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, n_epochs=4, seed=0, device="cpu").learn(512)


PROGRAMS: dict[str, Callable[[], None]] = {
    "ten updates of a transformer of two layers": transformer,
    "Stable-Baselines3 PPO, 512 steps": ppo,
}


def seconds(program: Callable[[], None], path: Path, options: dict[str, Any]) -> float:
    with rltrace.record(path, force=True, **options):
        begin = time.thread_time()
        program()
        return time.thread_time() - begin


def measure(program: Callable[[], None], folder: Path, repeats: int) -> str:
    """A table of all arms."""
    paths = {name: folder / f"{i}.zarr" for i, name in enumerate(ARMS)}
    best = lowest({name: partial(seconds, program, path, ARMS[name]) for name, path in paths.items()}, repeats)
    rows = []
    for name, path in paths.items():
        trace = open_trace(path)
        [process] = trace.processes
        kept, ops = process.activations, process.after_op
        counts = [f"{number:,}" if kept else "" for number in (kept.tensor_count, kept.digest_count)]
        size = f"{sum(trace_sizes(trace) or ()) / 1e6:.1f} MB"
        rows.append([name, f"{1e6 * best[name] / ops:.1f}", f"{best[name] / best['recorded']:.2f} ×", *counts, size])
    header = ["", "µs an op", "against recording", "tensors by row", "digests, equal tensors once", "on disk"]
    return f"{ops:,} ops and events\n\n{table(header, rows)}"


def one_row() -> str:
    """Nanoseconds a row, for rows of several lengths."""
    rows = []
    for length in (16, 64, 256, 1024, 4096):
        count = max(1_000, (1 << 22) // length)
        data, best = bytes(count * length), float("inf")
        for _ in range(7):
            begin = time.thread_time()
            row_digests(data, "uint8", (count, length), 1, (0,))
            best = min(best, time.thread_time() - begin)
        rows.append([f"{length:,}", f"{1e9 * best / count:.0f}"])
    return table(["bytes a row", "ns a row"], rows)


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    torch.set_num_threads(1)
    print(machine())
    for name, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n### {name}\n\n{measure(program, Path(folder), options.repeats)}")
    print(f"\n### The digests alone\n\n{one_row()}")


if __name__ == "__main__":
    main()
