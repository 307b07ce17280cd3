"""What a profiler saw launched on a device, process by process: text and JSON of ``rltrace kernels``. Never prints.

Owns how kinds of call, what was launched for no row, and rows of which nothing is known read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rltrace.errors import HoleError
from rltrace.report.words import Words
from rltrace.trace.evidence import kernel_text, launches
from rltrace.trace.kernel_names import read_name
from rltrace.trace.process import ProcessTrace
from rltrace.trace.schema import Column
from rltrace.trace.seencalls import MOST_ROWS, SeenCall, seen_calls

SHOWN = 20
"""Of what was launched for no row."""


def launched_lines(process: ProcessTrace) -> Iterator[str]:
    """A line for each kind of call, in the order in which they were met first, and what ran for it."""
    told, words = process.launched, Words(process)
    yield f"  profiled: {told.rows:,} rows"
    calls = seen_calls(process)
    places = [place_in_words(process, call.stream, call.row, words) for call in calls]
    width = max((len(op) for op, _ in places), default=0)
    for call, (op, layouts) in zip(calls, places, strict=True):
        yield f"  row {call.row:>8,}  ×{call.times:<7,} {op:<{width}}  {' '.join(layouts)}"
        payloads = process.tables["kernels"].payloads
        for kernel, count in call.kernels.most_common():
            payload = payloads[kernel]
            text = kernel_text(payload) if isinstance(payload, dict) else None
            yield f"      {text or '–'}{'' if len(call.kernels) == 1 else f'  ({count:,} times)'}"
    if told.rows > MOST_ROWS:
        yield f"  kinds of call are those of the first {MOST_ROWS:,} rows"
    strays = sorted(told.strays.items(), key=lambda item: -item[1])
    if strays:
        total = sum(count for _, count in strays)
        yield f"  launched outside any row: {total:,}"
        for (name, launcher), count in strays[:SHOWN]:
            yield f"      {read_name(name).short} ×{count:,}{f', by {launcher}' if launcher else ''}"
        if len(strays) > SHOWN:
            yield f"      and {len(strays) - SHOWN:,} more"
    for why, rows in unknown(process).items():
        yield f"  unknown for {rows:,} {'row' if rows == 1 else 'rows'}: {why}"


def unknown(process: ProcessTrace) -> Counter[str]:
    """Of how many rows it is not known what was launched, by the reason."""
    found: Counter[str] = Counter()
    for entry in process.launched.unknown:
        found[entry.why] += entry.rows
    return found


def launched_json(process: ProcessTrace) -> dict[str, Any]:
    told, words = process.launched, Words(process)
    return {
        "rows": told.rows,
        "calls": [_call_json(process, call, words) for call in seen_calls(process)],
        "for_no_row": [
            {"name": name, "by": launcher or None, "times": count} for (name, launcher), count in told.strays.items()
        ],
        "unknown": [
            {"why": entry.why, "stream": entry.stream, "first": entry.first, "rows": entry.rows}
            for entry in told.unknown
        ],
    }


def _call_json(process: ProcessTrace, call: SeenCall, words: Words) -> dict[str, Any]:
    op, layouts = place_in_words(process, call.stream, call.row, words)
    payloads = process.tables["kernels"].payloads
    ran = []
    for kernel, count in call.kernels.most_common():
        payload = payloads[kernel]
        evidence = payload if isinstance(payload, dict) else {}
        told = [{"grid": list(grid), "block": list(block)} for grid, block in launches(evidence) or ()]
        ran.append({"times": count, "kernel": kernel_text(evidence), "names": evidence.get("names"), "launches": told})
    return {"op": op, "inputs": layouts, "stream": call.stream, "row": call.row, "times": call.times, "ran": ran}


def place_in_words(process: ProcessTrace, index: int, row: int, words: Words) -> tuple[str, list[str]]:
    """Operator and layouts of its tensors, from a row."""
    stream = next((stream for stream in process.streams if stream.index == index), None)
    try:
        rows = None if stream is None or row >= stream.rows else stream.read(row, row + 1)
    except HoleError:
        rows = None
    if rows is None:
        return "?", []
    return words.op(int(rows.columns[0, Column.OP])), words.layouts(int(rows.columns[0, Column.STRUCTURE]))
