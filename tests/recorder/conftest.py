"""Recording in this process: one recording at a time, each into a trace of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recorded import Record, inductor, recorder  # noqa: F401  a fixture
from torch import distributed

from rltrace.recorder import current_session


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Run a function under the recorder and read back what was recorded."""
    return recorder(tmp_path)


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """Every test begins with the same generators and ends with no recording under way."""
    torch.manual_seed(0)
    yield
    assert current_session() is None


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
