"""What is run for one program of the matrix, and what came of it.

Owns the processes: the program recorded, unrecorded and under the oracle, each in an environment of its own. Everything
goes through the command line, as a person would do it; nothing of rltrace is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kept import Kept
from oracle_log import Difference, first_difference, noise

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
HELPERS = ("ending.py", "tiny_language.py")
"""Files there that are no programs."""
ORACLE = HERE.parents[1] / "tests" / "e2e" / "programs" / "oracle.py"
RLTRACE = Path(sys.executable).parent / "rltrace"

Result = subprocess.CompletedProcess[str]
Ending = tuple[int, list[str]]
"""Exit status, and the lines in which a program says what it computed."""


class ProgramFailedError(Exception):
    """A program of the matrix does not run here, recorded or not."""


@dataclass(frozen=True)
class Setting:
    """What stays the same between two unchanged runs."""

    hash_seed: str
    """PYTHONHASHSEED; empty: not set."""
    threads: int

    def __str__(self) -> str:
        return f"hash seed {self.hash_seed or 'unset'}, {self.threads} thread{'s' * (self.threads > 1)}"


SETTINGS = tuple(Setting(seed, threads) for threads in (1, 2) for seed in ("0", ""))
PLAIN = SETTINGS[0]
FEW = (SETTINGS[0], SETTINGS[-1])
"""Each hash seed and each thread count once."""


@dataclass(frozen=True)
class Unchanged:
    """Two recordings under one setting."""

    setting: str
    verdict: str
    why: str
    ops: int
    reordered: int
    marked: int
    """Ops that may have read memory that nothing had written."""
    marked_differing: int
    same_bits: bool
    """Whether both ended with the weights, generators and exit status of the unrecorded program."""
    complaints: tuple[str, ...]
    """What rltrace said on standard error besides its two lines."""


@dataclass(frozen=True)
class OtherKernels:
    """A recording under another CPU kernel setting against one without, and what the oracle says of the same."""

    setting: str
    verdict: str
    named: tuple[str, int] | None
    """(op, how many of its name ran before) of the first op whose values differ."""
    cause: str
    inputs_match: str
    place: str
    oracle: tuple[str, int] | None
    agrees: bool


@dataclass
class Findings:
    """All that is known of one program."""

    program: str
    library: str
    revision: str
    """Of rltrace."""
    oracle_noise: Mapping[str, int] = field(default_factory=dict)
    unchanged: list[Unchanged] = field(default_factory=list)
    kernels: list[OtherKernels] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


class Bench:
    """Runs one program in a folder of its own; what runs without rltrace is taken from ``kept`` where it is there."""

    def __init__(self, program: Path, folder: Path, kept: Path) -> None:
        self.program, self.folder = program, folder
        helpers = (PROGRAMS / name for name in HELPERS)
        self.kept = Kept(kept / program.stem, (program, ORACLE, *helpers))

    def run(self, command: list[object], setting: Setting, extra: str = "") -> Result:
        """Run a command under ``setting`` and one more NAME=VALUE."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment |= {"OMP_NUM_THREADS": str(setting.threads), "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
        environment["OMP_WAIT_POLICY"] = "passive"  # two programs run at a time: threads that wait must not spin
        if setting.hash_seed:
            environment["PYTHONHASHSEED"] = setting.hash_seed
        name, _, value = extra.partition("=")
        if name:
            environment[name] = value
        words = [str(word) for word in command]
        return subprocess.run(
            words,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def plain(self, setting: Setting) -> Ending:
        """How the program ends when nothing watches it."""

        def make(path: Path) -> None:
            result = self.run([sys.executable, self.program], setting)
            if result.returncode:
                raise ProgramFailedError(f"{self.program.name}: {result.stderr[-2000:]}")
            path.write_text("\n".join(_ending(result)[1]))

        return 0, self.kept.file(f"plain {setting}.txt", make).read_text().splitlines()

    def record(self, trace: str, setting: Setting, extra: str = "") -> Result:
        command = [RLTRACE, "record", "--force", "-o", trace, "--", sys.executable, self.program]
        return self.run(command, setting, extra)

    def diff(self, a: str, b: str) -> dict[str, Any]:
        result = self.run([RLTRACE, "diff", a, b, "--format", "json"], PLAIN)
        if not result.stdout:
            return {"verdict": f"no verdict: {result.stderr.strip()}", "why": "", "first_value": None}
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def oracle(self, extra: str) -> Path:
        """The oracle's log of a run under one more NAME=VALUE."""

        def make(path: Path) -> None:
            result = self.run([sys.executable, ORACLE, path, self.program], PLAIN, extra)
            if result.returncode:
                raise ProgramFailedError(f"{self.program.name} under the oracle: {result.stderr[-2000:]}")

        return self.kept.file(f"oracle {extra}.log", make)

    def nth(self, trace: str, op: str, row: int) -> int:
        """How many ops named ``op`` ran in the main stream before ``row``."""
        result = self.run([RLTRACE, "ops", trace, f"op={op},stream=rank0/main", "--format", "json"], PLAIN)
        return sum(json.loads(line)["row"] < row for line in result.stdout.splitlines())


def survey(bench: Bench, library: str, kernel_settings: tuple[str, ...], settings: tuple[Setting, ...]) -> Findings:
    """Run everything for one program; ``settings``: those under which it is to run unchanged, ``PLAIN`` first."""
    begin = time.perf_counter()
    found = Findings(bench.program.stem, library, revision())
    found.unchanged += _unchanged(bench, settings)
    logs = [bench.oracle(f"MALLOC_PERTURB_={byte}") for byte in (85, 170)]
    found.oracle_noise = asdict(noise(*logs))
    for setting in kernel_settings:
        found.kernels.append(_other_kernels(bench, setting, logs))
    found.seconds = time.perf_counter() - begin
    return found


def _unchanged(bench: Bench, settings: tuple[Setting, ...]) -> Iterator[Unchanged]:
    """Two recordings for each setting; those of the first one stay, as ``a.zarr`` and ``b.zarr``."""
    for setting in settings:
        names = ("a.zarr", "b.zarr") if setting == PLAIN else ("c.zarr", "d.zarr")
        expected = bench.plain(setting)
        results = [bench.record(name, setting) for name in names]
        diff = bench.diff(*names)
        yield Unchanged(
            setting=str(setting),
            verdict=diff["verdict"],
            why=diff["why"],
            ops=diff.get("a", {}).get("ops", 0),
            reordered=diff.get("structure", {}).get("reordered", 0),
            marked=diff.get("marked", {}).get("rows", 0),
            marked_differing=diff.get("marked", {}).get("differing", 0),
            same_bits=all(_ending(result) == expected for result in results),
            complaints=tuple(line for result in results for line in _complaints(result)),
        )


def _other_kernels(bench: Bench, setting: str, logs: list[Path]) -> OtherKernels:
    bench.record("k.zarr", PLAIN, setting)
    diff = bench.diff("a.zarr", "k.zarr")
    first = diff["first_value"]
    named = (first["op"], bench.nth("a.zarr", first["op"], first["a_index"])) if first else None
    right: Difference | None = first_difference(*logs, bench.oracle(setting))
    oracle = (right.op, right.nth) if right else None
    return OtherKernels(
        setting=setting,
        verdict=diff["verdict"],
        named=named,
        cause=first["cause"] if first else "",
        inputs_match=first["inputs_match"] if first else "",
        place=f"{first['site']['file']}:{first['site']['function']}" if first and first["site"] else "",
        oracle=oracle,
        agrees=named == oracle,
    )


def revision() -> str:
    """The commit of the checkout, with a ``+`` where something in it is not committed."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--abbrev=7", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _ending(result: Result) -> Ending:
    return result.returncode, [x for x in result.stdout.splitlines() if x.startswith(("weights ", "generators "))]


def _complaints(result: Result) -> list[str]:
    lines = [line for line in result.stderr.splitlines() if line.startswith(("rltrace:", "  hint:"))]
    return [line for line in lines if not line.startswith(("rltrace: recording to", "rltrace: recorded 1 process"))]
