"""Rows that one side never computed: which of them count, and what is said of them.

Owns the rule. The last token that was sampled is never fed back, so the trainer has a row that the generator lacks; a
run of one token at a sequence's end pads it. Neither counts. Nothing here looks at modules: a row counts as computed
where the forward pass was given its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.parity.rows.grids import UNKNOWN, Grid
from rltrace.parity.rows.keying import fold
from rltrace.row_keys import NO_KEY, Keys, Numbers


@dataclass(frozen=True)
class Missing:
    """Rows of one side that the other lacks."""

    rows: int
    """All of them."""
    never_fed: int
    """The last of a sequence, that need no partner."""
    padding: int
    """Runs of one token at the end of a sequence."""
    whole: int
    """Rows of sequences of which the other side computed nothing."""

    @property
    def counted(self) -> int:
        return self.rows - self.never_fed - self.padding


def missing(own: Sequence[Grid], other: Sequence[Grid]) -> Missing:
    """Rows of ``own`` that ``other`` lacks, within the same step."""
    keys, sequences, places, ids = _flat(own)
    lacks = ~np.isin(keys, _flat(other)[0])
    never_fed = padding = whole = 0
    for sequence in np.unique(sequences[lacks & (sequences != UNKNOWN)]).tolist():
        at = np.flatnonzero(sequences == sequence)
        at = at[np.argsort(places[at], kind="stable")]
        found = np.flatnonzero(~lacks[at])
        if not len(found):
            whole += len(at)
            continue
        tail = ids[at[found[-1] + 1 :]]
        run = _run_at_end(tail)
        if len(tail) == 1:
            never_fed += 1
        elif run > 1 and len(tail) - run <= 1:
            never_fed += len(tail) - run
            padding += run
    return Missing(int(lacks.sum()), never_fed, padding, whole)


def _flat(grids: Sequence[Grid]) -> tuple[Keys, Numbers, Numbers, Numbers]:
    """Keys within their steps, sequences, places and ids of all rows that have a key."""
    parts: list[tuple[Keys, Numbers, Numbers, Numbers]] = []
    for grid in grids:
        own = grid.keys != NO_KEY
        steps = np.full(int(own.sum()), grid.anchor.step, np.uint64)
        keys = fold(np.stack([grid.keys[own], steps], axis=1))
        ids = np.full(len(keys), UNKNOWN) if grid.ids is None else grid.ids[own]
        parts.append((keys, grid.sequences[own], grid.places[own], ids))
    none = np.zeros(0, np.int64)
    columns = zip(*parts, strict=True) if parts else ([], [], [], [])
    keys, *rest = (np.concatenate([none.astype(np.uint64) if k == 0 else none, *c]) for k, c in enumerate(columns))
    return keys, rest[0], rest[1], rest[2]


def _run_at_end(ids: Numbers) -> int:
    """How many of the last tokens are the same one."""
    if not len(ids):
        return 0
    others = np.flatnonzero(ids != ids[-1])
    return len(ids) - (int(others[-1]) + 1 if len(others) else 0)
