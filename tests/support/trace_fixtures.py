"""Traces that tests of the reader and of what keeps traces share, as fixtures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from samples import small_trace

from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.rows import Rows
from rltrace.trace.write.writer import ProcessWriter


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """An empty trace."""
    path = tmp_path / "a.zarr"
    create_trace(path, {"command": ["python", "train.py"], "options": {"level": "op"}})
    return path


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return small_trace(tmp_path / "sample.zarr", steps=3)


@pytest.fixture
def batches() -> Callable[[int, int], Iterator[Rows]]:
    """``count`` batches of random rows, the same ones for the same seed."""

    def make(seed: int, count: int) -> Iterator[Rows]:
        generator = np.random.default_rng(seed)
        first = 0
        for _ in range(count):
            rows = random_rows(generator, first, int(generator.integers(1, 200)))
            first += len(rows)
            yield rows

    return make


@pytest.fixture
def written(trace: Path, batches: Callable[[int, int], Iterator[Rows]]) -> tuple[Path, Rows]:
    """A trace of five random commits, and the rows in it."""
    writer = ProcessWriter.open(trace, {"name": "rank0/main"})
    stream = writer.stream("rank0/main")
    parts = list(batches(7, 5))
    for i, rows in enumerate(parts):
        writer.commit(stream, rows, plain_entries() if i == 0 else ())
    writer.close("complete", {"status": 0})
    return trace, Rows.join(parts)
