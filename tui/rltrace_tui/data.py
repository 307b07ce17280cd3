"""Data of the screens: traces, their comparison, their streams.

Owns all reading of traces. Streams are read under their browser's lock, as workers and screens use them at the same
time. Knows no widget.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from time import sleep

from rltrace.diff import CompareOptions, Comparison, compare
from rltrace.diff.base.bisect import OnProbe
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import Finding, Pair
from rltrace.diff.base.view import StreamView
from rltrace.diff.display.browser import Browser, PartnerLookup
from rltrace.diff.display.single_trace import OwnSteps, own_curves, own_steps
from rltrace.diff.metrics.timeline import Curve, Timeline, curves, timelines
from rltrace.diff.shift import begin, shifted
from rltrace.errors import SelectorError
from rltrace.query.op_pair import OpPairs
from rltrace.query.values import recording_commands
from rltrace.report.info import TraceInfo, describe
from rltrace.selectors import Key, Selector, parse_selectors
from rltrace.trace.format.location import Location
from rltrace.trace.format.schema import Step
from rltrace.trace.read.reader import Trace, open_both, open_trace
from rltrace.trace.read.selector_mask import RowMask
from rltrace_tui.row_cache import RowCache

PAUSE = 0.01
"""Seconds between two checks for waiting work."""


class CancelledError(Exception):
    """The user pressed Escape."""


class StreamPairData:
    """One pair of streams, or one stream of a single trace."""

    def __init__(self, name: str, browser: Browser) -> None:
        self.name = name
        self.browser = browser
        self.pairs = OpPairs(browser.a, browser.b, PartnerLookup(browser))
        self.cells = RowCache(browser)
        self.filter_text = ""
        """The selector of the rows that are shown; "": all of them."""
        self._selector: Selector | None = None

    @property
    def views(self) -> tuple[StreamView, StreamView]:
        """A and B; of a single trace, the same view twice."""
        return self.browser.a, self.browser.b

    def filter(self, text: str) -> None:
        """Show only rows that the selector matches ("": all of them). Reads open pieces. Raises SelectorError."""
        if not text:
            self.browser.set_filter(None)
            self.filter_text, self._selector = "", None
            return
        selector = parse_selectors([text])
        if Key.NTH in selector.keys:
            raise SelectorError(
                "nth= cannot be used here, it counts from the beginning of a step; rltrace ops finds it"
            )
        a, b = (RowMask(selector, view.name, view.process.words) for view in self.views)
        self.browser.set_filter((lambda stretch: a.compute(stretch.rows), lambda stretch: b.compute(stretch.rows)))
        self.filter_text, self._selector = text, selector

    def within_filter(self, selector: Selector) -> Selector:
        """The selector, limited to ops that the filter shows."""
        return selector if self._selector is None else selector & self._selector


class DataSource(ABC):
    """Data of the screens of ops."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.values_lock = RLock()
        """Held while recorded values are read, which are in separate files."""
        self._streams: dict[str, StreamPairData] = {}
        self._waiting = 0

    @contextmanager
    def prioritized(self) -> Iterator[None]:
        """Work that the user waits for: background work pauses meanwhile."""
        with self.lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1

    def pause(self, cancelled: Callable[[], bool]) -> bool:
        """Pause background work until no prioritized work runs; whether it was cancelled."""
        while self._waiting and not cancelled():
            sleep(PAUSE)
        return cancelled()

    @property
    @abstractmethod
    def names(self) -> str:
        """``A a.zarr   B b.zarr``."""

    @property
    @abstractmethod
    def no_ops_reason(self) -> str:
        """Why there are no ops to show; "" if there are."""

    @property
    @abstractmethod
    def streams(self) -> list[str]:
        """Names of the streams of ops, the one to show first at the beginning."""

    @property
    @abstractmethod
    def shown(self) -> Finding | None:
        """The finding that the verdict rests on."""

    @abstractmethod
    def traces(self) -> tuple[Trace, ...]:
        """The open traces: A and B, or a single one."""

    @property
    def is_pair(self) -> bool:
        """Whether there are two traces."""
        return len(self.traces()) > 1

    def recording_commands(self, row: RowAt) -> tuple[str, ...]:
        """Commands that record the values of an op."""
        return recording_commands(self.traces(), row)

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether the comparison, or the first reading of a trace, is done."""

    def findings(self) -> list[Finding]:
        return []

    def stream(self, name: str) -> StreamPairData:
        """The stream of that name, on both sides if there are two."""
        with self.lock:
            if name not in self._streams:
                views = [_view(trace, name) for trace in self.traces()]
                if len(views) > 1:
                    begin(views[0], views[1])
                browser = Browser(views[0], views[1] if len(views) > 1 else None, self.findings())
                self._streams[name] = StreamPairData(name, browser)
            return self._streams[name]

    def sizes(self, name: str) -> str:
        """How many ops a stream has."""
        rows = [_view(trace, name).rows for trace in self.traces()]
        return f"{rows[0]:,} ops" if len(rows) < 2 else f"A {rows[0]:,} ops   B {rows[1]:,} ops"

    def first_row_of(self, browser: Browser, step: int) -> int | None:
        """The first row of A's step of that number; None: there is no such step."""
        steps = browser.a.steps
        place = int(steps[:, Step.STEP].searchsorted(step))
        if place == len(steps) and (not place or step > int(steps[-1, Step.STEP]) + 1):
            return None
        row = int(steps[place - 1, Step.END_ROW]) if place else browser.a.start
        return row if row < browser.a.rows else None


class DiffData(DataSource):
    """One run of ``rltrace diff``."""

    def __init__(
        self, path_a: Location, path_b: Location, strict: bool = False, starts: Pair[int] | None = None
    ) -> None:
        super().__init__()
        self.path_a, self.path_b, self.strict, self.starts = path_a, path_b, strict, starts
        self.comparison: Comparison | None = None
        self.timelines: tuple[Timeline, ...] = ()
        self._traces: tuple[Trace, Trace] | None = None

    def search(self, on_probe: OnProbe, on_progress: Callable[[str, int, int], None]) -> Comparison:
        """Compare the two traces. An exception of a callback ends the comparison."""
        a, b = open_both(self.path_a, self.path_b)
        comparison = compare(
            a, b, CompareOptions(strict=self.strict), starts=self.starts, progress=on_progress, watch=on_probe
        )
        self._traces = a, b = shifted(a, b, comparison.shift)
        self.timelines = timelines(a, b, comparison)
        self.comparison = comparison
        return comparison

    def curves(self, cancelled: Callable[[], bool]) -> tuple[Curve, ...]:
        """Logged scalars of both; opens the traces again, as it reads in the background."""
        shift = None if self.comparison is None else self.comparison.shift
        return curves(*shifted(open_trace(self.path_a), open_trace(self.path_b), shift), cancelled)

    def prepare(self) -> None:
        """Read the ops around the finding in advance."""
        shown = self.shown
        if not self.streams:
            return
        stream = self.stream(self.streams[0])
        if shown is not None and shown.stream == stream.name:
            side, row = ("a", shown.a_index) if shown.a_index is not None else ("b", shown.b_index)
            if row is not None:
                stream.browser.reveal(side, row)

    @property
    def names(self) -> str:
        a, b = _distinct_names(self.path_a, self.path_b)
        return f"A {a}   B {b}"

    @property
    def no_ops_reason(self) -> str:
        if self.comparison is None:
            return "there is no verdict yet"
        if self.comparison.level != "op":
            return "these traces hold no ops: they were compared by the digests of their steps"
        return "" if self.streams else "no stream of ops is in both traces"

    @property
    def no_op_reason(self) -> str:
        """Why the op of the verdict cannot be shown; "" if it can."""
        shown = self.shown
        if self.no_ops_reason or shown is None:
            return self.no_ops_reason or "the verdict names no op: nothing differs"
        if shown.op is None or (shown.a_index is None and shown.b_index is None):
            return "the verdict names a step, not an op"
        return "" if shown.stream in self.streams else f"only one trace has the stream {shown.stream}"

    @property
    def streams(self) -> list[str]:
        if self._traces is None or self.comparison is None or self.comparison.level != "op":
            return []
        a, b = ({s.name for p in trace.processes for s in p.streams if s.rows} for trace in self._traces)
        shown = self.shown
        return sorted(a & b, key=lambda name: (shown is None or name != shown.stream, name))

    @property
    def shown(self) -> Finding | None:
        return None if self.comparison is None else self.comparison.shown

    def findings(self) -> list[Finding]:
        found = self.comparison
        assert found is not None
        return [f for f in (found.decisive, found.first_value, found.first, *found.unordered, *found.later) if f]

    def traces(self) -> tuple[Trace, ...]:
        assert self._traces is not None
        return self._traces

    @property
    def is_finished(self) -> bool:
        return self.comparison is not None


class TraceData(DataSource):
    """One run of ``rltrace show``."""

    def __init__(self, path: Location) -> None:
        super().__init__()
        self.path = path
        self.info: TraceInfo | None = None
        """The description of ``rltrace info``; None: not read yet."""
        self.steps: tuple[OwnSteps, ...] = ()
        self._trace: Trace | None = None

    def read(self) -> None:
        """Read everything but the ops."""
        trace = open_trace(self.path)
        info = describe(trace)
        self._trace, self.steps = trace, own_steps(trace)
        self.info = info

    def curves(self, cancelled: Callable[[], bool]) -> tuple[Curve, ...]:
        """Logged scalars; opens the trace again, as it reads in the background."""
        return own_curves(open_trace(self.path), cancelled)

    @property
    def names(self) -> str:
        return self.path.name

    @property
    def no_ops_reason(self) -> str:
        if self._trace is None:
            return "the trace is being read"
        if self.streams:
            return ""
        if self._trace.level == "step":
            return "this trace holds no ops: it was recorded with --level step"
        return "no op was recorded"

    @property
    def streams(self) -> list[str]:
        if self._trace is None:
            return []
        sizes = {s.name: s.rows for p in self._trace.processes for s in p.streams if s.rows}
        return sorted(sizes, key=lambda name: (-sizes[name], name))

    @property
    def shown(self) -> Finding | None:
        return None

    def traces(self) -> tuple[Trace, ...]:
        assert self._trace is not None
        return (self._trace,)

    @property
    def is_finished(self) -> bool:
        return self.info is not None


def _view(trace: Trace, name: str) -> StreamView:
    return next(StreamView(p, s) for p in trace.processes for s in p.streams if s.name == name)


def _distinct_names(a: Location, b: Location) -> tuple[str, str]:
    """The names of two traces, with as many of their folders as it takes to distinguish them."""
    parts = [str(path).split("/") for path in (a, b)]
    count = next((n for n in range(1, min(map(len, parts))) if parts[0][-n:] != parts[1][-n:]), max(map(len, parts)))
    return "/".join(parts[0][-count:]), "/".join(parts[1][-count:])
