"""The result of ``rltrace compare``, printed or shown in the terminal interface, and its exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.commands.console import ExitCode

if TYPE_CHECKING:
    from rltrace.extensions.parity.compare import Compared
    from rltrace.extensions.parity.report.compare import ParityReport
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True)
class ParityResult:
    """The comparison and its effects, compared with the requirements."""

    compared: Compared
    report: ParityReport
    traces: tuple[Trace, Trace]

    @property
    def status(self) -> int:
        if self.report.agrees is None:
            return ExitCode.UNDECIDED
        return ExitCode.IDENTICAL if self.report.agrees else ExitCode.DIVERGED
