"""Rows that a few with every commit add up to: read where they can be right, and damage where they cannot."""

from pathlib import Path

import numpy as np
import pytest

from rltrace.trace.format.arrays import SERIES, STEPS
from rltrace.trace.format.chunk_codec import rows_to_text
from rltrace.trace.format.files import Folder
from rltrace.trace.format.records import MAX_COUNT
from rltrace.trace.format.schema import Sample, Step
from rltrace.trace.read.chunks import Counter, Samples, StoredAttempts


@pytest.mark.parametrize(
    ("steps", "fits"),
    [
        ([(0, 0, 5), (1, 0, 5), (2, 1, 3), (4, 0, 9)], True),
        ([(0, 0, 5), (0, 0, 6)], False),
        ([(1, 0, 5), (0, 0, 6)], False),
        ([(0, 0, 5), (1, 0, 4)], False),
        ([(0, 1, 5), (1, 0, 4)], True),
        ([(0, 1, 5), (1, 0, 6), (2, 1, 4)], False),
        ([(0, 0, 11)], False),
        ([(0, 0, 10), (1, 1, 11), (2, 0, 10)], False),
    ],
)
def test_attempts_in_order(tmp_path: Path, steps: list[tuple[int, int, int]], fits: bool) -> None:
    """Their steps ascend, and those of a stream end at rows that do not descend, none beyond its rows."""
    rows = np.zeros((len(steps), len(Step)), np.uint64)
    for row, step in zip(rows, steps, strict=True):
        row[[Step.STEP, Step.STREAM, Step.END_ROW]] = step
    damage: list[str] = []
    attempts = StoredAttempts(Folder(tmp_path), "processes/0", Counter(), damage, lambda stream: 10)
    attempts.add_record({"first": 0, "steps": len(rows), "rows": rows_to_text(STEPS, rows)})
    read = attempts.all
    assert np.array_equal(read, rows) if fits else not len(read)
    assert damage == ([] if fits else [f"steps 0 to {len(rows) - 1}: their journal record is inconsistent"])


@pytest.mark.parametrize(("count", "fits"), [(MAX_COUNT, True), (MAX_COUNT + 1, False)])
def test_samples_with_counts_that_can_be(tmp_path: Path, count: int, fits: bool) -> None:
    """No step, stream or row has a larger number."""
    rows = np.zeros((1, len(Sample)), np.uint64)
    rows[0, 0] = count
    samples = Samples(Folder(tmp_path), "processes/0", Counter(), [])
    samples.add_record({"first": 0, "samples": 1, "rows": rows_to_text(SERIES, rows)})
    assert len(samples.all) == fits
