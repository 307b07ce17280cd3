"""Recording in this process: one recording at a time, each into a trace of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import Record, recorder


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Run a function under the recorder and read back what was recorded."""
    return recorder(tmp_path)
