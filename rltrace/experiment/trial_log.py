"""The log of the trials of an experiment, so that an interrupted search continues where it ended.

Owns the file, and the result of several runs of one trial. Independent of what a trial does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.errors import RltraceError

SCHEMA = "rltrace.trials/1"
Attempt = Callable[[frozenset[str]], bool]
"""Run the experiment once with these classes injected; whether the run is repaired."""


class OtherTrialsError(RltraceError):
    """The file holds the trials of another experiment."""


@dataclass(frozen=True)
class ClassTrial:
    """One set of classes, and the results of the runs with it."""

    classes: frozenset[str]
    runs: int
    repaired: int

    @property
    def repairs(self) -> bool:
        """Whether every run was repaired."""
        return self.runs > 0 and self.repaired == self.runs

    @property
    def is_flaky(self) -> bool:
        return 0 < self.repaired < self.runs


class TrialLog:
    """The trials of one experiment, in an append-only file: one line of JSON each, synced before it counts."""

    def __init__(self, file: Path, subject: Mapping[str, object], attempt: Attempt, samples: int = 1) -> None:
        """``subject`` identifies the experiment; ``samples``: runs of each trial.

        Raises OtherTrialsError where the file holds trials of another experiment.
        """
        self._file = file
        self._attempt = attempt
        self._samples = samples
        self._counts: dict[frozenset[str], list[bool]] = {}
        header = {"schema": SCHEMA, **subject}
        lines = list(_lines(file))
        if not lines:
            self._append(header)
        elif lines[0] != json.loads(json.dumps(header)):
            raise OtherTrialsError(f"{file} holds the trials of another experiment; remove it, or name another folder")
        for line in lines[1:]:
            self._counts.setdefault(frozenset(line["classes"]), []).append(bool(line["repaired"]))

    def repairs(self, classes: Iterable[str]) -> bool:
        """Whether the run is repaired with ``classes``; makes the runs that are missing."""
        chosen = frozenset(classes)
        counts = self._counts.setdefault(chosen, [])
        while all(counts) and len(counts) < self._samples:  # one that is not repaired settles it
            repaired = self._attempt(chosen)
            self._append({"classes": sorted(chosen), "repaired": repaired})
            counts.append(repaired)
        return all(counts)

    @property
    def all(self) -> tuple[ClassTrial, ...]:
        """In the order of their first run."""
        return tuple(ClassTrial(classes, len(found), sum(found)) for classes, found in self._counts.items())

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._file.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    """The complete lines of a file; an incomplete last line is truncated."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
    for line in whole.splitlines():
        found = json.loads(line)
        assert isinstance(found, dict)
        yield found
