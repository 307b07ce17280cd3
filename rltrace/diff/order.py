"""Which of several findings came first, where anything says so.

Only shared events order streams: within one process the number of optimizer attempts that it had finished. Names
never do, and two processes share nothing that is recorded yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rltrace.diff.model import Finding


@dataclass(frozen=True)
class Placed:
    """A finding and the process it is of."""

    process: str
    finding: Finding


def earliest(found: Sequence[Placed]) -> list[Finding]:
    """The findings that no other one is known to precede: one, or several that cannot be ordered."""
    return [x.finding for x in found if not any(_before(y, x) for y in found if y is not x)]


def _before(x: Placed, y: Placed) -> bool:
    if x.process != y.process or x.finding.step is None or y.finding.step is None:
        return False
    return x.finding.step < y.finding.step
