"""What an experiment on two traces came to: its arms, its one word, and the kinds of op that the difference begins at.

Owns the result object of ``rltrace confirm`` and its JSON, ``rltrace.confirm/1``: its keys are the fields.
Runs nothing and judges nothing: whoever ran the arms fills it in, every front end draws it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from rltrace.diff.base.model import Pair
from rltrace.errors import RltraceError
from rltrace.json import JsonError, from_json, to_json
from rltrace.trace.read.names import Site

LARGEST = 64 << 20
"""Bytes of an outcome that are read: one of many thousand classes."""


class OutcomeError(RltraceError):
    """A file holds no outcome of an experiment, or one that this version cannot read."""


class Outcome(StrEnum):
    """What the experiment came to."""

    CONFIRMED = "confirmed"
    """All four arms came out as a cause would have it."""
    REPAIRED = "repaired"
    """B with A's values became A; A's own arms were not run."""
    PARTIAL = "partial"
    """The injection repairs B for a while; another origin follows."""
    REFUTED = "refuted"
    """With A's values there, B differs as before."""
    UNRESOLVED = "unresolved"
    """A control failed, or an injection did not fire as asked: the experiment proves nothing."""


class ArmName(StrEnum):
    A0 = "A0"
    """A again, unchanged: a control, has to match A."""
    B0 = "B0"
    """B again, unchanged: a control, has to differ where it differed."""
    B_FROM_A = "B<-A"
    """B with A's values: matches A where the cause is found."""
    A_FROM_B = "A<-B"
    """A with B's values: matches B where the cause is found."""


class ArmState(StrEnum):
    NOT_RUN = "not-run"
    RUNNING = "running"
    AS_EXPECTED = "as-expected"
    OTHERWISE = "otherwise"
    """It ran, and did not come out as a cause would have it."""
    FAILED = "failed"
    """It could not be run, or its injections did not fire as asked."""


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
    """What it recorded; None: nothing, or it was not kept."""


@dataclass(frozen=True)
class OriginClass:
    """Ops at which a difference begins, all of one kind: the same op, kernels and place in the code."""

    op: str
    kernel: Pair[str]
    site: Site | None
    count: int
    """Ops of this kind that computed differently while B followed A."""
    share: float
    """Of all such ops, from 0 to 1."""
    matters: bool | None
    """Whether the outcome needs it (it is in the minimal set); None: not tried."""
    stream: str
    first_row: int | None
    """Row of A0 of the first of them."""
    first_step: int | None
    max_ulp: int | None = None
    """The largest distance of two elements; None: no floating-point numbers, or not measured."""
    max_relative: float | None = None
    parts: tuple[str, ...] = ()
    """What differed, of ``outside`` data, a ``generator``'s state, a logged ``number`` and a ``result``."""
    kind: str = ""
    """Its label in A, as ``rltrace replay --kinds`` takes it."""
    kinds_b: tuple[str, ...] = ()
    """Labels of the same ops in B."""
    row_in_a: int | None = None
    """Row of trace A of the first of them, where A0 has other steps; None: A has no ops of these steps."""


@dataclass(frozen=True)
class ExperimentResult:
    """What is known of an experiment, finished or not."""

    SCHEMA: ClassVar = "rltrace.confirm/1"

    word: Outcome | None
    """None: it is not finished."""
    explanation: str
    """One sentence."""
    a: str
    """Path of trace A, as it was given."""
    b: str
    first_step: int | None
    """The steps covered: from this one on …"""
    end_step: int | None
    """… up to, not including, this one. None: to the end."""
    arms: tuple[Arm, ...]
    classes: tuple[OriginClass, ...]
    """The likeliest to matter first."""
    trials: int = 0
    """Runs that the search for the smallest set of classes took."""
    flaky: int = 0
    """Of these, runs that came out otherwise when repeated."""
    advice: tuple[str, ...] = ()
    """Commands to run next."""
    subject: Mapping[str, str] = field(default_factory=dict)
    """What tells trace A ("a") and trace B ("b") from any other, whatever their paths are; "inject": the suspicion."""
    by_state: bool | None = None
    """Whether runs were compared by the state that they leave; False: op by op, for A and B leave the same state."""

    def arm(self, name: ArmName) -> Arm | None:
        return next((arm for arm in self.arms if arm.name is name), None)


def write_outcome(path: Path, outcome: ExperimentResult) -> None:
    """Write the file in one go: whoever reads it meanwhile sees the old one or the new one."""
    text = json.dumps(to_json(outcome), indent=2, allow_nan=False) + "\n"
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def read_outcome(path: Path) -> ExperimentResult:
    """The outcome in a file. Raises OutcomeError saying what is wrong with it."""
    try:
        if path.stat().st_size > LARGEST:
            raise OutcomeError(f"{path} is too large to be the outcome of an experiment")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OutcomeError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OutcomeError(f"{path} is not the outcome of an experiment: it is no JSON") from None
    own = ExperimentResult.SCHEMA
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or schema.partition("/")[0] != own.partition("/")[0]:
        raise OutcomeError(f"{path} is not the outcome of an experiment: its schema is {schema!r}, not {own!r}")
    if schema != own:
        raise OutcomeError(f"{path} has the schema {schema}; this rltrace reads {own}")
    try:
        return from_json(ExperimentResult, document)
    except JsonError as error:
        raise OutcomeError(
            f"{path} is no outcome that this rltrace can read: {error}; run rltrace confirm again"
        ) from None


def outcome_path(a: Path, b: Path) -> Path:
    """Where the outcome of an experiment on two traces is looked for: beside trace B, under the names of both."""
    names = [path.name.removesuffix(".zarr") for path in (a, b)]
    return b.parent / f"{names[0]}-{names[1]}.confirm.json"
