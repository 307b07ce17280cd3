"""Runs of the trainer with the generator's rows injected, module by module, and the gap that each leaves.

Owns the runs and their order. ``impact.attribution`` owns the arithmetic.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrace.errors import RecordError
from rltrace.experiment.runner import Runner, RunRequest, RunResult
from rltrace.experiment.workdir_copy import check_extent
from rltrace.parity.impact.attribution import Contributions, PatchTrial, Routed, Share
from rltrace.parity.impact.logprobs import Gap
from rltrace.selectors import escape

Measure = Callable[[Path], Gap | str]
"""The gap between the generator and the run whose trace this is; or one sentence why there is none."""
Report = Callable[[str], None]
CONTROL = "control"


@dataclass(frozen=True)
class Module:
    """One module whose contribution is measured."""

    a: str
    """Path in the generator."""
    b: str
    """Path in the trainer."""


@dataclass(frozen=True)
class AttributionPlan:
    """The runs to make, and where their traces go."""

    generator: Path
    """The trace whose rows are injected."""
    modules: tuple[Module, ...]
    """In the order in which they run."""
    left_out: tuple[str, ...]
    """Modules of the trainer that differ and are not tried."""
    command: tuple[str, ...]
    folder: Path
    """Of the program."""
    output: Path
    """Existing folder for the traces and the output of the runs."""
    routing: str = ""
    """Selector of A's routing decisions, where B's differ; empty: they are not injected."""
    options: tuple[str, ...] = ()
    """Of ``rltrace record``, for the control: those that the trainer was recorded with."""
    environment: Mapping[str, str] | None = None
    shared: tuple[str, ...] = ()
    """Entries of the folder that the copies have as links to the originals."""
    in_place: bool = False
    keep: bool = False
    """Keep the traces."""
    map_file: Path | None = None
    """Partners of modules whose names differ."""


def contributions(
    plan: AttributionPlan, recorded: Gap, measure: Measure, report: Report = lambda text: None
) -> Contributions:
    """Make the runs of ``plan``; ``report`` is called with a line as each ends.

    Raises UsageError where the folder cannot be copied, RecordError where the trainer itself cannot be run.
    """
    if not plan.in_place:
        check_extent(plan.folder, plan.shared, plan.output)
    with Runner() as runner:
        return _Experiment(plan, measure, report, runner).run(recorded)


class _Experiment:
    def __init__(self, plan: AttributionPlan, measure: Measure, report: Report, runner: Runner) -> None:
        self._plan = plan
        self._measure = measure
        self._report = report
        self._runner = runner
        self._copies = plan.output.absolute() / "folders"

    def run(self, recorded: Gap) -> Contributions:
        modules = self._plan.modules
        control = self._run(self._request(CONTROL, ("record",), self._plan.options))
        alone = {number: [module] for number, module in enumerate(modules)}
        in_turn = {number: list(modules[: number + 1]) for number in range(1, len(modules))}
        # the first is the same for both; the last in turn is all of them together
        jobs = [self._injected(f"alone-{n + 1}", one) for n, one in alone.items()]
        jobs += [self._injected(f"first-{n + 1}", some) for n, some in in_turn.items()]
        if self._plan.routing:
            jobs += [self._replay("experts", [self._plan.routing])]
            jobs += [self._replay("weights", [self._plan.routing], "--weights")]
        found = self._run_all(jobs)
        shutil.rmtree(self._copies, ignore_errors=True)
        shares = [
            Share(module.b, found[f"alone-{n + 1}"], found[f"first-{n + 1}" if n else "alone-1"])
            for n, module in enumerate(modules)
        ]
        return Contributions(
            self._plan.command,
            recorded.mean,
            control,
            tuple(shares),
            shares[-1].in_turn,
            Routed(found["experts"], found["weights"]) if self._plan.routing else None,
            self._plan.left_out,
        )

    def _run_all(self, jobs: Sequence[RunRequest]) -> dict[str, PatchTrial]:
        found = {}
        for job in jobs:
            try:
                found[job.name] = self._run(job)
            except RecordError as error:  # the control ran, so the injected rows are the reason
                found[job.name] = PatchTrial(None, None, str(error))
                self._report(str(error))
        return found

    # --- one run ------------------------------------------------------------------------------------------------------

    def _injected(self, name: str, modules: Sequence[Module]) -> RunRequest:
        return self._replay(name, [f"module={escape(module.a)}" for module in modules])

    def _replay(self, name: str, selectors: Sequence[str], *more: str) -> RunRequest:
        words = [word for selector in selectors for word in ("--inject", selector)]
        result = self._plan.output.absolute() / f"{name}.json"
        names = () if self._plan.map_file is None else ("--map", str(self._plan.map_file.absolute()))
        verb = ("replay", str(self._plan.generator.absolute()))
        return self._request(name, verb, ("--rows", *words, *names, *more, "--result", str(result)))

    def _request(self, name: str, verb: tuple[str, ...], options: tuple[str, ...]) -> RunRequest:
        plan = self._plan
        copy = None if plan.in_place else self._copies / name
        trace, output = (plan.output.absolute() / f"{name}.{ending}" for ending in ("zarr", "out"))
        return RunRequest(
            name,
            plan.command,
            plan.folder,
            copy,
            trace,
            output,
            options,
            plan.shared,
            plan.output,
            verb,
            plan.environment,
        )

    def _run(self, job: RunRequest) -> PatchTrial:
        (ended,) = self._runner.run([job])
        return self._trial(ended)

    def _trial(self, ended: RunResult) -> PatchTrial:
        """What a run's trace shows; the trace is removed."""
        job = ended.job
        why = _incomplete_reason(job.output.with_suffix(".json"))
        gap = why or self._measure(job.trace)
        trial = (
            PatchTrial(None, None, gap) if isinstance(gap, str) else PatchTrial(gap.mean, gap.largest, _gap_reason(gap))
        )
        left = f"a gap of {trial.gap:.3e} is left" if trial.gap is not None else trial.why
        self._report(f"run {job.name} {ended.how}; {left}")
        if not self._plan.keep:
            shutil.rmtree(job.trace, ignore_errors=True)
        return trial


def _gap_reason(gap: Gap) -> str:
    return "" if gap.mean is not None else "no sampled token has a log-probability on both sides"


def _incomplete_reason(result: Path) -> str:
    """Why not all selected rows were injected; empty: they were, or none were selected."""
    if not result.is_file():
        return ""
    found = json.loads(result.read_text(encoding="utf-8"))
    if found["outcome"] == "injected":
        return ""
    lacking = [f"{module['module']}: {module['why']}" for module in found["modules"] if module["why"]]
    return f"not all rows could be injected: {'; '.join(lacking)}"
