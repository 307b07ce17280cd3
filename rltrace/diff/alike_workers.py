"""Workers of one run that computed the same, as those do whose generators are copies of one, or have one seed.

Says so only where this is so on one side alone, where what they computed is more than one value over and over, and of
workers that were started together: those of the next epoch load the same data again.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.messages import START
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.wording import joined

ROWS_READ = 1 << 12
"""Rows of each worker that are looked at."""

MAX_WORKERS = 16

LEAST = 2
"""Values that two workers must both have computed."""

WORKER = re.compile(r".*/worker:\d+")


class _Alike(NamedTuple):
    """What several workers computed alike."""

    workers: tuple[str, ...]
    place: str
    """``aten.stack.default at collate.py:12``."""
    values: int


def alike_note(a: Trace, b: Trace) -> str | None:
    """A sentence on workers that computed the same on one side only; None: there are none."""
    found = [_most_alike(trace) for trace in (a, b)]
    if (found[0] is None) == (found[1] is None):
        return None
    side, alike = ("A", found[0]) if found[0] is not None else ("B", found[1])
    assert alike is not None
    return (
        f"in {side}, {joined(list(alike.workers))} computed the same {alike.values:,} results of {alike.place}: their"
        " generators may be copies of one, or have one seed"
    )


def _most_alike(trace: Trace) -> _Alike | None:
    """The call site at which several workers computed the most values alike."""
    seen: dict[tuple[str, tuple[int, ...], object], list[str]] = defaultdict(list)
    began = {digest: (process.name, at) for process in trace.processes for at, digest in _starts(process, sent=True)}
    try:
        for process in [process for process in trace.processes if WORKER.fullmatch(process.name)][:MAX_WORKERS]:
            together = next((began[digest] for _, digest in _starts(process, sent=False) if digest in began), None)
            for place, results in dict.fromkeys(_results(process)) if together is not None else ():
                seen[place, results, together].append(process.name)
    except HoleError:
        return None
    places: dict[str, dict[tuple[int, ...], set[str]]] = defaultdict(lambda: defaultdict(set))
    for (place, results, _), workers in seen.items():
        if len(workers) > 1:
            places[place][results].update(workers)
    place, alike = max(places.items(), key=lambda item: len(item[1]), default=("", {}))
    workers = sorted(set().union(*alike.values()), key=lambda name: (len(name), name))
    return _Alike(tuple(workers), place, len(alike)) if len(alike) >= LEAST else None


def _starts(process: ProcessTrace, *, sent: bool) -> Iterator[tuple[tuple[int, int], int]]:
    """Where in its rows a process started others, or began itself, each with the digest of the one that began."""
    for ends in process.messages:
        if ends.channel == START and ends.sent is sent:
            yield from (((ends.stream, row), digest) for row, digest in zip(ends.rows, ends.digests, strict=True))


def _results(process: ProcessTrace) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Place and results of the ops of a worker, the first of each of its threads."""
    for stream in process.streams:
        view = StreamView(process, stream)
        rows = view.read(0, min(view.rows, ROWS_READ)).rows
        for place in range(len(rows)):
            row, results = RowAt(view, rows, place), tuple(rows.outputs(place))
            if row.is_op and any(results):
                yield str(row), results
