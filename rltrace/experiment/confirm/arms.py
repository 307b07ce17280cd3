"""The four arms of an experiment on two traces, in their order, and the word that they come to.

Owns which run proves what. A0 and B0 are the controls: if one of them does not come out as its trace, nothing else
counts. Then B runs with A's values at every op (lockstep), which lists the kinds of op that compute otherwise however
masked they are; then with A's values at these kinds alone, and at fewer and fewer of them; then A with B's values at
those that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.diff.base.model import Cause, Comparison
from rltrace.diff.compare import compare
from rltrace.errors import HoleError
from rltrace.experiment.confirm.phrases import (
    classes_of,
    first_of,
    is_later,
    kinds_text,
    missing_text,
    parts_from,
    place_text,
    runs_text,
)
from rltrace.experiment.confirm.run_cache import RunCache, RunOutcome, Side
from rltrace.experiment.confirm.steps_covered import (
    DivergencePoint,
    StepsCovered,
    agrees,
    has_own_arguments,
    same_place,
)
from rltrace.experiment.delta_debugging import NothingToSearchError, minimise
from rltrace.experiment.outcome import Arm, ArmName, ArmState, ExperimentResult, OriginClass, Outcome
from rltrace.experiment.trial_log import TrialLog
from rltrace.replay.report import Account
from rltrace.trace.format.schema import GENERATORS, LIMIT, Column, Kind, Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.read.stream import StreamTrace

# --- places -----------------------------------------------------------------------------------------------------------
#
# Where an op of a control is in the trace that it repeats, which may hold other steps: by the step both begin at.
#
# Owns that one question. Reads the table of steps, and the rows in which a window begins.


BLOCK = 1024


def row_in(trace: Trace, control: Trace, stream: str, row: int, step: int) -> int | None:
    """The row of ``trace`` that is ``row`` of a stream of ``control``, both being the same from the beginning of
    ``step`` on; None: the trace has no such row, or it is not known where the step begins.
    """
    there, here = _stream(trace, stream), _stream(control, stream)
    if there is None or here is None:
        return None
    begins = _begins(*there, step), _begins(*here, step)
    if begins[0] is None or begins[1] is None:
        return None
    found = row - begins[1] + begins[0]
    return found if row >= begins[1] and found < there[1].rows else None


def _stream(trace: Trace, name: str) -> tuple[ProcessTrace, StreamTrace] | None:
    return next(((p, s) for p in trace.processes for s in p.streams if s.name == name), None)


def _begins(process: ProcessTrace, stream: StreamTrace, step: int) -> int | None:
    """The row of a stream at which the ops of a step begin; None where the stream did not end the one before."""
    if step == 0:
        return _after_window(stream, 0)
    steps = process.steps
    ended = steps[(steps[:, Step.STEP] == np.uint64(step - 1)) & (steps[:, Step.STREAM] == stream.index)]
    return _after_window(stream, int(ended[0, Step.END_ROW])) if len(ended) else None


def _after_window(stream: StreamTrace, row: int) -> int | None:
    """The first row from ``row`` on that does not tell what the window began with; None: it cannot be read."""
    while row < stream.rows:
        try:
            kinds = stream.read(row, min(row + BLOCK, stream.rows)).column(Column.KIND)
        except HoleError:
            return None
        ops = np.flatnonzero(kinds != Kind.WINDOW)
        if len(ops):
            return row + int(ops[0])
        row += len(kinds)
    return row


# --- state ------------------------------------------------------------------------------------------------------------
#
# Whether two runs of an experiment left the same state behind: what training goes on from.
#
# Owns what belongs to it: after each optimizer attempt of the horizon the parameters and torch's generators, and as the
# process ends, which it does with the horizon, these, the buffers and the optimizers' state. What a run printed or
# logged does not belong to it: an op that only feeds a log can compute otherwise and change nothing.


_TORCH = (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS)
State = dict[str, object]
"""By what it is, in words: the digest."""


def state_difference(a: Trace, b: Trace, horizon: StepsCovered) -> str | None:
    """The first thing in the state that differs, in words; None: nothing does."""
    left, right = state_of(a, horizon), state_of(b, horizon)
    for name, digest in left.items():
        if name not in right:
            return f"{name}: only one of the runs recorded it"
        if right[name] != digest:
            return f"{name} differ"
    extra = next((name for name in right if name not in left), None)
    return None if extra is None else f"{extra}: only one of the runs recorded it"


def state_of(trace: Trace, horizon: StepsCovered) -> State:
    """In the order in which a run comes to it."""
    return {name: digest for process in trace.processes for name, digest in _state(process, horizon)}


def _state(process: ProcessTrace, horizon: StepsCovered) -> Iterator[tuple[str, object]]:
    payloads = process.tables["optimizers"].payloads
    for row in process.steps:
        step = int(row[Step.STEP])
        if not horizon.first <= step < horizon.end or not int(row[Step.FLAGS]) & StepFlag.DIGESTED:
            continue
        payload = payloads[int(row[Step.OPTIMIZER])]
        name = payload.get("class", "optimizer") if isinstance(payload, dict) else "optimizer"
        where = f"of {process.name} after step {step:,}"
        yield f"the parameters of {name} {where}", int(row[Step.PARAMETERS])
        yield f"torch's generator states {where}", tuple(int(row[column]) for column in _TORCH)
    if any(int(row[Step.STEP]) >= horizon.end for row in process.steps):
        return  # it went on after the horizon, and what it ended with is of another time
    for ordinal, digest in process.parameters.items():
        yield f"the parameters of optimizer {ordinal} of {process.name} as it ends", digest
    if process.generators is not None:
        states = tuple(state for column, state in zip(GENERATORS, process.generators, strict=True) if column in _TORCH)
        yield f"torch's generator states of {process.name} as it ends", states
    for record in process.journal.records:
        if record["type"] == "state":
            yield f"the buffers and optimizer states of {process.name} as it ends", record.get("digest")


# --- controls ---------------------------------------------------------------------------------------------------------
#
# A control: a program run again, unchanged, has to come out as its trace does, every time.
#
# Owns how often it is run, what is kept of it, and what is wrong where it does not come out so. What follows from that
# is for whoever asked.


NOT_REPRODUCIBLE = "is not reproducible"
WELL = "ended with status 0"


@dataclass(frozen=True)
class ControlResult:
    """What came of a control."""

    ran: RunOutcome
    """The first run, which holds all values."""
    trouble: str | None
    """Why nothing can rest on it, in a sentence; None: it came out as the trace each time."""


def run_control(bench: RunCache, name: str, side: Side, trace: Trace, called: str, samples: int) -> ControlResult:
    """Run the program of a side ``samples`` times; ``called``: what the trace goes by in a sentence.

    Raises RecordError where a run could not be recorded at all.
    """
    first = None
    for number in range(1, samples + 1):
        ran = bench.record(name if number == 1 else f"{name}-{number}", side, values=number == 1)
        first = first or ran
        found = compare(trace, open_trace(ran.trace))
        same = agrees(found)
        if same is None:
            return ControlResult(first, f"unknown whether {called} again equals {called}: {found.why}")
        if not same:
            return ControlResult(
                first,
                f"{called} {NOT_REPRODUCIBLE}: run {number} of {samples} of the same command{_ending(ran)} "
                f"{parts_from(found, called)}; rltrace check shows how often it does",
            )
    assert first is not None
    return ControlResult(first, _missing_values(open_trace(first.trace)))


def _ending(ran: RunOutcome) -> str:
    """How a run ended, where that is not how one ends that goes well."""
    return "" if ran.how == WELL else f", which {ran.how} (what it printed is in {ran.trace.with_suffix('.out')}),"


def _missing_values(trace: Trace) -> str | None:
    """The values of a control have to be there, all that can be."""
    if any(entry.why == LIMIT for process in trace.processes for entry in process.values.left_out):
        return "not all values of these steps could be recorded: the limit was reached; raise --values-limit"
    return None


# --- experiment -------------------------------------------------------------------------------------------------------


Tell = Callable[[ExperimentResult], None]

WHAT = {
    ArmName.A0: "A again, unchanged",
    ArmName.B0: "B again, unchanged",
    ArmName.B_FROM_A: "B with A's values",
    ArmName.A_FROM_B: "A with B's values",
}
AS_ASKED = ("ended with status 0", "ended with status 125")
"""How a replay ends that ``--until`` ended; 125, where an injection did not happen."""
CONTROLS: dict[Side, ArmName] = {"a": ArmName.A0, "b": ArmName.B0}


@dataclass(frozen=True)
class Question:
    """What is asked of two traces."""

    a: Trace
    b: Trace
    parting: DivergencePoint
    sides: frozenset[Side] = frozenset(("a", "b"))
    """The programs that can be run here; of the other one the folder holds a control that was captured elsewhere."""
    selectors: tuple[str, ...] = ()
    """Where the cause is suspected; empty: a lockstep finds all places."""
    classes: tuple[OriginClass, ...] = ()
    """What B's arms have found on another machine, where only A's are run here."""
    samples: int = 2
    """How often each run is made that has to come out the same."""
    search: bool = True
    """Look for the smallest set of kinds."""


class _Settled(Exception):  # noqa: N818  no error: the experiment has its word
    """An arm came out in a way that makes the others pointless."""

    def __init__(self, word: Outcome, because: str) -> None:
        super().__init__(because)
        self.word = word


class Experiment:
    """One experiment. ``outcome`` is what is known so far; ``tell`` is given it whenever it changes."""

    def __init__(
        self, question: Question, bench: RunCache, start: ExperimentResult, tell: Tell = lambda outcome: None
    ) -> None:
        """``start``: the outcome of nothing yet, from ``not_begun``."""
        self._question = question
        self._bench = bench
        self._tell = tell
        self.outcome = start
        self._traces: dict[Path, Trace] = {}
        self._rows: dict[str, Mapping[str, Sequence[int]]] = {}
        """By the label of a kind: the rows of A0 at which B computed otherwise in lockstep."""

    def run(self) -> ExperimentResult:
        """Make all runs that are not there yet. Raises RecordError where a control could not be recorded."""
        sides = self._question.sides
        try:
            for side in sorted(CONTROLS):
                if side in sides:
                    self._control(side)
                else:
                    self._check_captured(side)
            self._compare_controls()
            chosen = tuple(found for found in self._question.classes if found.matters is not False)
            if "b" in sides:
                chosen = self._hypothesis() if self._question.selectors else self._search(self._origins())
            if "a" in sides:
                self._mirror(chosen)
        except _Settled as settled:
            if settled.word is Outcome.UNRESOLVED:
                self._bench.reconsider()
            self._update(word=settled.word, explanation=str(settled))
        else:
            word, because = verdict_of(self.outcome)
            self._update(word=word, explanation=because)
        return self.outcome

    # --- the controls -------------------------------------------------------------------------------------------------

    def _control(self, side: Side) -> None:
        """The program of a side, unchanged, has to come out as its trace does, every time."""
        name, letter, samples = CONTROLS[side], side.upper(), self._question.samples
        trace = self._question.a if side == "a" else self._question.b
        self._arm(name, ArmState.RUNNING)
        control = run_control(self._bench, name.value, side, trace, letter, samples)
        if control.trouble is not None:
            raise self._unresolved(name, control.trouble)
        self._arm(name, ArmState.AS_EXPECTED, f"equals {letter} {runs_text(samples)}", name.value)

    def _check_captured(self, side: Side) -> None:
        """A control that was run elsewhere has to be the trace that is here of it."""
        name, letter = CONTROLS[side], side.upper()
        trace = self._question.a if side == "a" else self._question.b
        found = compare(trace, self._trace(name.value))
        if agrees(found) is False:
            raise self._unresolved(
                name, f"the capture of {letter} does not equal {letter}: it {parts_from(found, letter)}"
            )

    def _compare_controls(self) -> None:
        """B0 has to part from A0 where B parted from A."""
        found = compare(self._trace("A0"), self._trace("B0"))
        there, here = self._question.parting.finding, first_of(found)
        if here is None:
            raise self._unresolved(ArmName.B0, "B again does not diverge from A again, though B diverged from A")
        if not same_place(here, there):
            raise self._unresolved(
                ArmName.B0,
                f"B again diverges from A again at {place_text(here)}, but B diverged from A at {place_text(there)}",
            )
        differs = state_difference(self._trace("A0"), self._trace("B0"), self._question.parting.horizon)
        self._update(by_state=differs is not None)
        for arm in self.outcome.arms:
            if arm.name is ArmName.B0 and arm.state is ArmState.AS_EXPECTED:
                self._arm(arm.name, arm.state, f"{arm.result}; it diverges from A where B did")

    # --- where the difference begins ----------------------------------------------------------------------------------

    def _origins(self) -> tuple[OriginClass, ...]:
        """All kinds of op at which B computes otherwise."""
        self._arm(ArmName.B_FROM_A, ArmState.RUNNING, "in lockstep")
        ran = self._bench.replay("lockstep", "b", self._path("A0"))
        account = self._whole(ArmName.B_FROM_A, ran)
        self._rows = {kind.kind: kind.rows for kind in account.other}
        self._update(classes=self._classes(account))
        found = compare(self._trace("A0"), self._open(ran))
        own_arguments = has_own_arguments(found) and self.outcome.by_state and self._same("A0", ran)
        if not agrees(found, self._question.parting.horizon) and not own_arguments:
            raise self._not_repaired(ran, found, "with A's values at every op that has any")
        if not account.other:
            raise self._unresolved(
                ArmName.B_FROM_A,
                "with A's values at every op, B had no different ones, and yet it diverges from A without them",
            )
        return self.outcome.classes

    def _search(self, classes: tuple[OriginClass, ...]) -> tuple[OriginClass, ...]:
        """The smallest set of kinds that makes B what A is; all of them where none is looked for."""
        name, everything = ArmName.B_FROM_A, [found.kind for found in classes]
        trials = self._trials()
        self._arm(name, ArmState.RUNNING, f"at {kinds_text(len(classes))}")
        needed: Collection[str] = everything
        if not trials.repairs(everything):
            self._count(trials)
            ran = self._bench.replay("B-from-A", "b", self._path("A0"), rows=self._rows_of(everything))
            self._whole(name, ran)
            if self._same("A0", ran):
                raise self._unresolved(name, "B with A's values equals A in some runs and not in others")
            raise self._not_repaired(ran, compare(self._trace("A0"), self._open(ran)), "with A's values at all kinds")
        if self._question.search:
            try:
                needed = minimise(everything, trials.repairs).classes
            except NothingToSearchError as error:
                raise self._unresolved(name, str(error)) from None
            self._update(classes=classes_of_outcome(classes, needed))
        self._count(trials)
        ran = self._bench.replay("B-from-A", "b", self._path("A0"), rows=self._rows_of(needed))
        self._whole(name, ran)
        if not self._same("A0", ran):
            raise self._unresolved(name, "B with A's values equals A in some runs and not in others")
        self._arm(name, ArmState.AS_EXPECTED, self._told("A"), "B-from-A", f"{WHAT[name]} at {kinds_text(len(needed))}")
        return tuple(found for found in classes if found.kind in needed)

    def _hypothesis(self) -> tuple[OriginClass, ...]:
        """B with A's values where the selectors say."""
        name, selectors = ArmName.B_FROM_A, self._question.selectors
        self._arm(name, ArmState.RUNNING, what=f"{WHAT[name]} at {' or '.join(selectors)}")
        ran = self._bench.replay("B-from-A", "b", self._path("A0"), selectors=selectors)
        account = self._whole(name, ran)
        self._update(classes=self._classes(account))
        if not self._same("A0", ran):
            raise self._not_repaired(ran, compare(self._trace("A0"), self._open(ran)), "with A's values there")
        self._arm(name, ArmState.AS_EXPECTED, self._told("A"), "B-from-A")
        return self.outcome.classes

    def _classes(self, account: Account) -> tuple[OriginClass, ...]:
        """The kinds of an account, with their place in trace A."""
        a, a0, first = self._question.a, self._trace("A0"), self._question.parting.horizon.first
        return tuple(
            replace(found, row_in_a=row_in(a, a0, found.stream, found.first_row or 0, first))
            for found in classes_of(account.other)
        )

    def _trials(self) -> TrialLog:
        subject = {**self.outcome.subject, "horizon": [self.outcome.first_step, self.outcome.end_step]}
        return TrialLog(self._bench.folder / "trials.jsonl", subject, self._attempt, self._question.samples)

    def _attempt(self, kinds: frozenset[str]) -> bool:
        """One run of B with A's values at these kinds; whether it has become A."""
        if not kinds:
            return False  # that is B0, which parts from A
        self._update(trials=self.outcome.trials + 1)
        ran = self._bench.replay("trial", "b", self._path("A0"), rows=self._rows_of(kinds))
        try:
            return ran.account is not None and ran.account.complete and self._same("A0", ran)
        finally:
            self._traces.pop(ran.trace, None)
            self._bench.forget(ran)

    def _rows_of(self, kinds: Collection[str]) -> dict[str, list[int]]:
        """The rows of A0 that are origins of these kinds."""
        found: dict[str, list[int]] = {}
        for kind in sorted(kinds):
            for stream, rows in self._rows[kind].items():
                found.setdefault(stream, []).extend(rows)
        return {stream: sorted(rows) for stream, rows in found.items()}

    def _count(self, trials: TrialLog) -> None:
        runs = sum(trial.runs for trial in trials.all if trial.classes)
        self._update(trials=runs, flaky=sum(trial.is_flaky for trial in trials.all))

    # --- the mirror ---------------------------------------------------------------------------------------------------

    def _mirror(self, chosen: Sequence[OriginClass]) -> None:
        """A with B's values at the same kinds has to become B; should that not do, at all kinds."""
        name, b0 = ArmName.A_FROM_B, self._path("B0")
        self._arm(name, ArmState.RUNNING)
        if self._question.selectors:
            ran = self._bench.replay("A-from-B", "a", b0, selectors=self._question.selectors)
            self._whole(name, ran)
        else:
            sets = [chosen] if len(chosen) == len(self.outcome.classes) else [chosen, self.outcome.classes]
            for number, classes in enumerate(sets, 1):
                run = "A-from-B" if number == 1 else f"A-from-B-{number}"
                labels = sorted({label for found in classes for label in found.kinds_b})
                ran = self._bench.replay(run, "a", b0, kinds=labels)
                if self._whole(name, ran) and self._same("B0", ran):
                    break
            self._arm(name, ArmState.RUNNING, what=f"{WHAT[name]} at {kinds_text(len(classes))}")
        if self._same("B0", ran):
            self._arm(name, ArmState.AS_EXPECTED, self._told("B"), ran.trace.stem)
        else:
            found = compare(self._trace("B0"), self._open(ran))
            self._arm(name, ArmState.OTHERWISE, parts_from(found, "B"), ran.trace.stem)

    # --- what runs have in common -------------------------------------------------------------------------------------

    def _same(self, control: str, ran: RunOutcome) -> bool:
        """Whether a run came out as a control in what counts: its state, where that differs between A and B at all."""
        if self.outcome.by_state:
            horizon = self._question.parting.horizon
            return state_difference(self._trace(control), self._open(ran), horizon) is None
        return agrees(compare(self._trace(control), self._open(ran)), self._question.parting.horizon) is True

    def _told(self, letter: str) -> str:
        if self.outcome.by_state:
            return f"has {letter}'s state to the end of {self._question.parting.horizon}, bit for bit"
        return f"equals {letter} to the end of {self._question.parting.horizon}, op for op"

    def _not_repaired(self, ran: RunOutcome, found: Comparison, how: str) -> _Settled:
        """B did not become A: REFUTED where it parts from A as before, PARTIAL where it does so later."""
        name, here, there = ArmName.B_FROM_A, first_of(found), self._question.parting.finding
        if agrees(found) is None:
            return self._unresolved(name, f"unknown whether B {how} equals A: {found.why}")
        if here is not None and here.cause is Cause.CONTROL_FLOW and not self._question.selectors:
            return self._unresolved(
                name,
                f"{how}, B still runs other ops than A: {place_text(here)} is only on one side, and there is no "
                "value to inject for what decided it (a setting, a number that no op computed, the code)",
            )
        self._arm(name, ArmState.OTHERWISE, parts_from(found, "A"), ran.trace.stem)
        if here is not None and not same_place(here, there) and is_later(here, there):
            text = (
                f"{how}, B follows A further than before, and diverges from it at {place_text(here)}: the next origin"
            )
            return _Settled(Outcome.PARTIAL, text)
        return _Settled(Outcome.REFUTED, f"{how}, B diverges from A as before, at {place_text(here or there)}")

    def _whole(self, name: ArmName, ran: RunOutcome) -> Account:
        """The account of a replay, of which every injection has to have happened."""
        if ran.account is None:
            raise self._unresolved(name, ran.refused or "the replay left no report on its injections")
        if not ran.account.complete:
            text = missing_text(ran.account, "B" if name is ArmName.A_FROM_B else "A")
            if ran.how not in AS_ASKED:
                text += f"; the run {ran.how}, and what it printed is in {ran.trace.with_suffix('.out')}"
            if self._question.parting.finding.cause is Cause.CONTROL_FLOW:
                text += "; control flow diverges on something that no op computes: there is no value to inject for it"
            raise self._unresolved(name, text)
        return ran.account

    # --- the outcome --------------------------------------------------------------------------------------------------

    def _unresolved(self, name: ArmName, because: str) -> _Settled:
        self._arm(name, ArmState.FAILED, because)
        return _Settled(Outcome.UNRESOLVED, because)

    def _arm(
        self, name: ArmName, state: ArmState, result: str = "", trace: str | None = None, what: str | None = None
    ) -> None:
        path = None if trace is None else str(self._path(trace))
        arm = self.outcome.arm(name)
        assert arm is not None
        changed = replace(arm, state=state, result=result, trace=path or arm.trace, what=what or arm.what)
        self._update(arms=tuple(changed if other is arm else other for other in self.outcome.arms))

    def _update(self, **changes: Any) -> None:
        self.outcome = replace(self.outcome, **changes)
        self._tell(self.outcome)

    def _open(self, ran: RunOutcome) -> Trace:
        if ran.trace not in self._traces:
            self._traces[ran.trace] = open_trace(ran.trace)
        return self._traces[ran.trace]

    def _trace(self, name: str) -> Trace:
        return self._open(RunOutcome(self._path(name), ""))

    def _path(self, name: str) -> Path:
        return self._bench.folder / f"{name}.zarr"


def classes_of_outcome(classes: Sequence[OriginClass], needed: Collection[str]) -> tuple[OriginClass, ...]:
    """The classes, with whether each matters; those that do first."""
    found = [replace(c, matters=c.kind in needed) for c in classes]
    return tuple(sorted(found, key=lambda c: not c.matters))


def not_begun(
    question: Question, paths: tuple[str, str], subject: dict[str, str], captured: Mapping[str, str] | None = None
) -> ExperimentResult:
    """The outcome of an experiment of which nothing was run; ``captured``: of arms that ran elsewhere, how."""
    arms = tuple(Arm(name, ArmState.NOT_RUN, WHAT[name], (captured or {}).get(name.value, "")) for name in ArmName)
    horizon = question.parting.horizon
    return ExperimentResult(None, "", *paths, horizon.first, horizon.end, arms, question.classes, subject=subject)


def broken_off(outcome: ExperimentResult) -> ExperimentResult:
    """The outcome of an experiment that was ended before its word: no arm runs any more."""
    arms = tuple(
        replace(arm, state=ArmState.NOT_RUN, result="") if arm.state is ArmState.RUNNING else arm
        for arm in outcome.arms
    )
    return replace(outcome, arms=arms, explanation="it was interrupted; the same command resumes it")


def verdict_of(outcome: ExperimentResult) -> tuple[Outcome | None, str]:
    """The word for arms of which none failed, and a sentence; None: B's own arms are missing."""
    states = {arm.name: arm.state for arm in outcome.arms}
    needed = sum(found.matters is not False for found in outcome.classes)
    minimal = any(found.matters for found in outcome.classes)
    at = f"at {kinds_text(needed)}" if needed else "there"
    enough = "it is all that is needed" if needed == 1 else "none of them can be left out"
    all_it_takes = f", and {enough}" if minimal else ""
    if states[ArmName.B_FROM_A] is not ArmState.AS_EXPECTED:
        return None, "B's arms were not run here; rltrace confirm --join combines the outcomes of both machines"
    if states[ArmName.A_FROM_B] is ArmState.NOT_RUN:
        return Outcome.REPAIRED, f"A's values {at} turn B into A{all_it_takes}; A's own arms were not run"
    if states[ArmName.A_FROM_B] is not ArmState.AS_EXPECTED:
        mirror = outcome.arm(ArmName.A_FROM_B)
        result = mirror.result if mirror is not None else ""
        return Outcome.PARTIAL, f"A's values {at} turn B into A, but A with B's values {result}"
    return Outcome.CONFIRMED, f"A's values {at} turn B into A, bit for bit, and B's values turn A into B{all_it_takes}"
