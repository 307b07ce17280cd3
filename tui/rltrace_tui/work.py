"""What the screens show, and how it is got: two traces, their comparison, their streams side by side.

Owns everything that reads traces, behind one lock, because workers and screens ask at the same time. Knows no widget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from rltrace.diff import Comparison, compare
from rltrace.diff.browse import Browser, Line
from rltrace.diff.findings import row_at
from rltrace.diff.model import Finding
from rltrace.diff.search import Watch
from rltrace.diff.timeline import Curve, Timeline, curves, timelines
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.report.pair import Pairs
from rltrace.trace.reader import Trace, open_trace
from rltrace.trace.schema import Step


class CancelledError(Exception):
    """Somebody pressed Escape."""


@dataclass(frozen=True)
class Stream:
    """One pair of streams, ready to be looked at."""

    name: str
    browser: Browser
    pairs: Pairs


@dataclass
class Work:
    """One run of ``rltrace diff``."""

    path_a: Path
    path_b: Path
    strict: bool = False
    comparison: Comparison | None = None
    timelines: tuple[Timeline, ...] = ()
    lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self._traces: tuple[Trace, Trace] | None = None
        self._streams: dict[str, Stream] = {}

    def search(self, probed: Watch, walked: Callable[[str, int, int], None]) -> Comparison:
        """Compare the two. What a callback raises ends it."""
        a, b = open_trace(self.path_a), open_trace(self.path_b)
        comparison = compare(a, b, strict=self.strict, progress=walked, watch=probed)
        self._traces = a, b
        self.timelines = timelines(a, b, comparison)
        self.comparison = comparison
        return comparison

    def curves(self, cancelled: Callable[[], bool]) -> tuple[Curve, ...]:
        """The numbers that both read out; reads traces of its own, so that nobody waits for it."""
        return curves(open_trace(self.path_a), open_trace(self.path_b), cancelled)

    @property
    def streams(self) -> list[str]:
        """Names of the streams of ops that both sides have, the one with the verdict first."""
        if self._traces is None or self.comparison is None or self.comparison.level != "op":
            return []
        a, b = ({s.name for p in trace.processes for s in p.streams if s.rows} for trace in self._traces)
        shown = self.shown
        return sorted(a & b, key=lambda name: (shown is None or name != shown.stream, name))

    @property
    def shown(self) -> Finding | None:
        """The finding that the verdict rests on."""
        found = self.comparison
        return None if found is None else found.decisive or found.first_value or found.first

    def stream(self, name: str) -> Stream:
        """The pair of streams of that name."""
        assert self._traces is not None and self.comparison is not None
        with self.lock:
            if name not in self._streams:
                a, b = (_view(trace, name) for trace in self._traces)
                found = self.comparison
                findings = [f for f in (found.decisive, found.first_value, found.first, *found.unordered) if f]
                browser = Browser(a, b, findings)
                self._streams[name] = Stream(name, browser, Pairs(browser))
            return self._streams[name]

    def first_row_of(self, browser: Browser, step: int) -> int | None:
        """The first row of A's step of that number; None: there is no such step."""
        steps = browser.a.steps
        place = int(steps[:, Step.STEP].searchsorted(step))
        if place == len(steps) and (not place or step > int(steps[-1, Step.STEP]) + 1):
            return None
        row = int(steps[place - 1, Step.END_ROW]) if place else 0
        return row if row < browser.a.rows else None

    def where(self, browser: Browser, line: Line) -> str:
        """Step, phase, module and source line of what a line shows."""
        view, index = (browser.a, line.a) if line.a is not None else (browser.b, line.b)
        assert index is not None
        try:
            row = row_at(view, index)
        except HoleError as error:
            return str(error)
        stack = row.stack
        source = " ".join(stack[0].source.split()) if stack else ""
        place = f"{stack[0].file}:{stack[0].line}  {source}" if stack else ""
        return "   ".join(filter(None, [f"step {row.step:,}", row.phase, row.module, place]))


def _view(trace: Trace, name: str) -> StreamView:
    return next(StreamView(p, s) for p in trace.processes for s in p.streams if s.name == name)
