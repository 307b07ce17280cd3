"""Where the outcome of an experiment on two traces is looked for, and what is said where there is none.

Owns the file that is read. Knows no widget.
"""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from rltrace.experiment.confirm.told import told_of
from rltrace.experiment.outcome import Outcome, OutcomeError, outcome_path


class Outcomes:
    """The file of one pair of traces."""

    def __init__(self, a: Path, b: Path, named: Path | None = None) -> None:
        self._a, self._b = a, b
        self._named = named
        """What ``--confirm`` names; None: the one beside trace B."""

    @property
    def path(self) -> Path:
        return self._named or outcome_path(self._a, self._b)

    def read(self) -> Outcome | None:
        """None: there is no such file. Raises OutcomeError where it holds none, or one of other traces."""
        told = told_of(self._a, self._b, self._named)
        if told is not None and told.outcome is None:
            raise OutcomeError(told.trouble)
        return None if told is None else told.outcome

    def how(self) -> tuple[str, ...]:
        """What to run to get an outcome that is found here, ready to paste; nothing where this rltrace runs none."""
        if find_spec("rltrace.commands.confirm") is None:
            return ()
        return (shlex.join(["rltrace", "confirm", str(self._a), str(self._b), "-o", str(self.path)]),)
