"""A program run against its lock: the first step that differs, and what is known of the reason.

A lock has no ops to compare with. Where a step differs, the commands are given that record its ops here and where the
lock still holds, and compare them.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rltrace.command_lines import line
from rltrace.diff.base.model import NamedDifference
from rltrace.errors import RecordError
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
from rltrace.trace.read.reader import open_trace
from rltrace.wording import joined

NOW = "now"
"""Stem of the trace of a run that is compared."""


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
    COMPUTED: ClassVar = ("agrees", "machine")

    lock: Path
    comparison: LockComparison
    status: int
    """Exit status of the run; negative: number of the signal that ended it."""
    explanation: str = ""
    """What is known of the reason; "": no step differs, or it was not looked for."""
    advice: tuple[str, ...] = ()
    """Commands to run next."""
    updated: bool = False
    """The lock was replaced."""

    @property
    def agrees(self) -> bool | None:
        """As of the comparison."""
        return self.comparison.agrees

    @property
    def machine(self) -> tuple[NamedDifference, ...]:
        """Facts by which this is another machine than the lock's."""
        return tuple(fact for fact in self.comparison.system if fact.name in MACHINE)


def make_lock(plan: LockPlan) -> Lock:
    """Run the program once and lock what it computed. Raises RecordError where it fails, LockError without a step."""
    ended = _run(plan, "locked", plan.until)
    locked = _lock_of(ended, plan.until)
    why = locked.unfinished or ("" if ended.status == 0 else f"it {ended.how}")
    if why:
        raise RecordError(f"a run that did not end well is not locked: {why}; it printed {plan.output / 'locked.out'}")
    write_lock(plan.lock, locked)
    return locked


def check_lock(plan: LockPlan, *, update: bool = False) -> LockCheck:
    """Run the program and compare it with its lock. Raises LockError, UsageError and RecordError.

    ``update``: write the lock anew instead of looking for a reason.
    """
    locked = read_lock(plan.lock)
    until = locked.until if plan.until is None else plan.until
    ended = _run(plan, NOW, until)
    found = _lock_of(ended, until)
    if ended.status and not found.unfinished:
        found = replace(found, unfinished=f"the program {ended.how}; it printed {plan.output / f'{NOW}.out'}")
    comparison = compare_locks(locked.up_to(until), found)
    checked = LockCheck(plan.lock, comparison, ended.status)
    if update:
        return _update(checked, plan, locked, found)
    if comparison.first is None:
        return checked
    return replace(checked, explanation=_reason(comparison), advice=_advice(plan.command, comparison.first))


def _update(checked: LockCheck, plan: LockPlan, locked: Lock, found: Lock) -> LockCheck:
    if found.unfinished:
        raise RecordError(f"{plan.lock} is as it was, as this run did not end well: {found.unfinished}")
    if found == locked:
        return checked
    write_lock(plan.lock, found)
    return replace(checked, updated=True)


def _lock_of(ended: RunResult, until: int | None) -> Lock:
    """The lock of a run up to this step: a program may go on for a while after it was interrupted there."""
    return replace(lock_of(open_trace(ended.job.trace)).up_to(until), until=until)


def _run(plan: LockPlan, stem: str, until: int | None) -> RunResult:
    """Run the program once, recorded at level step. Raises RecordError."""
    output = plan.output.absolute()
    if not plan.in_place:
        check_extent(plan.folder, plan.shared, plan.output)
    request = RunRequest(
        name="1",
        command=plan.command,
        origin=plan.folder,
        copy=None if plan.in_place else output / "folders" / stem,
        trace=output / f"{stem}.zarr",
        output=output / f"{stem}.out",
        options=("--level", "step", *(() if until is None else ("--until", str(until)))),
        shared=plan.shared,
        without=plan.output,
    )
    try:
        with Runner() as runner:
            (ended,) = runner.run([request])
    finally:
        shutil.rmtree(plan.output / "folders", ignore_errors=True)
    return ended


def _advice(command: tuple[str, ...], at: LockFinding) -> tuple[str, ...]:
    """Commands that find the op: the first is run here, the second where the lock still holds."""
    window = "--steps", f"{max(at.step - 1, 0)}:{at.step + 1}", "--until", str(at.step)
    recorded = tuple(line("record", *window, "-o", name, "--", *command) for name in ("now.zarr", "as-locked.zarr"))
    return (*recorded, line("diff", "as-locked.zarr", "now.zarr"), line("check", "--", *command))


# --- words ------------------------------------------------------------------------------------------------------------


MAX_NAMES = 8


def _reason(comparison: LockComparison) -> str:
    """What differs from the lock, by kinds, and how the op is found."""
    kinds = {
        "this is another machine, the lock's having": MACHINE,
        "packages differ, the lock having": ("package.", "python.version"),
        "source files differ:": ("source.",),
        "variables differ, the lock having": ("env.",),
    }
    found = {kind: [fact for fact in comparison.system if fact.name.startswith(start)] for kind, start in kinds.items()}
    reasons = [f"{kind} {_listed([_as_locked(fact) for fact in facts])}" for kind, facts in found.items() if facts]
    if comparison.system and not reasons:
        reasons.append(f"the lock has {_listed([_as_locked(fact) for fact in comparison.system])}")
    if not reasons:
        reasons.append(
            "no fact of the lock differs, so it is something that no lock holds: data, a configuration, another "
            "package, or a program that does not repeat itself, which the last command finds"
        )
    return f"{joined(reasons)}; record the step here, and as-locked.zarr where the lock holds, to find the op"


def _as_locked(fact: NamedDifference) -> str:
    """``torch==2.13.0 (2.12.1 here)``, as pip takes it; ``no triton (3.6.0 here)``; ``OMP_NUM_THREADS=2 (1 here)``;
    ``host.cpu EPYC (Xeon here)``; the name of a source file."""
    kind, _, name = fact.name.partition(".")
    match kind:
        case "source":
            return name
        case "package":
            return f"{f'no {name}' if fact.a is None else f'{name}=={fact.a}'} ({fact.b or 'none'} here)"
        case "env":
            return f"{f'{name} unset' if fact.a is None else f'{name}={fact.a}'} ({fact.b or 'unset'} here)"
    return f"{fact.name} {fact.a or 'unset'} ({fact.b or 'unset'} here)"


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join(names[:MAX_NAMES] + more)
