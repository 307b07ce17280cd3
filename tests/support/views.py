"""Sides of a comparison made row by row, for tests of what judges single rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.diff.base.context import DiffContext, Matching
from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.view import StreamView
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

Build = Callable[[TraceBuilder], object]


def view_of(path: Path, build: Build, **ending: Any) -> StreamView:
    """The main stream of a trace that ``build`` fills, which ends so."""
    trace = TraceBuilder(path)
    build(trace)
    process = open_trace(trace.finish(**ending)).processes[0]
    return StreamView(process, process.streams[0])


def rows_of(path: Path, build: Build) -> list[RowAt]:
    """Its rows."""
    view = view_of(path, build)
    return [row_at(view, row) for row in range(view.rows)]


def context_of(a: StreamView, b: StreamView, matched: Iterable[tuple[int, int]]) -> DiffContext:
    """Two sides of which these rows are matched."""
    pairs = np.array(list(matched), np.int64).reshape(-1, 2)
    matching = Matching(0)
    matching.add(pairs[:, 0], pairs[:, 1])
    return DiffContext(a, b, matching, ())
