"""Lines that were edited, learned from ops that are proven to be one: equal, and computed from what matching ops wrote.

A line that now prints another tensor may by chance print the same once, so equal values alone teach nothing. Owns the
choice of what is proof enough; the names themselves are the view's.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.aligning.align import Alignment
from rltrace.diff.aligning.evidence import same_writers, used_alike
from rltrace.diff.aligning.sequences import Indices, occurrences
from rltrace.diff.judging.pairs import candidates
from rltrace.diff.judging.scene import Scene
from rltrace.diff.view import Stretch
from rltrace.trace.schema import Column, RowFlag

TRIED = 8
"""Pairs of one line that are looked at for proof."""


def learn_edits(scene: Scene, a: Stretch, b: Stretch, found: Alignment) -> bool:
    """Take down which lines of B are edited ones of A, as far as these pairs prove it; whether any are new."""
    pairs = _equal_elsewhere(a, b, found)
    if not len(pairs):
        return False
    partner = np.full(len(a), -1, np.int64)
    partner[found.a] = found.b
    elsewhere = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    used = used_alike(a, b, found, ~elsewhere)
    in_step = _in_step(a, b, found)
    learned = False
    for k in pairs.tolist():
        i, j = int(found.a[k]), int(found.b[k])
        drawn_in_step = k < in_step and bool(a.rows.flags(i) & RowFlag.RNG)
        if used[k] or drawn_in_step or same_writers(scene, (a, i), (b, j), partner):
            sites = (int(stretch.rows.columns[place, Column.SITE]) for stretch, place in ((a, i), (b, j)))
            learned |= b.view.learn(*sites)
    if learned:
        b.forget_names()
    return learned


def _equal_elsewhere(a: Stretch, b: Stretch, found: Alignment) -> Indices:
    """A few pairs, by number, of each two places in the code whose ops are equal, and tell something."""
    lines = np.stack([s.rows.column(Column.SITE)[at] for s, at in ((a, found.a), (b, found.b))], axis=1)
    there = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    there &= ~found.moved & a.tokens.told[found.a] & ~candidates(a, found.a, b, found.b)
    pairs = np.flatnonzero(there)
    nth = occurrences(np.unique(lines[pairs], axis=0, return_inverse=True)[1].reshape(-1))
    few: Indices = pairs[nth < TRIED]
    return few


def _in_step(a: Stretch, b: Stretch, found: Alignment) -> int:
    """How many pairs at the start stand side by side and are equal: so far, neither side has drawn once more."""
    apart = (found.a != np.arange(len(found.a))) | (found.b != np.arange(len(found.b)))
    apart |= found.moved | candidates(a, found.a, b, found.b)
    return int(apart.argmax()) if apart.any() else len(apart)
