"""The saved outcome of an experiment on two traces.

Owns which file is read, and checks that it belongs to these traces. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.experiment.outcome import ExperimentResult, OutcomeError, outcome_path, read_outcome
from rltrace.trace.format.location import Location
from rltrace.trace.read.reader import open_trace


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
    from rltrace.experiment.confirm.capture import identity_of  # most traces have no outcome beside them

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
