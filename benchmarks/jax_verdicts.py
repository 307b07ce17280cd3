"""Verdicts on PureJaxRL's programs: unchanged runs, other code of XLA, and differences planted in the program.

    python benchmarks/jax_verdicts.py FOLDER [--out jax-verdicts-out] [PROGRAM …]

FOLDER is a checkout of PureJaxRL (luchris429/purejaxrl), whose libraries are installed. Its programs run as they are,
but for their step counts, from copies beside which their environment's package lies, so that a line of it can be
changed. Each runs unrecorded and recorded at both levels, and what training returns must be the same, at level op
unless the trace says that it may round otherwise; then recorded under every change. An oracle without rltrace
(``programs/jax_returned.py``) stacks the carries of the loop, and the first one that differs is what rltrace has to
name, unless it names a call before the loop's function, which the oracle does not see. A row within a call has to be
within the one that is named without such rows, and that is held against the oracle. Findings go to
``OUT/PROGRAM.json``; prints Markdown.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measure import PROGRAMS, machine, table

from rltrace.diff.compare import CompareOptions, compare
from rltrace.trace.read.reader import open_trace

EXPECTED = "its inputs match and its outputs differ: "
"""What the sentence begins with wherever the cause is ``kernel``."""

DRIVER = PROGRAMS / "jax_returned.py"
LIBRARIES = ("jax", "flax", "optax", "distrax", "gymnax", "brax", "flashbax", "numpy")


@dataclass(frozen=True)
class Edit:
    """A line of a copy that becomes another one."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Change:
    """In what a run differs from the first, and what rltrace has to say of it."""

    name: str
    verdict: str
    cause: str = ""
    names: tuple[str, ...] = ()
    """What the sentence has to have in it."""
    edits: tuple[Edit, ...] = ()
    flags: str = ""
    has_oracle: bool = False


def flags(option: str) -> Change:
    return Change(f"`{option}`", "diverged", "kernel", flags=option, has_oracle=True)


OTHER_CODE = flags("--xla_cpu_max_isa=SSE4_2"), flags("--xla_cpu_enable_fast_math=true")


@dataclass(frozen=True)
class Program:
    """A program of PureJaxRL."""

    name: str
    package: str
    """Of its environment."""
    counts: Mapping[str, str]
    """Entries of its configuration that are steps, and their values."""
    changes: tuple[Change, ...]


def planted(what: str, file: str, old: str, new: str, *names: str, cause: str = "arguments") -> Change:
    return Change(what, "diverged", cause, names, (Edit(file, old, new),))


LOOP = "jit.train."
"""Start of the rows that the loop's function has."""

CARTPOLE = "gymnax/environments/classic_control/cartpole.py"
HOPPER = "brax/envs/hopper.py"
UNCHANGED = Change("unchanged", "identical")
CARTPOLE_CHANGES = (
    planted("the environment's gravity", CARTPOLE, "gravity: float = 9.8", "gravity: float = 9.9",
            "params.gravity * sintheta", "9.8", "9.9"),
    planted("the environment's reward", CARTPOLE, "reward = 1.0 - prev_terminal\n",
            "reward = 1.0 - prev_terminal * jnp.cos(state.theta)\n", "reward = 1.0 - prev_terminal * jnp.cos"),
)  # fmt: skip
FOUND = (
    Program(
        "ppo",
        "gymnax",
        {"TOTAL_TIMESTEPS": "8192"},
        (
            UNCHANGED,
            *OTHER_CODE,
            planted("key", "ppo.py", "PRNGKey(30)", "PRNGKey(31)", cause="outside"),
            planted("learning rate", "ppo.py", '"LR": 2.5e-4', '"LR": 3e-4', 'config["LR"]', "0.00025", "0.0003"),
            *CARTPOLE_CHANGES,
        ),
    ),
    Program(
        "dqn",
        "gymnax",
        {"TOTAL_TIMESTEPS": "4000", "LEARNING_STARTS": "1000"},
        (
            UNCHANGED,
            *OTHER_CODE,
            planted("key", "dqn.py", '"SEED": 0', '"SEED": 1', cause="outside"),
            planted("learning rate", "dqn.py", '"LR": 2.5e-4', '"LR": 3e-4', "0.00025", "0.0003"),
            *CARTPOLE_CHANGES,
        ),
    ),
    Program(
        "ppo_continuous_action",
        "brax",
        {"TOTAL_TIMESTEPS": "81920"},
        (
            UNCHANGED,
            *OTHER_CODE,
            planted("key", "ppo_continuous_action.py", "PRNGKey(30)", "PRNGKey(31)", cause="outside"),
            planted("learning rate", "ppo_continuous_action.py", '"LR": 3e-4', '"LR": 4e-4', "0.0003", "0.0004"),
            planted("the environment's cost of control", HOPPER, "ctrl_cost_weight: float = 1e-3",
                    "ctrl_cost_weight: float = 2e-3", "self._ctrl_cost_weight * jp.sum", "0.001", "0.002"),
            planted("the environment's reward", HOPPER, "reward = forward_reward + healthy_reward - ctrl_cost\n",
                    "reward = forward_reward + healthy_reward * jp.cos(x_velocity) - ctrl_cost\n",
                    "healthy_reward * jp.cos"),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of one change."""

    program: str
    change: str
    rows: int
    verdict: str
    cause: str
    op: str
    step: int | None
    sentence: str
    oracle: str
    """Whether the oracle names the same, else what it names; "" where it was not asked."""
    bits: str
    """Whether training returned what it does unrecorded; "": not compared."""
    wrong: tuple[str, ...]
    """What is not as it has to be."""


@dataclass
class Bench:
    """The runs of one program."""

    program: Program
    checkout: Path
    out: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def folder(self, change: Change) -> Path:
        """A copy of the program and its environment, changed."""
        folder = self.out / self.program.name / re.sub(r"\W+", "-", change.name).strip("-")
        if folder.exists():
            return folder
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        spec = importlib.util.find_spec(self.program.package)
        assert spec is not None and spec.origin is not None, f"{self.program.package} is not installed"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(spec.origin).parent, unfinished / self.program.package, ignore=ignored)
        for name in (f"{self.program.name}.py", "wrappers.py"):
            shutil.copy(self.checkout / "purejaxrl" / name, unfinished)
        path = unfinished / f"{self.program.name}.py"
        for entry, value in self.program.counts.items():
            path.write_text(substituted(path.read_text(), rf'("{entry}": )[\d.e]+', rf"\g<1>{value}"))
        for edit in change.edits:
            path = unfinished / edit.file
            path.write_text(substituted(path.read_text(), re.escape(edit.old), edit.new))
        unfinished.rename(folder)
        return folder

    def run(self, change: Change, trace: str = "", *options: str, carries: str = "") -> str:
        """What the program prints last; unrecorded without a name of a trace. A run that there is already is read."""
        folder = self.folder(change)
        kept = folder / f"{trace or carries or 'unrecorded'}.txt"
        if not kept.exists():
            record = [sys.executable, "-m", "rltrace", "record", "--quiet", "--force", "-o", f"{trace}.zarr", *options]
            command = [sys.executable, str(DRIVER), f"{self.program.name}.py", *([carries] if carries else [])]
            variables = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": change.flags, "PYTHONHASHSEED": "0"}
            begin = time.perf_counter()
            command = [*record, "--", *command] if trace else command
            ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
            what = f"{self.program.name}, {change.name}, {kept.stem}"
            if ended.returncode:
                raise SystemExit(f"{what}: status {ended.returncode}\n{ended.stderr[-3000:]}")
            print(f"{what}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
            kept.write_text(ended.stdout.splitlines()[-1])
        return kept.read_text()

    def outcome(self, change: Change) -> Outcome:
        """The first run against the changed one."""
        recorded = {self.run(change, "b"), *([self.run(change, "a")] if change == UNCHANGED else [])}
        traces = [self.folder(UNCHANGED) / "a.zarr", self.folder(change) / "b.zarr"]
        opened = list(map(open_trace, traces))
        bits, wrong = "", []
        if not change.edits:
            own = self.run(change)
            may_round = "may round otherwise" in str(opened[1].processes[0].facts["jax.code"])
            bits = "equal" if recorded == {own} else "equal at step; other at op, as is recorded"
            if self.run(change, "step", "--level", "step") != own or (recorded != {own} and not may_round):
                wrong.append("the recorded run returns other bits")
        command = [sys.executable, "-m", "rltrace", "diff", *map(str, traces), "--format", "json"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        first = found["decisive"] or {}
        sentence = first.get("explanation", "")
        wrong += [f"{name} is not in the sentence" for name in change.names if name not in sentence]
        wrong += [] if found["verdict"] == change.verdict else [f"it has to be {change.verdict}"]
        wrong += [] if first.get("cause", "") == change.cause else [f"the cause has to be {change.cause}"]
        call, row = compare(*opened, CompareOptions(within=False)).decisive, first.get("op", "")
        assert call is None or call.op is not None, "rows are compared"
        if call is not None and first["stream"] != call.stream:
            wrong += [] if f"/{call.op}@" in first["stream"] else [f"it is not within {call.op}"]
            row = f"{row}` of `{first['module']}` in `{call.op}"
        oracle, named = self.oracle(change) if change.has_oracle else None, ""
        if oracle is not None and call is not None and call.op is not None:
            place, names = oracle
            ours = "before the loop" if call.op.endswith(".before") else f"iteration {call.step}"
            is_earlier = call.step in (None, 0) and not call.op.startswith(LOOP)
            agrees = is_earlier or (place == ours and names in call.explanation)
            wrong += [] if agrees else [f"the oracle has {place}, {names}"]
            named = "a later one, in the loop's function" if is_earlier else "the same" if agrees else f"**{place}**"
            named += f": {names}" if agrees and not is_earlier else ""
        what = found["a"]["ops"], found["verdict"], first.get("cause", ""), row, first.get("step")
        return Outcome(self.program.name, change.name, *what, sentence, named, bits, tuple(wrong))

    def oracle(self, change: Change) -> tuple[str, str]:
        """(place, arrays) of the first carry that differs, by the oracle; as rltrace words them."""
        both = []
        for each in (UNCHANGED, change):
            assert self.run(each, carries="carries.json") == self.run(each), "the oracle computes the same bits"
            both.append(json.loads((self.folder(each) / "carries.json").read_text()))
        for k, (a, b) in enumerate(zip(*both, strict=True)):
            differing = [name for name in a if a[name] != b[name]]
            if differing:
                more = f" and {len(differing) - 2} more" if len(differing) > 2 else ""
                verb = "differs" if len(differing) == 1 else "differ"
                return f"iteration {k - 1}" if k else "before the loop", f"{', '.join(differing[:2])}{more} {verb}"
        return "nowhere", ""


def substituted(text: str, pattern: str, new: str) -> str:
    """``text`` with the one place that matches changed."""
    changed, count = re.subn(pattern, new, text)
    if count != 1:
        raise SystemExit(f"{pattern} is in the program {count} times, not once: another version of it?")
    return changed


def report(outcomes: Sequence[Mapping[str, object]]) -> str:
    """The table as Markdown, and what is wrong."""
    header = ["program", "change", "verdict", "cause", "row", "what rltrace names", "the oracle's", "bits"]
    cells = []
    for each in outcomes:
        step = "" if each["step"] is None else f", step {each['step']}"
        row = f"`{each['op']}`{step}" if each["op"] else ""
        sentence = str(each["sentence"]).removeprefix(EXPECTED).replace("|", "\\|")
        head = f"`{each['program']}`", each["change"], each["verdict"], each["cause"]
        cells.append([*map(str, head), row, sentence, str(each["oracle"]), str(each["bits"])])
    wrong = [f"- `{e['program']}`, {e['change']}: {what}." for e in outcomes for what in e["wrong"]]  # type: ignore[attr-defined]
    return "\n\n".join(filter(None, [f"{machine(LIBRARIES)}.", table(header, cells), "\n".join(wrong)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a checkout of PureJaxRL")
    parser.add_argument("programs", nargs="*", help="names of programs; all where none is given")
    parser.add_argument("--out", type=Path, default=Path("jax-verdicts-out"), help="folder of copies, traces, findings")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(exist_ok=True)
    for program in FOUND:
        if not arguments.programs or program.name in arguments.programs:
            bench = Bench(program, arguments.folder, out)
            found = [asdict(bench.outcome(change)) for change in program.changes]
            (out / f"{program.name}.json").write_text(json.dumps(found, indent=1))
    print(report([each for path in sorted(out.glob("*.json")) for each in json.loads(path.read_text())]))


if __name__ == "__main__":
    main()
