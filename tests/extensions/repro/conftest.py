"""Recordings in this process, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import Record, recorder

from rltrace.recorder import current_session


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return recorder(tmp_path)


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """Every test ends with no recording under way."""
    yield
    assert current_session() is None
