"""What the logs of the oracle (tests/e2e/programs/oracle.py) say: where a program differs from itself, and where only
under another setting.

Reads logs line by line, as they may be long; compares by position, which is all that needs no judgement. Shares no code
with rltrace.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path


@dataclass(frozen=True)
class Difference:
    """The first op that differs."""

    op: str
    nth: int
    """How many ops of this name ran before it."""
    row: int
    """Position in the log."""
    other: str
    """The op at this position of the other log; empty where that log has ended."""


@dataclass(frozen=True)
class Noise:
    """Where two runs of one program under one setting differ."""

    ops: int
    """Ops of the first."""
    rows: int
    """Positions that differ."""
    names: int
    """Positions, of those, where even the operator is another."""


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """(operator, hash) of each row."""
    with path.open() as log:
        for line in log:
            name, _, bits = line.rstrip("\n").rpartition(" ")
            yield name, bits


def noise(one: Path, two: Path) -> Noise:
    """How much two unchanged runs differ."""
    ops = rows = names = 0
    for a, b in zip_longest(lines(one), lines(two)):
        ops += a is not None
        rows += a != b
        names += a is None or b is None or a[0] != b[0]
    return Noise(ops, rows, names)


def first_difference(one: Path, two: Path, changed: Path) -> Difference | None:
    """The first row of ``changed`` that differs from ``one``, rows that differ between ``one`` and ``two`` left out.

    ``one`` and ``two``: the program unchanged, twice. None where there is no such row.
    """
    seen: Counter[str] = Counter()
    for row, (a, b, c) in enumerate(zip_longest(lines(one), lines(two), lines(changed))):
        if a == b and a != c:
            name = a[0] if a is not None else c[0]
            return Difference(name, seen[name], row, c[0] if a is not None and c is not None else "")
        if a is not None:
            seen[a[0]] += 1
    return None
