"""What to run next after two programs were compared by row, the most useful first."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.command_lines import file_name, line, record
from rltrace.extensions.parity.model import Parity, ParityVerdict
from rltrace.selectors import escape
from rltrace.trace.read.reader import Trace

EVERYTHING = ("--rows", "all", "--values", "module=*")


def advise(parity: Parity, a: Trace, b: Trace) -> tuple[str, ...]:
    """``b`` is ``a`` where both stretches are of one trace."""
    return tuple(dict.fromkeys(_commands(parity, a, b)))


def _commands(parity: Parity, a: Trace, b: Trace) -> Iterator[str]:
    if parity.holes:
        yield from (line("verify", trace.path) for trace in (a, b))
    if parity.verdict is not ParityVerdict.DIFFERS:
        return
    unmeasured = [module for module in parity.compared if module.differing and module.distance is None]
    first = parity.first
    if unmeasured or (first is not None and first.several and not _has_rows_of_ops(a, b)):
        paths = (None, None) if first is None else (first.path.a, first.path.b)
        for trace, path in [(b, paths[1])] if a is b else [(a, paths[0]), (b, paths[1])]:
            yield _record(trace, path and _called(trace, path))
    if first is not None and first.path.b is not None:
        yield line("ops", b.path, f"module={escape(_called(b, first.path.b))}")


def _called(trace: Trace, path: str) -> str:
    """The module itself, or for a point the nearest module around it that the trace has."""
    calls = (process.activations.calls(s.index) for process in trace.processes for s in process.streams)
    modules = {call.module for own in calls for call in own}
    while "." in path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def _has_rows_of_ops(*traces: Trace) -> bool:
    return all(
        any(process.activations.ops(stream.index) for process in trace.processes for stream in process.streams)
        for trace in traces
    )


def _record(trace: Trace, first: str | None) -> str:
    """The same program once more, with rows and values of all modules, and with rows of the first one's ops."""
    rows: tuple[str, ...] = EVERYTHING
    if first is not None:
        rows = ("--rows", "module=*", "--rows", f"op=*,module={escape(first)}", "--values", "module=*")
    return record(trace, file_name(trace, "rows"), *rows)
