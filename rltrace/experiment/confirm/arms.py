"""The four arms of an experiment on two traces, in their order, and its outcome.

Owns what each run proves. A0 and B0 are the controls: if one of them differs from its trace, nothing else counts. Then
B runs with A's values at every op (lockstep), which lists all kinds of op that compute differently; then with A's
values at these kinds only, and at fewer and fewer of them; then A runs with B's values at the kinds that are left.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rltrace.diff.base.model import Cause, Comparison
from rltrace.diff.compare import compare
from rltrace.experiment.confirm.phrases import (
    classes_of,
    divergence_text,
    first_finding,
    is_later,
    kinds_text,
    missing_text,
    place_text,
    runs_text,
)
from rltrace.experiment.confirm.run_cache import RunCache, RunOutcome, Side, TrialLog
from rltrace.experiment.confirm.steps_covered import (
    DivergencePoint,
    StepsCovered,
    agrees,
    has_own_arguments,
    same_place,
)
from rltrace.experiment.delta_debugging import NothingToSearchError, minimise
from rltrace.experiment.outcome import Arm, ArmName, ArmState, ExperimentResult, OriginClass, Outcome
from rltrace.rerun.account import Account
from rltrace.trace.format.schema import GENERATORS, LIMIT, Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace

# --- state ------------------------------------------------------------------------------------------------------------
#
# The state that training continues from: parameters and torch's RNG states after each optimizer attempt in the steps
# covered, and at the end of the process also buffers and optimizer states. Logged values are not part of it: an op that
# only feeds a log can compute something else and change nothing.


_TORCH = (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS)
State = dict[str, object]
"""Digests by a description of the tensor or generator."""


def state_difference(a: Trace, b: Trace, covered: StepsCovered) -> str | None:
    """The first difference in the state, in words; None: there is none."""
    left, right = state_of(a, covered), state_of(b, covered)
    for name, digest in left.items():
        if name not in right:
            return f"{name}: only one of the runs recorded it"
        if right[name] != digest:
            return f"{name} differ"
    extra = next((name for name in right if name not in left), None)
    return None if extra is None else f"{extra}: only one of the runs recorded it"


def state_of(trace: Trace, covered: StepsCovered) -> State:
    """The state in the order of the run."""
    steps, ends = (_all(trace, covered, state) for state in (_state_after_steps, _state_at_end))
    return {**steps, **ends}


def trains_alike(a: Trace, b: Trace, covered: StepsCovered) -> bool:
    """Whether the state is the same after each optimizer attempt; the traces may end after different steps."""
    state = _all(a, covered, _state_after_steps)
    return bool(state) and state == _all(b, covered, _state_after_steps)


_OfProcess = Callable[[ProcessTrace, StepsCovered], Iterator[tuple[str, object]]]


def _all(trace: Trace, covered: StepsCovered, state: _OfProcess) -> State:
    return {name: digest for process in trace.processes for name, digest in state(process, covered)}


def _state_after_steps(process: ProcessTrace, covered: StepsCovered) -> Iterator[tuple[str, object]]:
    payloads = process.tables["optimizers"].payloads
    for row in process.steps:
        step = int(row[Step.STEP])
        if not covered.first <= step < covered.end or not int(row[Step.FLAGS]) & StepFlag.DIGESTED:
            continue
        payload = payloads[int(row[Step.OPTIMIZER])]
        name = payload.get("class", "optimizer") if isinstance(payload, dict) else "optimizer"
        where = f"of {process.name} after step {step:,}"
        yield f"the parameters of {name} {where}", int(row[Step.PARAMETERS])
        yield f"torch's generator states {where}", tuple(int(row[column]) for column in _TORCH)


def _state_at_end(process: ProcessTrace, covered: StepsCovered) -> Iterator[tuple[str, object]]:
    if any(int(row[Step.STEP]) >= covered.end for row in process.steps):
        return  # it continued after the steps covered, so its final state is that of a later step
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
# A control: an unchanged program, run again, has to equal its trace every time. Owns how often it is run, and why it
# failed. One whose ops differ, as it logs a clock, holds for an experiment on the state if that is the same.


NOT_REPRODUCIBLE = "is not reproducible"
SUCCESS = "ended with status 0"


@dataclass(frozen=True)
class ControlResult:
    """The result of a control."""

    ran: RunOutcome
    """The first run, which recorded all values."""
    trouble: str | None
    """Why the control failed, in a sentence; None: it equals the trace each time, in its state at least."""
    ops_differ: str | None = None
    """In which run, and where, ops differ though the state is the same; None: it equals the trace op for op."""


def run_control(
    runs: RunCache, name: str, side: Side, trace: Trace, label: str, samples: int, covered: StepsCovered
) -> ControlResult:
    """Run the program of a side ``samples`` times; ``label``: the name of the trace in sentences.

    Raises RecordError where a run could not be recorded at all.
    """
    first = ops_differ = None
    for number in range(1, samples + 1):
        ran = runs.record(name if number == 1 else f"{name}-{number}", side, values=number == 1)
        first = first or ran
        again = open_trace(ran.trace)
        found = compare(trace, again)
        same = agrees(found)
        if same is None:
            return ControlResult(first, f"unknown whether {label} again equals {label}: {found.why}")
        if not same:
            differs = f"run {number} of {samples} of the same command{_ending(ran)} {divergence_text(found, label)}"
            if ran.how != SUCCESS or not trains_alike(trace, again, covered):
                return ControlResult(first, _not_reproducible(label, differs))
            ops_differ = ops_differ or differs
    assert first is not None
    return ControlResult(first, _missing_values(open_trace(first.trace)), ops_differ)


def _not_reproducible(label: str, differs: str) -> str:
    return f"{label} {NOT_REPRODUCIBLE}: {differs}; rltrace check shows how often it does"


def _ending(ran: RunOutcome) -> str:
    """How a run ended, where it failed; else ""."""
    return "" if ran.how == SUCCESS else f", which {ran.how} (what it printed is in {ran.trace.with_suffix('.out')}),"


def _missing_values(trace: Trace) -> str | None:
    """Why values of a control are missing; None: all were recorded."""
    if any(entry.why == LIMIT for process in trace.processes for entry in process.values.left_out):
        return "not all values of these steps could be recorded: the limit was reached; raise --values-limit"
    return None


# --- experiment -------------------------------------------------------------------------------------------------------


OnChange = Callable[[ExperimentResult], None]

WHAT = {
    ArmName.A0: "A again, unchanged",
    ArmName.B0: "B again, unchanged",
    ArmName.B_FROM_A: "B with A's values",
    ArmName.A_FROM_B: "A with B's values",
}
EXPECTED_ENDS = ("ended with status 0", "ended with status 125")
"""How a replay with ``--until`` ends; 125: an injection did not happen."""
CONTROLS: dict[Side, ArmName] = {"a": ArmName.A0, "b": ArmName.B0}


@dataclass(frozen=True)
class Question:
    """The subject of an experiment: two traces, and how they are tested."""

    a: Trace
    b: Trace
    divergence: DivergencePoint
    sides: frozenset[Side] = frozenset(("a", "b"))
    """The programs that can be run here; the other one has a control that was run elsewhere."""
    selectors: tuple[str, ...] = ()
    """Where the cause is suspected; empty: a lockstep replay finds all places."""
    classes: tuple[OriginClass, ...] = ()
    """Kinds of op that B's arms found on another machine, where only A's are run here."""
    samples: int = 2
    """How often each run that has to be reproducible is made."""
    search: bool = True
    """Look for the smallest set of kinds."""


class _EarlyOutcome(Exception):  # noqa: N818  no error: the experiment has its outcome
    """The result of an arm decides the outcome without the other arms."""

    def __init__(self, word: Outcome, because: str) -> None:
        super().__init__(because)
        self.word = word


class Experiment:
    """One experiment. ``outcome`` is its state so far; ``on_change`` is called with it whenever it changes."""

    def __init__(
        self, question: Question, runs: RunCache, start: ExperimentResult, on_change: OnChange = lambda outcome: None
    ) -> None:
        """``start``: from ``initial_outcome``."""
        self._question = question
        self._runs = runs
        self._on_change = on_change
        self.outcome = start
        self._traces: dict[Path, Trace] = {}
        self._ops_differ: dict[ArmName, str] = {}
        """Controls that hold for the state only, and why they fail where A and B have the same."""
        self._rows: dict[str, Mapping[str, Sequence[int]]] = {}
        """Rows of A0 at which B computed differently in lockstep, by kind of op."""

    def run(self) -> ExperimentResult:
        """Make all missing runs. Raises RecordError where a control could not be recorded."""
        sides = self._question.sides
        try:
            for side in sorted(CONTROLS):
                if side in sides:
                    self._control(side)
                else:
                    self._check_control(side)
            self._compare_controls()
            chosen = tuple(found for found in self._question.classes if found.matters is not False)
            if "b" in sides:
                chosen = self._hypothesis() if self._question.selectors else self._search(self._origins())
            if "a" in sides:
                self._mirror(chosen)
        except _EarlyOutcome as settled:
            if settled.word is Outcome.UNRESOLVED:
                self._runs.discard_last()
            self._update(word=settled.word, explanation=str(settled))
        else:
            word, because = verdict_of(self.outcome)
            self._update(word=word, explanation=because)
        return self.outcome

    # --- the controls -------------------------------------------------------------------------------------------------

    def _control(self, side: Side) -> None:
        """Check that the unchanged program of a side equals its trace every time."""
        name, letter, samples = CONTROLS[side], side.upper(), self._question.samples
        trace = self._question.a if side == "a" else self._question.b
        self._arm(name, ArmState.RUNNING)
        covered = self._question.divergence.covered
        control = run_control(self._runs, name.value, side, trace, letter, samples, covered)
        if control.trouble is not None:
            raise self._unresolved(name, control.trouble)
        result = f"equals {letter} {runs_text(samples)}"
        if control.ops_differ is not None:
            self._ops_differ[name] = _not_reproducible(letter, control.ops_differ)
            result = f"has {letter}'s state to the end of {covered} {runs_text(samples)}, though {control.ops_differ}"
        self._arm(name, ArmState.AS_EXPECTED, result, name.value)

    def _check_control(self, side: Side) -> None:
        """Check that a control that was run elsewhere equals its trace, and holds all values."""
        name, letter = CONTROLS[side], side.upper()
        trace, control = self._question.a if side == "a" else self._question.b, self._trace(name.value)
        found = compare(trace, control)
        same, missing = agrees(found), _missing_values(control)
        if not same:
            what = f"the control of {letter} {divergence_text(found, letter)}"
            if same is None:
                raise self._unresolved(name, f"unknown whether {what}")
            if not trains_alike(trace, control, self._question.divergence.covered):
                raise self._unresolved(name, what)
            self._ops_differ[name] = what
        if missing is not None:
            raise self._unresolved(name, missing)

    def _compare_controls(self) -> None:
        """Check that B0 diverges from A0 where B diverged from A."""
        differs = state_difference(self._trace("A0"), self._trace("B0"), self._question.divergence.covered)
        if differs is None:
            for name, trouble in self._ops_differ.items():
                raise self._unresolved(name, trouble)
        found = compare(self._trace("A0"), self._trace("B0"))
        there, here = self._question.divergence.finding, first_finding(found)
        if here is None:
            raise self._unresolved(ArmName.B0, "B again does not diverge from A again, though B diverged from A")
        if not same_place(here, there):
            raise self._unresolved(
                ArmName.B0,
                f"B again diverges from A again at {place_text(here)}, but B diverged from A at {place_text(there)}",
            )
        self._update(by_state=differs is not None)
        for arm in self.outcome.arms:
            if arm.name is ArmName.B0 and arm.state is ArmState.AS_EXPECTED:
                self._arm(arm.name, arm.state, f"{arm.result}; it diverges from A where B did")

    # --- where the difference begins ----------------------------------------------------------------------------------

    def _origins(self) -> tuple[OriginClass, ...]:
        """All kinds of op at which B computes otherwise."""
        self._arm(ArmName.B_FROM_A, ArmState.RUNNING, "in lockstep")
        ran = self._runs.replay("lockstep", "b", self._path("A0"))
        account = self._complete_account(ArmName.B_FROM_A, ran)
        self._rows = {kind.kind: kind.rows for kind in account.other}
        self._update(classes=classes_of(account.other))
        found = compare(self._trace("A0"), self._open(ran))
        own_arguments = has_own_arguments(found) and self.outcome.by_state and self._same("A0", ran)
        if not agrees(found, self._question.divergence.covered) and not own_arguments:
            raise self._not_repaired(ran, found, "with A's values at every op that has any")
        if not account.other:
            raise self._unresolved(
                ArmName.B_FROM_A,
                "with A's values at every op, B had no different ones, and yet it diverges from A without them",
            )
        return self.outcome.classes

    def _search(self, classes: tuple[OriginClass, ...]) -> tuple[OriginClass, ...]:
        """The smallest set of kinds whose values turn B into A; all of them without a search."""
        name, everything = ArmName.B_FROM_A, [found.kind for found in classes]
        subject = {**self.outcome.subject, "steps": [self.outcome.first_step, self.outcome.end_step]}
        trials = TrialLog(self._runs.folder / "trials.jsonl", subject, self._attempt, self._question.samples)
        self._arm(name, ArmState.RUNNING, f"at {kinds_text(len(classes))}")
        needed: Collection[str] = everything
        if not trials.repairs(everything):
            self._count(trials)
            ran = self._runs.replay("B-from-A", "b", self._path("A0"), rows=self._rows_of(everything))
            self._complete_account(name, ran)
            if self._same("A0", ran):
                raise self._unresolved(name, "B with A's values equals A in some runs and not in others")
            raise self._not_repaired(ran, compare(self._trace("A0"), self._open(ran)), "with A's values at all kinds")
        if self._question.search:
            try:
                needed = minimise(everything, trials.repairs)
            except NothingToSearchError as error:
                raise self._unresolved(name, str(error)) from None
            marked = [replace(each, matters=each.kind in needed) for each in classes]
            self._update(classes=tuple(sorted(marked, key=lambda each: not each.matters)))
        self._count(trials)
        ran = self._runs.replay("B-from-A", "b", self._path("A0"), rows=self._rows_of(needed))
        self._complete_account(name, ran)
        if not self._same("A0", ran):
            raise self._unresolved(name, "B with A's values equals A in some runs and not in others")
        self._arm(
            name, ArmState.AS_EXPECTED, self._equal_text("A"), "B-from-A", f"{WHAT[name]} at {kinds_text(len(needed))}"
        )
        return tuple(found for found in classes if found.kind in needed)

    def _hypothesis(self) -> tuple[OriginClass, ...]:
        """Run B with A's values at the selected ops."""
        name, selectors = ArmName.B_FROM_A, self._question.selectors
        self._arm(name, ArmState.RUNNING, what=f"{WHAT[name]} at {' or '.join(selectors)}")
        ran = self._runs.replay("B-from-A", "b", self._path("A0"), selectors=selectors)
        account = self._complete_account(name, ran)
        self._update(classes=classes_of(account.other))
        if not self._same("A0", ran):
            raise self._not_repaired(ran, compare(self._trace("A0"), self._open(ran)), "with A's values there")
        self._arm(name, ArmState.AS_EXPECTED, self._equal_text("A"), "B-from-A")
        return self.outcome.classes

    def _attempt(self, kinds: frozenset[str]) -> bool:
        """Run B with A's values at these kinds; returns whether it equals A."""
        if not kinds:
            return False  # that is B0, which diverges from A
        self._update(trials=self.outcome.trials + 1)
        ran = self._runs.replay("trial", "b", self._path("A0"), rows=self._rows_of(kinds))
        try:
            return ran.account is not None and ran.account.complete and self._same("A0", ran)
        finally:
            self._traces.pop(ran.trace, None)
            self._runs.remove(ran)

    def _rows_of(self, kinds: Collection[str]) -> dict[str, list[int]]:
        """The rows of A0 that are origins of these kinds."""
        found: dict[str, list[int]] = {}
        for kind in sorted(kinds):
            for stream, rows in self._rows[kind].items():
                found.setdefault(stream, []).extend(rows)
        return {stream: sorted(rows) for stream, rows in found.items()}

    def _count(self, trials: TrialLog) -> None:
        self._update(trials=trials.runs, flaky=trials.flaky)

    # --- the mirror ---------------------------------------------------------------------------------------------------

    def _mirror(self, chosen: Sequence[OriginClass]) -> None:
        """Check that A with B's values at the same kinds equals B; if not, at all kinds."""
        name, b0 = ArmName.A_FROM_B, self._path("B0")
        self._arm(name, ArmState.RUNNING)
        if self._question.selectors:
            ran = self._runs.replay("A-from-B", "a", b0, selectors=self._question.selectors)
            self._complete_account(name, ran)
        else:
            sets = [chosen] if len(chosen) == len(self.outcome.classes) else [chosen, self.outcome.classes]
            for number, classes in enumerate(sets, 1):
                run = "A-from-B" if number == 1 else f"A-from-B-{number}"
                labels = sorted({label for found in classes for label in found.kinds_b})
                ran = self._runs.replay(run, "a", b0, kinds=labels)
                if self._complete_account(name, ran) and self._same("B0", ran):
                    break
            self._arm(name, ArmState.RUNNING, what=f"{WHAT[name]} at {kinds_text(len(classes))}")
        if self._same("B0", ran):
            self._arm(name, ArmState.AS_EXPECTED, self._equal_text("B"), ran.trace.stem)
        else:
            found = compare(self._trace("B0"), self._open(ran))
            self._arm(name, ArmState.OTHERWISE, divergence_text(found, "B"), ran.trace.stem)

    # --- what runs have in common -------------------------------------------------------------------------------------

    def _same(self, control: str, ran: RunOutcome) -> bool:
        """Whether a run equals a control: in its state, if that differs between A and B, else op for op."""
        if self.outcome.by_state:
            covered = self._question.divergence.covered
            return state_difference(self._trace(control), self._open(ran), covered) is None
        return agrees(compare(self._trace(control), self._open(ran)), self._question.divergence.covered) is True

    def _equal_text(self, letter: str) -> str:
        if self.outcome.by_state:
            return f"has {letter}'s state to the end of {self._question.divergence.covered}, bit for bit"
        return f"equals {letter} to the end of {self._question.divergence.covered}, op for op"

    def _not_repaired(self, ran: RunOutcome, found: Comparison, how: str) -> _EarlyOutcome:
        """The outcome where B does not equal A: REFUTED if it diverges as before, PARTIAL if later."""
        name, here, there = ArmName.B_FROM_A, first_finding(found), self._question.divergence.finding
        if agrees(found) is None:
            return self._unresolved(name, f"unknown whether B {how} equals A: {found.why}")
        if here is not None and here.cause is Cause.CONTROL_FLOW and not self._question.selectors:
            return self._unresolved(
                name,
                f"{how}, B still runs other ops than A: {place_text(here)} is only on one side, and there is no "
                "value to inject for what decided it (a setting, a number that no op computed, the code)",
            )
        self._arm(name, ArmState.OTHERWISE, divergence_text(found, "A"), ran.trace.stem)
        if here is not None and not same_place(here, there) and is_later(here, there):
            text = (
                f"{how}, B follows A further than before, and diverges from it at {place_text(here)}: the next origin"
            )
            return _EarlyOutcome(Outcome.PARTIAL, text)
        return _EarlyOutcome(Outcome.REFUTED, f"{how}, B diverges from A as before, at {place_text(here or there)}")

    def _complete_account(self, name: ArmName, ran: RunOutcome) -> Account:
        """The account of a replay; raises _EarlyOutcome unless every injection happened."""
        if ran.account is None:
            raise self._unresolved(name, ran.refused or "the replay left no report on its injections")
        if not ran.account.complete:
            text = missing_text(ran.account, "B" if name is ArmName.A_FROM_B else "A")
            if ran.how not in EXPECTED_ENDS:
                text += f"; the run {ran.how}, and what it printed is in {ran.trace.with_suffix('.out')}"
            if self._question.divergence.finding.cause is Cause.CONTROL_FLOW:
                text += "; control flow diverges on something that no op computes: there is no value to inject for it"
            raise self._unresolved(name, text)
        return ran.account

    # --- the outcome --------------------------------------------------------------------------------------------------

    def _unresolved(self, name: ArmName, because: str) -> _EarlyOutcome:
        self._arm(name, ArmState.FAILED, because)
        return _EarlyOutcome(Outcome.UNRESOLVED, because)

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
        self._on_change(self.outcome)

    def _open(self, ran: RunOutcome) -> Trace:
        if ran.trace not in self._traces:
            self._traces[ran.trace] = open_trace(ran.trace)
        return self._traces[ran.trace]

    def _trace(self, name: str) -> Trace:
        return self._open(RunOutcome(self._path(name), ""))

    def _path(self, name: str) -> Path:
        return self._runs.folder / f"{name}.zarr"


def initial_outcome(
    question: Question, paths: tuple[str, str], subject: dict[str, str], elsewhere: Mapping[str, str] | None = None
) -> ExperimentResult:
    """The outcome of an experiment before any run; ``elsewhere``: what is known of arms that ran elsewhere, by arm."""
    arms = tuple(Arm(name, ArmState.NOT_RUN, WHAT[name], (elsewhere or {}).get(name.value, "")) for name in ArmName)
    covered, found = question.divergence.covered, question.divergence.named
    classes = question.classes
    return ExperimentResult(None, "", *paths, covered.first, covered.end, arms, classes, subject=subject, found=found)


def interrupted_outcome(outcome: ExperimentResult) -> ExperimentResult:
    """The outcome of an experiment that was interrupted, with no arm running."""
    arms = tuple(
        replace(arm, state=ArmState.NOT_RUN, result="") if arm.state is ArmState.RUNNING else arm
        for arm in outcome.arms
    )
    return replace(outcome, arms=arms, explanation="it was interrupted; the same command resumes it")


def verdict_of(outcome: ExperimentResult) -> tuple[Outcome | None, str]:
    """The outcome for arms of which none failed, and a sentence; None: B's arms are missing."""
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
