"""Recording in this process: one recording at a time, each into a trace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recorded import Record, inductor, recorder  # noqa: F401  a fixture

from rltrace.recorder import current_session


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Run a function under the recorder and read back what was recorded."""
    torch.manual_seed(0)
    yield recorder(tmp_path)
    assert current_session() is None
