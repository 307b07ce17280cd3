"""The forward passes of a recorded stream: what was given them, and which of them a call or an op is of.

Owns the same questions for A that ``passes`` owns for the running program, and answers them by the same rules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np

from rltrace.follow.rows.names import root_of
from rltrace.follow.rows.observed import Observed, grid_of
from rltrace.follow.rows.table import NONE
from rltrace.parity.rows.forwards import forwards_of
from rltrace.parity.rows.grids import Grid, token_grids
from rltrace.parity.stretch import Stretch, inputs_of, outputs_of
from rltrace.trace.tensor_rows import KeptRows


def numbered_grids(stretch: Stretch, begun: int) -> list[Grid]:
    """Its forward passes over tokens, the sequences numbered from ``begun`` on."""
    return [
        replace(grid, sequences=np.where(grid.sequences < 0, NONE, grid.sequences + begun))
        for grid in token_grids(forwards_of(stretch))
        if len(grid.keys)
    ]


def observed_grids(stretch: Stretch) -> list[Grid]:
    """Its forward passes over observations."""
    observed, grids = Observed(), []
    for call in stretch.outermost:
        if call.phase == "backward":
            continue
        root = root_of(call.module)
        digests = observed.first_new(root, [tensor.digests for tensor in inputs_of(call) if _has_rows(tensor)])
        if digests is not None:
            grids.append(grid_of(call, digests))
        for tensor in outputs_of(call):
            if _has_rows(tensor):
                observed.gave(root, tensor.digests)
    return grids


def _has_rows(tensor: KeptRows) -> bool:
    return "float" in tensor.dtype and bool(tensor.axes) and tensor.digests.size > 0


class Begun(NamedTuple):
    """Where it changes which forward pass is under way."""

    number: int
    """Of the call, and …"""
    row: int
    """… row of the stream that came next."""
    grid: Grid | None


class RecordedPasses:
    """Which forward pass what a stream computed is of: the last one of its root that was given its tokens before.

    A call in which tokens were given is of that pass, if it is one alone. Until they are, and where another call of
    that module is given none (but embeddings, say), it is not known what is computed.
    """

    def __init__(self, stretch: Stretch, grids: Sequence[Grid]) -> None:
        self._around: dict[int, Grid | None] = {}
        self._begun: dict[str, list[Begun]] = {}
        anchors = {grid.anchor.number: grid for grid in grids}
        for grid in grids:
            for call in stretch.around(grid.anchor):
                self._around[call.number] = None if call.number in self._around else grid
        enclosing = {stretch.by_number[number].module for number in self._around}
        for call in stretch.calls:
            if call.number in anchors or call.module in enclosing:
                entry = Begun(call.number, call.first_row, anchors.get(call.number))
                self._begun.setdefault(root_of(call.module), []).append(entry)

    def of_call(self, module: str, number: int) -> Grid | None:
        return self._around[number] if number in self._around else self._last(module, number, "number")

    def at(self, module: str, row: int) -> Grid | None:
        """Of an op, by its row in the stream."""
        return self._last(module, row, "row")

    def _last(self, module: str, limit: int, by: Literal["number", "row"]) -> Grid | None:
        own = self._begun.get(root_of(module), [])
        at = bisect_right(own, limit, key=attrgetter(by)) - 1
        return own[at].grid if at >= 0 else None
