"""Recordings and replays in this process, each in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import Record, recorder
from replayed import Program, Replayed, Runs, replay

from rltrace.recorder import current_session


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return recorder(tmp_path)


@pytest.fixture
def replayed(tmp_path: Path) -> Replayed:
    def make(program: Program, inject: Any, **options: Any) -> Runs:
        return replay(tmp_path, program, inject, **options)

    return make


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """Every test ends with no recording under way."""
    yield
    assert current_session() is None
