"""The two call ranges of ``rltrace compare``, from traces, streams and selectors.

Owns which calls are A's and which are B's, and the errors where that is unclear. A single trace has two call ranges:
calls without gradient, and calls with.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

from rltrace.errors import UsageError
from rltrace.extensions.parity.call_range import (
    CallRange,
    RecordedStream,
    finds_call,
    inputs_of,
    put_together,
    split_facts,
    united,
)
from rltrace.extensions.parity.matching.forward_passes import IDS
from rltrace.selectors import OP_KEYS, Selector, parse_selectors
from rltrace.trace.format.activation_rows import ModuleCall
from rltrace.trace.format.location import Location, parse_location
from rltrace.trace.format.schema import has_iterations
from rltrace.trace.read.reader import Trace, open_trace

RECORD = "record it with: rltrace record --rows all --values 'module=*' -- python …"
WITHOUT, WITH = "calls without gradient", "calls with gradient"


@dataclass(frozen=True)
class TraceArgument:
    """One side, as given on the command line."""

    path: Location
    stream: str | None
    """Name of a stream, or a glob; None: any with calls."""
    selector: Selector | None
    text: str
    """Text of the selector."""


def parse_given(text: str, selectors: Sequence[str], side: str) -> TraceArgument:
    """Parse ``TRACE`` or ``TRACE:STREAM``; names of streams contain colons. Raises UsageError."""
    selector = parse_selectors(selectors) if selectors else None
    for clause in selector.clauses if selector is not None else ():
        wrong = next((condition.key for condition in clause if condition.key in OP_KEYS), None)
        if wrong is not None:
            raise UsageError(f"--{side} selects calls of modules, which have no {wrong}: use module, phase or step")
    path: Location = Path(text)
    stream = None
    url = re.fullmatch(r"([A-Za-z0-9+.-]+://.+?\.zarr)(?::(.+))?", text)
    if url is not None:
        return TraceArgument(parse_location(url[1]), url[2], selector, " or ".join(selectors))
    for at in (k for k, character in enumerate(text) if character == ":"):
        if not Path(text).exists() and Path(text[:at]).exists():
            path, stream = Path(text[:at]), text[at + 1 :]
            break
    return TraceArgument(path, stream, selector, " or ".join(selectors))


def open_ranges(a: TraceArgument, b: TraceArgument) -> tuple[CallRange, CallRange]:
    """The two call ranges. Raises UsageError."""
    trace_a = open_trace(a.path)
    if a.path != b.path:
        return _call_range("a", trace_a, a, None, "calls"), _call_range("b", open_trace(b.path), b, None, "calls")
    return (
        _call_range("a", trace_a, a, lambda own, call: not own.has_gradient(call), WITHOUT),
        _call_range("b", trace_a, b, CallRange.has_gradient, WITH),
    )


Selects = Callable[[CallRange, ModuleCall], bool]


def _call_range(side: str, trace: Trace, argument: TraceArgument, selects: Selects | None, what: str) -> CallRange:
    """``selects``: which calls, where there is no selector; ``what``: the same in words."""
    streams = list(streams_of(side, trace, argument))
    found = streams
    if argument.selector is not None:
        chosen: Selector = argument.selector
        found = [
            _cut(call_range, lambda own, call: finds_call(chosen, own, call), argument.text) for call_range in streams
        ]
    elif selects is not None:
        found = [_cut(call_range, selects, what) for call_range in streams]
    with_calls = [call_range for call_range in found if call_range.calls]
    if not with_calls:
        raise UsageError(_no_calls(side, trace, argument, streams, what))
    one = of_ranks(side, with_calls)
    if one is not None:
        return one
    if len(with_calls) > 1:
        names = [call_range.stream for call_range in with_calls]
        such = f"{argument.path}:{names[0]}"
        raise UsageError(f"{side.upper()} could be any of the streams {', '.join(names)}: name one, such as {such}")
    return with_calls[0]


def of_ranks(side: str, ranks: Sequence[CallRange]) -> CallRange | None:
    """The ranks of one model as one call range: each has a part of every layer, or, of B, other tokens; None: they are
    not known to be that."""
    parts = {rank.part: rank for rank in ranks if rank.part is not None}
    if len(parts) == len(ranks) and len(parts) in (1, *(count for _, count in parts)):
        return put_together([parts[part] for part in sorted(parts)])
    return united(sorted(ranks, key=lambda rank: rank.stream)) if side == "b" and _are_data_parallel(ranks) else None


def _are_data_parallel(ranks: Sequence[CallRange]) -> bool:
    """Whether these are the ranks of one model, each of which was given other tokens."""
    roots = [{call.module for call in rank.outermost} for rank in ranks]
    given = [
        {tensor.whole for call in rank.outermost for tensor in inputs_of(call) if tensor.name in IDS} for rank in ranks
    ]
    names = {re.sub(r"^rank\d+/", "", rank.stream) for rank in ranks}
    shared = any(one & other for one, other in combinations(given, 2))
    return len(names) == 1 and all(given) and not shared and all(own == roots[0] for own in roots)


def streams_of(side: str, trace: Trace, argument: TraceArgument) -> Iterator[CallRange]:
    """Every stream that the name allows and that has recorded calls."""
    for process in trace.processes:
        activations = process.activations
        if not activations:
            continue
        for stream in process.streams:
            if argument.stream is not None and not fnmatchcase(stream.name, argument.stream):
                continue
            (calls, facts), ops = split_facts(tuple(activations.calls(stream.index))), activations.ops(stream.index)
            if calls:
                holes, recorded = [hole.why for hole in process.holes], RecordedStream(process, stream)
                path, find = str(argument.path), process.values.get
                yield CallRange(side, calls, path=path, ops=ops, find=find, recorded=recorded, holes=holes, facts=facts)


def _cut(call_range: CallRange, selects: Selects, what: str) -> CallRange:
    return replace(call_range, calls=tuple(call for call in call_range.calls if selects(call_range, call)), what=what)


def _no_calls(side: str, trace: Trace, argument: TraceArgument, streams: Sequence[CallRange], what: str) -> str:
    """Message: this side has no calls."""
    name = side.upper()
    if {has_iterations(process.engine) for process in trace.processes} == {True}:
        return f"{argument.path} ({name}) is of a JAX program, of which no activation rows are recorded"
    if not any(process.activations for process in trace.processes):
        return f"{argument.path} ({name}) holds no activation rows to compare; {RECORD}"
    if not streams and argument.stream is not None:
        known = ", ".join(stream.name for process in trace.processes for stream in process.streams)
        return (
            f"{argument.path} ({name}) has no stream {argument.stream} with calls of modules; its streams are {known}"
        )
    if not streams:
        return f"{argument.path} ({name}) holds rows of ops, but of no module's call; {RECORD}"
    if argument.selector is not None:
        modules = list(dict.fromkeys(call.module for call_range in streams for call in call_range.calls))
        return f"--{side} {argument.text} finds no call of {argument.path}; its modules are {', '.join(modules[:5])}, …"
    return f"{argument.path} has no {what} ({name}); say with --a and --b which calls belong to which side"
