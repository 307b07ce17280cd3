"""Which of a selector's rows are meant, by lists that stand in files: kinds of op, rows of A. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rltrace.errors import UsageError
from rltrace.follow.kinds import read_json, read_labels


@dataclass(frozen=True)
class Only:
    """What of a selector's rows is meant; None: that does not matter."""

    kinds: frozenset[str] | None = None
    """Labels of kinds of op."""
    rows: Mapping[str, frozenset[int]] | None = None
    """By stream: rows of A."""

    def leaves(self, stream: str, row: int) -> bool:
        """Whether a row is among those that are meant."""
        return self.rows is None or row in self.rows.get(stream, ())


ALL = Only()


def read_only(kinds: str | Path | None, rows: str | Path | None) -> Only:
    """What two files say: a JSON list of labels of kinds, a JSON object of lists of rows. Raises UsageError."""
    return Only(read_labels(kinds) if kinds else None, _read_rows(rows) if rows else None)


def _read_rows(path: str | Path) -> Mapping[str, frozenset[int]]:
    found = read_json(path)
    if not isinstance(found, dict) or not all(
        isinstance(rows, list) and all(isinstance(row, int) for row in rows) for rows in found.values()
    ):
        raise UsageError(f'{path} is no JSON object of rows by stream, such as {{"rank0/main": [12, 40]}}')
    return {str(stream): frozenset(rows) for stream, rows in found.items()}
