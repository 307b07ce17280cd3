"""What the profiler of ``record --kernels`` costs beside a recording, and how much memory its cycles take.

    python benchmarks/kernels_cost.py [--steps 1024] [--repeats 3]

Stable-Baselines3 PPO on CartPole with one thread, recorded with and without it, in separate processes run in turn; the
lowest processor time of each counts. The profiler looks at the CPU alone: what CUPTI and waiting for a device cost is
not in it. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys

from measure import PROGRAMS, Sample, machine, run, table

PROGRAM = str(PROGRAMS / "ppo_profiled.py")
CYCLES = (0, 4_096, 8_192, 16_384)


def row(cycle: int, samples: list[Sample], plain: float) -> list[object]:
    seconds = min(float(sample.report["thread"]) for sample in samples)
    best = min(samples, key=lambda sample: float(sample.report["peak_mib"])).report
    memory = f"{best['memory'][len(best['memory']) // 2]:.0f}, {best['memory'][-1]:.0f}, {best['peak_mib']:.0f}"
    if not cycle:
        return ["without", f"{seconds:.2f}", "1", memory, "", ""]
    rows = int(best["rows"])
    a_row = (seconds - plain) / rows * 1e6
    per_row = f"{best['bytes'] / rows:.3f}"
    return [f"{cycle:,} rows", f"{seconds:.2f}", f"{seconds / plain:.2f}", memory, f"{a_row:.0f}", per_row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    samples: dict[int, list[Sample]] = {cycle: [] for cycle in CYCLES}
    for number in range(options.repeats):
        for cycle, own in samples.items():
            print(f"round {number + 1} of {options.repeats}: {cycle}", file=sys.stderr)
            own.append(run([sys.executable, PROGRAM, str(options.steps), str(cycle)]))
    plain = min(float(sample.report["thread"]) for sample in samples[0])
    print(machine())
    header = ["cycle", "processor s", "×", "MiB: half way, end, peak", "µs a row", "bytes a row"]
    print(table(header, [row(cycle, own, plain) for cycle, own in samples.items()]))


if __name__ == "__main__":
    main()
