"""What was seen of an op while it was recorded: whether it repeats itself, where the run was held against another.

Owns the reading of record ``against`` for that. An op that was called again on its own inputs, on the spot, was tried;
of any other nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rltrace.diff.judging.causes import NOT_TRIED
from rltrace.diff.model import Cause, Finding
from rltrace.diff.streams import StreamResult
from rltrace.trace.reader import ProcessTrace

FINDINGS = ("first", "value", "harmful")


def seen_while_recorded(result: StreamResult) -> StreamResult:
    """The result, each finding of a kernel that gave other bits with what calling it again on the spot has shown."""
    sides = ((result.a.process, result.a.stream.name, "a_index"), (result.b.process, result.b.stream.name, "b_index"))
    known: dict[int, Finding] = {}
    for name in FINDINGS:
        finding: Finding | None = getattr(result, name)
        if finding is None or finding.cause is not Cause.SAME_KERNEL:
            continue
        for process, stream, index in sides:
            again = _again(process, stream, getattr(finding, index))
            if again is not None:
                setattr(result, name, known.setdefault(id(finding), _with(finding, again)))
    return result


def _with(finding: Finding, again: Mapping[str, Any]) -> Finding:
    times, repeats = int(again["times"]), bool(again["repeats"])
    words = "is deterministic" if repeats else "is nondeterministic"
    why = f"re-executed {times:,} times on its inputs while it was recorded, it {words}"
    return replace(finding, repeats=repeats, because=finding.because.replace(NOT_TRIED, why))


def _again(process: ProcessTrace, stream: str, row: int | None) -> Mapping[str, Any] | None:
    """What a process has noted of a row that it called again; None: it has not."""
    for record in process.journal.records:
        first = record.get("first") if record["type"] == "against" else None
        if isinstance(first, dict) and (first.get("stream"), first.get("row")) == (stream, row):
            again = first.get("again")
            if isinstance(again, dict) and {"times", "repeats"} <= again.keys() and int(again["times"]) > 1:
                return again
    return None
