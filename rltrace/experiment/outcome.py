"""The result of an experiment on two traces: its arms, its outcome, and the kinds of op at which runs diverge.

Owns the result object of ``rltrace confirm``, its JSON, ``rltrace.confirm/1``, whose keys are the fields, and which
file belongs to two traces. Runs and judges nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from rltrace.diff.base.model import Pair
from rltrace.errors import RltraceError
from rltrace.json import JsonError, from_json, to_json
from rltrace.trace.format.location import Location, folder_beside
from rltrace.trace.read.names import Site
from rltrace.trace.read.reader import Trace, open_trace

MAX_BYTES = 64 << 20
"""Size of the largest outcome that is read, with many thousand classes."""


class OutcomeError(RltraceError):
    """A file holds no outcome of an experiment, or one that this version cannot read."""


class Outcome(StrEnum):
    """The outcome of the experiment."""

    CONFIRMED = "confirmed"
    """All four arms came out as expected of a cause."""
    REPAIRED = "repaired"
    """B with A's values equals A; the arms of A were not run."""
    PARTIAL = "partial"
    """The injection repairs B for a while; another origin follows."""
    REFUTED = "refuted"
    """With A's values, B differs as before."""
    UNRESOLVED = "unresolved"
    """A control failed, or an injection did not happen as requested: the experiment proves nothing."""


class ArmName(StrEnum):
    A0 = "A0"
    """A again, unchanged: a control that has to match A."""
    B0 = "B0"
    """B again, unchanged: a control that has to differ where it differed."""
    B_FROM_A = "B<-A"
    """B with A's values: matches A where the cause is found."""
    A_FROM_B = "A<-B"
    """A with B's values: matches B where the cause is found."""


class ArmState(StrEnum):
    NOT_RUN = "not-run"
    RUNNING = "running"
    AS_EXPECTED = "as-expected"
    OTHERWISE = "otherwise"
    """It ran, and did not come out as expected of a cause."""
    FAILED = "failed"
    """It could not be run, or its injections did not happen as requested."""


@dataclass(frozen=True)
class Arm:
    """One run of the experiment."""

    name: ArmName
    state: ArmState
    what: str
    """``B with A's values at 6 classes of op``."""
    result: str
    """``matches A to the end of step 38``, ``differs at op 184,213, as before``; "" where it was not run."""
    trace: str | None = None
    """The trace that it recorded; None: nothing, or it was removed."""


@dataclass(frozen=True)
class OriginClass:
    """Ops of one kind at which runs diverge: the same op, kernels and call site."""

    op: str
    kernel: Pair[str]
    site: Site | None
    count: int
    """Ops of this kind that gave another result while B stayed on A's path."""
    share: float
    """Of all such ops, from 0 to 1."""
    matters: bool | None
    """Whether the kind is in the minimal set that repairs B; None: not tried."""
    stream: str
    first_row: int | None
    """Row of the first of them in A0."""
    first_step: int | None
    max_ulp: int | None = None
    """The largest distance of two elements; None: no floating-point numbers, or not measured."""
    max_relative: float | None = None
    parts: tuple[str, ...] = ()
    """What differed: ``outside`` data, a ``generator``'s state, a logged ``number`` or a ``result``."""
    kind: str = ""
    """Its label in A, as ``rltrace replay --kinds`` takes it."""
    kinds_b: tuple[str, ...] = ()
    """Labels of the same ops in B."""


@dataclass(frozen=True)
class ExperimentResult:
    """The result of an experiment, finished or not."""

    SCHEMA: ClassVar = "rltrace.confirm/1"

    word: Outcome | None
    """None: it is not finished."""
    explanation: str
    """One sentence."""
    a: str
    """Path of trace A, as it was given."""
    b: str
    first_step: int | None
    """The first step covered."""
    end_step: int | None
    """The step after the last one covered. None: to the end."""
    arms: tuple[Arm, ...]
    classes: tuple[OriginClass, ...]
    """The likeliest to matter first."""
    trials: int = 0
    """Runs made to search for the smallest set of classes."""
    flaky: int = 0
    """Those of these runs that had another result when repeated."""
    advice: tuple[str, ...] = ()
    """Commands to run next."""
    found: str = ""
    """The first difference of the two traces, as ``diff`` names it."""
    subject: Mapping[str, str] = field(default_factory=dict)
    """Identities of trace A ("a") and trace B ("b"), independent of their paths; "inject": what was suspected."""
    by_state: bool | None = None
    """Whether runs were compared by their final state; False: op by op, as A and B end in the same state."""

    def arm(self, name: ArmName) -> Arm | None:
        return next((arm for arm in self.arms if arm.name is name), None)


def write_outcome(path: Path, outcome: ExperimentResult) -> None:
    """Replace the file atomically: a reader sees the old one or the new one."""
    text = json.dumps(to_json(outcome), indent=2, allow_nan=False) + "\n"
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def read_outcome(path: Path) -> ExperimentResult:
    """The outcome in a file. Raises OutcomeError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise OutcomeError(f"{path} is too large to be the outcome of an experiment")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OutcomeError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OutcomeError(f"{path} is not the outcome of an experiment: it is no JSON") from None
    known = ExperimentResult.SCHEMA
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or schema.partition("/")[0] != known.partition("/")[0]:
        raise OutcomeError(f"{path} is not the outcome of an experiment: its schema is {schema!r}, not {known!r}")
    if schema != known:
        raise OutcomeError(f"{path} has the schema {schema}; this rltrace reads {known}")
    try:
        return from_json(ExperimentResult, document)
    except JsonError as error:
        why = f"is no outcome that this rltrace can read: {error}; run rltrace confirm again"
        raise OutcomeError(f"{path} {why}") from None


def identity_of(trace: Trace) -> str:
    """Identifies a trace: 16 hex digits of a hash of its launch record."""
    launch = json.dumps(trace.launch, sort_keys=True, default=str)
    return hashlib.sha256(launch.encode()).hexdigest()[:16]


def outcome_path(a: Location, b: Location) -> Path:
    """The default file of the outcome of two traces: next to trace B, named after both."""
    names = [path.name.removesuffix(".zarr") for path in (a, b)]
    return folder_beside(b) / f"{names[0]}-{names[1]}.confirm.json"


@dataclass(frozen=True)
class SavedOutcome:
    """The outcome in a file, or why it cannot be used."""

    path: Path
    outcome: ExperimentResult | None
    trouble: str = ""


def find_outcome(a: Location, b: Location, file: Path | None = None) -> SavedOutcome | None:
    """The outcome in ``file``; without one, in the default file next to B, or None if it does not exist.

    Raises OutcomeError if ``file`` is not the outcome of an experiment on these traces.
    """
    path = file or outcome_path(a, b)
    if file is None and not path.exists():
        return None
    try:
        outcome = read_outcome(path)
        subject = {side: identity_of(open_trace(trace)) for side, trace in (("a", a), ("b", b))}
        if outcome.subject and any(outcome.subject.get(side) != known for side, known in subject.items()):
            raise OutcomeError(f"{path} is the outcome of an experiment on other traces")
    except OutcomeError as error:
        if file is not None:
            raise
        return SavedOutcome(path, None, str(error))
    return SavedOutcome(path, outcome)
