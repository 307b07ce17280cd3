"""One op under every setting that can change its kernel on this machine: which of them gives whose bits.

Owns the grid of settings (one at a time, then two where no single one will do), and running the op under each, in a
process of its own, since most of them act when a process starts. The process is the script that ``rltrace repro``
writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.reexecute.verbose import parse

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

SAME_THING = frozenset({"threads", "OMP_NUM_THREADS"})
"""Two names of one setting."""

MOST_PAIRS = 24
"""Pairs that are tried: each takes the start of a process."""

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
    more: tuple[Setting, ...] = ()
    """What is set as well."""

    def __str__(self) -> str:
        own = f"{self.name}={self.value}" if self.value else self.name or "as it is here"
        return " and ".join([own, *map(str, self.more)])

    @property
    def options(self) -> tuple[str, ...]:
        if not self.name:
            return ()
        own = (f"--{DETERMINISTIC}",) if self.name == DETERMINISTIC else (OPTIONS[self.name], self.value)
        return (*own, *(option for other in self.more for option in other.options))


@dataclass(frozen=True)
class Tried:
    """What came out under one setting."""

    setting: Setting
    times: int
    results: tuple[tuple[tuple[str, ...], int, tuple[str, ...]], ...]
    """(digests, how often, whose result it is: of "a" and "b")."""
    trouble: str = ""
    """Why nothing did."""
    kernels: tuple[str, ...] = ()
    """What oneDNN and MKL said that they ran."""

    @property
    def outcomes(self) -> frozenset[tuple[str, ...]]:
        """All that came out."""
        return frozenset(digests for digests, _, _ in self.results)

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
    """``threads=1``, ``MKL_CBWR=AVX2``, ``deterministic``, several with commas between. Raises UsageError."""
    first, *more = (_parse_one(part.strip(), text) for part in text.split(","))
    names = [setting.name for setting in (first, *more)]
    if len(set(names)) < len(names):
        raise UsageError(f"--setting {text}: it sets something twice")
    return Setting(first.name, first.value, tuple(more))


def _parse_one(text: str, whole: str) -> Setting:
    name, _, value = text.partition("=")
    if text == DETERMINISTIC or (name in OPTIONS and value):
        return Setting(name, value)
    raise UsageError(f"--setting {whole}: write {DETERMINISTIC}, or NAME=VALUE with NAME one of {', '.join(OPTIONS)}")


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


def is_missing(side: str, tried: Sequence[Tried]) -> bool:
    """Whether nothing that was tried gave that side's result, not even now and then."""
    return not any(one.reaches(side) for one in tried)


def pairs(tried: Sequence[Tried]) -> list[Setting]:
    """Two settings at a time, where no single one gives what is looked for: at most MOST_PAIRS, the likeliest first.

    Likeliest are two that each changed the result. Of values of one setting that came to the same result the first
    stands for all.
    """
    here = next((one for one in tried if not one.setting.name), None)
    alone: dict[tuple[object, ...], Tried] = {}
    for one in tried:
        if one.setting.name and not one.setting.more and not one.trouble:
            alone.setdefault((one.setting.name, one.outcomes), one)
    changed = {str(one.setting): here is None or one.outcomes != here.outcomes for one in alone.values()}
    found = [
        (one.setting, other.setting)
        for one, other in combinations(alone.values(), 2)
        if one.setting.name != other.setting.name and not {one.setting.name, other.setting.name} <= SAME_THING
    ]
    found.sort(key=lambda two: -sum(changed[str(setting)] for setting in two))
    likely = [two for two in found if any(changed[str(setting)] for setting in two)]
    return [replace(one, more=(other,)) for one, other in likely[:MOST_PAIRS]]


def explain(
    script: Path, tries: Sequence[Setting], times: int, tell: Callable[[Setting], None] = lambda setting: None
) -> Iterator[Tried]:
    """Run a ``repro.py`` under each setting, one after the other; ``tell`` is called before each."""
    for setting in tries:
        tell(setting)
        yield _run(script, setting, times)


def _run(script: Path, setting: Setting, times: int) -> Tried:
    command = [sys.executable, str(script), "--json", "--kernels", "--times", str(times), *setting.options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said, brace, answer = (
        done.stdout.rpartition("\n{") if not done.stdout.startswith("{") else ("", "{", done.stdout[1:])
    )
    try:
        told: Any = json.loads(brace.strip() + answer)
        results = tuple(
            (tuple(map(str, result["digests"])), int(result["count"]), tuple(map(str, result["is"])))
            for result in told["results"]
        )
        return Tried(setting, int(told["times"]), results, kernels=parse(said.splitlines()).names)
    except (ValueError, KeyError, TypeError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return Tried(setting, 0, (), lines[-1] if lines else f"it ended with status {done.returncode}")
