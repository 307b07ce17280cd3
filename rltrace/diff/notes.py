"""Calls for which something else ran on the other side, and whether they gave the same bits all the same.

Owns that comparison, which is of kinds of call: those that libraries were asked about (``library_reports``), and
those whose launches a profiler saw (``launched_calls``). Another kernel is no difference; one that gave the
same bits is worth knowing when a later one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.command_lines import line
from rltrace.diff.base.coverage import FINISHED
from rltrace.diff.base.kernels import kernel_differences
from rltrace.diff.base.model import Cause, Finding, OtherKernel, Pair
from rltrace.diff.causes.classify import NOT_TRIED, tried_text
from rltrace.diff.stream.compare import StreamResult
from rltrace.diff.stream.steps import bare_finding
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Phase, RowFlag, Step, StepFlag
from rltrace.trace.kernels.evidence import Evidence, kernel_text, kernel_texts
from rltrace.trace.kernels.library_reports import ReportedCall
from rltrace.trace.read.launched_calls import seen_calls
from rltrace.trace.read.process import ProcessTrace

SHOWN = 3


Equal = Callable[[str, int], bool | None]
"""Whether a row of a stream of A, by their name and number, is known to have computed the same in B."""


def other_kernels(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]], equal: Equal) -> Iterator[OtherKernel]:
    """Of pairs of processes; nothing where nobody looked at one of them."""
    for a, b in pairs:
        if a.launches and b.launches:
            yield from _launched(a, b, equal)
        if a.library_reports is None or b.library_reports is None:
            continue
        theirs: dict[int, list[ReportedCall]] = {}
        for call in b.library_reports.calls.values():
            theirs.setdefault(call.key, []).append(call)
        names = {stream.index: stream.name for stream in a.streams}
        for call in a.library_reports.calls.values():
            mine = evidence_of(a, call)
            others = [evidence_of(b, other) for other in theirs.get(call.key, ())]
            differences = [kernel_differences(mine, other) for other in others]
            if not differences or not all(
                differences
            ):  # with other threads here and there, one that is the same will do
                continue
            stream = names.get(call.stream, "")
            op, marked = _first_of(a, call.stream, call.row)
            texts = kernel_text(mine) or "", kernel_text(others[0]) or ""
            same = None if marked else equal(stream, call.row)
            yield OtherKernel(stream, call.row, op, *texts, tuple(differences[0]), same)


def _launched(a: ProcessTrace, b: ProcessTrace, equal: Equal) -> Iterator[OtherKernel]:
    """Kinds of call for which no kernels ran on both sides alike."""
    theirs = {call.key: call for call in seen_calls(b)}
    names = {stream.index: stream.name for stream in a.streams}
    for call in seen_calls(a):
        other = theirs.get(call.key)
        mine, others = call.evidence(a), other.evidence(b) if other is not None else []
        if not mine or not others or not all(kernel_differences(x, y) for x in mine for y in others):
            continue
        stream = names.get(call.stream, "")
        op, marked = _first_of(a, call.stream, call.row)
        on_a, on_b = kernel_texts(mine[0], others[0])
        same = None if marked else equal(stream, call.row)
        differences = tuple(kernel_differences(mine[0], others[0]))
        yield OtherKernel(stream, call.row, op, on_a or "", on_b or "", differences, same)


def evidence_of(process: ProcessTrace, call: ReportedCall) -> Evidence:
    """What is known of a call: what was written of its rows, and what was said."""
    return {**process.words.evidence(call.kernel), "names": list(call.names), "reported": list(call.reported)}


def _first_of(process: ProcessTrace, index: int, row: int) -> tuple[str, bool]:
    """Operator of the row where a call was met first, and whether it may hold bytes that nobody wrote."""
    stream = next((stream for stream in process.streams if stream.index == index), None)
    if stream is None or not 0 <= row < stream.rows:
        return "", True
    try:
        rows = stream.read(row, row + 1)
    except HoleError:
        return "", True
    return process.words.op(int(rows.columns[0, Column.OP])), bool(rows.flags(0) & RowFlag.MARKED)


def equal_in(results: Sequence[StreamResult]) -> Equal:
    """Rows up to the first value that differs, where neither side ran an op that the other did not."""
    known = {result.a.name: result for result in results}

    def equal(stream: str, row: int) -> bool | None:
        result = known.get(stream)
        if result is None or result.structure.only_a or result.structure.only_b or result.hole is not None:
            return None
        if result.value is None:
            return True if result.undecided is None and row < result.looked_at[0] else None
        first = result.value.a_index
        return None if first is None or row > first else row < first

    return equal


def same_bits_note(found: Sequence[OtherKernel], a: str, b: str) -> str | None:
    """One sentence on those that gave the same bits; None where there are none."""
    same = [one for one in found if one.same_bits]
    if not same:
        return None
    examples = "; ".join(dict.fromkeys(f"{one.op}: {', '.join(one.differences)}" for one in same[:SHOWN]))
    kinds = "1 kind of call" if len(same) == 1 else f"{len(same):,} kinds of call"
    return f"different kernels, same bits: {kinds} ({examples}); {line('kernels', a, b)} lists them"


# --- tried ------------------------------------------------------------------------------------------------------------
#
# What was seen of an op while it was recorded: whether it repeats itself, where the run was held against another.
#
# Owns the reading of record ``against`` for that. An op that was called again on its own inputs, on the spot, was
# tried; of any other nothing is claimed.


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
    because = finding.explanation.replace(NOT_TRIED, tried_text(times, repeats))
    return replace(finding, repeats=repeats, explanation=because)


def _again(process: ProcessTrace, stream: str, row: int | None) -> Mapping[str, Any] | None:
    """What a process has noted of a row that it called again; None: it has not."""
    for record in process.journal.records:
        first = record.get("first") if record["type"] == "against" else None
        if isinstance(first, dict) and (first.get("stream"), first.get("b_index")) == (stream, row):
            again = first.get("again")
            if isinstance(again, dict) and {"times", "repeats"} <= again.keys() and int(again["times"]) > 1:
                return again
    return None


# --- last -------------------------------------------------------------------------------------------------------------
#
# What the parameters were when two processes ended: the one thing about their end that no later op tells.
#
# Owns the difference that shows there alone: an op of one side wrote weights after their last use, or no op wrote them
# at all. Parameters that stayed as the last attempt of their optimizer left them are compared by that attempt.


AT_THE_END = Phase.OTHER.name.lower()
"""Phase of a finding without an op that no step has, for nothing but the end shows it."""


def last_parameters(a: ProcessTrace, b: ProcessTrace, cause: Cause, why: str) -> Finding | None:
    """The first optimizer whose parameters ended up otherwise; ``cause`` and ``why`` (a clause) go into the finding.

    Only of processes that ended, and of optimizers that lived to the end on both sides.
    """
    if a.state not in FINISHED or b.state not in FINISHED:
        return None
    shared = a.parameters.keys() & b.parameters.keys()
    differing = sorted(ordinal for ordinal in shared if a.parameters[ordinal] != b.parameters[ordinal])
    for ordinal in differing:  # none, as a rule: then no step is read
        ends = a.parameters[ordinal], b.parameters[ordinal]
        attempts = _last_attempt(a, ordinal), _last_attempt(b, ordinal)
        if attempts[0] is None or attempts[1] is None:
            continue
        if ends == tuple(int(attempt[Step.PARAMETERS]) for attempt in attempts if attempt is not None):
            continue
        told = (
            f"parameters differ at the end of the processes, but not after the last attempt of their optimizer: {why}"
        )
        outputs: tuple[Pair[str], ...] = (Pair(None, None), Pair(f"{ends[0]:016x}", f"{ends[1]:016x}"))
        return bare_finding(a, attempts[0], cause, told, len(a.steps), outputs, AT_THE_END)
    return None


def _last_attempt(process: ProcessTrace, ordinal: int) -> NDArray[np.uint64] | None:
    """The last attempt of an optimizer of which digests were taken."""
    payloads = process.tables["optimizers"].payloads
    numbers = [n for n, p in enumerate(payloads) if isinstance(p, dict) and p.get("ordinal") == ordinal]
    steps = process.steps
    digested = (steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    rows = np.flatnonzero(np.isin(steps[:, Step.OPTIMIZER], numbers) & digested)
    return None if not len(rows) else steps[rows[-1]]
