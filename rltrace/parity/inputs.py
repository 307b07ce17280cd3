"""The two stretches that ``rltrace compare`` is given, from traces, streams and selectors.

Owns which calls are A's and which are B's, and what is said where that cannot be told. One trace alone is two
stretches: calls without gradient, and calls with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from rltrace.errors import UsageError
from rltrace.parity.call_range import CallRange, RecordedStream
from rltrace.parity.selection import finds_call
from rltrace.selectors import OP_KEYS, Selector, parse_selectors
from rltrace.trace.format.activation_rows import ModuleCall
from rltrace.trace.read.reader import Trace, open_trace

RECORD = "record it with: rltrace record --rows all --values 'module=*' -- python …"
WITHOUT, WITH = "calls without gradient", "calls with gradient"


@dataclass(frozen=True)
class TraceArgument:
    """One side as the command line has it."""

    path: Path
    stream: str | None
    """Name of a stream, or a glob; None: whichever has calls."""
    selector: Selector | None
    text: str
    """The selector's own words."""


def parse_given(text: str, selectors: Sequence[str], side: str) -> TraceArgument:
    """``TRACE`` or ``TRACE:STREAM``; streams' names hold colons themselves. Raises UsageError."""
    selector = parse_selectors(selectors) if selectors else None
    for clause in selector.clauses if selector is not None else ():
        wrong = next((condition.key for condition in clause if condition.key in OP_KEYS), None)
        if wrong is not None:
            raise UsageError(f"--{side} selects calls of modules, which have no {wrong}: use module, phase or step")
    path, stream = Path(text), None
    for at in (k for k, character in enumerate(text) if character == ":"):
        if not path.exists() and Path(text[:at]).exists():
            path, stream = Path(text[:at]), text[at + 1 :]
            break
    return TraceArgument(path, stream, selector, " or ".join(selectors))


def open_stretches(a: TraceArgument, b: TraceArgument) -> tuple[CallRange, CallRange]:
    """The two stretches. Raises UsageError."""
    trace_a = open_trace(a.path)
    if a.path != b.path:
        return _stretch("a", trace_a, a, None, "calls"), _stretch("b", open_trace(b.path), b, None, "calls")
    return _stretch("a", trace_a, a, _without_gradient, WITHOUT), _stretch("b", trace_a, b, _with_gradient, WITH)


def open_again(b: TraceArgument, path: Path, *, alone: bool) -> CallRange:
    """B's stretch in the trace of another run of its program; ``alone``: A is of the same trace. Raises UsageError."""
    wanted, what = (_with_gradient, WITH) if alone else (None, "calls")
    return _stretch("b", open_trace(path), replace(b, path=path), wanted, what)


Wanted = Callable[[CallRange, ModuleCall], bool]


def _with_gradient(stretch: CallRange, call: ModuleCall) -> bool:
    """As the outermost call around it has it: a model may switch gradients off for a part of its own."""
    return (call, *stretch.around(call))[-1].grad


def _without_gradient(stretch: CallRange, call: ModuleCall) -> bool:
    return not _with_gradient(stretch, call)


def _stretch(side: str, trace: Trace, given: TraceArgument, wanted: Wanted | None, what: str) -> CallRange:
    """``wanted``: which calls, where no selector says so; ``what``: the same in words."""
    streams = list(_streams(side, trace, given))
    found = streams
    if given.selector is not None:
        chosen: Selector = given.selector
        found = [_cut(stretch, lambda own, call: finds_call(chosen, own, call), given.text) for stretch in streams]
    elif wanted is not None:
        found = [_cut(stretch, wanted, what) for stretch in streams]
    with_calls = [stretch for stretch in found if stretch.calls]
    if not with_calls:
        raise UsageError(_nothing(side, trace, given, streams, what))
    if len(with_calls) > 1:
        names = [stretch.stream for stretch in with_calls]
        one = f"{given.path}:{names[0]}"
        raise UsageError(f"{side.upper()} could be any of the streams {', '.join(names)}: name one, such as {one}")
    return with_calls[0]


def _streams(side: str, trace: Trace, given: TraceArgument) -> Iterator[CallRange]:
    """Every stream that the name allows and that has calls whose rows were kept."""
    for process in trace.processes:
        kept = process.kept_rows
        if not kept:
            continue
        for stream in process.streams:
            if given.stream is not None and not fnmatchcase(stream.name, given.stream):
                continue
            calls = tuple(kept.calls(stream.index))
            if calls:
                holes = [hole.why for hole in process.holes]
                yield CallRange(
                    side,
                    calls,
                    "all calls",
                    str(given.path),
                    kept.ops(stream.index),
                    process.values.get,
                    RecordedStream(process, stream),
                    holes,
                )


def _cut(stretch: CallRange, wanted: Wanted, what: str) -> CallRange:
    return replace(stretch, calls=tuple(call for call in stretch.calls if wanted(stretch, call)), what=what)


def _nothing(side: str, trace: Trace, given: TraceArgument, streams: Sequence[CallRange], what: str) -> str:
    """Why there is no call on this side."""
    name = side.upper()
    if not any(process.kept_rows for process in trace.processes):
        return f"{given.path} ({name}) holds no activation rows to compare; {RECORD}"
    if not streams and given.stream is not None:
        known = ", ".join(stream.name for process in trace.processes for stream in process.streams)
        return f"{given.path} ({name}) has no stream {given.stream} with calls of modules; its streams are {known}"
    if not streams:
        return f"{given.path} ({name}) holds rows of ops, but of no module's call; {RECORD}"
    if given.selector is not None:
        modules = list(dict.fromkeys(call.module for stretch in streams for call in stretch.calls))
        return f"--{side} {given.text} finds no call of {given.path}; its modules are {', '.join(modules[:5])}, …"
    return f"{given.path} has no {what} ({name}); say with --a and --b which calls belong to which side"
