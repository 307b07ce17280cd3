"""Kernels of every kind of call of a trace, and those that differ in another trace: text and JSON. Never prints.

Owns the layout and the object ``rltrace.kernels/1`` (docs/reference/json.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rltrace.diff.base.model import OtherKernel
from rltrace.diff.compare import compare
from rltrace.diff.notes import evidence_of
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column
from rltrace.trace.kernels.evidence import kernel_text, launches
from rltrace.trace.kernels.library_reports import LibraryReports, ReportedCall
from rltrace.trace.kernels.names import distinct_names
from rltrace.trace.read.launched_calls import MAX_ROWS_READ, SeenCall, seen_calls
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.wording import counted

# --- launched ---------------------------------------------------------------------------------------------------------

MAX_STRAYS = 20
"""Kernels launched outside any row that the text shows."""


def launched_lines(process: ProcessTrace) -> Iterator[str]:
    """Kinds of call in the order of their first row, and the kernels that a profiler recorded for each."""
    launched = process.launches
    yield f"  profiled: {launched.rows:,} rows"
    calls = seen_calls(process)
    places = [op_and_layouts(process, call.stream, call.row) for call in calls]
    width = max((len(op) for op, _ in places), default=0)
    for call, (op, layouts) in zip(calls, places, strict=True):
        yield f"  row {call.row:>8,}  ×{call.times:<7,} {op:<{width}}  {' '.join(layouts)}"
        for kernel, count in call.kernels.most_common():
            times = "" if len(call.kernels) == 1 else f"  ({count:,} times)"
            yield f"      {process.words.kernel(kernel) or '–'}{times}"
    if launched.rows > MAX_ROWS_READ:
        yield f"  kinds of call are those of the first {MAX_ROWS_READ:,} rows"
    strays = sorted(launched.strays.items(), key=lambda item: -item[1])
    if strays:
        total = sum(count for _, count in strays)
        yield f"  launched outside any row: {total:,}"
        names = distinct_names([name for (name, _), _ in strays[:MAX_STRAYS]])
        for name, ((_, launcher), count) in zip(names, strays, strict=False):
            yield f"      {name} ×{count:,}{f', by {launcher}' if launcher else ''}"
        if len(strays) > MAX_STRAYS:
            yield f"      and {len(strays) - MAX_STRAYS:,} more"
    for why, rows in unknown_rows(process).items():
        yield f"  unknown for {counted(rows, 'row')}: {why}"


def unknown_rows(process: ProcessTrace) -> Counter[str]:
    """Number of rows with unknown kernels, by reason."""
    counts: Counter[str] = Counter()
    for entry in process.launches.unknown:
        counts[entry.why] += entry.rows
    return counts


def launched_json(process: ProcessTrace) -> dict[str, Any]:
    launched = process.launches
    return {
        "rows": launched.rows,
        "calls": [_call_json(process, call) for call in seen_calls(process)],
        "for_no_row": [
            {"name": name, "by": launcher or None, "times": count}
            for (name, launcher), count in launched.strays.items()
        ],
        "unknown": launched.unknown,
    }


def _call_json(process: ProcessTrace, call: SeenCall) -> dict[str, Any]:
    op, layouts = op_and_layouts(process, call.stream, call.row)
    ran = []
    for kernel, count in call.kernels.most_common():
        evidence = process.words.evidence(kernel)
        sizes = [{"grid": grid, "block": block} for grid, block in launches(evidence) or ()]
        ran.append({"times": count, "kernel": kernel_text(evidence), "names": evidence.get("names"), "launches": sizes})
    return {"op": op, "inputs": layouts, "stream": call.stream, "row": call.row, "times": call.times, "ran": ran}


def op_and_layouts(process: ProcessTrace, index: int, row: int) -> tuple[str, list[str]]:
    """Operator of a row and the layouts of its tensors."""
    stream = next((stream for stream in process.streams if stream.index == index), None)
    try:
        rows = None if stream is None or row >= stream.rows else stream.read(row, row + 1)
    except HoleError:
        rows = None
    if rows is None:
        return "?", []
    op, structure = (int(rows.columns[0, column]) for column in (Column.OP, Column.STRUCTURE))
    return process.words.op(op), list(process.words.layouts(structure))


# --- kernels ----------------------------------------------------------------------------------------------------------


SCHEMA = "rltrace.kernels/1"

BITS = {True: "same bits", False: "other bits", None: "whether it gave the same bits is not known"}


def kernels_lines(trace: Trace, *, everything: bool) -> Iterator[str]:
    """Kinds of call process by process, in the order of their first row."""
    for process in trace.processes:
        if process.library_reports is None and not process.launches:
            continue
        yield process.name
        if process.launches:
            yield from launched_lines(process)
        if process.library_reports is None:
            continue
        for name, library in sorted(process.library_reports.libraries.items()):
            yield f"  {name}: {library}"
        calls = _in_order(process)
        shown = [call for call in calls if everything or call.names]
        width = max((len(op_and_layouts(process, c.stream, c.row)[0]) for c in shown), default=0)
        for call in shown:
            op, layouts = op_and_layouts(process, call.stream, call.row)
            yield f"  row {call.row:>8,}  ×{call.times:<7,} {op:<{width}}  {' '.join(layouts)}"
            yield f"      {kernel_text(evidence_of(process, call)) or '–'}"
        if len(shown) < len(calls):
            kinds = counted(len(calls) - len(shown), "kind")
            yield f"  and {kinds} of call on which no library reported anything (--all shows them)"
        for why, count in process.library_reports.unknown:
            yield f"  unknown for {count}: {why}"


def kernels_json(trace: Trace) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": trace.path,
        "processes": [_process_json(p) for p in trace.processes if p.library_reports or p.launches],
    }


def other_lines(a: Trace, b: Trace) -> Iterator[str]:
    """Kinds of call for which another kernel ran in B."""
    others = _others(a, b)
    if not others:
        yield "the same kernels ran on both sides, wherever the libraries were asked"
    for other in others:
        yield f"{other.op}  ({other.stream}:{other.a_index:,} in A): {BITS[other.same_bits]}"
        yield f"  A  {other.a}"
        yield f"  B  {other.b}"


def other_json(a: Trace, b: Trace) -> dict[str, Any]:
    return {"schema": SCHEMA, "a": a.path, "b": b.path, "other_kernels": _others(a, b)}


def _others(a: Trace, b: Trace) -> tuple[OtherKernel, ...]:
    return compare(a, b).other_kernels


def _in_order(process: ProcessTrace) -> list[ReportedCall]:
    calls = process.library_reports.calls.values() if process.library_reports is not None else ()
    return sorted(calls, key=lambda call: (call.stream, call.row))


def _process_json(process: ProcessTrace) -> dict[str, Any]:
    ran = process.library_reports or LibraryReports()
    calls = []
    for call in _in_order(process):
        op, layouts = op_and_layouts(process, call.stream, call.row)
        evidence = evidence_of(process, call)
        place = {"stream": call.stream, "row": call.row, "times": call.times}
        calls.append({"op": op, "inputs": layouts, **place, "kernel": kernel_text(evidence), **evidence})
    return {
        "name": process.name,
        "libraries": ran.libraries,
        "calls": calls,
        "unknown": [{"why": why, "calls": count} for why, count in ran.unknown],
        "launched": launched_json(process) if process.launches else None,
    }
