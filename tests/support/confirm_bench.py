"""An experiment whose two programs are functions of this process: recorded and replayed as ever, but in no process of
their own, so that a test can afford many runs.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from replayed import replay_block

import rltrace
from rltrace.diff.compare import compare
from rltrace.experiment.confirm.arms import Experiment, Question, initial_outcome
from rltrace.experiment.confirm.run_cache import RunOutcome, Side
from rltrace.experiment.confirm.steps_covered import divergence_of
from rltrace.experiment.outcome import ExperimentResult
from rltrace.rerun.plan import InjectionFilter
from rltrace.trace.read.reader import open_trace

Program = Callable[[bool], Any]
"""Called with whether it is B."""

STEPS = (0, 1 << 20)
"""Of a window that holds everything: ``verify_inputs`` asks for one."""


class HereBench:
    """What ``Bench`` is to an experiment."""

    def __init__(self, folder: Path, program: Program, values_limit: int = 1 << 30) -> None:
        self.folder = folder
        self.runs: list[str] = []
        """Names, in order."""
        self._program = program
        self._limit = values_limit
        self._thread = ThreadPoolExecutor(1)

    def record(self, name: str, side: Side, *, values: bool) -> RunOutcome:
        path = self.folder / f"{name}.zarr"
        keep: dict[str, Any] = {"values": "all", "values_inputs": True, "values_limit": self._limit} if values else {}
        self.run(name, side, rltrace.record(path, steps=STEPS, verify_inputs=True, **keep))
        return RunOutcome(path, "ended with status 0")

    def replay(
        self,
        name: str,
        side: Side,
        source: Path,
        *,
        rows: Mapping[str, Sequence[int]] | None = None,
        kinds: Sequence[str] | None = None,
        selectors: Sequence[str] = (),
    ) -> RunOutcome:
        path = self.folder / f"{name}.zarr"
        lockstep = rows is None and kinds is None and not selectors
        only = InjectionFilter(
            None if kinds is None else frozenset(kinds),
            None if rows is None else {stream: frozenset(found) for stream, found in rows.items()},
        )
        made = replay_block(
            source, tuple(selectors) or "all", path, only=only, lockstep=lockstep, origins=not lockstep, force=True
        )
        return RunOutcome(path, "ended with status 0", self.run(name, side, made).account)

    def remove(self, ran: RunOutcome) -> None:
        rmtree(ran.trace)

    def discard_last(self) -> None:
        """Nothing is kept for a next time."""

    def run(self, name: str, side: Side, context: AbstractContextManager[Any]) -> Any:
        self.runs.append(name)
        return self._thread.submit(_run, self._program, side == "b", context).result()


def _run(program: Program, is_b: bool, context: AbstractContextManager[Any]) -> Any:
    """On a thread of its own, so that the stack below is the same for every run, wherever it was asked for."""
    torch.manual_seed(0)
    with context as entered:
        program(is_b)
    return entered


def confirm(folder: Path, program: Program, **asked: Any) -> ExperimentResult:
    """Record A and B and make the experiment on them; ``asked``: of ``Question``, and ``values_limit``."""
    bench = HereBench(folder, program, asked.pop("values_limit", 1 << 30))
    until = asked.pop("until", None)
    traces = {}
    sides: tuple[Side, Side] = ("a", "b")
    for side in sides:
        bench.run(side, side, rltrace.record(folder / f"{side}.zarr"))
        traces[side] = open_trace(folder / f"{side}.zarr")
    divergence = divergence_of(compare(traces["a"], traces["b"]), until)
    question = Question(traces["a"], traces["b"], divergence, **{"samples": 1, **asked})
    start = initial_outcome(question, ("a.zarr", "b.zarr"), {"a": "1", "b": "2"})
    return Experiment(question, bench, start).run()  # type: ignore[arg-type]
