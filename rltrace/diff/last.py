"""What the parameters were when two processes ended: the one thing about their end that no later op tells.

Owns the difference that shows there alone: an op of one side wrote weights after their last use, or no op wrote them at
all. Parameters that stayed as the last attempt of their optimizer left them are compared by that attempt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.model import Cause, Finding, Pair
from rltrace.diff.steps import bare_finding
from rltrace.diff.summary import FINISHED
from rltrace.trace.reader import ProcessTrace
from rltrace.trace.schema import Phase, Step, StepFlag

AT_THE_END = Phase.OTHER.name.lower()
"""Phase of a finding without an op that no step has, for nothing but the end shows it."""


def last_parameters(a: ProcessTrace, b: ProcessTrace, cause: Cause, why: str) -> Finding | None:
    """The first optimizer whose parameters ended up otherwise; ``cause`` and ``why`` (a clause) go into the finding.

    Only of processes that ended, and of optimizers that lived to the end on both sides.
    """
    if a.state not in FINISHED or b.state not in FINISHED:
        return None
    shared = a.parameters.keys() & b.parameters.keys()
    differing = sorted(ordinal for ordinal in shared if a.parameters[ordinal] != b.parameters[ordinal])
    for ordinal in differing:  # none, as a rule: then no step is read
        ends = a.parameters[ordinal], b.parameters[ordinal]
        attempts = _last_attempt(a, ordinal), _last_attempt(b, ordinal)
        if attempts[0] is None or attempts[1] is None:
            continue
        if ends == tuple(int(attempt[Step.PARAMETERS]) for attempt in attempts if attempt is not None):
            continue
        told = (
            f"parameters differ at the end of the processes, but not after the last attempt of their optimizer: {why}"
        )
        outputs: tuple[Pair[str], ...] = (Pair(None, None), Pair(f"{ends[0]:016x}", f"{ends[1]:016x}"))
        return bare_finding(a, attempts[0], cause, told, len(a.steps), outputs, AT_THE_END)
    return None


def _last_attempt(process: ProcessTrace, ordinal: int) -> NDArray[np.uint64] | None:
    """The last attempt of an optimizer of which digests were taken."""
    payloads = process.tables["optimizers"].payloads
    numbers = [n for n, p in enumerate(payloads) if isinstance(p, dict) and p.get("ordinal") == ordinal]
    steps = process.steps
    digested = (steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    rows = np.flatnonzero(np.isin(steps[:, Step.OPTIMIZER], numbers) & digested)
    return None if not len(rows) else steps[rows[-1]]
