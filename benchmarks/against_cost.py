"""What ``record --against`` a trace that grows costs the program, beside recording alone.

    python benchmarks/against_cost.py [--steps 4096] [--repeats 5]

Stable-Baselines3 PPO on CartPole with one thread, recorded by the native engine. The other trace is a recording of the
same program that grows, commit by commit, in the time in which this one does, so that no second job takes a core.
Every number is the median over separate processes run in turn. Prints Markdown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from measure import PROGRAMS, RLTRACE, Sample, machine, middle, parse_options, run, spread, table

from rltrace.trace.format.journal import frame, parse_journal
from rltrace.trace.format.root import JOURNAL, PROCESSES

PROGRAM = str(PROGRAMS / "ppo_cartpole.py")
ALONE, EQUAL, EXTRA = "recorded alone", "against an equal run", "against a run with one harmless op more"

START_SECONDS = 2.5
"""Of the program, before its first op."""


def recorded(trace: Path, steps: int, *options: str, engine: str = "native") -> list[str]:
    line = [RLTRACE, "record", "--quiet", "--force", "-o", str(trace), "--engine", engine, *options]
    return [*line, "--", sys.executable, PROGRAM, str(steps)]


@contextmanager
def growing(whole: Path, path: Path, seconds: float) -> Iterator[None]:
    """A copy of the trace ``whole`` grows at ``path``, record by record, for so many seconds."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, path, ignore=lambda folder, names: [n for n in names if n[:2] == "c." or n == "log"])
    has_ended = Event()

    def grow() -> None:
        for base in ("", f"{PROCESSES}/0"):
            (path / base / JOURNAL).touch()
        launch = parse_journal((whole / JOURNAL).read_bytes()).records
        records = parse_journal((whole / PROCESSES / "0" / JOURNAL).read_bytes()).records
        digest = append(path / JOURNAL, 0, launch[0])
        last, pause = 0, START_SECONDS
        for record in records:
            has_ended.wait(pause)
            pause = seconds / len(records)
            for key, *_ in record.get("files", ()):
                os.link(whole / PROCESSES / "0" / key, path / PROCESSES / "0" / key)
            last = append(path / PROCESSES / "0" / JOURNAL, last, record)
        for record in launch[1:]:
            digest = append(path / JOURNAL, digest, record)

    thread = Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def append(journal: Path, digest: int, record: dict[str, object]) -> int:
    data, digest = frame(digest, record)
    with journal.open("ab") as file:
        file.write(data)
    return digest


def lines(runs: dict[str, list[Sample]]) -> list[Sequence[object]]:
    alone = [middle(runs[ALONE], name) for name in ("learn", "learn_cpu")]
    return [
        [
            arm,
            f"{middle(samples, 'learn'):.2f} ({spread(samples, 'learn')})",
            f"{middle(samples, 'learn') / alone[0]:.3f}",
            f"{middle(samples, 'learn_cpu'):.2f} ({spread(samples, 'learn_cpu')})",
            f"{middle(samples, 'learn_cpu') / alone[1]:.3f}",
        ]
        for arm, samples in runs.items()
    ]


def main() -> None:
    options = parse_options(__doc__, steps=4096, repeats=5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wholes = {EQUAL: folder / "equal.zarr", EXTRA: folder / "extra.zarr"}
        for arm, whole in wholes.items():
            log_line = {"BENCH_LOG_LINE": "1"} if arm == EXTRA else {}
            seconds = float(run(recorded(whole, options.steps), log_line).report["learn"])
        runs: dict[str, list[Sample]] = {ALONE: [], EQUAL: [], EXTRA: []}
        for number in range(options.repeats):
            for arm, samples in runs.items():
                print(f"round {number + 1} of {options.repeats}: {arm}", file=sys.stderr)
                if arm == ALONE:
                    samples.append(run(recorded(folder / "b.zarr", options.steps)))
                    continue
                a = folder / "a.zarr"
                with growing(wholes[arm], a, seconds):
                    samples.append(run(recorded(folder / "b.zarr", options.steps, "--against", str(a), "--stop")))
        agrees = subprocess.run([RLTRACE, "diff", str(wholes[EXTRA]), str(folder / "b.zarr")], capture_output=True)
        assert agrees.returncode == 0, agrees.stdout
    print(f"{machine()}\n")
    header = [f"PPO, {options.steps:,} environment steps", "`learn()`, s (lowest–highest)", "×"]
    print(table([*header, "its processor time, s", "×"], lines(runs)))


if __name__ == "__main__":
    main()
