"""What recording to a URL costs the program, on a good, a slow and a dead network. Prints Markdown.

python benchmarks/upload_cost.py [--steps 2048] [--repeats 5]

Stable-Baselines3 PPO on CartPole, recorded by the native engine into a folder, and to a store on this machine, in turn.
The store and the way to it take processor time of the same machine, as the uploader does, which a real store would not.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import RLTRACE, Sample, machine, middle, run, spread, table
from network import started, variables
from record_cost import PROGRAM, PYTHON

NATIVE, FOLDER, GOOD, SLOW, DEAD = "unrecorded", "into a folder", "to a URL, good", "to a URL, slow", "to a URL, dead"
SLOW_RATE, SLOW_DELAY = 200_000, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2048, help="environment steps; about 100 ops each")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rltrace-bench-"))
    try:
        print(report(options.steps, options.repeats, folder))
    finally:
        shutil.rmtree(folder)


def report(steps: int, repeats: int, folder: Path) -> str:
    program = [PYTHON, PROGRAM, str(steps)]
    samples: dict[str, list[Sample]] = {arm: [] for arm in (NATIVE, FOLDER, GOOD, SLOW, DEAD)}
    with (
        started("store", folder / "store") as store,
        started("way", store, "--rate", SLOW_RATE, "--delay", SLOW_DELAY) as slow,
    ):
        for number in range(repeats):
            for arm, found in samples.items():
                place = Path(folder, f"{arm.replace(' ', '-')}-{number}.zarr")
                port = {GOOD: store, SLOW: slow}.get(arm, 9)  # nothing listens on port 9
                found.append(once(arm, program, place, variables(port)))
    weights = {sample.report["weights"] for found in samples.values() for sample in found}
    return "\n\n".join(
        [
            f"Machine: {machine()}. {steps:,} environment steps, {repeats} processes an arm, in turn.",
            f"Final weights equal in all {len(samples)} arms: {'yes' if len(weights) == 1 else 'NO'}.",
            time_table(samples),
        ]
    )


def once(arm: str, program: Sequence[str], trace: Path, store: Mapping[str, str]) -> Sample:
    if arm == NATIVE:
        return run(program)
    where = str(trace) if arm == FOLDER else f"s3://bucket/{trace.name}"
    shell = 'cd "$0" && exec "$@"'  # where the local trace is written
    command = ["sh", "-c", shell, str(trace.parent), RLTRACE, "record", "--engine", "native", "-o", where]
    return run([*command, "--", *program], store)


def time_table(samples: Mapping[str, Sequence[Sample]]) -> str:
    """One line per arm: seconds of ``learn()`` and of the whole command, against a recording into a folder."""
    learn, whole = middle(samples[FOLDER], "learn"), middle(samples[FOLDER])
    rows = [
        [
            arm,
            f"{middle(found, 'learn'):.2f} ({spread(found, 'learn')})",
            f"{middle(found, 'learn') / learn:.2f}",
            f"{middle(found):.1f}",
            f"{middle(found) / whole:.2f}",
        ]
        for arm, found in samples.items()
    ]
    return table(["recorded", "`learn()`, s (lowest–highest)", "× folder", "whole command, s", "× folder"], rows)


if __name__ == "__main__":
    main()
