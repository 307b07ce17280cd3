"""Runs one op under every setting that can change its kernel on this machine, and compares the bits with A's and B's.

Each setting (then pairs, if no single one suffices) gets a separate process, as most settings take effect when a
process starts: the script that ``rltrace repro`` writes. ``kernel_settings`` lists the settings.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

from rltrace.extensions.repro.kernel_settings import OF, KernelSetting
from rltrace.json import from_json
from rltrace.rerun.library_output import parse

SAME_THING = (frozenset({"threads", "OMP_NUM_THREADS"}), frozenset({"tf32", "NVIDIA_TF32_OVERRIDE"}))
"""Different names of one setting."""

MAX_PAIRS = 24
"""Pairs that are tried at most; each starts a process."""


@dataclass(frozen=True)
class TriedResult:
    """What some of the calls gave."""

    digests: tuple[str, ...]
    count: int
    of: tuple[str, ...]
    """Whose result it is: of "a" and "b"."""


@dataclass(frozen=True)
class Tried:
    """The results under one setting."""

    COMPUTED: ClassVar = ("repeats", "first_differs", "gives")

    setting: KernelSetting
    times: int
    results: tuple[TriedResult, ...]
    """In the order in which they first came."""
    trouble: str = ""
    """Why there are no results."""
    kernels: tuple[str, ...] = ()
    """Kernels that oneDNN and MKL reported, or full names of those launched on a GPU."""

    @property
    def outcomes(self) -> frozenset[tuple[str, ...]]:
        """All that came out."""
        return frozenset(result.digests for result in self.results)

    @property
    def repeats(self) -> bool | None:
        """Whether every call gave the same; None: there was one."""
        return len(self.results) == 1 if self.times > 1 else None

    @property
    def first_differs(self) -> bool:
        """Whether the first call gave a result that no later one gave, and these were equal."""
        return len(self.results) == 2 and self.results[0].count == 1 < self.results[1].count

    @property
    def gives(self) -> tuple[str, ...]:
        """The sides whose result every call gave, but for a first one that differs."""
        results = self.results[self.first_differs :]
        return results[0].of if len(results) == 1 else ()

    def reaches(self, side: str) -> bool:
        """Whether it ever did."""
        return any(side in result.of for result in self.results)


def is_missing(side: str, tried: Sequence[Tried]) -> bool:
    """Whether no call under any setting gave that side's result."""
    return not any(one.reaches(side) for one in tried)


def pairs(tried: Sequence[Tried]) -> list[KernelSetting]:
    """Pairs of settings to try if no single one suffices: at most MAX_PAIRS, the likeliest first.

    Likeliest are two that each changed the result. Among values of one setting with equal results, only the first is
    used.
    """
    unchanged = next((one for one in tried if not one.setting.name), None)
    by_result: dict[tuple[object, ...], Tried] = {}
    for one in tried:
        if one.setting.name not in ("", OF) and not one.setting.more and not one.trouble:
            by_result.setdefault((one.setting.name, one.outcomes), one)
    changed = {str(one.setting): unchanged is None or one.outcomes != unchanged.outcomes for one in by_result.values()}
    found = [
        (one.setting, other.setting)
        for one, other in combinations(by_result.values(), 2)
        if one.setting.name != other.setting.name
        and not any({one.setting.name, other.setting.name} <= same for same in SAME_THING)
    ]
    found.sort(key=lambda two: -sum(changed[str(setting)] for setting in two))
    likely = [two for two in found if any(changed[str(setting)] for setting in two)]
    return [replace(one, more=(other,)) for one, other in likely[:MAX_PAIRS]]


def explain(
    script: Path,
    tries: Sequence[KernelSetting],
    times: int,
    on_setting: Callable[[KernelSetting], None] = lambda setting: None,
) -> Iterator[Tried]:
    """Run a ``repro.py`` under each setting, one after the other; ``on_setting`` is called after each."""
    for setting in tries:
        tried = try_setting(script, setting, times)
        on_setting(setting)
        yield tried


def try_setting(script: Path, setting: KernelSetting, times: int) -> Tried:
    """Run a ``repro.py`` under one setting."""
    command = [sys.executable, str(script), "--json", "--kernels", "--times", str(times), *setting.options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    output, brace, answer = (
        process.stdout.rpartition("\n{") if not process.stdout.startswith("{") else ("", "{", process.stdout[1:])
    )
    try:
        reply: Any = json.loads(brace.strip() + answer)
        results = from_json(tuple[TriedResult, ...], reply["results"])
        launched = tuple(map(str, reply["here"].get("kernels", ())))
        return Tried(setting, int(reply["times"]), results, kernels=launched or parse(output.splitlines()).names)
    except (ValueError, KeyError, TypeError):
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        return Tried(setting, 0, (), lines[-1] if lines else f"it ended with status {process.returncode}")
