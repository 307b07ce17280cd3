"""Whether a program is reproducible: N unchanged runs, grouped by result, and one more run at level step.

Owns the plan of the runs and which traces are kept: the first of each group, and undecided ones. A run is compared as
it ends, and its trace is removed at once if it equals an earlier one. Runs are compared by ``rltrace.diff``.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace.diff.base.model import Comparison, Verdict
from rltrace.diff.compare import CompareOptions, compare
from rltrace.diff.groups import Group, Grouping, GroupSplit, Node, Undecided, group, mark_nondeterministic
from rltrace.experiment.runner import Runner, RunRequest, RunResult
from rltrace.experiment.workdir_copy import check_extent
from rltrace.report.groups import CheckRun, StepLevelRun
from rltrace.trace.format.location import Location
from rltrace.trace.read.reader import open_trace

CONTROL = "control"
"""File name of the run at level step; to the program it is one more number."""
COPIES = "folders"
"""Folder in that of the runs with the copies that they work in."""
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class CheckPlan:
    """The runs to make, and where their traces go."""

    command: tuple[str, ...]
    runs: int
    jobs: int
    folder: Path
    """The program's working folder."""
    output: Path
    """Folder for the traces and the output of the runs; must exist."""
    options: tuple[str, ...] = ()
    """Options of ``rltrace record``, for each run."""
    shared: tuple[str, ...] = ()
    """Entries of the folder that are links to the originals in its copies."""
    in_place: bool = False
    control: bool = True
    """One more run at level step, which shows whether recording every op changed anything."""
    control_options: tuple[str, ...] = ()
    keep: bool = False
    """Keep the traces of all runs."""
    strict: bool = False


@dataclass(frozen=True)
class CheckResult:
    """The runs and their groups."""

    runs: tuple[CheckRun, ...]
    grouping: Grouping
    """Groups of places in ``runs``."""
    control: StepLevelRun | None


def check(plan: CheckPlan, report: OnProgress = lambda text: None) -> CheckResult:
    """Make the runs of ``plan``, ``plan.jobs`` at a time, and group them; ``report`` is given a line as each run ends.

    Raises UsageError where the folder cannot be copied, RecordError where a run could not be recorded.
    """
    if not plan.in_place:
        check_extent(plan.folder, plan.shared, plan.output)
    with Runner(1 if plan.in_place else plan.jobs) as runner:
        return _Check(plan, report, runner).run()


def requests(plan: CheckPlan) -> list[RunRequest]:
    """The runs of a plan; with a control, that is the last one."""
    jobs = [_request(plan, number, f"run-{number}", plan.options) for number in range(1, plan.runs + 1)]
    control = _request(plan, plan.runs + 1, CONTROL, ("--level", "step", *plan.control_options))
    return [*jobs, control] if plan.control else jobs


def _request(plan: CheckPlan, number: int, stem: str, options: tuple[str, ...]) -> RunRequest:
    folder, name = plan.output.absolute(), str(number)
    copy = None if plan.in_place else folder / COPIES / name
    trace, output = (folder / f"{stem}.{ending}" for ending in ("zarr", "out"))
    return RunRequest(name, plan.command, plan.folder, copy, trace, output, options, plan.shared, plan.output)


class _Check:
    def __init__(self, plan: CheckPlan, report: OnProgress, runner: Runner) -> None:
        self._plan = plan
        self._report = report
        self._runner = runner
        self._known: dict[tuple[Location, Location], Comparison] = {}

    def run(self) -> CheckResult:
        plan = self._plan
        runs: list[CheckRun] = []
        for ended in self._runner.run(requests(plan)[: plan.runs]):
            runs.append(self._add_run(ended, runs))
        runs.sort(key=lambda run: run.number)
        grouping = self._group(runs)
        control = self._control(runs, grouping) if plan.control else None
        shutil.rmtree(plan.output / COPIES, ignore_errors=True)
        return CheckResult(tuple(runs), grouping, control)

    # --- one run ------------------------------------------------------------------------------------------------------

    def _check_run(self, ended: RunResult, number: int) -> CheckRun:
        trace, output = (self._plan.output / path.name for path in (ended.job.trace, ended.job.output))
        return CheckRun(number, trace, output, ended.status)

    def _add_run(self, ended: RunResult, before: Sequence[CheckRun]) -> CheckRun:
        """The run, with its trace removed if an earlier one computed the same."""
        job = ended.job
        run = self._check_run(ended, int(job.name))
        twin = next((other for other in before if other.same_as is None and self._sameness(other, job.trace)), None)
        ops = sum(process.after_op for process in open_trace(job.trace).processes)
        sameness = f"; {self._sameness(twin, job.trace)} run {twin.number}" if twin else ""
        self._report(f"run {job.name} {ended.how}, {ops:,} ops{sameness}")
        if twin is None:
            return run
        if not self._plan.keep:
            shutil.rmtree(job.trace)
            run = replace(run, trace=None)
        return replace(run, same_as=twin.number)

    def _sameness(self, other: CheckRun, trace: Path) -> str:
        """``identical to``, ``the same values as`` an earlier run; "": neither, or not known."""
        if other.trace is None:
            return ""
        comparison = self._compare(other.trace, trace)
        if comparison.verdict is Verdict.IDENTICAL:
            return "identical to"
        return "the same values as" if comparison.agrees else ""

    def _compare(self, a: Location, b: Location) -> Comparison:
        if (a, b) not in self._known:
            self._known[a, b] = compare(a, b, CompareOptions(strict=self._plan.strict))
        return self._known[a, b]

    # --- all of them --------------------------------------------------------------------------------------------------

    def _group(self, runs: Sequence[CheckRun]) -> Grouping:
        """Group the distinct runs; others go into the group of the run that they equal."""
        distinct = [place for place, run in enumerate(runs) if run.same_as is None]
        traces = [path for place in distinct if (path := runs[place].trace)]
        found = group(traces, compare_all=lambda pairs: (self._compare(a, b) for a, b in pairs))
        places = {run.number: place for place, run in enumerate(runs)}
        twins: dict[int, list[int]] = {place: [place] for place in distinct}
        for place, run in enumerate(runs):
            if run.same_as is not None:
                twins[places[run.same_as]].append(place)
        members = [tuple(twins[place]) for place in distinct]
        undecided = [Undecided(place, distinct[u.against], u.why) for u in found.undecided for place in members[u.run]]
        return Grouping(mark_nondeterministic(_expanded(found.tree, members)), tuple(undecided))

    def _control(self, runs: Sequence[CheckRun], grouping: Grouping) -> StepLevelRun:
        """Run once more at level step, and find the group of that run."""
        (ended,) = self._runner.run(requests(self._plan)[self._plan.runs :])
        self._report(f"the run without the op recorder {ended.how}")
        run = self._check_run(ended, 0)
        if all(run.status != other.status for other in runs):
            return StepLevelRun(run, None, f"it {ended.how}, as no other run did: {run.output} has what it printed")
        undecided = None
        for place, found in enumerate(grouping.groups):
            first = next(path for member in found.runs if (path := runs[member].trace))
            comparison = self._compare(first, ended.job.trace)
            if comparison.agrees:
                number = place + 1
                return StepLevelRun(run, number, f"recorded at level step, its steps equal those of group {number}")
            if comparison.agrees is None:
                undecided = undecided or comparison.why
        if undecided is not None:
            return StepLevelRun(run, None, f"its group is unknown: {undecided}")
        return StepLevelRun(run, None, "recorded at level step, its steps equal those of no group")


def _expanded(node: Node, members: Sequence[tuple[int, ...]]) -> Node:
    """The tree with each run replaced by all runs that equal it."""
    if isinstance(node, Group):
        return Group(tuple(sorted(place for run in node.runs for place in members[run])))
    return GroupSplit(node.finding, tuple(_expanded(branch, members) for branch in node.branches))
