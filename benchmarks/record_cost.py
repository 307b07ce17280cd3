"""What recording costs, beside native, an empty dispatch mode and PyTorch's DebugMode, in one run.

    python benchmarks/record_cost.py [--steps 2048] [--repeats 5] [--workloads]

Stable-Baselines3 PPO on CartPole with one thread. Every number is the median over separate processes run in turn;
ratios are ratios of those medians. Prints Markdown.
"""

from __future__ import annotations

import compileall
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import PROGRAMS, RLTRACE, Sample, folder_size, in_turn, machine, middle, parse_options, spread, table

from rltrace.trace.read.reader import open_trace

PYTHON = sys.executable
RLTRACE_PACKAGE = Path(__file__).resolve().parents[1] / "rltrace"
PROGRAM = str(PROGRAMS / "ppo_cartpole.py")
FIRST_OP = str(PROGRAMS / "first_op.py")
LARGE_OPS = str(PROGRAMS / "large_ops.py")
WORKLOADS = {
    "grpo": "an update of a transformer of 29 million parameters by GRPO",
    "mlp": "60 updates of an MLP on tensors of 1 MiB",
    "cnn": "Stable-Baselines3 PPO with a CNN on 84×84 frames, 256 steps",
}
"""By argument of ``workload.py``."""

MODES = {
    "empty": "empty TorchDispatchMode",
    "empty-bare": "the same, `_should_skip_dynamo` off",
    "debug": "DebugMode, record only",
    "debug-xor": "DebugMode, XOR hashes",
    "debug-norm": "DebugMode, norm hashes",
}
NATIVE, ASLEEP, STEP, OP, PYTHON_OP = "native", "asleep", "step", "op", "python-op"
TITLES = {
    NATIVE: "native",
    **MODES,
    ASLEEP: "**rltrace --asleep**",
    STEP: "**rltrace --level step**",
    PYTHON_OP: "**rltrace --level op --engine mode**",
    OP: "**rltrace --level op --engine native**",
}

Runs = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True)
class Written:
    """What one recording left on disk."""

    ops: int
    size: int
    """Bytes."""
    files: int

    @property
    def bytes_per_op(self) -> float:
        return self.size / max(self.ops, 1)


def recorded(arm: str, trace: Path, program: Sequence[str]) -> list[str]:
    """The command that runs ``program`` under rltrace."""
    options = {
        ASLEEP: ["--asleep"],
        STEP: ["--level", "step"],
        PYTHON_OP: ["--engine", "mode"],
        OP: ["--engine", "native"],
    }[arm]
    return [RLTRACE, "record", "--quiet", "--force", "-o", str(trace), *options, "--", PYTHON, *program]


def command(arm: str, steps: int, trace: Path) -> list[str]:
    program = [PROGRAM, str(steps)]
    if arm == NATIVE:
        return [PYTHON, *program]
    if arm in (ASLEEP, STEP, OP, PYTHON_OP):
        return recorded(arm, trace, program)
    return [PYTHON, str(PROGRAMS / "under_mode.py"), arm, *program]


def written(trace: Path) -> Written:
    ops = sum(stream.rows for process in open_trace(trace).processes for stream in process.streams)
    return Written(ops, *folder_size(trace))


def time_table(runs: Runs, ops: int) -> str:
    """One line per arm: seconds of ``learn()``, against native and the empty mode, cost per op, whole process."""
    native, empty, whole = (middle(runs[NATIVE], "learn"), middle(runs["empty"], "learn"), middle(runs[NATIVE]))
    rows = []
    for arm, samples in runs.items():
        seconds = middle(samples, "learn")
        rows.append(
            [
                TITLES[arm],
                f"{seconds:.2f} ({spread(samples, 'learn')})",
                f"{seconds / native:.2f}",
                f"{seconds / empty:.2f}",
                f"{(seconds - native) / ops * 1e6:.1f}",
                f"{middle(samples) / whole:.2f}",
            ]
        )
    header = [
        "arm",
        "`learn()`, s (lowest–highest)",
        "× native",
        "× empty mode",
        "added, µs an op",
        "whole process × native",
    ]
    return table(header, rows)


def start_table(runs: Runs) -> str:
    """To the end of the first op: from the end of ``import torch``, its process's start, the command's spawn."""
    native = {moment: middle(runs[NATIVE], moment) for moment in ("since_start_ms", "since_command_ms")}
    rows = [
        [
            TITLES[arm],
            f"{middle(samples, 'since_import_ms'):.1f}",
            *(f"{middle(samples, m):.0f} ({middle(samples, m) - native[m]:+.0f})" for m in native),
        ]
        for arm, samples in runs.items()
    ]
    header = ["arm", "from import done, ms", "from process start, ms (over native)", "from command, ms (over native)"]
    return table(header, rows)


def budget_table(runs: Runs, start: Runs, memory: Mapping[str, float], op: Written, long: Written, large: float) -> str:
    """Design budgets and what this run measured; ``large``: recorded against native, where ops are large."""
    native, empty = middle(runs[NATIVE], "learn"), middle(runs["empty"], "learn")
    added = {arm: middle(samples, "learn") - native for arm, samples in runs.items()}
    inside, outside = (
        middle(start[OP], moment) - middle(start[NATIVE], moment) for moment in ("since_start_ms", "since_command_ms")
    )
    rows = [
        ["op level against native", "≤ 1.8 ×", f"{middle(runs[OP], 'learn') / native:.2f} ×"],
        ["op level in Python, against the empty mode", "≤ 1.8 ×", f"{middle(runs[PYTHON_OP], 'learn') / empty:.2f} ×"],
        ["op level where ops take a millisecond, against native", "≤ 1.15 ×", f"{large:.2f} ×"],
        ["time added, against DebugMode with XOR hashes", "≤ 1/5", f"1/{added['debug-xor'] / added[OP]:.1f}"],
        ["first op, from the start of its process, against native", "≤ +50 ms", f"{inside:+.0f} ms"],
        ["first op, from the command line, launcher included", "", f"{outside:+.0f} ms"],
        ["asleep against native", "≤ 1.01 ×", f"{middle(runs[ASLEEP], 'learn') / native:.3f} ×"],
        ["step level against native", "≤ 1.03 ×", f"{middle(runs[STEP], 'learn') / native:.2f} ×"],
        ["trace size", "≤ 16 bytes an op", f"{op.bytes_per_op:.1f} ({long.bytes_per_op:.1f} at 10 × the ops)"],
        ["files in a trace", "not one per chunk × column", f"{op.files} ({long.files} at 10 × the ops)"],
        ["peak memory at 10 × the ops", "± 10 %", f"{memory['op 10'] / memory['op 1'] - 1:+.1%}"],
    ]
    return table(["what", "budget", "measured"], rows)


def workload_table(repeats: int, folder: Path) -> str:
    """Real workloads at step and at op level, against native; by the processor time of their thread, too."""
    rows = []
    for name, title in WORKLOADS.items():
        program = [str(PROGRAMS / "workload.py"), name]
        arms = {arm: recorded(arm, folder / f"{name}-{arm}.zarr", program) for arm in (STEP, OP)}
        runs = in_turn({NATIVE: [PYTHON, *program], **arms}, repeats)
        times = {arm: (middle(samples, "learn"), middle(samples, "learn_cpu")) for arm, samples in runs.items()}
        (wall, busy), ops = times[NATIVE], written(folder / f"{name}-{OP}.zarr").ops
        ratios = [f"{times[arm][0] / wall:.2f} ({times[arm][1] / busy:.2f})" for arm in (STEP, OP)]
        peaks = " | ".join(f"{middle(samples, 'peak_mib'):.0f}" for samples in runs.values())
        same = len({sample.report["weights"] for samples in runs.values() for sample in samples}) == 1
        rows.append([title, f"{ops:,}", f"{wall:.2f}", *ratios, peaks, "yes" if same else "NO"])
    header = [
        "workload",
        "ops",
        "native, s",
        "step level × (processor time)",
        "op level × (processor time)",
        "peak memory, MiB: native",
        "step",
        "op",
        "equal weights",
    ]
    return table(header, rows)


def memory_table(memory: Mapping[str, float]) -> str:
    rows = [[TITLES[arm], f"{memory[f'{arm} 1']:.0f}", f"{memory[f'{arm} 10']:.0f}"] for arm in (NATIVE, OP)]
    return table(["arm", "peak resident, MiB", "at 10 × the ops, MiB"], rows)


def main() -> None:
    steps, workloads = (2048, "environment steps; about 100 ops each"), (False, "only those beside PPO on CartPole")
    options = parse_options(__doc__, steps=steps, repeats=5, workloads=workloads)
    compileall.compile_dir(RLTRACE_PACKAGE, quiet=1)  # as an installed package; otherwise start-up is mostly compiling
    with tempfile.TemporaryDirectory(prefix="rltrace-bench-") as folder:
        if not options.workloads:
            print(report(options.steps, options.repeats, Path(folder)), end="\n\n")
        print(workload_table(options.repeats, Path(folder)))


def report(steps: int, repeats: int, folder: Path) -> str:
    arms = [NATIVE, *MODES, ASLEEP, STEP, PYTHON_OP, OP]
    runs = in_turn({arm: command(arm, steps, folder / f"{arm}.zarr") for arm in arms}, repeats)
    op = written(folder / "op.zarr")
    start = in_turn(
        {
            NATIVE: [PYTHON, FIRST_OP],
            "empty": [PYTHON, str(PROGRAMS / "under_mode.py"), "empty", FIRST_OP],
            "empty-bare": [PYTHON, str(PROGRAMS / "under_mode.py"), "empty-bare", FIRST_OP],
            PYTHON_OP: recorded(PYTHON_OP, folder / "start.zarr", [FIRST_OP]),
            OP: recorded(OP, folder / "start.zarr", [FIRST_OP]),
        },
        2 * repeats,
    )
    large = in_turn(
        {NATIVE: [PYTHON, LARGE_OPS, "300"], OP: recorded(OP, folder / "large.zarr", [LARGE_OPS, "300"])}, repeats
    )
    long_runs = in_turn({arm: command(arm, steps * 10, folder / f"{arm}-long.zarr") for arm in (NATIVE, OP)}, 1)
    memory = {f"{arm} 1": middle(runs[arm], "peak_mib") for arm in (NATIVE, OP)}
    memory |= {f"{arm} 10": middle(long_runs[arm], "peak_mib") for arm in (NATIVE, OP)}
    weights = {sample.report["weights"] for samples in runs.values() for sample in samples}
    return "\n\n".join(
        [
            f"Machine: {machine()}. {steps:,} environment steps, {op.ops:,} ops, {repeats} processes an arm.",
            f"Final weights equal in all {len(runs)} arms: {'yes' if len(weights) == 1 else 'NO'}.",
            budget_table(
                runs,
                start,
                memory,
                op,
                written(folder / "op-long.zarr"),
                middle(large[OP], "learn") / middle(large[NATIVE], "learn"),
            ),
            time_table(runs, op.ops),
            start_table(start),
            memory_table(memory),
        ]
    )


if __name__ == "__main__":
    main()
