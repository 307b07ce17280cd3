"""What SIGKILL costs: processes are killed at moments drawn by chance; each trace opens, and what is lost is counted.

python benchmarks/kills.py [--kills 200] [--at-once 20] [--folder bench-out]

Fails where the rows that are there are not the first rows of a run that nobody killed. Prints Markdown.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import PROGRAMS, RLTRACE, parse_options, table

from rltrace.trace.format.rows import Rows
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

ROUND = 2
"""Ops a round, after one that makes the state."""


@dataclass(frozen=True)
class Killed:
    """One process that was killed."""

    rows: int
    """That are in the trace; 0 where the process had not begun to record."""
    lost: int
    """Ops that had run, and are not."""
    seconds: float
    """How long before the kill the first of them had run; 0: none is lost."""


def check(trace: Path, told: Path) -> Iterator[Killed]:
    """What was lost of each process that was killed. Raises AssertionError where a trace is not a prefix."""
    opened = open_trace(trace)
    assert opened.holes == ()
    parts = {process.start_record["pid"]: process for process in opened.processes}
    *killed, whole = json.loads(told.read_text())
    reference = parts[whole["pid"]]
    assert reference.state == "complete", reference.why
    for child in killed:
        part = parts.get(child["pid"])
        rows = 0 if part is None else same_rows(part, reference)
        ran = ROUND * len(child["moments"]) + (1 if child["moments"] else 0)
        first_lost = max(0, (rows - 1) // ROUND)
        lost = max(0, ran - rows)
        yield Killed(rows, lost, child["killed"] - child["moments"][first_lost] if lost else 0.0)


def same_rows(part: ProcessTrace, reference: ProcessTrace) -> int:
    """How many rows a killed process has; all of them are as in the other one."""
    assert part.state == "killed", (part.name, part.state, part.why)
    (whole,) = reference.streams
    for stream in part.streams:
        assert stream.rows <= whole.rows
        assert are_equal(stream.read(0, stream.rows), whole.read(0, stream.rows)), part.name
    return part.after_op


def are_equal(rows: Rows, others: Rows) -> bool:
    """Whether rows have the same columns and cells."""
    parts = ("columns", "links", "integers", "floats", "digests")
    return all(np.array_equal(getattr(rows, part), getattr(others, part)) for part in parts)


def run(folder: Path, kills: int, at_once: int, longest: float, pause: float, commit: float, seed: int) -> list[Killed]:
    """Record the program and check what it left."""
    trace, told = folder / "kills.zarr", folder / "kills.json"
    shutil.rmtree(trace, ignore_errors=True)
    words = [RLTRACE, "record", "--quiet", "-o", trace, "--", sys.executable, PROGRAMS / "killed.py", told]
    numbers = (kills, at_once, longest, pause, commit, seed)
    subprocess.run([*map(str, words), *map(str, numbers)], check=True)
    return list(check(trace, told))


def main() -> None:
    longest = (15.0, "seconds until the last of them is killed")
    options = parse_options(__doc__, kills=200, at_once=20, longest=longest, folder=Path("bench-out"))
    options.folder.mkdir(parents=True, exist_ok=True)
    found = run(options.folder, options.kills, options.at_once, options.longest, 0.004, 5.0, 0)
    seconds = [killed.seconds for killed in found]
    print(f"{len(found)} processes killed within {options.longest:g} s of their start; every trace is a prefix.\n")
    lines = [
        ["killed before their first commit", sum(not killed.rows for killed in found)],
        ["rows lost, at most", f"{max(killed.lost for killed in found):,}"],
        ["seconds lost, at most", f"{max(seconds):.2f}"],
        ["seconds lost, median", f"{np.median(seconds):.2f}"],
    ]
    print(table(["", ""], lines))


if __name__ == "__main__":
    main()
