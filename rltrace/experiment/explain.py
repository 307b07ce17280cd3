"""One op under every setting that can change its kernel on this machine: which of them gives whose bits.

Owns running the op under each (one at a time, then two where no single one will do), in a process of its own, since
most of them act when a process starts. The process is the script that ``rltrace repro`` writes; which settings there
are is for ``settings`` to say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

from rltrace.experiment.kernel_settings import OF, KernelSetting
from rltrace.json import from_json
from rltrace.rerun_op.library_output import parse

SAME_THING = (frozenset({"threads", "OMP_NUM_THREADS"}), frozenset({"tf32", "NVIDIA_TF32_OVERRIDE"}))
"""Names of one setting."""

MOST_PAIRS = 24
"""Pairs that are tried: each takes the start of a process."""


@dataclass(frozen=True)
class TriedResult:
    """What some of the calls gave."""

    digests: tuple[str, ...]
    count: int
    of: tuple[str, ...]
    """Whose result it is: of "a" and "b"."""


@dataclass(frozen=True)
class Tried:
    """What came out under one setting."""

    COMPUTED: ClassVar = ("repeats",)

    setting: KernelSetting
    times: int
    results: tuple[TriedResult, ...]
    trouble: str = ""
    """Why nothing did."""
    kernels: tuple[str, ...] = ()
    """What oneDNN and MKL said that they ran, or whole names of what was launched on a GPU."""

    @property
    def outcomes(self) -> frozenset[tuple[str, ...]]:
        """All that came out."""
        return frozenset(result.digests for result in self.results)

    @property
    def repeats(self) -> bool | None:
        """Whether every call gave the same; None: there was one."""
        return len(self.results) == 1 if self.times > 1 else None

    def gives(self, side: str) -> bool:
        """Whether it always gave that side's result."""
        return len(self.results) == 1 and side in self.results[0].of

    def reaches(self, side: str) -> bool:
        """Whether it ever did."""
        return any(side in result.of for result in self.results)


def is_missing(side: str, tried: Sequence[Tried]) -> bool:
    """Whether nothing that was tried gave that side's result, not even now and then."""
    return not any(one.reaches(side) for one in tried)


def pairs(tried: Sequence[Tried]) -> list[KernelSetting]:
    """Two settings at a time, where no single one gives what is looked for: at most MOST_PAIRS, the likeliest first.

    Likeliest are two that each changed the result. Of values of one setting that came to the same result the first
    stands for all.
    """
    here = next((one for one in tried if not one.setting.name), None)
    alone: dict[tuple[object, ...], Tried] = {}
    for one in tried:
        if one.setting.name not in ("", OF) and not one.setting.more and not one.trouble:
            alone.setdefault((one.setting.name, one.outcomes), one)
    changed = {str(one.setting): here is None or one.outcomes != here.outcomes for one in alone.values()}
    found = [
        (one.setting, other.setting)
        for one, other in combinations(alone.values(), 2)
        if one.setting.name != other.setting.name
        and not any({one.setting.name, other.setting.name} <= same for same in SAME_THING)
    ]
    found.sort(key=lambda two: -sum(changed[str(setting)] for setting in two))
    likely = [two for two in found if any(changed[str(setting)] for setting in two)]
    return [replace(one, more=(other,)) for one, other in likely[:MOST_PAIRS]]


def explain(
    script: Path,
    tries: Sequence[KernelSetting],
    times: int,
    tell: Callable[[KernelSetting], None] = lambda setting: None,
) -> Iterator[Tried]:
    """Run a ``repro.py`` under each setting, one after the other; ``tell`` is called before each."""
    for setting in tries:
        tell(setting)
        yield _run(script, setting, times)


def _run(script: Path, setting: KernelSetting, times: int) -> Tried:
    command = [sys.executable, str(script), "--json", "--kernels", "--times", str(times), *setting.options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said, brace, answer = (
        done.stdout.rpartition("\n{") if not done.stdout.startswith("{") else ("", "{", done.stdout[1:])
    )
    try:
        told: Any = json.loads(brace.strip() + answer)
        results = from_json(tuple[TriedResult, ...], told["results"])
        launched = tuple(map(str, told["here"].get("kernels", ())))
        return Tried(setting, int(told["times"]), results, kernels=launched or parse(said.splitlines()).names)
    except (ValueError, KeyError, TypeError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return Tried(setting, 0, (), lines[-1] if lines else f"it ended with status {done.returncode}")
