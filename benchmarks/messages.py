"""Random programs of several processes with one planted difference: does the process where it began lead?

    python benchmarks/messages.py [programs] [first seed]

Prints how many were right, and each that was not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

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


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
