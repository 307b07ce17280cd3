"""The result of a live comparison with A: what is written as JSON, and what is narrated."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from rltrace.command_lines import line
from rltrace.live_diff.follower import LiveCounts, LiveFinding, LiveOutcome, LiveResult, word_of
from rltrace.wording import counted


@dataclass(frozen=True)
class LiveReport:
    """A run that was compared with a trace while it was recorded."""

    SCHEMA: ClassVar = "rltrace.against/1"

    verdict: LiveOutcome
    a: str
    """Path of the trace that it was compared with."""
    trace: str
    a_state: str
    """How far A is: ``missing``, ``growing``, ``ended`` or ``killed``."""
    processes: tuple[LiveResult, ...]


def against_lines(
    found: Sequence[LiveResult], a: str, trace: str, a_state: str = "ended", why: str = "", *, said: bool = False
) -> Iterator[str]:
    """The verdict and its evidence. ``a_state``: how far A is; ``why`` the result is not final; ``said``: whether the
    finding was narrated already."""
    if not found:
        yield f"nothing could be compared with {a}: {why or 'it does not exist'}"
        return
    if said:
        yield f"differs from {a}, as said above"
    else:
        yield from _verdict_lines(found, a, trace)
    going = {"growing": f"{a} is still being recorded", "killed": f"{a} was killed"}.get(a_state, "")
    if why or (going and not said):
        yield f"  {'; '.join(filter(None, (going, why)))}"


def commands(found: Sequence[LiveResult], a: str, trace: str, a_state: str) -> list[str]:
    """Commands to run next, ready to paste."""
    differs = any(one.first is not None for one in found)
    return [line("diff", a, trace)] if differs or a_state == "growing" else []


def _verdict_lines(found: Sequence[LiveResult], a: str, trace: str) -> Iterator[str]:
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
        case _ if not tally.matched:
            yield f"equal to {a}: the digests of {counted(tally.steps, 'step')} are the same"
        case _:
            yield f"equal to {a}: all {tally.matched:,} ops give the same{_rest(tally)}"


def _first_lines(first: LiveFinding, a: str) -> Iterator[str]:
    index, step = first.b_index, "" if first.step is None else f", step {first.step:,}"
    if index is None and first.a_index is None:
        yield f"differs from {a}{step.replace(',', ' in', 1)} of {first.stream}"
    else:
        rows = (
            f"op {index:,} of {first.stream}" if index is not None else f"op {first.a_index:,} of {first.stream} in A"
        )
        other = "" if None in (index, first.a_index) or index == first.a_index else f" ({first.a_index:,} in A)"
        yield f"differs from {a} at {rows}{other}{step}: {first.op}"
    if first.site is not None:
        yield f"  {first.site.file}:{first.site.line} in {first.site.function}: {first.site.source}"
    yield f"  {first.cause.value}: {first.explanation}"


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
