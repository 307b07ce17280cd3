"""Sides of a comparison made row by row, for tests of what judges single rows."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rltrace.diff import Comparison, compare
from rltrace.diff.base.context import DiffContext, Matching
from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.view import StreamView
from rltrace.testing import In, TraceBuilder
from rltrace.trace.read.reader import open_trace

Build = Callable[[TraceBuilder], object]


def opened(path: Path) -> StreamView:
    """The main stream of a trace, with nothing read yet."""
    process = open_trace(path).processes[0]
    return StreamView(process, process.streams[0])


def view_of(path: Path, build: Build, **ending: Any) -> StreamView:
    """The main stream of a trace that ``build`` fills, which ends so."""
    trace = TraceBuilder(path)
    build(trace)
    return opened(trace.finish(**ending))


def rows_of(path: Path, build: Build) -> list[RowAt]:
    """Its rows."""
    view = view_of(path, build)
    return [row_at(view, row) for row in range(view.rows)]


def both(folder: Path, *given: Any, **made: Any) -> Iterator[tuple[TraceBuilder, Any]]:
    """Builders of ``a.zarr`` and ``b.zarr``, one after the other, each with what is ``given`` for it, or its letter.

    A trace is finished when the next one, or the end, is asked for.
    """
    folder.mkdir(exist_ok=True)
    for side, one in zip("ab", given or "ab", strict=True):
        trace = TraceBuilder(folder / f"{side}.zarr", **made)
        yield trace, one
        trace.finish()


def views_in(folder: Path) -> tuple[StreamView, StreamView]:
    """The main streams of ``a.zarr`` and ``b.zarr``."""
    a, b = paths_in(folder)
    return opened(a), opened(b)


def paths_in(folder: Path) -> tuple[Path, Path]:
    return folder / "a.zarr", folder / "b.zarr"


def compare_in(folder: Path) -> Comparison:
    """The comparison of ``a.zarr`` and ``b.zarr``."""
    return compare(*paths_in(folder))


def lose_rows(path: Path, segment: int = 0) -> StreamView:
    """Remove a file with rows of the main stream, which is opened again."""
    (path / "processes" / "0" / opened(path).stream.segments[segment].files[0].key).unlink()
    return opened(path)


def context_of(a: StreamView, b: StreamView, matched: Iterable[tuple[int, int]]) -> DiffContext:
    """Two sides of which these rows are matched."""
    pairs = np.array(list(matched), np.int64).reshape(-1, 2)
    matching = Matching(0)
    matching.add(pairs[:, 0], pairs[:, 1])
    return DiffContext(a, b, matching, ())


def random_sides(folder: Path, random: Random, rows: int, step: int) -> tuple[StreamView, StreamView]:
    """Two streams of few sites, ops and values, alike in about two rows of three; a step ends every ``step`` rows.

    Rows read what any of the six before wrote or read, what came from outside, or nothing that is known.
    """
    words: list[list[dict[str, Any]]] = [[], []]
    for place in range(rows):
        first = _random_row(random, place)
        words[0].append(first)
        words[1].append(first if random.random() < 0.65 else _random_row(random, place))

    def built(number: int) -> StreamView:
        def build(trace: TraceBuilder) -> None:
            for place, row in enumerate(words[number], 1):
                trace.op(**row)
                if place % step == 0:
                    trace.end_step()

        return view_of(folder / f"{number}.zarr", build)

    return built(0), built(1)


def _random_row(random: Random, place: int) -> dict[str, Any]:
    inputs: list[Any] = []
    for _ in range(random.choice((0, 1, 1, 2))):
        digest = random.choice((None, None, *"pq"))
        back = In(max(0, place - random.randint(1, 6)), digest, known=random.random() < 0.2)
        other = ("outside", digest), ("overwritten", digest), "unknown"
        inputs.append(random.choice(other) if not place or random.random() < 0.2 else back)
    site = random.choice("klm")
    row: dict[str, Any] = {"name": f"aten.{random.choice('xy')}.default", "site": (f"{site}.py", 1, site, site)}
    row |= {"inputs": inputs, "rng": random.choice((None, None, None, *"gh"))}
    return row | (
        {"value": 0.5} if random.random() < 0.1 else {"outputs": random.sample("uvw", random.choice((0, 1, 1)))}
    )
