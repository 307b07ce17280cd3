"""Programs of several processes with one change in one of them: does the finding that leads stand where it was planted?

    python benchmarks/verdicts/planted.py [--out verdicts-out/several] [--table] [PROGRAM …]

Every program of ``several/`` is recorded twice unchanged and once with each of its changes (the variable ``PLANT``),
and compared with the first. Findings go to ``OUT/PROGRAM.json``; the table is made of all that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from measure import RLTRACE, machine, table  # noqa: E402

PROGRAMS = HERE / "several"


@dataclass(frozen=True)
class Expected:
    """What has to lead."""

    cause: str
    """A regular expression, as the others."""
    stream: str
    says: str
    """In the explanation or the line of the program."""


MAIN = "rank0/main"
WORKER = r"rank0/(worker|pool|child).*"

EXPECTED: Mapping[str, Mapping[str, Expected]] = {
    "torch_loader": {
        "worker": Expected("arguments", WORKER, r"0\.1 in A, 0\.2 in B"),
        "learner": Expected("arguments", MAIN, r"value=-0\.1\d* in A, -0\.2"),
    },
    "torchrl_parallel": {
        "worker": Expected("outside", WORKER, "was reset with seed"),
        "learner": Expected("outside", MAIN, "is 0.95 in A, 0.9 in B"),
    },
    "torchrl_collectors": {
        "worker": Expected("outside|rng", WORKER, "seed"),
        "learner": Expected("arguments", MAIN, r"value=-0\.1\d* in A, -0\.2"),
    },
    "tianshou_subproc": {
        "worker": Expected("control-flow", WORKER, r"only A resets environment 0 .* with seed \d here"),
        "reward": Expected("outside", WORKER, "another reward at its step 1, given the same action"),
        "learner": Expected("arguments|outside", MAIN, ""),
    },
    "envpool_ppo": {
        "worker": Expected("outside", MAIN, "was reset with seed 3 in A and seed 42 in B"),  # EnvPool's default
        "learner": Expected("arguments", MAIN, r"value=-0\.1\d* in A, -0\.2"),
    },
    "sample_factory_appo": {
        "worker": Expected("rng", WORKER, "in A its generator was seeded with 4"),
        "space": Expected("control-flow", WORKER, "action_space.seed"),
        "learner": Expected("arguments", WORKER, r"value=-0\.01\d* in A, -0\.02"),
    },
    "trl_workers": {
        "worker": Expected("outside|arguments|control-flow", "rank0/.*", ""),
        "learner": Expected("arguments", MAIN, "0.1"),
    },
    "rllib_ppo": {
        "runner": Expected("outside", "rank0/.*Runner.*", "another reward at its step 1, given the same action"),
        "learner": Expected("outside", "rank0/ray:_WrappedExecutable", "became a tensor"),  # its learner
        "driver": Expected("arguments", MAIN, r"1\.0 in A, 1\.001 in B"),
    },
}

NEED_OLDER = frozenset({"sample_factory_appo"})
"""Programs whose library does not run with the current NumPy; an older one is in the folder ``older``."""


@dataclass(frozen=True)
class Row:
    """One comparison."""

    change: str
    verdict: str
    cause: str
    op: str
    stream: str
    explanation: str
    """With the line of the program."""
    same_bits: bool = True
    """Of unchanged runs: whether recorded and unrecorded ones ended with the same weights and status."""

    def is_right(self, expected: Mapping[str, Expected]) -> bool:
        """Whether the finding is what had to lead."""
        if self.change not in expected:
            return self.same_bits and self.verdict in ("identical", "same-values")
        one = expected[self.change]
        found = ((one.cause, self.cause), (one.stream, self.stream))
        return all(re.fullmatch(*pair) for pair in found) and bool(re.search(one.says, self.explanation))


def run(program: str, folder: Path) -> list[Row]:
    """All comparisons of one program."""
    outputs = [_output([sys.executable], program, "", folder)]
    changes = EXPECTED[program]
    for name, change in {"a": "", "b": "", **{each: each for each in changes}}.items():
        command = [RLTRACE, "record", "--force", "-o", f"{name}.zarr", "--", sys.executable]
        outputs.append(_output(command, program, change, folder))
    same_bits = outputs[0] == outputs[1] == outputs[2]
    return [_row(folder, "b", same_bits=same_bits), *(_row(folder, change) for change in changes)]


def _row(folder: Path, change: str, *, same_bits: bool = True) -> Row:
    found = _diff(folder, change)
    lead = found["decisive"] or {"cause": "", "op": "", "stream": "", "explanation": found["why"]}
    text = f"{lead['explanation']} {(lead.get('site') or {}).get('source', '')}"
    name = "none" if change == "b" else change
    return Row(name, found["verdict"], lead["cause"], str(lead["op"]), lead["stream"], text, same_bits)


def _output(command: list[str], program: str, change: str, folder: Path) -> tuple[int, list[str]]:
    older = [str(Path(sys.prefix) / "older")] * (program in NEED_OLDER)
    path = os.pathsep.join([*older, str(HERE / "programs"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "PLANT": change}
    variables.pop("PYTHONHASHSEED", None)
    result = subprocess.run(
        [*command, str(PROGRAMS / f"{program}.py")],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        print(result.stderr[-2000:], file=sys.stderr)
    return result.returncode, [line for line in result.stdout.splitlines() if line.startswith("weights ")]


def _diff(folder: Path, name: str) -> dict[str, Any]:
    command = [RLTRACE, "diff", "a.zarr", f"{name}.zarr", "--format", "json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not result.stdout:
        return {"verdict": "none", "why": result.stderr.strip(), "decisive": None}
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="names of programs; all where none is given")
    parser.add_argument("--out", type=Path, default=Path("verdicts-out/several"), help="folder of the findings")
    parser.add_argument("--keep", type=Path, help="folder for the traces; none is kept if not given")
    parser.add_argument("--table", action="store_true", help="run nothing, only print the table")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for program in () if arguments.table else arguments.programs or EXPECTED:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) if arguments.keep is None else arguments.keep / program
            place.mkdir(parents=True, exist_ok=True)
            rows = run(program, place)
        (arguments.out / f"{program}.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
        wrong = [row.change for row in rows if not row.is_right(EXPECTED[program])]
        print(f"{program}: {wrong or 'all right'} ({time.perf_counter() - begin:.0f} s)", file=sys.stderr, flush=True)
    found = {path.stem: json.loads(path.read_text()) for path in sorted(arguments.out.glob("*.json"))}
    cells = []
    for program, rows in found.items():
        for row in (Row(**each) for each in rows):
            right = "yes" if row.is_right(EXPECTED[program]) else "**no**"
            cells.append([f"`{program}`", row.change, row.verdict, f"{row.cause} {row.op}", row.stream, right])
    print(machine(), table(["program", "change", "verdict", "cause, op", "process", "right"], cells), sep="\n\n")


if __name__ == "__main__":
    main()
