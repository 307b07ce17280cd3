"""How the tests of the interface sit at a terminal: a headless one of a given size, real keys, real traces."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from programs import Do
from textual.pilot import Pilot

from rltrace_tui.base import BaseApp

App = TypeVar("App", bound=BaseApp[Any])

OTHER = (("library", "ATen"), ("isa", "AVX512"), ("threads", 4))
"""Another kernel than the one that the programs of the tests run on."""


def other_kernel(program: Sequence[Do], name: str, nth: int = 0) -> list[Do]:
    """``program``, one op of which runs on another kernel."""
    places = [k for k, do in enumerate(program) if do.name == name]
    return [replace(do, kernel=OTHER) if k == places[nth] else do for k, do in enumerate(program)]


@asynccontextmanager
async def at_terminal(app: App, size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Pilot[Any], App]]:
    """Run an application at a terminal of that size until nothing works any more, and hand it over to be used. Its
    notifications stay, however long a test takes."""
    app.NOTIFICATION_TIMEOUT = 3600
    async with app.run_test(size=size) as pilot:
        await settled(pilot, app)
        yield pilot, app


async def settled(pilot: Pilot[Any], app: BaseApp[Any]) -> None:
    """Until no worker runs, every message is handled, and none of them started another worker."""
    calm = 0
    while calm < 2:
        busy = not all(worker.is_finished for worker in list(app.workers))
        calm = 0 if busy else calm + 1
        await pilot.pause(0.005 if busy else None)


async def press(pilot: Pilot[Any], app: BaseApp[Any], *keys: str | tuple[str, ...]) -> None:
    """Press keys one by one, each to its end; those of a tuple, such as a text, one after the other, to their end."""
    for key in keys:
        await pilot.press(*((key,) if isinstance(key, str) else key))
        await settled(pilot, app)


def screen_text(app: BaseApp[Any]) -> list[str]:
    """What the terminal shows, line by line, without colour."""
    strips = app.screen._compositor.render_strips()
    return [strip.text.rstrip() for strip in strips[: app.size.height]]
