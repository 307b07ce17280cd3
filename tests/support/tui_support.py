"""How the tests of the interface sit at a terminal: a headless one of a given size, real keys, real traces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from programs import Do
from textual.pilot import Pilot

from rltrace_tui.app import RltraceApp

Play = Callable[[Pilot[Any], RltraceApp], Awaitable[None]]
OTHER = (("library", "ATen"), ("isa", "AVX512"), ("threads", 4))
"""Another kernel than the one that the programs of the tests run on."""


def other_kernel(program: Sequence[Do], name: str, nth: int = 0) -> list[Do]:
    """``program``, one op of which runs on another kernel."""
    places = [k for k, do in enumerate(program) if do.name == name]
    return [replace(do, kernel=OTHER) if k == places[nth] else do for k, do in enumerate(program)]


def play(a: Path, b: Path, scene: Play, size: tuple[int, int] = (80, 24), **how: Any) -> RltraceApp:
    """Run the application on two traces, let the search end, and play ``scene``; returns the application."""

    async def run() -> RltraceApp:
        app = RltraceApp(a, b, **how)
        async with app.run_test(size=size) as pilot:
            await settled(pilot, app)
            await scene(pilot, app)
        return app

    return asyncio.run(run())


async def settled(pilot: Pilot[Any], app: RltraceApp) -> None:
    """Until no worker runs and every message is handled."""
    while not all(worker.is_finished for worker in list(app.workers)):
        await pilot.pause(0.005)
    await pilot.pause()
    await pilot.pause()


async def press(pilot: Pilot[Any], app: RltraceApp, *keys: str) -> None:
    """Press keys one by one, each to its end."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot, app)


def screen_text(app: RltraceApp) -> list[str]:
    """What the terminal shows, line by line, without colour."""
    strips = app.screen._compositor.render_strips()
    return [strip.text.rstrip() for strip in strips[: app.size.height]]
