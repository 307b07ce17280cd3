"""Forks children that compute without end, and kills each after a while that is drawn by chance.

python killed.py OUT KILLS AT_ONCE LONGEST PAUSE COMMIT_SECONDS SEED

Each runs two ops a round, PAUSE seconds apart, and notes when in memory that outlives it. The last child computes as
many rounds as the longest-lived of the others, and ends by itself. OUT: a JSON list, for each child its process id, the
moments of its rounds and of its death.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import torch

MOST = 1 << 16
"""Rounds that are noted."""
Child = tuple[int, mmap.mmap]


def compute(notes: mmap.mmap, rounds: int, pause: float) -> None:
    state = torch.ones(8)
    for done in range(rounds):
        state = state.mul(0.5).add(1.0)
        struct.pack_into("d", notes, 8 * done, time.monotonic())
        if pause:
            time.sleep(pause)


def start(rounds: int, pause: float) -> Child:
    notes = mmap.mmap(-1, 8 * (MOST + 1))
    pid = os.fork()
    if pid == 0:
        compute(notes, rounds, pause)
        os._exit(0)
    return pid, notes


def moments(notes: mmap.mmap) -> list[float]:
    found = struct.unpack(f"{MOST}d", notes[: 8 * MOST])
    return list(found[: found.index(0.0)])


def main() -> None:
    out, (kills, at_once), (longest, pause, commit_seconds) = (
        Path(sys.argv[1]),
        map(int, sys.argv[2:4]),
        map(float, sys.argv[4:7]),
    )
    if "rltrace.recorder.session.session" in sys.modules:
        from rltrace.recorder.base import background_thread

        background_thread.COMMIT_SECONDS = commit_seconds  # type: ignore[misc]
    generator, told = random.Random(sys.argv[7]), []
    for first in range(0, kills, at_once):
        children = [start(MOST, pause) for _ in range(min(at_once, kills - first))]
        began = time.monotonic()
        for (pid, notes), after in zip(children, sorted(generator.uniform(0, longest) for _ in children), strict=True):
            time.sleep(max(0.0, began + after - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            os.waitpid(pid, 0)
            told.append({"pid": pid, "killed": killed, "moments": moments(notes)})
    pid, notes = start(max(len(child["moments"]) for child in told) + 1, 0.0)
    os.waitpid(pid, 0)
    told.append({"pid": pid, "killed": None, "moments": moments(notes)})
    out.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
