"""One op under every setting that can change its kernel on this machine: which of them gives whose bits.

Owns the grid of settings, and running the op under each, in a process of its own, since most of them act when a process
starts. The process is the script that ``rltrace repro`` writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError

OPTIONS: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "--cpu-capability",
    "MKL_CBWR": "--mkl-cbwr",
    "ONEDNN_MAX_CPU_ISA": "--onednn-isa",
    "OMP_NUM_THREADS": "--omp-threads",
    "threads": "--threads",
    "tf32": "--tf32",
}
"""What can be set to a value, and the script's option for it."""

DETERMINISTIC = "deterministic"

INSTRUCTIONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "ATEN_CPU_CAPABILITY": (("default", ""), ("avx2", "avx2"), ("avx512", "avx512f")),
    "MKL_CBWR": (("COMPATIBLE", ""), ("AVX2", "avx2"), ("AVX512", "avx512f")),
    "ONEDNN_MAX_CPU_ISA": (("SSE41", ""), ("AVX2", "avx2"), ("AVX512_CORE", "avx512f")),
}
"""Values of each variable, and what the processor must have for one to be worth a try."""


@dataclass(frozen=True)
class Setting:
    """One way to run the op; a name without a value stands for a switch. Empty: as it is here."""

    name: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name or "as it is here"

    @property
    def options(self) -> tuple[str, ...]:
        if not self.name:
            return ()
        return (f"--{DETERMINISTIC}",) if self.name == DETERMINISTIC else (OPTIONS[self.name], self.value)


@dataclass(frozen=True)
class Tried:
    """What came out under one setting."""

    setting: Setting
    times: int
    results: tuple[tuple[tuple[str, ...], int, tuple[str, ...]], ...]
    """(digests, how often, whose result it is: of "a" and "b")."""
    trouble: str = ""
    """Why nothing did."""

    @property
    def repeats(self) -> bool | None:
        return len(self.results) == 1 if self.times > 1 else None

    def gives(self, side: str) -> bool:
        """Whether it always gave that side's result."""
        return len(self.results) == 1 and side in self.results[0][2]

    def reaches(self, side: str) -> bool:
        """Whether it ever did."""
        return any(side in whose for _, _, whose in self.results)


def parse_setting(text: str) -> Setting:
    """``threads=1``, ``MKL_CBWR=AVX2``, ``deterministic``. Raises UsageError."""
    name, _, value = text.partition("=")
    if text == DETERMINISTIC or (name in OPTIONS and value):
        return Setting(name, value)
    raise UsageError(f"--setting {text}: write {DETERMINISTIC}, or NAME=VALUE with NAME one of {', '.join(OPTIONS)}")


def settings(processor: Iterable[str], threads: Iterable[int | None], *, on_gpu: bool) -> list[Setting]:
    """Everything worth a try: ``processor`` names what it has (``avx2``), ``threads`` what was recorded."""
    has = {"", *processor}
    cores = os.cpu_count() or 1
    counts = sorted({1, cores, *(count for count in threads if count)})
    found = [Setting(), *(Setting("threads", str(count)) for count in counts), Setting(DETERMINISTIC)]
    if on_gpu:
        return [*found, Setting("tf32", "on"), Setting("tf32", "off")]
    return found + [
        Setting(variable, value) for variable, values in INSTRUCTIONS.items() for value, needs in values if needs in has
    ]


def explain(
    script: Path, tries: Sequence[Setting], times: int, tell: Callable[[Setting], None] = lambda setting: None
) -> Iterator[Tried]:
    """Run a ``repro.py`` under each setting, one after the other; ``tell`` is called before each."""
    for setting in tries:
        tell(setting)
        yield _run(script, setting, times)


def _run(script: Path, setting: Setting, times: int) -> Tried:
    command = [sys.executable, str(script), "--json", "--times", str(times), *setting.options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        told: Any = json.loads(done.stdout)
        results = tuple(
            (tuple(map(str, result["digests"])), int(result["count"]), tuple(map(str, result["is"])))
            for result in told["results"]
        )
        return Tried(setting, int(told["times"]), results)
    except (ValueError, KeyError, TypeError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return Tried(setting, 0, (), lines[-1] if lines else f"it ended with status {done.returncode}")
