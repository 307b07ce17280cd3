"""What the screens look like, pinned line by line. ``UPDATE_GOLDEN=1 pytest tests/tui`` writes them anew."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import pinned
from programs import Machine, training
from textual.pilot import Pilot
from tui_support import at_terminal, other_kernel, press, screen_text, settled

from rltrace.report.info import TraceSize, describe
from rltrace_tui.base import BaseApp
from rltrace_tui.diff_app import DiffApp
from rltrace_tui.trace_app import TraceApp

SETTLED: dict[str, Any] = {
    "created": "2026-11-21 14:15:42+00:00",
    "size": TraceSize(12345, 25, 5.5),
    "exit": {"status": 0},
}
"""What differs from run to run."""

GOLDEN = Path(__file__).parent / "golden"
PAIR = {"overview": ("1",), "ops": ("2",), "op": ("3",)}
ONE = {"show": ("1",), "show-ops": ("2", "space"), "show-op": ("g", "1", "0", "enter", "enter")}
SIZES = pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=["80x24", "140x40"])


@SIZES
async def test_screens(diverged: tuple[Path, Path], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each screen, as a terminal of that size shows it; these were read once, line by line."""
    monkeypatch.chdir(diverged[0].parent)
    async with at_terminal(DiffApp(Path("a.zarr"), Path("b.zarr")), size=size) as (pilot, app):
        await look(pilot, app, PAIR, size)


@SIZES
async def test_screens_of_one_trace(
    record: Callable[..., Machine], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of one trace."""
    monkeypatch.chdir(record(training()).path.parent)
    monkeypatch.setattr("rltrace_tui.data.describe", lambda trace: replace(describe(trace), **SETTLED))
    async with at_terminal(TraceApp(Path("a.zarr")), size=size) as (pilot, app):
        await look(pilot, app, ONE, size)


@SIZES
async def test_values_screen(valued: tuple[Path, Path], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of an op, in front where there is no room for them beside the rest."""
    monkeypatch.chdir(valued[0].parent)
    async with at_terminal(DiffApp(Path("a.zarr"), Path("b.zarr")), size=size) as (pilot, app):
        await look(pilot, app, {"values": ("3", "v")}, size)


async def look(pilot: Pilot[Any], app: BaseApp[Any], keys: dict[str, tuple[str, ...]], size: tuple[int, int]) -> None:
    """Compare each screen that these keys lead to with its golden file."""
    for name, pressed in keys.items():
        await press(pilot, app, *pressed)
        await pilot.pause(0.1 if app.size.width >= 100 else 0.0)  # the preview rests as long before it reads
        await settled(pilot, app)
        expect(f"{name}-{size[0]}x{size[1]}.txt", screen_text(app))


async def test_step_level_screen(record: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of step digests alone."""
    a = record(training(), level="step")
    record(other_kernel(training(), "aten.mm.default", 2), level="step")
    monkeypatch.chdir(a.path.parent)
    async with at_terminal(DiffApp(Path("a.zarr"), Path("b.zarr"))) as (_, app):
        expect("steps-80x24.txt", screen_text(app))


def expect(name: str, lines: list[str]) -> None:
    text = "\n".join(lines).rstrip() + "\n"
    assert text == pinned(GOLDEN / name, text)
