"""What ran for every kind of call of a trace, and for which something else ran in another: text and JSON. Never prints.

Owns the layout and the objects ``rltrace.kernels/1`` (docs/kernels.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rltrace.diff.compare import compare
from rltrace.diff.model import OtherKernel
from rltrace.diff.other_kernels import evidence_of
from rltrace.errors import HoleError
from rltrace.report.words import Words
from rltrace.trace.evidence import kernel_text
from rltrace.trace.process import ProcessTrace
from rltrace.trace.ran import RanCall
from rltrace.trace.reader import Trace
from rltrace.trace.schema import Column

SCHEMA = "rltrace.kernels/1"

BITS = {True: "same bits", False: "other bits", None: "whether it gave the same bits is not known"}


def kernels_lines(trace: Trace, *, everything: bool) -> Iterator[str]:
    """A line for each kind of call, process by process, in the order in which they were met first."""
    for process in trace.processes:
        if process.ran is None:
            continue
        yield process.name
        for name, itself in sorted(process.ran.libraries.items()):
            yield f"  {name}: {itself}"
        words = Words(process)
        calls = _in_order(process)
        shown = [call for call in calls if everything or call.names]
        width = max((len(_call(process, call, words)[0]) for call in shown), default=0)
        for call in shown:
            op, layouts = _call(process, call, words)
            yield f"  row {call.row:>8,}  ×{call.times:<7,} {op:<{width}}  {' '.join(layouts)}"
            yield f"      {kernel_text(evidence_of(process, call)) or '–'}"
        if len(shown) < len(calls):
            more = len(calls) - len(shown)
            kinds = "1 kind" if more == 1 else f"{more:,} kinds"
            yield f"  and {kinds} of call of which no library said anything (--all shows them)"
        for why, count in process.ran.unknown:
            yield f"  not known of {count}: {why}"


def kernels_json(trace: Trace) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": str(trace.path),
        "processes": [_process_json(p) for p in trace.processes if p.ran],
    }


def other_lines(a: Trace, b: Trace) -> Iterator[str]:
    """The kinds of call for which something else ran in B."""
    found = _others(a, b)
    if not found:
        yield "the same ran on both sides, wherever the libraries were asked"
    for other in found:
        yield f"{other.op}  ({other.stream}:{other.a_index:,} in A): {BITS[other.same_bits]}"
        yield f"  A  {other.a}"
        yield f"  B  {other.b}"


def other_json(a: Trace, b: Trace) -> dict[str, Any]:
    found = [{**vars(other), "differences": list(other.differences)} for other in _others(a, b)]
    return {"schema": SCHEMA, "a": str(a.path), "b": str(b.path), "other_kernels": found}


def _others(a: Trace, b: Trace) -> tuple[OtherKernel, ...]:
    return compare(a, b).other_kernels


def _in_order(process: ProcessTrace) -> list[RanCall]:
    calls = process.ran.calls.values() if process.ran is not None else ()
    return sorted(calls, key=lambda call: (call.stream, call.row))


def _call(process: ProcessTrace, call: RanCall, words: Words) -> tuple[str, list[str]]:
    """Operator and layouts of its tensors, from the row where it was met first."""
    stream = next((stream for stream in process.streams if stream.index == call.stream), None)
    try:
        rows = None if stream is None or call.row >= stream.rows else stream.read(call.row, call.row + 1)
    except HoleError:
        rows = None
    if rows is None:
        return "?", []
    return words.op(int(rows.columns[0, Column.OP])), words.layouts(int(rows.columns[0, Column.STRUCTURE]))


def _process_json(process: ProcessTrace) -> dict[str, Any]:
    assert process.ran is not None
    words, calls = Words(process), []
    for call in _in_order(process):
        op, layouts = _call(process, call, words)
        evidence = evidence_of(process, call)
        place = {"stream": call.stream, "row": call.row, "times": call.times}
        calls.append({"op": op, "inputs": layouts, **place, "kernel": kernel_text(evidence), **evidence})
    return {
        "name": process.name,
        "libraries": process.ran.libraries,
        "calls": calls,
        "unknown": [{"why": why, "calls": count} for why, count in process.ran.unknown],
    }
