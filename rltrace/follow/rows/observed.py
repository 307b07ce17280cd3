"""Rows of a policy that is given no tokens: known by what it is given for them, an observation each.

Owns which of the tensors that outermost modules are given are new, and which came out of the one before (a policy whose
parts are called one by one goes on with the same rows). The same for a trace and for a running program. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from rltrace.parity.rows.grids import UNKNOWN, Grid
from rltrace.row_keys import NO_KEY, Keys
from rltrace.trace.tensor_rows import ModuleCall

EARLIER = 16
"""Tensors that outermost calls of a root gave, among which a later one's are looked for."""


class Observed:
    """What the outermost calls of one thread are given."""

    def __init__(self) -> None:
        self._gave: dict[str, deque[Keys]] = {}

    def first_new(self, root: str, given: Sequence[Keys]) -> Keys | None:
        """Of tensors by the digests of their rows, the first whose rows did not all come out of this root before.

        None: there is none, and the call goes on with the rows of the one before.
        """
        earlier = self._gave.get(root, ())
        for digests in given:
            if digests.size and not any(np.isin(digests, gave).all() for gave in earlier):
                self._gave.pop(root, None)
                return digests
        return None

    def gave(self, root: str, digests: Keys) -> None:
        """An outermost call gave a tensor with rows of these digests."""
        self._gave.setdefault(root, deque(maxlen=EARLIER)).append(digests.ravel())


def grid_of(call: ModuleCall, digests: Keys) -> Grid:
    """A row for each that was given, known by its digest."""
    keys = np.where(digests == NO_KEY, np.uint64(1), digests).ravel()
    unknown = np.full(len(keys), UNKNOWN)
    return Grid(call, digests.shape, keys, unknown, unknown)
