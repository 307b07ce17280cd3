"""A program run against its lock: the first step that differs, recorded op by op, and the op where it began.

A lock has no ops to compare with. So the program is run once more with what differs put back: variables, and the files
of the commit that has the lock. If that makes the lock's steps, bit for bit, it is the locked run, and ``rltrace.diff``
names the op at which the present one diverges from it. Owns what is put back, and what is said where that fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rltrace.command_lines import line
from rltrace.diff import suggested_commands
from rltrace.diff.base.model import Cause, Comparison, NamedDifference
from rltrace.diff.compare import compare
from rltrace.errors import RecordError, RltraceError
from rltrace.experiment.rerun_command import MACHINE
from rltrace.experiment.runner import Runner, RunRequest, RunResult
from rltrace.experiment.workdir_copy import check_extent
from rltrace.extensions.regression.lock import (
    Lock,
    LockComparison,
    LockFinding,
    compare_locks,
    lock_of,
    read_lock,
    write_lock,
)
from rltrace.fingerprint.host import FILE_LISTS, INSTRUCTIONS
from rltrace.launch.command import commit_with
from rltrace.masking import MASK
from rltrace.trace.read.reader import open_trace
from rltrace.wording import joined

OnProgress = Callable[[str], None]

FROM_EARLIER = (Cause.BEFORE_WINDOW, Cause.OUTSIDE, Cause.UNTRACKED_WRITE, Cause.UNKNOWN)
"""Causes that in a window may be due to an op before it, which wrote what the op reads."""

LOCKED, NOW = "as-locked", "now"
"""Stems of the traces of the run with what differs put back, and of the present one."""


@dataclass(frozen=True)
class LockPlan:
    """The program of a lock, and where its runs go."""

    command: tuple[str, ...]
    lock: Path
    folder: Path
    """The program's working folder."""
    output: Path
    """Folder for the traces and the output of the runs; must exist."""
    until: int | None = None
    """The step after which the runs end; None: that of the lock, or the end of the program."""
    shared: tuple[str, ...] = ()
    """Entries of the folder that are links to the originals in its copies."""
    in_place: bool = False


@dataclass(frozen=True)
class LockCheck:
    """What a program computed, compared with its lock."""

    SCHEMA: ClassVar = "rltrace.lock/1"
    COMPUTED: ClassVar = ("agrees",)

    lock: Path
    comparison: LockComparison
    status: int
    """Exit status of the run; negative: number of the signal that ended it."""
    explanation: str = ""
    """What is known of the reason; "": no step differs, or it was not looked for."""
    machine: tuple[NamedDifference, ...] = ()
    """Facts by which this is another machine than the lock's."""
    repeats: bool | None = None
    """Whether the present program made the same steps when it was recorded again op by op; None: not tried."""
    put_back: tuple[str, ...] = ()
    """What was put back for the last run as it was locked: ``ATEN_CPU_CAPABILITY=avx2``, ``the files of commit …``."""
    reproduced: bool | None = None
    """Whether that run made the lock's steps up to the one that differs; None: nothing could be put back."""
    ops: Comparison | None = None
    """The first op that differs; A: the run as it was locked, B: the present one."""
    traces: tuple[Path, ...] = ()
    """Of these two."""
    advice: tuple[str, ...] = ()
    """Commands to run next, the first of them where the program still computes what was locked."""
    updated: bool = False
    """The lock was replaced."""

    @property
    def agrees(self) -> bool | None:
        """As of the comparison."""
        return self.comparison.agrees


def make_lock(plan: LockPlan) -> Lock:
    """Run the program once and lock what it computed. Raises RecordError where it fails, LockError without a step."""
    with _Runs(plan) as runs:
        ended = runs.record("locked", *_level_step(plan.until))
    locked = lock_of(open_trace(ended.job.trace))
    why = locked.unfinished or ("" if ended.status == 0 else f"it {ended.how}")
    if why:
        raise RecordError(f"a run that did not end well is not locked: {why}; it printed {plan.output / 'locked.out'}")
    write_lock(plan.lock, replace(locked, until=plan.until))
    return locked


def check_lock(plan: LockPlan, report: OnProgress = lambda text: None, *, update: bool = False) -> LockCheck:
    """Run the program and compare it with its lock; ``report`` is given a line as each run ends.

    ``update``: write the lock anew instead of looking for the op. Raises LockError, UsageError and RecordError.
    """
    locked = read_lock(plan.lock)
    until = locked.until if plan.until is None else plan.until
    with _Runs(plan) as runs:
        ended = runs.record(NOW, *_level_step(until))
        report(f"the run {ended.how}")
        found = replace(lock_of(open_trace(ended.job.trace)), until=until)
        if ended.status and not found.unfinished:
            found = replace(found, unfinished=f"the program {ended.how}; it printed {plan.output / f'{NOW}.out'}")
        comparison = compare_locks(locked.up_to(until), found)
        machine = tuple(fact for fact in comparison.system if fact.name in MACHINE)
        checked = LockCheck(plan.lock, comparison, ended.status, machine=machine)
        if update:
            return _update(checked, plan, locked, found)
        if comparison.first is None:
            return checked
        report(f"step {comparison.first.step:,} differs; recording it op by op")
        return _Search(plan, runs, report, locked, found, checked).run(comparison.first)


def _update(checked: LockCheck, plan: LockPlan, locked: Lock, found: Lock) -> LockCheck:
    if found.unfinished:
        raise RecordError(f"{plan.lock} is as it was, as this run did not end well: {found.unfinished}")
    if found == locked:
        return checked
    write_lock(plan.lock, found)
    return replace(checked, updated=True)


def _level_step(until: int | None) -> tuple[str, ...]:
    return ("--level", "step", *(() if until is None else ("--until", str(until))))


# --- runs -------------------------------------------------------------------------------------------------------------


class _Runs:
    """Runs of the program of a plan, one at a time."""

    def __init__(self, plan: LockPlan) -> None:
        self._plan = plan
        self._runner = Runner()
        if not plan.in_place:
            check_extent(plan.folder, plan.shared, plan.output)

    def __enter__(self) -> _Runs:
        self._runner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.__exit__(*error)
        shutil.rmtree(self._plan.output / "folders", ignore_errors=True)

    def record(
        self, stem: str, *options: str, variables: Mapping[str, str | None] | None = None, commit: str | None = None
    ) -> RunResult:
        """``variables``: those to set, and with None those to unset. Raises RecordError."""
        plan, output = self._plan, self._plan.output.absolute()
        environment = {**os.environ, **(variables or {})}
        trace = output / f"{stem}.zarr"
        shutil.rmtree(trace, ignore_errors=True)
        (ended,) = self._runner.run(
            [
                RunRequest(
                    name="1",
                    command=plan.command,
                    origin=plan.folder,
                    copy=None if plan.in_place else output / "folders" / stem,
                    trace=trace,
                    output=output / f"{stem}.out",
                    options=options,
                    shared=plan.shared,
                    without=plan.output,
                    environment={name: value for name, value in environment.items() if value is not None},
                    commit=commit,
                )
            ]
        )
        return ended


# --- the op -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PutBack:
    """What makes the program run as it was locked."""

    variables: Mapping[str, str | None]
    commit: str | None

    @property
    def texts(self) -> tuple[str, ...]:
        named = sorted(self.variables.items())
        texts = [f"{name} unset" if value is None else f"{name}={value}" for name, value in named]
        return (*texts, *(() if self.commit is None else (f"the files of commit {self.commit[:12]}",)))


@dataclass(frozen=True)
class _Search:
    plan: LockPlan
    runs: _Runs
    report: OnProgress
    locked: Lock
    found: Lock
    """Of the present run."""
    checked: LockCheck

    def run(self, at: LockFinding) -> LockCheck:
        if not self._repeats(at, max(at.step - 1, 0)):
            return replace(
                self.checked,
                repeats=False,
                explanation="the program does not repeat itself: run twice unchanged, it made other steps, so no lock "
                "can hold it",
                advice=(line("check", "--", *self.plan.command),),
            )
        checked = replace(self.checked, repeats=True, traces=(self._trace(NOW),))
        left: tuple[NamedDifference, ...] = self.checked.comparison.system
        for put_back in self._tries():
            again, left = self._run_as_locked(put_back, at, max(at.step - 1, 0))
            checked = replace(checked, put_back=put_back.texts, reproduced=again)
            if again:
                ops = self._diff(put_back, at)
                return replace(
                    checked,
                    ops=ops,
                    traces=(self._trace(LOCKED), self._trace(NOW)),
                    explanation=_why(put_back, at, left),
                )
        shutil.rmtree(self._trace(LOCKED), ignore_errors=True)
        return replace(checked, explanation=_why_no_op(checked, left), advice=self._advice(at))

    def _tries(self) -> Iterator[_PutBack]:
        """What can be put back, the likeliest to be all that matters first."""
        variables = variables_to_put_back(self.locked.facts, self.found.facts)
        names = [fact.name for fact in self.checked.comparison.system]
        commit = None if self.plan.in_place else commit_with(self.plan.lock, self.plan.folder)
        edited = any(name.startswith("source.") for name in names)
        if variables and not (commit and edited):
            yield _PutBack(variables, None)
        if commit:
            yield _PutBack(variables, commit)

    def _repeats(self, at: LockFinding, first: int) -> bool:
        self.runs.record(NOW, *_window(first, at.step))
        return _same_steps(self.found, lock_of(open_trace(self._trace(NOW))), at)

    def _run_as_locked(
        self, put_back: _PutBack, at: LockFinding, first: int
    ) -> tuple[bool, tuple[NamedDifference, ...]]:
        """Whether this makes the lock's steps; and the facts that still differ."""
        self.report(f"running it with {joined(put_back.texts)}, as it was locked")
        with suppress(RltraceError):  # the program cannot be run, or recorded, like this
            window = _window(first, at.step)
            self.runs.record(LOCKED, *window, variables=put_back.variables, commit=put_back.commit)
            again = lock_of(open_trace(self._trace(LOCKED)))
            return _same_steps(self.locked, again, at), compare_locks(self.locked, again).system
        return False, self.checked.comparison.system

    def _diff(self, put_back: _PutBack, at: LockFinding) -> Comparison:
        """The first op that differs; where it came before the window, from the first step on."""
        ops = compare(self._trace(LOCKED), self._trace(NOW))
        hidden = ops.decisive is None or ops.decisive.cause in FROM_EARLIER
        if hidden and at.step > 1:
            self.report("the difference may have begun in an earlier step, in what no step digests; recording all")
            if self._repeats(at, 0) and self._run_as_locked(put_back, at, 0)[0]:
                ops = compare(self._trace(LOCKED), self._trace(NOW))
        if put_back.commit is None or ops.decisive is None:
            return ops
        # other commands would run A's program with the present files
        locked, now = open_trace(self._trace(LOCKED)), open_trace(self._trace(NOW))
        return replace(ops, advice=suggested_commands.look_closer(locked, now, ops.decisive))

    def _trace(self, stem: str) -> Path:
        return self.plan.output / f"{stem}.zarr"

    def _advice(self, at: LockFinding) -> tuple[str, ...]:
        window = _window(max(at.step - 1, 0), at.step)
        there = f"{LOCKED}.zarr"
        return (
            line("record", *window, "-o", there, "--", *self.plan.command),
            line("diff", there, self._trace(NOW)),
        )


def _window(first: int, step: int) -> tuple[str, ...]:
    return "--steps", f"{first}:{step + 1}", "--until", str(step)


def _same_steps(a: Lock, b: Lock, at: LockFinding) -> bool:
    """Whether the process made the same steps up to that of the finding."""
    own, other = (
        next((process.steps[: at.step + 1] for process in lock.processes if process.name == at.process), ())
        for lock in (a, b)
    )
    return own == other


def variables_to_put_back(locked: Mapping[str, object], found: Mapping[str, object]) -> dict[str, str | None]:
    """Variables that make a run with the facts ``found`` use the settings of ``locked``, as far as this processor can;
    None: to unset."""
    put: dict[str, str | None] = {}
    for name in sorted({*locked, *found}):
        value, variable = locked.get(name), name.removeprefix("env.")
        if name == variable or value == found.get(name) or variable in FILE_LISTS or MASK in str(value):
            continue
        put[variable] = None if value is None else str(value)
    capability = locked.get("cpu.capability")
    needs = dict(INSTRUCTIONS["ATEN_CPU_CAPABILITY"]).get(str(capability).lower())
    has = ("", *str(found.get("host.isa") or "").split())
    if capability != found.get("cpu.capability") and needs in has:
        put.setdefault("ATEN_CPU_CAPABILITY", str(capability).lower())
    for name, variable in THREADS.items():
        threads = locked.get(name)
        if threads is not None and threads != found.get(name):
            put.setdefault(variable, str(threads))
    return put


THREADS = {"torch.threads": "OMP_NUM_THREADS", "jax.threads": "NPROC"}
"""Facts that count threads, each with the variable that sets how many there are."""


# --- words ------------------------------------------------------------------------------------------------------------


MAX_NAMES = 8


def _why(put_back: _PutBack, at: LockFinding, left: tuple[NamedDifference, ...]) -> str:
    """What made the program run as it was locked. ``left``: facts that differed in that run all the same."""
    reason = "so the reason is " + ("that" if len(put_back.texts) == 1 else "among these")
    why = f"with {joined(put_back.texts)} the program makes the lock's steps up to step {at.step:,}, {reason}"
    names = [fact.name for fact in left]
    return f"{why}; what else differs ({_listed(names)}) changed none of them" if names else why


def _why_no_op(checked: LockCheck, left: tuple[NamedDifference, ...]) -> str:
    """Why only the step is known. ``left``: facts that differ although all that can be put back was."""
    tried = f"with {joined(checked.put_back)} it still does not make the lock's steps: " if checked.put_back else ""
    kinds = {
        "this is another machine, the lock's having": MACHINE,
        "packages differ, the lock having": ("package.", "python.version"),
        "source files differ that git does not have as they were:": ("source.",),
    }
    found = {kind: [fact for fact in left if fact.name.startswith(starts)] for kind, starts in kinds.items()}
    reasons = [f"{kind} {_listed([_as_locked(fact) for fact in facts])}" for kind, facts in found.items() if facts]
    if left and not reasons:
        reasons.append(f"what differs cannot be put back here: {_listed([_as_locked(fact) for fact in left])}")
    if not reasons:
        reasons.append(
            "no fact of the lock differs, so it is something that no lock holds: data, a configuration, another package"
        )
    return f"{tried}{joined(reasons)}; only the step is known until the first command is run where the lock holds"


def _as_locked(fact: NamedDifference) -> str:
    """``torch==2.13.0 (2.12.1 here)``, as pip takes it; ``no triton (3.6.0 here)``; ``host.cpu EPYC (Xeon here)``; the
    name of a source file."""
    kind, _, name = fact.name.partition(".")
    if kind == "source":
        return name
    if kind == "package":
        locked = f"no {name}" if fact.a is None else f"{name}=={fact.a}"
        return f"{locked} ({fact.b or 'none'} here)"
    return f"{fact.name} {fact.a or 'unset'} ({fact.b or 'unset'} here)"


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join(names[:MAX_NAMES] + more)
