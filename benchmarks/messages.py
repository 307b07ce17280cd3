"""Random programs of several processes with one planted difference: does the process where it began lead?

    python benchmarks/messages.py [programs] [first seed]
    python benchmarks/messages.py --cost [round trips]

Prints how many were right, and each that was not; or what recording adds to a message.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import measure
from measure import PROGRAMS, RLTRACE, in_turn, middle, table
from message_programs import run

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict


def main(programs: int = 1_000, first: int = 0) -> None:
    wrong = alarms = 0
    for seed in range(first, first + programs):
        with tempfile.TemporaryDirectory() as folder:
            a, same = run(Path(folder, "a.zarr"), seed), run(Path(folder, "same.zarr"), seed)
            alarms += compare(a.path, same.path).verdict is not Verdict.IDENTICAL
            planted = sorted(a.computed)[seed % len(a.computed)]
            found = compare(a.path, run(Path(folder, "b.zarr"), seed, planted).path)
            first_found = found.decisive and (found.decisive.stream, found.decisive.a_index)
            if first_found != planted or found.unordered:
                wrong += 1
                print(f"seed {seed}: planted in {planted}, found {first_found}, unordered {len(found.unordered)}")
    print(f"{programs:,} programs: {wrong} where another process led, {alarms} false differences")


def cost(count: int = 20_000, repeats: int = 3) -> str:
    """A table of what a message between two processes takes, unrecorded and recorded."""
    program = [sys.executable, str(PROGRAMS / "round_trips.py"), str(count)]
    with tempfile.TemporaryDirectory() as folder:
        options = {level: ["--force", "-o", f"{folder}/{level}.zarr", "--level", level] for level in ("step", "op")}
        recorded = {level: [RLTRACE, "record", *own, "--", *program] for level, own in options.items()}
        samples = in_turn({"unrecorded": program, **recorded}, repeats)
    rows = []
    for name in samples["op"][0].report:
        plain, step, op = (middle(taken, name) for taken in samples.values())
        rows.append([name, f"{plain:.1f}", f"{step:.1f} ({step / plain:.2f} ×)", f"{op:.1f} ({op / plain:.2f} ×)"])
    return table(["µs a message", "unrecorded", "`--level step`", "`--level op`"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cost"]:
        print(measure.machine(), cost(*map(int, sys.argv[2:])), sep="\n\n")
    else:
        main(*map(int, sys.argv[1:]))
