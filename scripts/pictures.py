"""Pictures for docs/guide/comparing.md: the interface on the traces of ``make demo``, drawn by Textual's own export.

python scripts/pictures.py [FOLDER OF TRACES]

Writes docs/pictures/*.svg. Nobody sits at a terminal: the application runs headless, keys are pressed as listed below.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from textual.app import App

from rltrace_tui.diff_app import DiffApp
from rltrace_tui.trace_app import TraceApp

OUT = Path(__file__).parent.parent / "docs" / "pictures"
SIZE = (110, 34)
REST = 0.3
"""Seconds in which nothing may happen before a picture is taken: the preview and messages come with a delay."""

FONT = re.compile(r"\s*@font-face \{.*?\}\n", re.DOTALL)
"""Fonts that the picture would load from elsewhere; it is read without them."""


async def pictures(app: App[Any], wanted: dict[str, tuple[str, ...]]) -> None:
    """Press the keys of each picture, one after the other, and write it."""
    async with app.run_test(size=SIZE) as pilot:
        for name, keys in wanted.items():
            for key in keys:
                await settle(app, pilot)
                await pilot.press(key)
            await settle(app, pilot)
            svg = FONT.sub("", app.export_screenshot(title=name.partition("-")[2], simplify=True))
            (OUT / f"{name}.svg").write_text(svg)
            print(f"{name}.svg  {len(svg):,} bytes")


async def settle(app: App[Any], pilot: Any) -> None:
    calm = 0.0
    while calm < REST:
        calm = calm + 0.05 if all(worker.is_finished for worker in list(app.workers)) else 0.0
        await pilot.pause(0.05)


def main() -> None:
    traces = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo-out")
    OUT.mkdir(exist_ok=True)
    a, b = traces / "a.zarr", traces / "b.zarr"
    pair = {"diff-overview": (), "diff-ops": ("2",)}
    asyncio.run(pictures(DiffApp(a, b), pair))
    asyncio.run(pictures(TraceApp(a), {"show-ops": ("2", "space", "pagedown")}))
    if (traces / "a-values.zarr").exists():
        asyncio.run(pictures(DiffApp(traces / "a-values.zarr", traces / "b-values.zarr"), {"diff-values": ("3",)}))


if __name__ == "__main__":
    main()
