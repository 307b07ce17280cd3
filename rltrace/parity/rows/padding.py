"""Which token pads, where no mask tells: given, or found, because without it the two sides' sequences agree.

Owns the search. A padding token at the end of a sequence changes no key; at its beginning it changes all of them, so
only a beginning is looked for: an id that sequences of one side begin with, and that brings more tokens of both sides
together when it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.parity.rows.forwards import Forward
from rltrace.parity.rows.grids import Grid, token_grids
from rltrace.row_keys import NO_KEY, Keys

TRIED = 3
"""Ids of each side that are tried."""


@dataclass(frozen=True, eq=False)
class Padded:
    """The grids of both sides, and how padding was told."""

    a: tuple[Grid, ...]
    b: tuple[Grid, ...]
    how: str
    """In words; "": there was nothing to tell."""


def grids_of(a: Sequence[Forward], b: Sequence[Forward], pad: int | None) -> Padded:
    """Grids of token ids on both sides. ``pad``: the padding token, where it is given."""
    if pad is not None:
        return Padded(token_grids(a, pad), token_grids(b, pad), f"token {pad} is padding, as given")
    plain = Padded(token_grids(a), token_grids(b), _by_masks(a, b))
    best, most = plain, _shared(plain)
    for x in (None, *_beginnings(a)):
        for y in (None, *_beginnings(b)):
            if x is None and y is None:
                continue
            tried = Padded(token_grids(a, x), token_grids(b, y), _found(x, y))
            shared = _shared(tried)
            if shared > most:
                best, most = tried, shared
    return best


def _by_masks(a: Sequence[Forward], b: Sequence[Forward]) -> str:
    sides = [name for name, side in (("A", a), ("B", b)) if any(f.mask is not None for f in side)]
    return f"masks of {' and '.join(sides)} mark the padding" if sides else ""


def _beginnings(forwards: Sequence[Forward]) -> list[int]:
    """Ids with which sequences begin that no mask tells of, the most frequent first."""
    firsts: Counter[int] = Counter()
    for forward in forwards:
        if forward.mask is None and forward.ids.shape[1:] > (1,):
            firsts.update(forward.ids[:, 0].tolist())
    return [token for token, _ in firsts.most_common(TRIED)]


def _shared(padded: Padded) -> int:
    """Tokens of both sides that belong together."""
    return len(np.intersect1d(_keys(padded.a), _keys(padded.b)))


def _keys(grids: Sequence[Grid]) -> Keys:
    keys = np.concatenate([np.zeros(0, np.uint64), *(grid.keys for grid in grids)])
    known: Keys = keys[keys != NO_KEY]
    return known


def _found(a: int | None, b: int | None) -> str:
    told = [f"token {token} of {side}" for side, token in (("A", a), ("B", b)) if token is not None]
    return f"{' and '.join(told)} taken as padding: without it the sequences agree"
