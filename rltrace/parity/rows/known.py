"""What makes a row of A and a row of B the same row, in these two stretches: tokens, what was handed in, or order.

Owns the choice, and what is said where there is none; and which steps of the two belong together. How the rows get
their keys is told by ``grids`` and ``observations``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rltrace.errors import UsageError
from rltrace.parity.model import RowsBy
from rltrace.parity.rows.forwards import Forward, forwards_of, root_of
from rltrace.parity.rows.grids import Grid
from rltrace.parity.rows.observations import counted_grids, observation_grids
from rltrace.parity.rows.padding import grids_of
from rltrace.parity.stretch import Stretch
from rltrace.row_keys import NO_KEY, Keys

SHOWN = 16
"""Tokens of a sequence that are shown."""


@dataclass(frozen=True, eq=False)
class Known:
    by: RowsBy
    a: tuple[Grid, ...]
    b: tuple[Grid, ...]
    how: str
    notes: tuple[str, ...] = ()

    @property
    def shared(self) -> int:
        """Different keys that both sides have."""
        shared = np.intersect1d(_keys(self.a), _keys(self.b))
        return int((shared != NO_KEY).sum())


def _keys(grids: Sequence[Grid]) -> Keys:
    return np.concatenate([np.zeros(0, np.uint64), *(grid.keys for grid in grids)])


def known_rows(a: Stretch, b: Stretch, rows_by: RowsBy | None, pad: int | None) -> Known:
    """Rows by tokens, else by what was handed in, or as asked. Raises UsageError."""
    if rows_by is RowsBy.ORDER:
        return Known(
            RowsBy.ORDER,
            counted_grids(a),
            counted_grids(b),
            "the k-th row of A is matched with the k-th of B, as requested",
        )
    if rows_by is not RowsBy.INPUTS:
        found = forwards_of(a), forwards_of(b)
        if all(found):
            return _by_tokens(*found, pad)
        if rows_by is RowsBy.TOKENS or any(found):
            side = "A" if not found[0] else "B"
            raise UsageError(
                f"no token ids of {side} are known: no call of an embedding, or with input_ids, was recorded; "
                "--rows-by inputs, or order, compares without them"
            )
    grids = observation_grids(a, b)
    if all(grids):
        return Known(RowsBy.INPUTS, *grids, "rows with the same input are matched")
    if rows_by is RowsBy.INPUTS:
        raise UsageError("the outermost modules of the two sides share too few input rows")
    raise UsageError(
        "the rows cannot be matched: neither side looks token ids up, and the inputs of their outermost modules "
        "differ; use --rows-by order if the k-th row of A is the k-th of B"
    )


def _by_tokens(a: Sequence[Forward], b: Sequence[Forward], pad: int | None) -> Known:
    for name, side in (("A", a), ("B", b)):
        if not any(forward.ids.size for forward in side):
            raise UsageError(
                f"the values of {name}'s token ids were not recorded, or cannot be read, so its rows are "
                "unidentified; --rows-by inputs, or order, compares without them"
            )
    padded = grids_of(a, b, pad)
    how = "; ".join(filter(None, ["rows with the same tokens so far are matched", padded.how]))
    known = Known(RowsBy.TOKENS, padded.a, padded.b, how)
    return known if known.shared else replace(known, notes=_other_tokens(a, b))


def _other_tokens(a: Sequence[Forward], b: Sequence[Forward]) -> tuple[str, ...]:
    """The first sequence of each side, where no token of one is one of the other's."""
    shown = []
    for name, side in (("A", a), ("B", b)):
        first = next((forward.ids[0] for forward in side if forward.ids.size), np.zeros(0, np.int64))
        rest = " …" if len(first) > SHOWN else ""
        shown.append(f"the first tokens of {name} were {' '.join(map(str, first[:SHOWN].tolist()))}{rest}")
    return tuple(shown)


def same_steps(a: Stretch, b: Stretch) -> tuple[Stretch, Stretch, list[str]]:
    """Without calls of steps that one side alone has: an optimizer has changed the weights between.

    Where no step is in both, steps tell nothing.
    """
    common = set(a.steps) & set(b.steps)
    if not common:
        told = " and ".join(f"{side.side.upper()}'s calls are of {_steps(side.steps)}" for side in (a, b))
        return _without_steps(a), _without_steps(b), [f"{told}: steps do not show whether the weights are the same"]
    notes = []
    for side in (a, b):
        others = [step for step in side.steps if step not in common]
        if others:
            left = sum(call.step in others for call in side.outermost)
            notes.append(
                f"{left:,} outermost calls of {side.side.upper()}, of {_steps(others)}, are left out: the other "
                "side has none of these steps, and each optimizer step changes the weights"
            )
    return _of_steps(a, common), _of_steps(b, common), notes


def _of_steps(stretch: Stretch, steps: set[int]) -> Stretch:
    return replace(stretch, calls=tuple(call for call in stretch.calls if call.step in steps))


def _without_steps(stretch: Stretch) -> Stretch:
    return replace(stretch, calls=tuple(replace(call, step=0) for call in stretch.calls))


def _steps(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def of_models(known: Known, names: Sequence[tuple[str, str]]) -> Known:
    """Without forward passes of models that have no partner: what a reference model computed, nobody else claims to."""
    if not names:
        return known
    roots = [{root_of(pair[side]) for pair in names} for side in (0, 1)]
    a, b = (
        tuple(grid for grid in grids if root_of(grid.anchor.module) in own)
        for grids, own in zip((known.a, known.b), roots, strict=True)
    )
    return replace(known, a=a, b=b)
