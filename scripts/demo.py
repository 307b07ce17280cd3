"""``make demo``: two runs that diverge because of a kernel, two that do not, and what rltrace says of them.

Records ``examples/ppo_cartpole.py`` (Stable-Baselines3 PPO) under two CPU kernel settings and once more unchanged, and
compares. Prints the commands it runs and what they print; ends with 1 when a verdict is not the expected one.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from kernel_probe import find_setting

ROOT = Path(__file__).parent.parent
OUT = Path("demo-out")
PROGRAM = "python examples/ppo_cartpole.py --default-init"
"""Orthogonal initialisation would diverge in the very first weights, before there is any training to see."""

DIVERGED, IDENTICAL = 1, 0


def shell(command: str, setting: str = "", quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run one command line as a reader would type it in the project's folder, after showing it."""
    name, _, value = setting.partition("=")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if name:
        environment[name] = value
    if quiet:
        return subprocess.run(
            shlex.split(command), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
    print(f"\n$ {f'{setting} ' if setting else ''}{command}", flush=True)
    return subprocess.run(shlex.split(command), env=environment, cwd=ROOT, text=True, check=False)


def record(trace: Path, setting: str = "") -> None:
    result = shell(f"rltrace record --force -o {trace} -- {PROGRAM}", setting)
    if result.returncode:
        sys.exit(f"the recording ended with status {result.returncode}")


def expect(what: str, held: bool) -> bool:
    print(f"{'as expected' if held else 'NOT AS EXPECTED'}: {what}", flush=True)
    return held


def compare(a: Path, b: Path, status: int, verdict: str, cause: str | None) -> bool:
    """Print the comparison for people, then check the machine-readable one."""
    shown = shell(f"rltrace diff {a} {b}")
    found = json.loads(shell(f"rltrace diff {a} {b} --format json", quiet=True).stdout)
    first = found["first_value"]
    held = expect(
        f"verdict {verdict}, exit status {status}", found["verdict"] == verdict and shown.returncode == status
    )
    if cause:
        held &= expect(f"cause {cause}", first is not None and first["cause"] == cause)
    return held


def main() -> int:
    OUT.mkdir(exist_ok=True)
    a, b, again = OUT / "a.zarr", OUT / "b.zarr", OUT / "again.zarr"

    print("Looking for a setting under which this processor computes other bits in the shapes of the example …")
    found = find_setting()
    record(a)
    held = True
    if found:
        setting, ops = found
        print(f"\n{setting} changes {len(ops)} of the probed ops: {', '.join(ops)}.")
        record(b, setting)
        held &= compare(a, b, DIVERGED, "diverged", "kernel")
        shell(f"rltrace report --force {a} {b} -o {OUT / 'report.html'}")
    else:
        print("\nNone of the settings changes a bit on this processor: there is no second machine to show here.")

    print("\nThe same program once more, with nothing changed:")
    record(again)
    held &= compare(a, again, IDENTICAL, "identical", None)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
