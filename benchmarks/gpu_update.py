"""What recording costs an update on a GPU: PPO's, SAC's and a small transformer's. Prints Markdown.

python benchmarks/gpu_update.py [--updates 50] [--repeats 5] [--kernels]

An update natively, with its digests, and with ``--kernels`` also with the kernels of every op; in turn, ratios of
medians. Without a GPU it runs on the CPU, where neither says anything about one, and says so.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure import PROGRAMS, RLTRACE, Sample, in_turn, machine, middle, parse_options, table

UPDATES = ("ppo", "sac", "transformer")


def commands(which: str, updates: int, trace: Path, *, kernels: bool) -> dict[str, list[str]]:
    """By name, in the order in which they are told."""
    program = [sys.executable, str(PROGRAMS / "device_updates.py"), which, str(updates)]
    record = [RLTRACE, "record", "--quiet", "--force", "-o", str(trace)]
    found = {"native": program, "digests": [*record, "--", *program]}
    if kernels:
        found["digests and kernels"] = [*record, "--kernels", "all", "--", *program]
    return found


def main() -> None:
    options = parse_options(__doc__, updates=50, repeats=5, kernels=False)
    rows, device = [], ""
    for which in UPDATES:
        with tempfile.TemporaryDirectory() as folder:
            ways = commands(which, options.updates, Path(folder) / "a.zarr", kernels=options.kernels)
            samples = in_turn(ways, options.repeats)
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
    numbers = [1e3 * float(sample.report["update"]) for sample in samples]
    return f"{min(numbers):.2f}–{max(numbers):.2f}"


if __name__ == "__main__":
    main()
