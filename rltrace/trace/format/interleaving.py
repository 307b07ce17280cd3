"""The order of the rows of two streams of one thread: what JAX computes on it, and its torch ops.

Owns the runs of record "interleaving". A row occupies a moment of the other stream, from the rows that this one had
before the call of the row to those that it had after it: a call may run ops of the other library.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rltrace.trace.format.records import MAX_COUNT


class Moment(NamedTuple):
    """From this row on, until the next moment, rows are at this place of the other stream."""

    row: int
    begin: int
    """Rows of the other stream before the call of the row."""
    end: int
    """Rows of it after the call."""


START = Moment(0, 0, 0)
"""Of a stream to which the other one has no rows yet."""

MAX_MOMENTS = 1 << 24
"""Moments of one record."""


def runs_of(moments: Sequence[Moment]) -> list[list[int]]:
    """``[rows, rows of the other since the last call, rows of it during the call, times]``.

    ``moments``: the last one before, then those that are new. The format of ``parse_runs``.
    """
    runs: list[list[int]] = []
    for last, new in pairwise(moments):
        change = [new.row - last.row, new.begin - last.end, new.end - new.begin]
        if runs and runs[-1][:3] == change:
            runs[-1][3] += 1
        else:
            runs.append([*change, 1])
    return runs


class Run(NamedTuple):
    """Moments that follow each other in the same way; never one by one, as a few bytes may say millions."""

    first: Moment
    rows: int
    """Between one moment and the next."""
    others: int
    """Rows of the other stream between them."""
    times: int

    def moment(self, number: int) -> Moment:
        """One of its moments, by its number."""
        row, begin, end = self.first
        return Moment(row + number * self.rows, begin + number * self.others, end + number * self.others)


def last_of(runs: Sequence[Run]) -> Moment:
    """The last moment so far."""
    return runs[-1].moment(runs[-1].times - 1) if runs else START


def parse_runs(runs: Any, last: Moment) -> list[Run]:
    """The moments after ``last``. Raises TypeError or ValueError for other runs than ``runs_of`` returns."""
    found: list[Run] = []
    count = 0
    for rows, since, during, times in runs:
        if not all(type(each) is int and 0 <= each <= MAX_COUNT for each in (rows, since, during, times)) or not times:
            raise ValueError(f"{[rows, since, during, times]} is no run")
        count += times
        if count > MAX_MOMENTS:
            raise ValueError(f"it has more than {MAX_MOMENTS:,} calls")
        begin = last.end + since
        found.append(Run(Moment(last.row + rows, begin, begin + during), rows, since + during, times))
        last = last_of(found)
    return found


def moment_of(runs: Sequence[Run], row: int) -> Moment:
    """Where a row is, of a stream with these moments."""
    at = bisect_right(runs, row, key=lambda run: run.first.row)
    if not at:
        return START
    run = runs[at - 1]
    passed = (row - run.first.row) // run.rows if run.rows else run.times
    return run.moment(min(passed, run.times - 1))
