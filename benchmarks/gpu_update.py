"""What recording costs an update on a GPU: PPO's, SAC's and a small transformer's. Prints Markdown.

python benchmarks/gpu_update.py [--updates 50] [--repeats 5] [--kernels]

An update natively, with its digests, and with ``--kernels`` also with the kernels of every op; in turn, ratios of
medians. Without a GPU it runs on the CPU, where neither says anything about one, and says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import PROGRAMS, RLTRACE, Sample, machine, middle, run, spread, table

UPDATES = ("ppo", "sac", "transformer")


def commands(which: str, updates: int, trace: Path, *, kernels: bool) -> dict[str, list[str]]:
    """By name, in the order in which they are told."""
    program = [sys.executable, str(PROGRAMS / "device_updates.py"), which, str(updates)]
    record = [RLTRACE, "record", "--quiet", "--force", "-o", str(trace)]
    found = {"native": program, "digests": [*record, "--", *program]}
    if kernels:
        found["digests and kernels"] = [*record, "--kernels", "all", "--", *program]
    return found


def measured(which: str, updates: int, repeats: int, *, kernels: bool) -> dict[str, list[Sample]]:
    with tempfile.TemporaryDirectory() as folder:
        ways = commands(which, updates, Path(folder) / "a.zarr", kernels=kernels)
        samples: dict[str, list[Sample]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, command in ways.items():
                samples[name].append(run(command))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernels", action="store_true")
    options = parser.parse_args()
    rows, device = [], ""
    for which in UPDATES:
        samples = measured(which, options.updates, options.repeats, kernels=options.kernels)
        native = middle(samples["native"], "update")
        device = str(samples["native"][0].report["device"])
        weights = {sample.report["weights"] for each in samples.values() for sample in each}
        for name, each in samples.items():
            median = middle(each, "update")
            same = "yes" if len(weights) == 1 else "no"
            rows.append([which, name, f"{median * 1e3:.2f}", f"{median / native:.2f}", spread_ms(each), same])
    print(f"Machine: {machine()}. Updates ran on {device}.\n")
    print(table(["update", "recorded", "ms", "× native", "ms, lowest–highest", "same weights"], rows))


def spread_ms(samples: list[Sample]) -> str:
    scaled = [Sample(s.seconds, {"ms": 1e3 * float(s.report["update"])}) for s in samples]
    return spread(scaled, "ms")


if __name__ == "__main__":
    main()
