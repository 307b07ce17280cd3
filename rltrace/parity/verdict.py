"""What a comparison by row comes to: the verdict, and what is said of each side.

Owns the rule when two programs count as bitwise equal. Differences found decide first; that nothing differs says
something only where enough was compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rltrace.parity.model import Disagreement, RowsBy, Side, Verdict
from rltrace.parity.results import Counted
from rltrace.parity.rows.grids import Grid
from rltrace.parity.rows.keying import KeyedRows, Keying
from rltrace.parity.rows.known import Known
from rltrace.parity.rows.missing import Missing
from rltrace.parity.rows.pairing import disagreeing
from rltrace.parity.stretch import Stretch
from rltrace.row_keys import NO_KEY
from rltrace.trace.tensor_rows import Part

ENOUGH = 0.5
"""Of the modules of the smaller side, how many have to be matched for the two to count as equal."""


def verdict_of(
    counted: Sequence[Counted], a: Stretch, b: Stretch, never_computed: int, known: Known
) -> tuple[Verdict, str]:
    """``never_computed``: rows of B that A lacks and that count."""
    compared = [one.result for one in counted if one.result.rows]
    differing = [result for result in compared if result.differing]
    if differing:
        return Verdict.DIFFERS, f"rows of {len(differing):,} of the {len(compared):,} compared modules differ"
    widened = [result for result in compared if result.dtype is not None]
    if widened:
        return Verdict.DIFFERS, f"{len(widened):,} modules have different dtypes; the numbers are the same"
    why = _why_undecided(len(compared), a, b, never_computed, known)
    if why:
        return Verdict.UNDECIDED, why
    total = sum(result.rows for result in compared)
    return Verdict.BITWISE, f"all {total:,} rows of {len(compared):,} modules are bitwise equal"


def _why_undecided(compared: int, a: Stretch, b: Stretch, never_computed: int, known: Known) -> str:
    """Why it says too little that nothing differs; "": it says enough."""
    if not known.shared:
        what = "sequence of A matches one of B: the two had other tokens"
        return f"no {what if known.by is RowsBy.TOKENS else 'row of A matches one of B'}"
    if not compared:
        return "no module of A matches one of B by name; give the pairs with --map"
    if never_computed:
        return f"A never computed {never_computed:,} of the rows of B; all that both computed are equal"
    smaller = min(len(a.modules), len(b.modules))
    if compared < ENOUGH * smaller:
        return f"only {compared:,} of {smaller:,} modules could be compared; their rows are all equal"
    holes = [*a.holes, *b.holes]
    return f"parts of the traces cannot be read; everything compared is equal: {holes[0]}" if holes else ""


def side_of(stretch: Stretch, grids: Sequence[Grid], lacks: Missing) -> Side:
    unknown = sum(_unknown(grid) for grid in grids)
    return Side(
        path=stretch.path,
        stream=stretch.stream,
        what=stretch.what,
        calls=len(stretch.calls),
        modules=len(stretch.modules),
        passes=len(grids),
        rows=sum(grid.known for grid in grids),
        unknown=unknown,
        missing=lacks.rows,
        excused=lacks.rows - lacks.counted,
    )


def _unknown(grid: Grid) -> int:
    without = grid.keys == NO_KEY
    return int(without.sum() if grid.pads is None else (without & (grid.pads == 0)).sum())


def alone(stretch: Stretch, matched: set[str]) -> tuple[str, ...]:
    return tuple(path for path in stretch.modules if path not in matched)


def assumed(*keyings: Keying) -> list[str]:
    """What was taken for granted about tensors, one sentence for each kind of it."""
    found: dict[str, list[str]] = {}
    for keying in keyings:
        for call in keying.stretch.calls:
            for rows in keying.of(call):
                if isinstance(rows, KeyedRows) and rows.assumed:
                    text = rows.assumed
                    found.setdefault(text, []).append(f"{rows.tensor.name or 'the output'} of {call.module}")
    return [f"{names[0]} is {text}" + _more(len(set(names)) - 1) for text, names in found.items()]


def _more(count: int) -> str:
    return f", and so {'is 1 other tensor' if count == 1 else f'are {count} others'}" if count else ""


def disagreements(counted: Sequence[Counted]) -> list[Disagreement]:
    """On each side the first module of which a row was computed several times, with several results."""
    found = []
    for side in ("a", "b"):
        for one in counted:
            tables = [getattr(tensor, side) for tensor in one.paired.tensors if tensor.part is Part.OUTPUT]
            at = next(((table, rows) for table in tables if len(rows := disagreeing(table))), None)
            if at is not None:
                table, rows = at
                calls = list(dict.fromkeys(table.sources[k][0].number for k in table.source[rows].tolist()))
                what = f"call {calls[0]} against call {calls[-1]}" if len(calls) > 1 else f"within call {calls[0]}"
                path = getattr(one.paired.path, side)
                found.append(Disagreement(side, str(path), len(np.unique(table.keys[rows])), what))
                break
    return found
