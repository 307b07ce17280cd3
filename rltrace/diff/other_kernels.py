"""Calls for which something else ran on the other side, and whether they gave the same bits all the same.

Owns that comparison, which is of kinds of call: those that libraries were asked about (``rltrace.trace.ran``), and
those whose launches a profiler saw (``rltrace.trace.seencalls``). Another kernel is no difference; one that gave the
same bits is worth knowing when a later one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rltrace.diff.judging.kernels import kernel_differences
from rltrace.diff.model import OtherKernel
from rltrace.diff.streams import StreamResult
from rltrace.errors import HoleError
from rltrace.trace.evidence import Evidence, kernel_text, kernel_texts
from rltrace.trace.process import ProcessTrace
from rltrace.trace.ran import RanCall
from rltrace.trace.schema import Column, RowFlag
from rltrace.trace.seencalls import seen_calls

SHOWN = 3


Equal = Callable[[str, int], bool | None]
"""Whether a row of a stream of A, by their name and number, is known to have computed the same in B."""


def other_kernels(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]], equal: Equal) -> Iterator[OtherKernel]:
    """Of pairs of processes; nothing where nobody looked at one of them."""
    for a, b in pairs:
        if a.launched and b.launched:
            yield from _launched(a, b, equal)
        if a.ran is None or b.ran is None:
            continue
        theirs: dict[int, list[RanCall]] = {}
        for call in b.ran.calls.values():
            theirs.setdefault(call.key, []).append(call)
        names = {stream.index: stream.name for stream in a.streams}
        for call in a.ran.calls.values():
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


def evidence_of(process: ProcessTrace, call: RanCall) -> Evidence:
    """What is known of a call: what was written of its rows, and what was said."""
    payloads = process.tables["kernels"].payloads
    written = payloads[call.kernel] if call.kernel < len(payloads) else None
    known = written if isinstance(written, dict) else {}
    return {**known, "names": list(call.names), "reported": list(call.reported)}


def _first_of(process: ProcessTrace, index: int, row: int) -> tuple[str, bool]:
    """Operator of the row where a call was met first, and whether it may hold bytes that nobody wrote."""
    stream = next((stream for stream in process.streams if stream.index == index), None)
    if stream is None or not 0 <= row < stream.rows:
        return "", True
    try:
        rows = stream.read(row, row + 1)
    except HoleError:
        return "", True
    op = process.tables["ops"].payloads[rows.columns[0, Column.OP]]
    return str(op), bool(rows.flags(0) & RowFlag.MARKED)


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
    return f"different kernels, same bits: {kinds} ({examples}); rltrace kernels {a} {b} lists them"
