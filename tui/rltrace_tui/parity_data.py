"""Data of the screens of two programs: the result of comparing them by row, and the streams of their ops.

Owns the lookup of ops. The two streams are not aligned: ``rltrace.extensions.parity`` matches their ops.
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
from rltrace.extensions.parity.model import ModuleOrigin, ModuleResult, Parity
from rltrace.extensions.parity.report.compare import ParityReport
from rltrace.query.op_pair import OpPairs
from rltrace.query.values import selector_of
from rltrace.trace.read.reader import Trace
from rltrace_tui.data import DataSource, StreamPairData

NAME = "A and B"
"""Name of the pair of streams, which have different names."""


@dataclass(frozen=True)
class ParityData:
    """The result of a comparison by row."""

    report: ParityReport
    views: tuple[StreamView, StreamView]
    traces: tuple[Trace, Trace]
    """The same trace twice, if both sides are of one trace."""

    @property
    def parity(self) -> Parity:
        return self.report.parity

    @cached_property
    def origins(self) -> dict[Pair[str], ModuleOrigin]:
        """The first origin of each module."""
        return {origin.path: origin for origin in reversed(self.parity.origins)}

    @cached_property
    def origin_indices(self) -> tuple[int, ...]:
        """Indices of the modules with origins, ascending."""
        return tuple(k for k, module in enumerate(self.parity.modules) if module.path in self.origins)


Find = Callable[[], ParityData]


class UnalignedPair(StreamPairData):
    """Two streams whose rows are not matched by position."""

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
        """``find`` compares the two, and is called once; its errors are shown."""
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
        """In execution order."""
        return () if self.found is None else self.found.parity.modules

    def origin(self, module: ModuleResult) -> ModuleOrigin | None:
        """The origin in a module whose inputs agree and whose outputs do not; None for other modules."""
        return None if self.found is None else self.found.origins.get(module.path)

    @property
    def no_op_reason(self) -> str:
        """Why there is no first op that diverges; "" if there is one."""
        if self.found is None:
            return "there is no result yet"
        first = self.found.parity.first
        if first is None:
            return "no module is known to be the first that diverges"
        known = first.op.a or first.op.b or first.several
        return "" if known else "which op of the module it is, is unknown"

    @property
    def no_ops_reason(self) -> str:
        return "ops of two programs cannot be paired: Enter on a module, or rltrace show for one of them"

    @property
    def streams(self) -> list[str]:
        return [] if self.found is None else [NAME]

    def stream(self, name: str) -> StreamPairData:
        with self.lock:
            if name not in self._streams:
                assert self.found is not None
                self._streams[name] = UnalignedPair(*self.found.views)
            return self._streams[name]

    @property
    def shown(self) -> Finding | None:
        return None

    def traces(self) -> tuple[Trace, ...]:
        assert self.found is not None
        return self.found.traces

    def recording_commands(self, row: RowAt) -> tuple[str, ...]:
        traces = {str(trace.path): trace for trace in self.traces()}
        words = ["--rows", "all", "--values", selector_of(row), "--values-inputs"]
        files = [file_name(trace, "values") for trace in traces.values()]
        windows = [record_step(t, row.step, f, *words) for t, f in zip(traces.values(), files, strict=True)]
        return (*windows, line("compare", *files))

    @property
    def is_finished(self) -> bool:
        return self.found is not None
