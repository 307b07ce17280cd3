"""How the tests of this room make traces: programs of ``programs.py``, run and recorded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import Do, Machine, Record, recorded


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """``record(program, state="complete", facts={})``: run a program; the machine knows its rows and its ``path``."""
    count = iter(range(1000))

    def run(program: Sequence[Do], **how: Any) -> Machine:
        return recorded(tmp_path / f"{next(count)}.zarr", program, **how)

    return run
