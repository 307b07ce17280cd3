"""What recording a JAX program costs: compiling and running a PPO, and a small call in a Python loop.

    python benchmarks/jax_cost.py [--updates 976] [--repeats 5] [--calls 5000]

The PPO is ``examples/purejax_ppo.py`` with the sizes of PureJaxRL's ``ppo.py``; what it returns must be equal in all
arms. Each arm is a process, run in turn; the lowest time of each counts, of small calls the median of all blocks.
Compiling is the first run, with what it prints, less a later one. What the recording's own thread does meanwhile is in
the processor time. Prints Markdown; where JAX is not installed, a sentence.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from measure import PROGRAMS, Sample, folder_size, in_turn, machine, parse_options, table

from rltrace.trace.read.reader import open_trace

PPO, CALLS = str(PROGRAMS / "jax_ppo.py"), str(PROGRAMS / "jax_calls.py")
RUNS = 3
"""Runs of a process after the one that compiles."""

BLOCKS = 5
ARMS: dict[str, Sequence[str] | None] = {
    "unrecorded": None,
    "`--level step`": ("--level", "step"),
    "`--level op`": ("--level", "op"),
    "`--level op --engine mode`: the host digests": ("--level", "op", "--engine", "mode"),
}


def by_turns(program: Sequence[str], arms: Sequence[str], repeats: int, folder: Path) -> dict[str, list[Sample]]:
    """Samples of each arm; the trace of its last run stays in ``folder``."""
    commands = {}
    for arm in arms:
        record = [sys.executable, "-m", "rltrace", "record", "--force", "-o", str(trace_of(arm, folder))]
        options = ARMS[arm]
        commands[arm] = [*([] if options is None else [*record, *options, "--"]), sys.executable, *program]
    return in_turn(commands, repeats)


def trace_of(arm: str, folder: Path) -> Path:
    return folder / f"{list(ARMS).index(arm)}.zarr"


def least(pairs: Iterable[Sequence[float]]) -> list[float]:
    """The lowest wall time, and the lowest processor time."""
    return [min(times) for times in zip(*pairs, strict=True)]


def rows_of(times: Mapping[str, list[float]], digits: int, disk: Mapping[str, list[str]]) -> list[list[str]]:
    """Cells ``2.55 (1.13 ×)``, against the first arm, and what is on disk."""
    unrecorded = next(iter(times.values()))
    return [
        [arm, *(f"{t:.{digits}f} ({t / one:.2f} ×)" for t, one in zip(own, unrecorded, strict=True)), *disk[arm]]
        for arm, own in times.items()
    ]


def ppo(updates: int, repeats: int) -> str:
    """Seconds of compiling and of a run, and what an iteration takes on disk."""
    times: dict[str, list[float]] = {}
    disk: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, steps = Path(name), updates * (RUNS + 1)
        samples = by_turns([PPO, str(updates), str(RUNS)], list(ARMS), repeats, folder)
        if len({sample.report["returned"] for own in samples.values() for sample in own}) > 1:
            raise SystemExit("the arms have returned other numbers")
        for arm, own in samples.items():
            later = least(run for sample in own for run in sample.report["later"])
            first = least(sample.report["first"] for sample in own)
            times[arm] = [first[0] - later[0], first[1] - later[1], *later]
            disk[arm] = ["", ""]
            if ARMS[arm] is not None:
                trace = trace_of(arm, folder)
                disk[arm] = [f"{rows_in(trace) / steps:.2f}", f"{folder_size(trace)[0] / steps:,.0f}"]
    header = ["", "compiling: wall s", "CPU s", "a run: wall s", "CPU s", "rows an iteration", "bytes an iteration"]
    return table(header, rows_of(times, 2, disk))


def small_calls(calls: int, repeats: int) -> str:
    """Median microseconds of small calls by their arrays and arguments, and what one takes on disk."""
    arms = list(ARMS)[::2][:2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = by_turns([CALLS, str(calls), str(BLOCKS)], arms, repeats, folder)
        plain, recorded = (
            {
                case: [median(times) for times in zip(*(pair for s in own for pair in s.report[case]), strict=True)]
                for case in own[0].report
            }
            for own in samples.values()
        )
        trace = trace_of(arms[1], folder)
        size = folder_size(trace)[0] / rows_in(trace)
    rows = [
        [case, *(f"{t:.1f} → {r:.1f} ({r / t:.1f} ×)" for t, r in zip(plain[case], recorded[case], strict=True))]
        for case in plain
    ]
    header = ["arrays, arguments", "each result waited for: wall µs", "CPU µs", "none waited for: wall µs", "CPU µs"]
    return f"{table(header, rows)}\nOn disk a call takes {size:.1f} bytes."


def rows_in(trace: Path) -> int:
    return open_trace(trace).processes[0].after_op


def main() -> None:
    options = parse_options(__doc__, updates=976, repeats=5, calls=5000)
    if importlib.util.find_spec("jax") is None:
        print("JAX is not installed, so its cost is not measured: pip install rltrace-debugger[jax]")
        return
    print(machine(("jax", "jaxlib", "numpy", "zarr")))
    print(f"\n### PPO, {options.updates:,} iterations\n\n{ppo(options.updates, options.repeats)}")
    print(f"\n### A small call\n\n{small_calls(options.calls, options.repeats)}")


if __name__ == "__main__":
    main()
