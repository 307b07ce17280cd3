"""Traces for the tests of the interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import Do, Machine, recorded, training
from tui_support import other_kernel


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Machine]:
    """``record(program, **how)``: run a program; the machine knows its rows and its ``path``."""
    names = iter("abcdefgh")

    def run(program: Sequence[Do], **how: Any) -> Machine:
        return recorded(tmp_path / f"{next(names)}.zarr", program, **how)

    return run


@pytest.fixture
def parted(record: Callable[..., Machine]) -> tuple[Path, Path]:
    """Two runs of four steps; in B one ``aten.mm`` of step 1 runs on another kernel."""
    a = record(training())
    b = record(other_kernel(training(), "aten.mm.default", 2), facts={"cpu.capability": "AVX512"})
    return a.path, b.path
