"""Which row of B stands beside a row of A, as far as somebody who looks at both has read.

Owns nothing but the look-up in a browser's pieces; opens none.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.aligning.matching import Matching
from rltrace.diff.browse import Browser


class Partners(Matching):
    """Partners of rows, as far as pieces are known."""

    def __init__(self, browser: Browser) -> None:
        super().__init__(0)
        self._browser = browser

    def partner(self, row: int) -> int | None:
        piece = self._browser.pieces[self._browser.piece_of("a", row)]
        if piece.in_step:
            return row - piece.a0 + piece.b0
        if piece.lines is None:
            return None
        found = np.flatnonzero(piece.lines.a == row)
        return int(piece.lines.b[found[0]]) if len(found) and piece.lines.b[found[0]] >= 0 else None
