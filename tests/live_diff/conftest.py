"""Every test ends with no recording under way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rltrace.recorder import current_session


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """Every test ends with no recording under way."""
    yield
    assert current_session() is None
