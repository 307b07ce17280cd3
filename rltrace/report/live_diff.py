"""The result of a live comparison with A: text, and an object ``rltrace.against/1``. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rltrace.command_lines import line
from rltrace.live_diff.result import LiveCounts, LiveFinding, LiveOutcome, LiveResult, word_of
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.wording import counted

SCHEMA = "rltrace.against/1"


def against_json(found: Sequence[LiveResult], where: Mapping[str, str]) -> dict[str, Any]:
    """``where``: paths of the reference trace ("a") and of the recorded one ("trace")."""
    return {"schema": SCHEMA, "verdict": word_of(list(found)), **where, "processes": found}


def against_lines(found: Sequence[LiveResult], a: str, trace: str) -> Iterator[str]:
    """The verdict and its evidence."""
    firsts = [one.first for one in found if one.first is not None]
    for first in firsts:
        yield from _first_lines(first, a)
    if firsts:
        return
    tally = _sum(found)
    match word_of(list(found)):
        case LiveOutcome.NOTHING:
            yield f"nothing could be compared with {a}: none of its ops ran ({_counts(tally) or 'no ops'})"
        case LiveOutcome.ONE_SIDED:
            yield f"all {tally.matched:,} matched ops give the same as {a}; {_counts(tally)}"
            yield f"  to see whether those matter: {line('diff', a, trace)}"
        case _:
            yield f"equal to {a}: all {tally.matched:,} ops give the same{_rest(tally)}"


def _first_lines(first: LiveFinding, a: str) -> Iterator[str]:
    rows = f"op {first.b_index:,} of {first.stream}" + (
        "" if first.a_index in (None, first.b_index) else f" ({first.a_index:,} in A)"
    )
    yield f"differs from {a} at {rows}, step {first.step:,}: {first.op}"
    if first.site is not None:
        yield f"  {first.site.file}:{first.site.line} in {first.site.function}: {first.site.source}"
    yield f"  {first.cause.value}: {first.explanation}"
    if first.again is None and first.why_not:
        yield f"  it was not re-executed: {first.why_not}"


def commands(found: Sequence[LiveResult], a: str, trace: str) -> list[str]:
    """Commands to run next, ready to paste."""
    first = next((one.first for one in found if one.first is not None), None)
    if first is None:
        return []
    lines = [line("diff", a, trace)]
    if first.again is not None and not first.op.startswith(LAUNCH_ROWS):
        lines.append(line("repro", trace, "--at", f"{first.stream}:{first.b_index}", "--against", a))
    return lines


def _sum(found: Sequence[LiveResult]) -> LiveCounts:
    total = LiveCounts()
    for one in found:
        for name, count in asdict(one.counts).items():
            setattr(total, name, getattr(total, name) + count)
    return total


def _counts(tally: LiveCounts) -> str:
    counts = (
        (tally.only_b, "only in this run"),
        (tally.only_a, "only in A"),
        (tally.unchecked, "in steps that A does not have"),
    )
    return ", ".join(f"{counted(count, 'op')} {words}" for count, words in counts if count)


def _rest(tally: LiveCounts) -> str:
    clauses = []
    if tally.unchecked:
        clauses.append(f"{tally.unchecked:,} more ops are in steps that A does not have")
    if tally.marked:
        clauses.append(f"{tally.marked:,} of them not counted, as they may read uninitialised memory")
    if tally.unused:
        clauses.append(f"{tally.unused:,} more compute with it, and no training used the result")
    return f"; {', '.join(clauses)}" if clauses else ""
