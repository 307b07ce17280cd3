"""What ran for every kind of call of a trace, and for which something else ran in another: text and JSON. Never prints.

Owns the layout and the objects ``rltrace.kernels/1`` (docs/reference/json.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rltrace.diff.compare import compare
from rltrace.diff.model import OtherKernel
from rltrace.diff.other_kernels import evidence_of
from rltrace.report.launched import launched_json, launched_lines, place_in_words
from rltrace.report.words import Words
from rltrace.trace.evidence import kernel_text
from rltrace.trace.process import ProcessTrace
from rltrace.trace.ran import Ran, RanCall
from rltrace.trace.reader import Trace

SCHEMA = "rltrace.kernels/1"

BITS = {True: "same bits", False: "other bits", None: "whether it gave the same bits is not known"}


def kernels_lines(trace: Trace, *, everything: bool) -> Iterator[str]:
    """A line for each kind of call, process by process, in the order in which they were met first."""
    for process in trace.processes:
        if process.ran is None and not process.launched:
            continue
        yield process.name
        if process.launched:
            yield from launched_lines(process)
        if process.ran is None:
            continue
        for name, itself in sorted(process.ran.libraries.items()):
            yield f"  {name}: {itself}"
        words = Words(process)
        calls = _in_order(process)
        shown = [call for call in calls if everything or call.names]
        width = max((len(place_in_words(process, c.stream, c.row, words)[0]) for c in shown), default=0)
        for call in shown:
            op, layouts = place_in_words(process, call.stream, call.row, words)
            yield f"  row {call.row:>8,}  ×{call.times:<7,} {op:<{width}}  {' '.join(layouts)}"
            yield f"      {kernel_text(evidence_of(process, call)) or '–'}"
        if len(shown) < len(calls):
            more = len(calls) - len(shown)
            kinds = "1 kind" if more == 1 else f"{more:,} kinds"
            yield f"  and {kinds} of call on which no library reported anything (--all shows them)"
        for why, count in process.ran.unknown:
            yield f"  unknown for {count}: {why}"


def kernels_json(trace: Trace) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": str(trace.path),
        "processes": [_process_json(p) for p in trace.processes if p.ran or p.launched],
    }


def other_lines(a: Trace, b: Trace) -> Iterator[str]:
    """The kinds of call for which something else ran in B."""
    found = _others(a, b)
    if not found:
        yield "the same kernels ran on both sides, wherever the libraries were asked"
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


def _process_json(process: ProcessTrace) -> dict[str, Any]:
    ran = process.ran or Ran()
    words, calls = Words(process), []
    for call in _in_order(process):
        op, layouts = place_in_words(process, call.stream, call.row, words)
        evidence = evidence_of(process, call)
        place = {"stream": call.stream, "row": call.row, "times": call.times}
        calls.append({"op": op, "inputs": layouts, **place, "kernel": kernel_text(evidence), **evidence})
    return {
        "name": process.name,
        "libraries": ran.libraries,
        "calls": calls,
        "unknown": [{"why": why, "calls": count} for why, count in ran.unknown],
        "launched": launched_json(process) if process.launched else None,
    }
