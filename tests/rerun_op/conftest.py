"""Recordings in this process, each in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import Record, recorder


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return recorder(tmp_path)
