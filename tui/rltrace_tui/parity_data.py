"""What the screens of two programs show: what comparing them by row found, and the streams that their ops stand in.

Owns nothing but looking ops up. A row of one program's stream stands beside any row of the other's: which belong
together is what ``rltrace.parity`` found, and no stream is aligned here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from rltrace.command_lines import file_name, line, record_step
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import Finding, Pair
from rltrace.diff.base.view import StreamView
from rltrace.diff.display.browser import Browser
from rltrace.parity.model import ModuleOrigin, ModuleResult, Parity, Required
from rltrace.query.op_pair import OpPairs
from rltrace.query.values import selector_of
from rltrace.trace.read.reader import Trace
from rltrace_tui.data import DataSource, StreamPairData

NAME = "A and B"
"""Of the one pair of streams: each has a name of its own."""


@dataclass(frozen=True)
class ParityData:
    """What there is to draw."""

    parity: Parity
    required: tuple[Required, ...]
    views: tuple[StreamView, StreamView]
    traces: tuple[Trace, Trace]
    """Twice the same one, where two stretches of one trace were compared."""
    report: str
    """All of it as text, as it would have been printed."""
    more: tuple[str, ...] = ()
    """Sections of the report about what it amounts to: the gap of log-probabilities, what routers decided."""

    @cached_property
    def origins(self) -> dict[Pair[str], ModuleOrigin]:
        """The first of each module; there may be thousands of modules."""
        return {origin.path: origin for origin in reversed(self.parity.origins)}

    @cached_property
    def parting(self) -> tuple[int, ...]:
        """Which of the modules they are, ascending."""
        return tuple(k for k, module in enumerate(self.parity.modules) if module.path in self.origins)


Find = Callable[[], ParityData]


class Beside(StreamPairData):
    """Two streams whose rows do not belong together but for what was found."""

    def __init__(self, a: StreamView, b: StreamView) -> None:
        super().__init__(NAME, Browser(a, None))
        self.pairs = OpPairs(a, b, None)
        self._both = a, b

    @property
    def views(self) -> tuple[StreamView, StreamView]:
        return self._both


class ParityWork(DataSource):
    """One run of ``rltrace compare``."""

    def __init__(self, paths: tuple[str, str], find: Find) -> None:
        """``find``: does the work, once; what it raises is shown."""
        super().__init__()
        self._paths = paths
        self._find = find
        self.found: ParityData | None = None

    def search(self) -> ParityData:
        self.found = self._find()
        return self.found

    @property
    def names(self) -> str:
        a, b = self._paths
        return f"A {a}   B {b}"

    @property
    def modules(self) -> tuple[ModuleResult, ...]:
        """As they were run."""
        return () if self.found is None else self.found.parity.modules

    def origin(self, module: ModuleResult) -> ModuleOrigin | None:
        """What was found about the module whose inputs agree and whose outputs do not; None: it is not one of them."""
        return None if self.found is None else self.found.origins.get(module.path)

    @property
    def no_op(self) -> str:
        """Why there is no first op that parts; "": there is one."""
        if self.found is None:
            return "there is no result yet"
        first = self.found.parity.first
        if first is None:
            return "no module is known to be the first that diverges"
        known = first.op.a or first.op.b or first.several
        return "" if known else "which op of the module it is, is unknown"

    @property
    def no_ops(self) -> str:
        return "ops of two programs cannot be paired: Enter on a module, or rltrace show for one of them"

    @property
    def streams(self) -> list[str]:
        return [] if self.found is None else [NAME]

    def stream(self, name: str) -> StreamPairData:
        with self.lock:
            if name not in self._made:
                assert self.found is not None
                self._made[name] = Beside(*self.found.views)
            return self._made[name]

    @property
    def shown(self) -> Finding | None:
        return None

    def traces(self) -> tuple[Trace, ...]:
        assert self.found is not None
        return self.found.traces

    def how(self, row: RowAt) -> tuple[str, ...]:
        traces = {str(trace.path): trace for trace in self.traces()}
        words = ["--rows", "all", "--values", selector_of(row), "--values-inputs"]
        files = [file_name(trace, "values") for trace in traces.values()]
        windows = [record_step(t, row.step, f, *words) for t, f in zip(traces.values(), files, strict=True)]
        return (*windows, line("compare", *files))

    @property
    def is_finished(self) -> bool:
        return self.found is not None
