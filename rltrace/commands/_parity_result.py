"""What ``rltrace compare`` has found, as it is printed or shown on a screen: both end with its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.commands.console import ExitCode

if TYPE_CHECKING:
    from rltrace.parity.compare import Compared
    from rltrace.parity.impact.summary import Effects
    from rltrace.parity.model import Parity, Required
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True)
class ParityResult:
    """What was found, held against what was required."""

    compared: Compared
    effects: Effects
    parity: Parity
    required: tuple[Required, ...]
    answer: bool | None
    """Whether all of it holds; None: it cannot be said."""
    traces: tuple[Trace, Trace]

    @property
    def status(self) -> int:
        if self.answer is None:
            return ExitCode.UNDECIDED
        return ExitCode.IDENTICAL if self.answer else ExitCode.DIVERGED
