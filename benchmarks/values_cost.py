"""What values and repeated ops cost a recording, and what values cost a replay.

    python benchmarks/values_cost.py [--repeats 7]

A small training program, in turn recorded, recorded with values, and replayed with values of itself injected, in one
process with one thread; the lowest time of each counts, by the clock of that thread alone, so that a busy machine shows
less (what the thread behind it writes and compresses is not in it). Prints Markdown.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import lowest, machine, parse_options, table

import rltrace
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session.session import recording
from rltrace.rerun.account import Account, account_in
from rltrace.rerun.plan import compile_of, window_of
from rltrace.rerun.values import attach_by, values_provider
from rltrace.trace.read.reader import open_trace

OTHER = "replayed, everything injected, of another seed: a lockstep that replaces what the seed made"
Block = Callable[[Path], AbstractContextManager[Any]]

STEPS = (0, 1 << 20)
"""A window that holds everything."""


@contextmanager
def replay_block(source: Path, inject: str, path: Path, **more: bool) -> Iterator[Path]:
    """Record the block's ops at ``path``, with values of ``source`` at the ops that ``inject`` finds."""
    trace = open_trace(source)
    level, steps = window_of(trace)
    options = RecordOptions(
        str(path),
        level=level,
        steps=steps,
        compile=compile_of(trace),
        replay=str(source),
        inject=(inject,),
        **more,
    )
    with recording(options, force=True, attach=attach_by([values_provider(options)])):
        yield path


def program(seed: int = 0) -> None:
    """Sixty updates of two layers by Adam."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters())
    batch = torch.randn(32, 8)
    for _ in range(60):
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def seconds(block: AbstractContextManager[Any], seed: int = 0) -> float:
    with block as replay:
        begin = time.thread_time()
        program(seed)
        taken = time.thread_time() - begin
    if replay is not None:
        account = account_in(open_trace(replay).processes[0], "values", Account)
        if account is None or not account.complete:
            raise SystemExit(f"not everything was injected: {account and account.missed[0]}")
    return taken


def main() -> None:
    options = parse_options(__doc__, repeats=7)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source, read = Path(folder, "a.zarr"), Path(folder, "read.zarr")
        blocks: dict[str, Block] = {
            "recorded": lambda path: rltrace.record(path, force=True),
            "with a selector that finds nothing": lambda path: rltrace.record(path, values="op=nosuch", force=True),
            "with values of one operator": lambda path: rltrace.record(path, values="op=addmm", force=True),
            "with all values": lambda path: rltrace.record(path, values="all", force=True),
            "with all values and inputs": lambda path: rltrace.record(
                source, values="all", values_inputs=True, force=True
            ),
            "with all values, and every input read": lambda path: rltrace.record(
                read, steps=STEPS, verify_inputs=True, values="all", values_inputs=True, force=True
            ),
            "with each op called once more": lambda path: rltrace.record(path, repeat=1, force=True),
            "with each op called 8 times more": lambda path: rltrace.record(path, repeat=8, force=True),
            "replayed, one operator injected": lambda path: replay_block(source, "op=addmm", path),
            "replayed, everything injected": lambda path: replay_block(source, "all", path),
            OTHER: lambda path: replay_block(source, "all", path, lockstep=True),
            "replayed, everything injected, only at origins": lambda path: replay_block(
                read, "all", path, origins=True
            ),
        }

        def arm(name: str) -> float:
            return seconds(blocks[name](Path(folder, "b.zarr")), seed=int(name == OTHER))

        best = lowest({name: partial(arm, name) for name in blocks}, options.repeats)
        process = open_trace(source).processes[0]
        ops = process.after_op
        plain = best["recorded"]
        print(machine())
        print(f"{ops:,} ops, {len(process.values):,} values of {process.values.nbytes:,} bytes in all\n")
        rows = [[name, f"{1e6 * best[name] / ops:.1f}", f"{best[name] / plain:.2f} ×"] for name in blocks]
        print(table(["", "µs an op", "against recording"], rows))


if __name__ == "__main__":
    main()
