"""Traces for the tests of the interface."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import Do, Machine, recorded, training
from tui_support import other_kernel
from views import both, paths_in

from rltrace.testing import In


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests of an application are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Machine]:
    """``record(program, **how)``: run a program; the machine knows its rows and its ``path``."""
    names = iter("abcdefgh")

    def run(program: Sequence[Do], **how: Any) -> Machine:
        return recorded(tmp_path / f"{next(names)}.zarr", program, **how)

    return run


@pytest.fixture
def diverged(record: Callable[..., Machine]) -> tuple[Path, Path]:
    """Two runs of four steps; in B one ``aten.mm`` of step 1 runs on another kernel."""
    a = record(training())
    b = record(other_kernel(training(), "aten.mm.default", 2), facts={"cpu.capability": "AVX512"})
    return a.path, b.path


@pytest.fixture
def valued(tmp_path: Path) -> tuple[Path, Path]:
    """Two traces of one op that differ in two of six values, all recorded; one by one ULP, one by four."""
    read = np.arange(6, dtype=np.float32).reshape(2, 3)
    for trace, (name, apart) in both(tmp_path, ("a", 0), ("b", 1)):
        stream = trace.stream()
        made = stream.op("aten.randn.default", outputs=["w"], rng="g")
        out = read / 3
        out.reshape(-1).view(np.int32)[[1, 5]] += [apart, 4 * apart]
        kept = stream.value(out)
        stream.op("aten.div.Tensor", inputs=[In(made, digest="w")], outputs=[kept], kernel={"library": name})
    return paths_in(tmp_path)
