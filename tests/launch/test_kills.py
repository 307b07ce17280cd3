"""SIGKILL at moments drawn by chance: what is in the trace is the beginning of what a whole run leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> object:
    """The benchmark of that name, which does the same 200 times."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "kills", raising=False)
    return __import__("kills")


def test_twenty_kills(kills: object, tmp_path: Path) -> None:
    """With commits every few milliseconds, so that many fall into the middle of one; none is damaged or runs ahead."""
    found = kills.run(tmp_path, kills=20, at_once=20, longest=0.6, pause=0.0, commit=0.005, seed=7)
    assert len(found) == 20
    assert len({killed.rows for killed in found}) > 5
