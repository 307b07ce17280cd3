"""What the terminal interface costs on two long traces. Prints Markdown.

python benchmarks/tui_speed.py [--ops 10000000] [--folder bench-out]

Runs the real application without a terminal on traces of ``diff_speed`` that diverge for good half-way, and times what
a person waits for: from the verdict to the first screen, a jump, a page. A frame draws every line of the list;
rows that nobody has read yet are placeholders in it, and how long they stay is measured by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diff_speed import Edit, evict, write
from measure import fresh_folder, machine, table

from rltrace.diff import Comparison
from rltrace_tui.diff_app import DiffApp, SearchDone

JUMPS = 200
SIZE = (140, 40)


class Timed(DiffApp):
    """Notes when the verdict was there, and when it was on the screen."""

    verdict = shown = 0.0

    def on_search_done(self, message: SearchDone) -> None:
        self.verdict = message.time
        super().on_search_done(message)
        self.call_after_refresh(self._note)

    def _note(self) -> None:
        self.shown = time.monotonic()


Told = dict[str, list[tuple[float, float]]]
"""What was measured to (seconds on the clock, seconds of processor time of all threads)."""


async def drive(a: Path, b: Path) -> Told:
    """Everything that is measured."""
    app = Timed(a, b)
    told: Told = {}
    begin, work = time.monotonic(), time.process_time()
    async with app.run_test(size=SIZE) as pilot:
        while not app.shown:
            await pilot.pause(0.005)
        told["start to first screen with the verdict"] = [(app.shown - begin, time.process_time() - work)]
        told["of that, from the verdict on"] = [(app.shown - app.verdict, float("nan"))]
        with timed(told, "opening the ops at the finding"):
            await pilot.press("2")
            while not await words_are_there(app):
                pass
        oplist, browser = app.ops.list, app.ops.list.browser
        assert browser is not None
        await rest(app)

        def frame() -> None:
            for y in range(oplist.size.height):
                oplist.render_line(y)

        browser.open(0)  # five million identical rows
        oplist.changed(0)
        chance = random.Random(0)
        for _ in range(JUMPS):
            target = chance.randrange(len(browser))
            with timed(told, "a jump anywhere, drawn"):
                oplist.move(target, center=True)
                frame()
            with timed(told, "until its words have been read"):
                while not await words_are_there(app):
                    pass
            with timed(told, "and drawn"):
                frame()
            await rest(app)
        missed = 0
        for _ in range(JUMPS):
            with timed(told, "a page down"):
                oplist.action_page(1)
                frame()
            missed += not await words_are_there(app)
            await rest(app)
        print(f"pages that were not read ahead of whoever turned to them: {missed} of {JUMPS}", file=sys.stderr)
        for step in chance.sample(range(7_900, 15_000), 20):
            with timed(told, "opening a step that differs"):
                row = app.work.first_row_of(browser, step)
                assert row is not None
                oplist.changed(browser.reveal("a", row))
                frame()
        for _ in range(JUMPS):
            with timed(told, "a frame without a cached line"):
                oplist.changed(oplist.cursor)
                frame()
        assert isinstance(app.work.comparison, Comparison)
    return told


async def words_are_there(app: Timed) -> bool:
    """Whether the line under the cursor is no placeholder; lets everything else have its turn."""
    await asyncio.sleep(0.0005)
    line = app.ops.list.line
    return line is not None and (line.relation is None or app.ops.list.cell is not None)


async def rest(app: Timed) -> None:
    """Until nobody reads any more."""
    while not all(worker.is_finished for worker in list(app.workers)):
        await asyncio.sleep(0.001)


@contextmanager
def timed(told: Told, name: str) -> Iterator[None]:
    begin, work = time.perf_counter(), time.process_time()
    yield
    told.setdefault(name, []).append((time.perf_counter() - begin, time.process_time() - work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("bench-out"))
    parser.add_argument("--traces", type=Path, nargs=2, help="Two traces that exist, instead of new ones.")
    options = parser.parse_args()
    with fresh_folder(options.folder / "tui_speed") as folder:
        a, b = options.traces or (
            write(folder / "a.zarr", options.ops, Edit("a")),
            write(folder / "b.zarr", options.ops, Edit("b", apart_from=0.5)),
        )
        evict(a)
        evict(b)
        told = asyncio.run(drive(a, b))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = []
    for name, both in told.items():
        clock, work = (sorted(column) for column in zip(*both, strict=True))
        middle = len(clock) // 2
        lines.append([name, len(clock), *map(milliseconds, (clock[middle], clock[-1], work[middle], work[-1]))])
    print(machine())
    print(
        f"\nTwo traces of {options.ops:,} ops; a terminal of {SIZE[0]} × {SIZE[1]}. Peak memory {peak / 1e6:,.0f} MB.\n"
    )
    print(table(["what", "times", "median", "longest", "processor, median", "processor, longest"], lines))


def milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1e3:,.1f} ms"


if __name__ == "__main__":
    main()
