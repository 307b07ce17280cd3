"""From two traces and what was asked for to an experiment that can be run: recipes, horizon, folder, captures.

Owns what has to be known before anything runs, and refuses where it is not. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace import fingerprint
from rltrace.diff.compare import compare
from rltrace.errors import UsageError
from rltrace.experiment.confirm.bench import Side
from rltrace.experiment.confirm.capture import CaptureError, identity_of, read_capture
from rltrace.experiment.confirm.experiment import CONTROLS, Question
from rltrace.experiment.confirm.horizon import parting_of
from rltrace.experiment.folders import check_extent
from rltrace.experiment.outcome import ArmName, ArmState, OriginClass, Outcome
from rltrace.experiment.recipe import Recipe, other_machine, recipe_of
from rltrace.trace.reader import Trace, open_trace

BOTH: frozenset[Side] = frozenset(("a", "b"))


@dataclass(frozen=True)
class ByHand:
    """What is given for one program in place of what its trace says."""

    command: tuple[str, ...] = ()
    folder: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Asked:
    """An experiment as it is asked for."""

    a: Path
    b: Path
    sides: frozenset[Side] = BOTH
    by_hand: Mapping[Side, ByHand] | None = None
    until: int | None = None
    selectors: tuple[str, ...] = ()
    samples: int = 2
    search: bool = True
    capture: Path | None = None
    """Of the other side's control, where only one side is run here."""
    found: Outcome | None = None
    """What B's arms came to, where only A's are run here."""


@dataclass(frozen=True)
class Prepared:
    """All that is needed to run it."""

    question: Question
    recipes: Mapping[Side, Recipe]
    subject: Mapping[str, str]
    captured: Path | None
    """The other side's control, in a file."""
    captured_as: str
    """Name of the run that it stands for."""


def prepare(asked: Asked) -> Prepared:
    """Raises UsageError, and what comparing the traces raises."""
    a, b = open_trace(asked.a), open_trace(asked.b)
    traces: dict[Side, Trace] = {"a": a, "b": b}
    parting = parting_of(compare(a, b), asked.until)
    question = Question(
        a=a,
        b=b,
        parting=parting,
        sides=asked.sides,
        selectors=asked.selectors,
        samples=asked.samples,
        search=asked.search,
    )
    subject = {str(side): identity_of(trace) for side, trace in traces.items()}
    recipes = {side: recipe(traces[side], side, (asked.by_hand or {}).get(side)) for side in sorted(asked.sides)}
    missing = next(iter(BOTH - asked.sides), None)
    if missing is None:
        return Prepared(question, recipes, subject, None, "")
    _check_capture(asked, missing, traces[missing], question)
    if missing == "b":
        question = replace(question, classes=_classes(asked.found, subject, question))
    return Prepared(question, recipes, subject, asked.capture, CONTROLS[missing].value)


def recipe(trace: Trace, side: str, by_hand: ByHand | None) -> Recipe:
    """How a trace's program is run again here. Raises UsageError where its machine is another one."""
    by_hand = by_hand or ByHand()
    other = other_machine(trace, fingerprint.start())
    if other is not None:
        raise UsageError(
            f"{other}: its program has to be run there; take what this machine needs of it with rltrace capture, and"
            f" run the arms of each machine with --arms ({side} there)"
        )
    given = dict(by_hand.variables)
    option = f"--cmd-{side}" if side in BOTH else "--cmd"
    return recipe_of(trace, command=by_hand.command, folder=by_hand.folder, variables=given, option=option)


def check_folders(recipes: Mapping[Side, Recipe], shared: tuple[str, ...], work: Path) -> None:
    """Refuse folders too large to be copied for every run. Raises UsageError."""
    for found in recipes.values():
        check_extent(found.folder, shared, work)


def _check_capture(asked: Asked, side: Side, trace: Trace, question: Question) -> None:
    letter = side.upper()
    if asked.capture is None:
        raise UsageError(
            f"the arms of one machine need the other control's values: run rltrace capture {trace.path} there, and give"
            f" the file with --capture"
        )
    about, horizon = read_capture(asked.capture), question.parting.horizon
    if about.subject != identity_of(trace):
        raise CaptureError(f"{asked.capture} is a capture of {about.path}, not of {letter} ({trace.path})")
    if about.horizon != horizon:
        raise CaptureError(
            f"{asked.capture} holds {about.horizon}, and the experiment goes over {horizon}: capture it again with"
            f" --steps {horizon.first}:{horizon.end}"
        )


def _classes(found: Outcome | None, subject: Mapping[str, str], question: Question) -> tuple[OriginClass, ...]:
    if question.selectors:
        return ()
    if found is None:
        raise UsageError(
            "A's arms put B's values in at the ops that B's arms found: run those first (--arms b -o b.json on B's"
            " machine), and give what they came to with --found b.json"
        )
    if dict(found.subject) != dict(subject):
        raise UsageError("--found is of other traces")
    arm = found.arm(ArmName.B_FROM_A)
    if arm is None or arm.state is not ArmState.AS_EXPECTED:
        raise UsageError("--found tells of no ops whose values make B what A is; there is nothing to mirror")
    return found.classes
