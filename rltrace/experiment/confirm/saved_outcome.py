"""What an experiment on two traces came to, where there was one: for those who tell of the traces.

Owns which file is looked at, and that it is of these traces. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.experiment.confirm.capture import identity_of
from rltrace.experiment.outcome import ExperimentResult, OutcomeError, outcome_path, read_outcome
from rltrace.trace.read.reader import open_trace


@dataclass(frozen=True)
class SavedOutcome:
    """The outcome in a file, or why there is none in it."""

    path: Path
    outcome: ExperimentResult | None
    trouble: str = ""


def told_of(a: Path, b: Path, named: Path | None = None) -> SavedOutcome | None:
    """The outcome in the file that is named, or in the one beside B; None: nothing is named, and there is none.

    Raises OutcomeError where a file that was named is no outcome of an experiment on these traces.
    """
    path = named or outcome_path(a, b)
    if named is None and not path.exists():
        return None
    try:
        outcome = read_outcome(path)
        subject = {side: identity_of(open_trace(trace)) for side, trace in (("a", a), ("b", b))}
        if outcome.subject and any(outcome.subject.get(side) != known for side, known in subject.items()):
            raise OutcomeError(f"{path} is the outcome of an experiment on other traces")
    except OutcomeError as error:
        if named is not None:
            raise
        return SavedOutcome(path, None, str(error))
    return SavedOutcome(path, outcome)
