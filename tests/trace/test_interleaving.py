"""Runs of moments: what is written is read again, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.trace.format.interleaving import START, Moment, last_of, moment_of, parse_runs, runs_of

COUNTS = st.integers(0, 3)


@given(st.lists(st.tuples(st.integers(1, 3), COUNTS, COUNTS)), st.integers(0, 20))
def test_moments_of_calls_are_read_as_they_were_written(calls: list[tuple[int, int, int]], cut: int) -> None:
    """In one record or in two; each row has the moment of the last call that began a new one."""
    moments = [START]
    for rows, since, during in calls:
        row, _, end = moments[-1]
        moments.append(Moment(row + rows, end + since, end + since + during))
    cut = min(cut, len(calls))
    read = parse_runs(runs_of(moments[: cut + 1]), START)
    read += parse_runs(runs_of(moments[cut:]), last_of(read))
    assert [START, *(run.moment(number) for run in read for number in range(run.times))] == moments
    for row in range(moments[-1].row + 2):
        assert moment_of(read, row) == max((m for m in moments if m.row <= row), key=lambda m: m.row)


def test_equal_calls_are_one_run() -> None:
    """A loop of a program takes as little as one call."""
    moments = [Moment(2 * n, 9 * n, 9 * n + 1) for n in range(1_000)]
    assert runs_of(moments) == [[2, 8, 1, 999]]


@pytest.mark.parametrize("runs", [[[1, 1, 0]], [[1, 1, -1, 1]], [["1", 1, 0, 1]], [[1, 1, 0, 1 << 30]], [1], None])
def test_other_runs_are_refused(runs: object) -> None:
    """Negative numbers, texts, and more calls than a trace may have."""
    with pytest.raises((TypeError, ValueError)):
        parse_runs(runs, START)
