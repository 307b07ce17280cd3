"""What the profiler of ``record --kernels`` costs beside a recording, and how much memory its cycles take.

    python benchmarks/kernels_cost.py [--steps 1024] [--repeats 3]

Stable-Baselines3 PPO on CartPole with one thread, recorded with and without it, in separate processes run in turn; the
lowest processor time of each counts. The profiler looks at the CPU alone: what CUPTI and waiting for a device cost is
not in it. Prints Markdown.
"""

from __future__ import annotations

import sys

from measure import PROGRAMS, Sample, in_turn, machine, parse_options, table

PROGRAM = str(PROGRAMS / "ppo_profiled.py")
CYCLES = ("0", "4096", "8192", "16384")
"""Rows; 0: no profiler."""


def row(cycle: str, samples: list[Sample], plain: float) -> list[object]:
    seconds = min(float(sample.report["thread"]) for sample in samples)
    best = min(samples, key=lambda sample: float(sample.report["peak_mib"])).report
    memory = f"{best['memory'][len(best['memory']) // 2]:.0f}, {best['memory'][-1]:.0f}, {best['peak_mib']:.0f}"
    if cycle == "0":
        return ["without", f"{seconds:.2f}", "1", memory, "", ""]
    rows = int(best["rows"])
    a_row = (seconds - plain) / rows * 1e6
    per_row = f"{best['bytes'] / rows:.3f}"
    return [f"{int(cycle):,} rows", f"{seconds:.2f}", f"{seconds / plain:.2f}", memory, f"{a_row:.0f}", per_row]


def main() -> None:
    options = parse_options(__doc__, steps=1024, repeats=3)
    commands = {cycle: [sys.executable, PROGRAM, str(options.steps), cycle] for cycle in CYCLES}
    samples = in_turn(commands, options.repeats)
    plain = min(float(sample.report["thread"]) for sample in samples["0"])
    print(machine())
    header = ["cycle", "processor s", "×", "MiB: half way, end, peak", "µs a row", "bytes a row"]
    print(table(header, [row(cycle, own, plain) for cycle, own in samples.items()]))


if __name__ == "__main__":
    main()
