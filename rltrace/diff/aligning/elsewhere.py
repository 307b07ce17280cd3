"""Rows matched although they are called from other places in the code: whether they are the same op at all.

An edited line leaves ops that compute the same; a log line that now prints something else leaves ops that merely look
alike. Equal values need no further proof. Where they differ, the ops must compute with what matching ops wrote, or what
they wrote must be what matching ops compute with; anything less is one op of A and another of B, and no difference of
values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.aligning.align import Alignment
from rltrace.diff.aligning.evidence import same_writers, used_alike
from rltrace.diff.aligning.sequences import Indices
from rltrace.diff.judging.pairs import candidates, difference
from rltrace.diff.judging.scene import Scene
from rltrace.diff.view import Stretch
from rltrace.trace.schema import RowFlag


def without_lookalikes(scene: Scene, a: Stretch, b: Stretch, found: Alignment) -> Alignment:
    """``found`` without pairs, up to the first true difference, that are two ops rather than one."""
    elsewhere = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    unequal = candidates(a, found.a, b, found.b)
    doubtful = np.flatnonzero(elsewhere & unequal)
    if not len(doubtful):
        return found
    partner = np.full(len(a), -1, np.int64)
    partner[found.a] = found.b
    used = used_alike(a, b, found, ~(elsewhere & unequal), ahead=True)
    drop = np.zeros(len(found.a), bool)
    for k in doubtful.tolist():
        i, j = int(found.a[k]), int(found.b[k])
        if not difference(a, i, b, j).found:
            continue
        wide = bool(k) and elsewhere[k - 1] and not drop[k - 1] and (found.a[k - 1], found.b[k - 1]) == (i - 1, j - 1)
        if used[k] or _same_draw(a, b, found, k, unequal) or _is_one(scene, (a, i), (b, j), partner, wide):
            break
        drop[k], partner[i] = True, -1
    return replace(found, a=found.a[~drop], b=found.b[~drop], moved=found.moved[~drop]) if drop.any() else found


def _same_draw(a: Stretch, b: Stretch, found: Alignment, k: int, unequal: NDArray[np.bool_]) -> bool:
    """Whether two draws are one: they have no inputs to tell, so the rows before or after have to be equal.

    What stands before and after a stretch is matched.
    """
    i, j = int(found.a[k]), int(found.b[k])
    if not a.rows.flags(i) & b.rows.flags(j) & RowFlag.RNG:
        return False
    if (i, j) in ((0, 0), (len(a) - 1, len(b) - 1)) and a.first and b.first:
        return True
    return any(
        0 <= n < len(found.a) and not unequal[n] and (int(found.a[n]), int(found.b[n])) == (i + n - k, j + n - k)
        for n in (k - 1, k + 1)
    )


def _is_one(scene: Scene, a: tuple[Stretch, int], b: tuple[Stretch, int], partner: Indices, wide: bool) -> bool:
    """Whether two rows are one op. ``wide``: the rows before them are called from other places as well."""
    same = same_writers(scene, a, b, partner)
    if same is not None:
        return same
    links = zip(a[0].rows.inputs(a[1]), b[0].rows.inputs(b[1]), strict=False)
    return wide or any(x.digest is not None and x.digest == y.digest for x, y in links)
