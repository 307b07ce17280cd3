"""Shifted comparisons: one run begins at a step of the other, as a resumed run does at a checkpoint.

Owns how that step is found, and the rows at which two streams then begin. It is found by the parameters that the first
attempts of the optimizers began with: two runs that begin with equal parameters are never shifted, and one that begins
with parameters that the other had after several steps is not either. Decides no cause.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.model import Comparison, Finding, Pair, Shift
from rltrace.diff.base.view import StreamView, is_shifted
from rltrace.diff.causes.carried_objects import lost_objects
from rltrace.diff.causes.carried_state import lost_optimizer_state
from rltrace.diff.processes import process_pairs
from rltrace.errors import HoleError, UsageError
from rltrace.trace.format.records import OptimizerStart
from rltrace.trace.format.schema import Column, Kind, Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

ProcessPair = tuple[ProcessTrace, ProcessTrace]

OPTIONS = Pair("--a-starts-at", "--b-starts-at")


@dataclass(frozen=True)
class FoundShift:
    """What the parameters of two runs show of the steps at which they begin."""

    shift: Shift | None = None
    note: str | None = None
    """Why a run that was resumed is compared from its beginning all the same."""


def choose_shift(a: Trace, b: Trace, starts: Pair[int] | None) -> FoundShift:
    """The shift that ``starts`` names, or else the one that is found. Raises UsageError, as ``named_shift`` does."""
    pairs = process_pairs(a, b)
    if starts is None or (starts.a is None and starts.b is None):
        return find_shift(pairs)
    return FoundShift(named_shift(pairs, starts))


def shifted(a: Trace, b: Trace, shift: Shift | None) -> tuple[Trace, Trace]:
    """Two traces from the steps of a shift on; as they are where there is none."""
    if shift is None:
        return a, b
    return (a.from_step(shift.a_step) if shift.a_step else a), (b.from_step(shift.b_step) if shift.b_step else b)


def from_text(shift: Shift) -> str:
    """``from step 4 on (B's step 0)``."""
    return f"from step {shift.a_step:,} on (B's step {shift.b_step:,})"


def start_option(shift: Shift) -> str:
    """``--b-starts-at 4``: the option of ``rltrace diff`` that names a shift."""
    return f"{OPTIONS.b} {shift.a_step}" if shift.a_step else f"{OPTIONS.a} {shift.b_step}"


def with_both_steps(comparison: Comparison) -> Comparison:
    """A comparison whose findings have the step of both sides, where it is shifted."""
    shift = comparison.shift
    if shift is None:
        return comparison
    known: dict[int, Finding] = {}  # a finding in two places stays one

    def place(finding: Finding) -> Finding:
        if finding.step is None:
            return finding
        step = finding.step if finding.a_index is not None or finding.op is None else shift.step_of_a(finding.step)
        event = finding.event
        within = None if event is None else replace(event, first_op=place(event.first_op))
        found = replace(finding, step=step, b_step=shift.step_of_b(step), event=within)
        return known.setdefault(id(finding), found)

    first, value, decisive = (
        None if finding is None else place(finding)
        for finding in (comparison.first, comparison.first_value, comparison.decisive)
    )
    unordered, later = (tuple(map(place, found)) for found in (comparison.unordered, comparison.later))
    return replace(comparison, first=first, first_value=value, decisive=decisive, unordered=unordered, later=later)


def lost_state_notes(pairs: Sequence[ProcessPair], decisive: Finding | None) -> Iterator[str]:
    """Sentences on the state that optimizers, scalers, schedulers and running statistics began without, apart from
    that which the finding names."""
    for a, b in pairs:
        lost_state = [(lost, why) for _, lost, why in lost_optimizer_state(a, b)]
        for lost, why in (*lost_state, *lost_objects(a, b)):
            if decisive is None or decisive.not_restored != lost:
                yield why


# --- the step ---------------------------------------------------------------------------------------------------------


def find_shift(pairs: Sequence[ProcessPair]) -> FoundShift:
    """The step of one side at which the other begins, if its parameters at its first attempts are found at one step."""
    for later, other, side in (("B", "A", pairs), ("A", "B", [(b, a) for a, b in pairs])):
        steps = _common(_steps_before_which(whole, part) for whole, part in side)
        if steps is None:
            continue
        if len(steps) > 1:
            option = OPTIONS.b if later == "B" else OPTIONS.a
            listed = ", ".join(f"{step:,}" for step in steps[:4]) + (", …" if len(steps) > 4 else "")
            return FoundShift(
                note=f"{later} begins with parameters that {other} had before several of its steps ({listed}): if"
                f" {later} resumes {other}, name the step with {option}"
            )
        if len(steps) == 1:
            last = max(int(whole.steps[-1, Step.STEP]) for whole, _ in side if len(whole.steps))
            if steps[0] > last:
                return FoundShift(
                    note=f"{later} begins with the parameters with which {other} ends: they have no step in common"
                )
            why = f"{later} begins with the parameters that {other} had before its step {steps[0]:,}, and no other"
            return FoundShift(_shift(later, steps[0], why))
    loaded = next((name for name, side in (("B", 1), ("A", 0)) if _has_loaded(pairs, side)), None)
    if loaded is None:
        return FoundShift()
    other, option = ("A", OPTIONS.b) if loaded == "B" else ("B", OPTIONS.a)
    return FoundShift(
        note=f"{loaded} began with an optimizer's state that it had loaded, but with parameters that {other} had before"
        f" none of its steps: if {loaded} resumes {other}, name the step with {option}"
    )


def named_shift(pairs: Sequence[ProcessPair], starts: Pair[int]) -> Shift | None:
    """The shift that an option names; None: step 0. Raises UsageError where the other run has no such step."""
    if starts.a is not None and starts.b is not None:
        raise UsageError(f"{OPTIONS.a} and {OPTIONS.b} exclude each other: one of the two runs begins at its step 0")
    later, step = ("B", starts.b) if starts.b is not None else ("A", starts.a)
    if not step:
        return None
    option, other = (OPTIONS.b, "A") if later == "B" else (OPTIONS.a, "B")
    wholes = [a if later == "B" else b for a, b in pairs if len(a.steps) and len(b.steps)]
    if not wholes:
        raise UsageError(f"{option} {step}: no process of both traces made an optimizer step")
    for process in wholes:
        numbers = process.steps[:, Step.STEP]
        if np.uint64(step) not in numbers:
            raise UsageError(
                f"{option} {step}: {other}'s {process.name} has no such step; it has steps {int(numbers[0]):,} to"
                f" {int(numbers[-1]):,}, and {option} names that of {other} which is {later}'s first"
            )
    why = f"{option} {step}: {later}'s first step is step {step:,} of {other}"
    parts = [(a, b) if later == "B" else (b, a) for a, b in pairs]
    known = _common(_steps_before_which(whole, part) for whole, part in parts)
    if known is not None and step not in known:
        why += f", although the parameters that {later} began with are not those that {other} had before it"
    return _shift(later, step, why)


def _shift(later: str, step: int, why: str) -> Shift:
    return Shift(step, 0, why) if later == "B" else Shift(0, step, why)


def _common(found: Iterable[list[int] | None]) -> list[int] | None:
    """The steps that all processes agree on; None where no process knows any."""
    known = [set(steps) for steps in found if steps is not None]
    return sorted(set.intersection(*known)) if known else None


def _steps_before_which(whole: ProcessTrace, part: ProcessTrace) -> list[int] | None:
    """Numbers of the steps of ``whole`` before which its parameters were those that ``part`` began with; the number
    after the last one is where it ended. Empty where both began alike; None where it is not known how they began."""
    began, wanted = whole.optimizer_starts, part.optimizer_starts
    if not began or not wanted or wanted.keys() - began.keys() or not len(whole.steps):
        return None
    if all(began[ordinal].parameters == start.parameters for ordinal, start in wanted.items()):
        return []
    steps = whole.steps
    fits = np.ones(len(steps) + 1, bool)
    for ordinal, start in wanted.items():
        fits &= _parameters_before(whole, ordinal, began[ordinal]) == np.uint64(start.parameters)
    fits[0] = False
    numbers = np.append(steps[:, Step.STEP], steps[-1, Step.STEP] + np.uint64(1))
    return [int(number) for number in numbers[fits]]


def _parameters_before(process: ProcessTrace, ordinal: int, began: OptimizerStart) -> NDArray[np.uint64]:
    """Digest of an optimizer's parameters before each attempt of the process, and after the last; 0: not known."""
    steps = process.steps
    own = process.are_of_optimizer(steps, ordinal)
    digested = (steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    after = np.where(digested, steps[:, Step.PARAMETERS], np.uint64(0))
    last = np.maximum.accumulate(np.where(own, np.arange(len(steps)), -1))
    known = np.where(last >= 0, after[np.maximum(last, 0)], np.uint64(began.parameters))
    found: NDArray[np.uint64] = np.concatenate([[np.uint64(began.parameters)], known])
    return found


def _has_loaded(pairs: Sequence[ProcessPair], side: int) -> bool:
    """Whether an optimizer of this side began with state and that of the other without, and with other parameters."""
    both = (
        (start, pair[1 - side].optimizer_starts[ordinal])
        for pair in pairs
        for ordinal, start in pair[side].optimizer_starts.items()
        if ordinal in pair[1 - side].optimizer_starts
    )
    return any(own.state and not other.state and own.parameters != other.parameters for own, other in both)


# --- the rows ---------------------------------------------------------------------------------------------------------
#
# Before its first common step a resumed run builds a model and loads a checkpoint, and the other one may write it. Both
# are left out: the streams begin at the first op of the resumed run that the other one ran in that step as well, from
# the same call site, after the last file that was loaded.


CHUNK_ROWS = 1 << 16
MAX_ROWS = 1 << 21
"""Rows of a step that are searched at most."""


def begin(a: StreamView, b: StreamView) -> None:
    """Set the rows at which two streams begin, where their comparison is shifted."""
    if not is_shifted(a.process, b.process):
        return
    b.use_site_names_of(a)
    a.start, b.start = _step_began(a), _step_began(b)
    whole, part = (a, b) if len(a.process.steps_before) else (b, a)
    try:
        common = np.unique(np.concatenate([np.empty(0, np.uint64), *(tokens for _, tokens, _ in _chunks(whole))]))
        first = _first_common(part, common)
        if first is not None:
            whole.start, part.start = _first_of(whole, first[1]) or whole.start, first[0]
    except HoleError:
        return  # the walk names the hole


def _step_began(view: StreamView) -> int:
    """Row of a stream at which the first compared step began."""
    before = view.process.steps_before
    own = before[before[:, Step.STREAM] == view.stream.index]
    if len(own):
        return int(own[-1, Step.END_ROW])
    return view.row_after_step(int(before[-1, Step.STEP])) if len(before) else 0  # a thread without attempts


def _chunks(view: StreamView) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.uint32]]]:
    """First row, identities and kinds of the rows of the first compared step, chunk by chunk."""
    end = int(view.steps[0, Step.END_ROW]) if len(view.steps) else view.rows
    for at in range(view.start, min(end, view.start + MAX_ROWS), CHUNK_ROWS):
        stretch = view.read(at, min(at + CHUNK_ROWS, end))
        yield at, stretch.tokens.identity, stretch.rows.column(Column.KIND)


def _first_common(part: StreamView, common: NDArray[np.uint64]) -> tuple[int, int] | None:
    """Row and identity of the first op of the resumed run that the other one ran too, after what only it loaded."""
    found = None
    for at, tokens, kinds in _chunks(part):
        shared = np.isin(tokens, common) & (kinds != Kind.WINDOW)
        loads = np.flatnonzero((kinds == Kind.CHECKPOINT) & ~shared)
        if len(loads):
            found = None
            shared[: loads[-1]] = False
        places = np.flatnonzero(shared)
        if found is None and len(places):
            found = at + int(places[0]), int(tokens[places[0]])
    return found


def _first_of(view: StreamView, identity: int) -> int | None:
    """The first row of this identity."""
    for at, tokens, _ in _chunks(view):
        places = np.flatnonzero(tokens == np.uint64(identity))
        if len(places):
            return at + int(places[0])
    return None
