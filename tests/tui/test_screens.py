"""What the screens look like, pinned line by line. ``UPDATE_GOLDEN=1 pytest tests/tui`` writes them anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import Machine, training
from textual.pilot import Pilot
from tui_support import play, press, screen_text

from rltrace_tui.app import RltraceApp

GOLDEN = Path(__file__).parent / "golden"
KEYS = {"overview": (), "ops": ("2",), "op": ("3",)}


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=["80x24", "140x40"])
def test_screens(parted: tuple[Path, Path], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each screen, as a terminal of that size shows it; somebody has looked at these."""
    monkeypatch.chdir(parted[0].parent)
    seen: dict[str, list[str]] = {}

    async def scene(pilot: Pilot[Any], app: RltraceApp) -> None:
        for name, keys in KEYS.items():
            await press(pilot, app, *keys)
            seen[name] = screen_text(app)

    play(Path("a.zarr"), Path("b.zarr"), scene, size=size)
    for name, lines in seen.items():
        expect(f"{name}-{size[0]}x{size[1]}.txt", lines)


def test_step_level_screen(record: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of step digests alone."""
    from tui_support import other_kernel

    a = record(training(), level="step")
    record(other_kernel(training(), "aten.mm.default", 2), level="step")
    monkeypatch.chdir(a.path.parent)

    async def scene(_: Pilot[Any], app: RltraceApp) -> None:
        expect("steps-80x24.txt", screen_text(app))

    play(Path("a.zarr"), Path("b.zarr"), scene)


def expect(name: str, lines: list[str]) -> None:
    text = "\n".join(lines).rstrip() + "\n"
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
