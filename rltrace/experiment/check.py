"""Does a program repeat itself? N runs with nothing changed, in groups, and one more that is hardly recorded.

Owns the plan of the runs and which traces are kept: the first of each group, and whatever cannot be put into one. A
run is compared as it ends, so one like another costs the disk what it takes while it runs, and nothing after. What two
runs have in common is for ``rltrace.diff`` to say.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace.diff.base.model import Comparison, Verdict
from rltrace.diff.compare import compare
from rltrace.diff.groups import Group, Grouping, GroupSplit, Node, Undecided, group, seen_not_to_repeat
from rltrace.experiment.runner import Runner, RunRequest, RunResult
from rltrace.experiment.workdir_copy import check_extent
from rltrace.trace.read.reader import open_trace

CONTROL = "control"
"""What the run that only step digests are taken of is called in the folder; to the program it is one more number."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class CheckPlan:
    """What is to be run, and where its traces go."""

    command: tuple[str, ...]
    runs: int
    jobs: int
    folder: Path
    """The program's own."""
    output: Path
    """Gets the traces and what the runs print; must be there."""
    options: tuple[str, ...] = ()
    """Of ``rltrace record``, for each run."""
    shared: tuple[str, ...] = ()
    """Entries of the folder that the copies have as links to the originals."""
    in_place: bool = False
    control: bool = True
    """One more run at level step, which shows whether recording every op changed anything."""
    control_options: tuple[str, ...] = ()
    keep: bool = False
    """Keep the traces of all runs."""
    strict: bool = False


@dataclass(frozen=True)
class CheckRun:
    """One run that was made."""

    number: int
    """From 1."""
    trace: Path | None
    """None: it computed what run ``same_as`` did, and its trace was removed."""
    output: Path
    """What it printed."""
    status: int
    """Exit status; negative: number of the signal that ended it."""
    same_as: int | None = None


@dataclass(frozen=True)
class StepLevelRun:
    """What the run at level step showed."""

    run: CheckRun
    group: int | None
    """Place among the groups of the one that it agrees with; None: with none, or that cannot be said."""
    why: str
    """One sentence."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome."""

    runs: tuple[CheckRun, ...]
    grouping: Grouping
    """Of places in ``runs``."""
    control: StepLevelRun | None


def check(plan: CheckPlan, tell: Tell = lambda text: None) -> CheckResult:
    """Make the runs of ``plan`` and group them; ``tell`` is given a line as each run ends.

    Raises UsageError where the folder cannot be copied, RecordError where a run could not be recorded.
    """
    if not plan.in_place:
        check_extent(plan.folder, plan.shared, plan.output)
    with Runner(1 if plan.in_place else plan.jobs) as runner:
        return _Check(plan, tell, runner).run()


class _Check:
    def __init__(self, plan: CheckPlan, tell: Tell, runner: Runner) -> None:
        self._plan = plan
        self._tell = tell
        self._runner = runner
        self._copies = plan.output.absolute() / "folders"
        self._known: dict[tuple[Path, Path], Comparison] = {}

    def run(self) -> CheckResult:
        plan = self._plan
        jobs = [self._job(number, plan.options) for number in range(1, plan.runs + 1)]
        runs: list[CheckRun] = []
        for ended in self._runner.run(jobs):
            runs.append(self._ended(ended, runs))
        runs.sort(key=lambda run: run.number)
        grouping = self._group(runs)
        control = self._control(runs, grouping) if plan.control else None
        shutil.rmtree(self._copies, ignore_errors=True)
        return CheckResult(tuple(runs), grouping, control)

    # --- one run ------------------------------------------------------------------------------------------------------

    def _job(self, number: int, options: tuple[str, ...], stem: str = "") -> RunRequest:
        plan, name, stem = self._plan, str(number), stem or f"run-{number}"
        copy = None if plan.in_place else self._copies / name
        trace, output = (plan.output.absolute() / f"{stem}.{ending}" for ending in ("zarr", "out"))
        return RunRequest(name, plan.command, plan.folder, copy, trace, output, options, plan.shared, plan.output)

    def _made(self, ended: RunResult, number: int) -> CheckRun:
        trace, output = (self._plan.output / path.name for path in (ended.job.trace, ended.job.output))
        return CheckRun(number, trace, output, ended.status)

    def _ended(self, ended: RunResult, before: Sequence[CheckRun]) -> CheckRun:
        """The run, its trace removed where an earlier one computed the same."""
        job = ended.job
        run = self._made(ended, int(job.name))
        twin = next((other for other in before if other.same_as is None and self._like(other, job.trace)), None)
        ops = sum(process.after_op for process in open_trace(job.trace).processes)
        like = f"; {self._like(twin, job.trace)} run {twin.number}" if twin else ""
        self._tell(f"run {job.name} {ended.how}, {ops:,} ops{like}")
        if twin is None:
            return run
        if not self._plan.keep:
            shutil.rmtree(job.trace)
            run = replace(run, trace=None)
        return replace(run, same_as=twin.number)

    def _like(self, other: CheckRun, trace: Path) -> str:
        """``identical to``, ``the same values as`` an earlier run; empty: neither, or it cannot be said."""
        if other.trace is None:
            return ""
        comparison = self._compare(other.trace, trace)
        if comparison.verdict is Verdict.IDENTICAL:
            return "identical to"
        return "the same values as" if comparison.agrees else ""

    def _compare(self, a: Path, b: Path) -> Comparison:
        if (a, b) not in self._known:
            self._known[a, b] = compare(a, b, strict=self._plan.strict)
        return self._known[a, b]

    # --- all of them --------------------------------------------------------------------------------------------------

    def _group(self, runs: Sequence[CheckRun]) -> Grouping:
        """Runs that were identical to another go where that one goes."""
        alone = [place for place, run in enumerate(runs) if run.same_as is None]
        found = group([path for place in alone if (path := runs[place].trace)], comparing=self._compare)
        places = {run.number: place for place, run in enumerate(runs)}
        twins: dict[int, list[int]] = {place: [place] for place in alone}
        for place, run in enumerate(runs):
            if run.same_as is not None:
                twins[places[run.same_as]].append(place)
        members = [tuple(twins[place]) for place in alone]
        undecided = [Undecided(place, alone[u.against], u.why) for u in found.undecided for place in members[u.run]]
        return Grouping(seen_not_to_repeat(_expanded(found.tree, members)), tuple(undecided))

    def _control(self, runs: Sequence[CheckRun], grouping: Grouping) -> StepLevelRun:
        """Run once more with step digests only, and see which group that falls into."""
        options = ("--level", "step", *self._plan.control_options)
        (ended,) = self._runner.run([self._job(self._plan.runs + 1, options, CONTROL)])
        self._tell(f"the run without the op recorder {ended.how}")
        run = self._made(ended, 0)
        if all(run.status != other.status for other in runs):
            return StepLevelRun(run, None, f"it {ended.how}, as no other run did: {run.output} has what it printed")
        undecided = None
        for place, found in enumerate(grouping.groups):
            first = next(path for member in found.runs if (path := runs[member].trace))
            comparison = self._compare(first, ended.job.trace)
            if comparison.agrees:
                return StepLevelRun(run, place, f"recorded at level step, it computes the same as group {place + 1}")
            if comparison.agrees is None:
                undecided = undecided or comparison.why
        if undecided is not None:
            return StepLevelRun(run, None, f"its group is unknown: {undecided}")
        return StepLevelRun(run, None, "recorded at level step, it computes the same as no group")


def _expanded(node: Node, members: Sequence[tuple[int, ...]]) -> Node:
    """The tree with all the runs that each of its runs stands for."""
    if isinstance(node, Group):
        return Group(tuple(sorted(place for run in node.runs for place in members[run])))
    return GroupSplit(node.finding, tuple(_expanded(branch, members) for branch in node.branches))
