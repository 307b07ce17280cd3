"""What every benchmark shares: its options, commands in fresh processes, medians, and tables that name the machine.

Owns no benchmark. Times are wall-clock seconds of separate processes, run in turn (A B C A B C …), so that a slow
minute of a shared machine falls on all of them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
RLTRACE = str(Path(sys.executable).parent / "rltrace")


def parse_options(doc: str | None, **options: Any) -> Namespace:
    """The options of a benchmark. Each has a default, whose type it takes, or a type; and perhaps a text of help."""
    parser = ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, option in options.items():
        default, text = option if isinstance(option, tuple) else (option, None)
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default, help=text)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=text)
    return parser.parse_args()


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """A folder that is empty, and removed at the end."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)


@dataclass(frozen=True)
class Sample:
    """One run of one command."""

    seconds: float
    """From before the spawn to the exit of the process."""
    report: Mapping[str, Any]
    """What the program wrote about itself; empty for programs that write nothing."""


class CommandFailedError(Exception):
    """A benchmark's command ended with a status other than 0."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Sample:
    """Run ``command`` with one thread; give back its time and what it wrote to ``$BENCH_REPORT``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "BENCH_REPORT": str(report),
            **(environment or {}),
        }
        begin = time.perf_counter()
        variables["BENCH_BEGIN"] = repr(time.time())
        result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        if result.returncode:
            raise CommandFailedError(f"status {result.returncode}: {' '.join(command)}\n{result.stderr[-2000:]}")
        return Sample(seconds, json.loads(report.read_text()) if report.exists() else {})


def in_turn(commands: Mapping[str, Sequence[str]], repeats: int) -> dict[str, list[Sample]]:
    """Every command ``repeats`` times, one after the other, round by round."""
    samples: dict[str, list[Sample]] = {arm: [] for arm in commands}
    for number in range(repeats):
        for arm, line in commands.items():
            print(f"round {number + 1} of {repeats}: {arm}", file=sys.stderr)
            samples[arm].append(run(line))
    return samples


def lowest(arms: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The lowest number that each arm gives, called in turn."""
    best = dict.fromkeys(arms, float("inf"))
    for _ in range(repeats):
        for name, arm in arms.items():
            best[name] = min(best[name], arm())
    return best


def middle(samples: Sequence[Sample], name: str | None = None) -> float:
    """Median of the wall-clock times, or of one number of the reports."""
    return median(float(s.report[name]) if name else s.seconds for s in samples)


def spread(samples: Sequence[Sample], name: str) -> str:
    """``lowest–highest`` of one number of the reports."""
    numbers = [float(s.report[name]) for s in samples]
    return f"{min(numbers):.2f}–{max(numbers):.2f}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def machine(libraries: Sequence[str] = ("torch", "numpy", "zarr", "stable-baselines3")) -> str:
    """One line: processor, cores, system, Python and library versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in libraries)
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {packages}, {time.strftime('%Y-%m-%d')}"
    )


def _processor() -> str:
    """The processor's name and its widest vector instructions, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    widest = next((isa for isa in ("amx_tile", "avx512f", "avx2") if isa in flags), "")
    return f"{facts.get('model name', platform.machine())} ({widest})"


def folder_size(folder: Path) -> tuple[int, int]:
    """(bytes, files) under ``folder``."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)
