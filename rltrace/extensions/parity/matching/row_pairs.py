"""Rows of A paired with rows of B: by key, within a step, in order; and rows that remain unmatched.

Owns the pairing. Where a key occurs several times on a side (several sequences with the same beginning), rows are
paired by how their sequences continue, else in order. Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.extensions.parity.matching.row_keying import KeyedRows, fold, occurrences
from rltrace.extensions.parity.matching.token_grids import UNKNOWN, TokenGrid
from rltrace.extensions.parity.token_keys import NO_KEY, Keys, Numbers
from rltrace.trace.format.activation_rows import ModuleCall

LAST = np.iinfo(np.int64).max
"""Rank of a sequence that has no partner."""


@dataclass(frozen=True, eq=False)
class KeyedTable:
    """Rows of one tensor of one module, over all its calls; [n] each."""

    keys: Keys
    steps: Numbers
    ranks: Numbers
    """Number of the sequence in B that the row's sequence is paired with."""
    sequences: Numbers
    places: Numbers
    digests: Keys
    source: Numbers
    """Index into ``sources``, and …"""
    at: Numbers
    """… index into its rows."""
    sources: tuple[tuple[ModuleCall, KeyedRows], ...]

    def __len__(self) -> int:
        return len(self.keys)


def table_of(sources: Sequence[tuple[ModuleCall, KeyedRows]], ranks: Numbers | None = None) -> KeyedTable:
    """``ranks``: for each sequence of this side, the number of its partner in B; None: its own number."""
    found = [(call, rows.drop_unkeyed()) for call, rows in sources]
    grids = [(rows.grid, rows.tokens) for _, rows in found]
    sequences = joined([grid.sequences[own] for grid, own in grids])
    if ranks is None:
        ranked = np.where(sequences == UNKNOWN, LAST, sequences)
    else:
        ranked = np.where(sequences == UNKNOWN, LAST, np.append(ranks, LAST)[sequences])
    return KeyedTable(
        keys=np.concatenate([np.zeros(0, np.uint64), *(rows.keys for _, rows in found)]),
        steps=joined([np.full(len(rows.tokens), call.step) for call, rows in found]),
        ranks=ranked,
        sequences=sequences,
        places=joined([grid.places[own] for grid, own in grids]),
        digests=np.concatenate([np.zeros(0, np.uint64), *(rows.digests for _, rows in found)]),
        source=np.repeat(np.arange(len(found)), [len(rows.tokens) for _, rows in found]),
        at=joined([np.arange(len(rows.tokens)) for _, rows in found]),
        sources=tuple(found),
    )


def joined(arrays: Sequence[NDArray[np.integer]]) -> Numbers:
    return np.concatenate([np.zeros(0, np.int64), *arrays]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of rows of two tables."""

    a: Numbers
    b: Numbers
    """[pairs]: indices into the tables."""
    ids: Keys
    """[pairs]: identity of the row, the same for all tensors of a module's calls."""
    only_a: Numbers
    only_b: Numbers
    """Rows whose key the other side lacks."""

    def where(self, mask: NDArray[np.bool_]) -> Pairs:
        """Some of the pairs."""
        return replace(self, a=self.a[mask], b=self.b[mask], ids=self.ids[mask])


def pair(a: KeyedTable, b: KeyedTable) -> Pairs:
    """The k-th row of a key with the k-th, within a step."""
    own_a, own_b = _occurrences(a), _occurrences(b)
    ids, at_a, at_b = np.intersect1d(own_a, own_b, assume_unique=True, return_indices=True)
    order = np.argsort(at_b, kind="stable")
    keys_a, keys_b = _stepped(a), _stepped(b)
    only_a, only_b = ~np.isin(keys_a, keys_b), ~np.isin(keys_b, keys_a)
    return Pairs(
        a=at_a[order],
        b=at_b[order],
        ids=ids[order],
        only_a=np.flatnonzero(only_a),
        only_b=np.flatnonzero(only_b),
    )


def _stepped(table: KeyedTable) -> Keys:
    """[n]: one number for each key and step."""
    return fold(np.stack([table.keys, table.steps.astype(np.uint64)], axis=1))


def _occurrences(table: KeyedTable) -> Keys:
    """For each row a number that no other row of the table has: of its key, step and occurrence."""
    keys = _stepped(table)
    return fold(np.stack([keys, occurrences(keys, table.ranks).astype(np.uint64)], axis=1))


def partners(a: Sequence[TokenGrid], b: Sequence[TokenGrid], names: Mapping[str, str] | None = None) -> Numbers:
    """For each sequence of A the number of the one in B that contains its last token; LAST: none is left.

    Where several sequences of B are the same so far, the first of A takes the first of B. ``names``: partners of
    modules; sequences of a model are paired with those of its partner only, where it has one.
    """
    ends = _ends(a)
    sequences: dict[tuple[int, int, str], list[int]] = {}
    last_keys = np.array([key for key, *_ in ends.values()], np.uint64)
    models = dict.fromkeys(grid.anchor.module for grid in b)
    for grid in b:
        for at in np.flatnonzero(np.isin(grid.keys, last_keys) & (grid.sequences != UNKNOWN)).tolist():
            key = int(grid.keys[at]), grid.anchor.step, grid.anchor.module
            sequences.setdefault(key, []).append(int(grid.sequences[at]))
    ranks = np.full(max(ends, default=UNKNOWN) + 1, LAST)
    for sequence, (last, step, module) in ends.items():
        candidates = [names[module]] if names is not None and module in names else models
        unused = next((found for model in candidates if (found := sequences.get((last, step, model)))), [])
        if unused:
            ranks[sequence] = unused.pop(0)
    return ranks


def _ends(grids: Sequence[TokenGrid]) -> Mapping[int, tuple[int, int, str]]:
    """For each sequence (key of its last token, step, module that is given its tokens)."""
    found: dict[int, tuple[int, int, str]] = {}
    places: dict[int, int] = {}
    for grid in grids:
        own = (grid.keys != NO_KEY) & (grid.sequences != UNKNOWN)
        for at in _last_of_each(grid.sequences, own):
            sequence, place = int(grid.sequences[at]), int(grid.places[at])
            if place >= places.get(sequence, UNKNOWN):
                own_step, module = grid.anchor.step, grid.anchor.module
                places[sequence], found[sequence] = place, (int(grid.keys[at]), own_step, module)
    return dict(sorted(found.items()))


def _last_of_each(sequences: Numbers, own: NDArray[np.bool_]) -> Sequence[int]:
    """Index of the last token of each sequence of a forward pass."""
    at = np.flatnonzero(own)
    _, last = np.unique(sequences[at][::-1], return_index=True)
    found: list[int] = at[::-1][last].tolist()
    return found


def computed_again(table: KeyedTable) -> tuple[Numbers, Numbers]:
    """(indices of rows that the side computed again within a step, for each the index of the first time)."""
    keys = _stepped(table)
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[numbers] != np.arange(len(keys)))
    return again, first[numbers][again]


# --- missing ----------------------------------------------------------------------------------------------------------
#
# Two kinds of rows need no partner: the last sampled token is never fed to the generator, and a run of one token at the
# end of a sequence is padding.


@dataclass(frozen=True)
class Missing:
    """Rows of one side that the other lacks."""

    rows: int
    """All of them."""
    excused: int
    """Those of them that need no partner."""

    @property
    def counted(self) -> int:
        return self.rows - self.excused


def missing(own: Sequence[TokenGrid], other: Sequence[TokenGrid]) -> Missing:
    """Rows of ``own`` that ``other`` lacks, within the same step."""
    keys, sequences, places, ids = _flat(own)
    lacks = ~np.isin(keys, _flat(other)[0])
    excused = 0
    tails, absent = [], []
    for sequence in np.unique(sequences[lacks & (sequences != UNKNOWN)]).tolist():
        at = np.flatnonzero(sequences == sequence)
        at = at[np.argsort(places[at], kind="stable")]
        found = np.flatnonzero(~lacks[at])
        tails += [ids[at[found[-1] + 1 :]]] if len(found) else []
        absent += [] if len(found) else [ids[at]]
    pads = {int(tail[0]) for tail in absent if _run_at_end(tail) == len(tail) > 1}
    excused += sum(len(tail) for tail in absent if _run_at_end(tail) == len(tail) and int(tail[0]) in pads)
    for tail in tails:
        run = _run_at_end(tail)
        if len(tail) == 1 or (run > 1 and len(tail) - run <= 1):
            excused += len(tail)
    return Missing(int(lacks.sum()), excused)


def _flat(grids: Sequence[TokenGrid]) -> tuple[Keys, Numbers, Numbers, Numbers]:
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
    """Length of the run of one token at the end."""
    if not len(ids):
        return 0
    others = np.flatnonzero(ids != ids[-1])
    return len(ids) - (int(others[-1]) + 1 if len(others) else 0)
