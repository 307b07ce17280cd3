"""Recording in this process: one recording at a time, each into a trace of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recorded import Record, inductor, recorder  # noqa: F401  a fixture

from rltrace.recorder import current_session


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Run a function under the recorder and read back what was recorded."""
    torch.manual_seed(0)
    return recorder(tmp_path)


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """Every test ends with no recording under way."""
    yield
    assert current_session() is None
