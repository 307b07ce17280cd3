"""Tokens of rows are equal where, and only where, a reading of each row says so."""

from pathlib import Path
from random import Random

import numpy as np
from views import random_sides

from rltrace.diff.base.tokens import values_of
from rltrace.diff.base.view import RowRange
from rltrace.trace.format.schema import Column, Origin


def values(side: RowRange, row: int, outside: bool = True) -> object:
    """Numbers, RNG state, what it wrote; and what it read where that came from outside."""
    rows = side.rows
    numbers = (
        rows.integers[rows.integer_offsets[row] : rows.integer_offsets[row + 1]].tolist(),
        rows.floats[rows.float_offsets[row] : rows.float_offsets[row + 1]].tolist(),
    )
    read = [
        link.digest
        for link in rows.inputs(row)
        if outside and link.digest is not None and link.distance == Origin.OUTSIDE
    ]
    state = [rows.rng(row)] if rows.rng(row) is not None else []
    return numbers, [*read, *state, *rows.outputs(row)]


def sources(side: RowRange, row: int) -> object:
    """What the rows wrote that it reads, by their places among its inputs; None: before the range, or not written."""
    return [
        values(side, row - link.distance) if 0 < link.distance <= row and not link.known else None
        for link in side.rows.inputs(row)
    ]


def test_tokens(tmp_path: Path) -> None:
    """Tokens of values, with and without what came from outside, and of sources of inputs agree with the rows."""
    random, wholes = Random(31), random_sides(tmp_path, Random(37), 160, 40)
    ranges = [view.read(start, start + 40) for view in wholes for start in range(0, 160, 40)]
    every = [(side, row) for side in ranges for row in range(len(side))]
    kept = [values_of(side.rows) for side in ranges]
    alone = [values_of(side.rows, outside=False) for side in ranges]
    equal = 0
    for _ in range(3_000):
        (a, i), (b, j) = random.choice(every), random.choice(every)
        at_a, at_b = ranges.index(a), ranges.index(b)
        assert (kept[at_a][i] == kept[at_b][j]) == (values(a, i) == values(b, j))
        assert (alone[at_a][i] == alone[at_b][j]) == (values(a, i, False) == values(b, j, False))
        same = (a.tokens.sources[i] == b.tokens.sources[j]) == (sources(a, i) == sources(b, j))
        assert same or len(sources(a, i)) != len(sources(b, j))  # type: ignore[arg-type]
        equal += values(a, i) == values(b, j)
    assert equal > 50


def test_rows_with_values(tmp_path: Path) -> None:
    """A digest or a number; draws differ from each other, and tokens of rows without a value equal no other."""
    side = random_sides(tmp_path, Random(41), 60, 20)[0].read(0, 60)
    tokens = side.tokens
    for row in range(60):
        has = bool(side.rows.columns[row, Column.DIGESTS]) or side.rows.value(row) is not None
        assert tokens.has_values[row] == has and tokens.draws[row] == (side.rows.rng(row) is not None)
    kept = tokens.with_values_only(tokens.operator, 0)
    chosen = tokens.has_values & ~tokens.draws
    assert np.array_equal(kept[chosen], tokens.operator[chosen])
    others = [*kept[~chosen].tolist(), *tokens.with_values_only(tokens.operator, 1)[~chosen].tolist()]
    assert len({*others}) == len(others) and not {*others} & {*tokens.operator.tolist()}
