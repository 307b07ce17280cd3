"""Facts noted beside the findings: calls that ran another kernel, ops run again while recorded, final parameters.

Kernels are compared by kind of call: those that libraries reported (``library_reports``), and those whose launches a
profiler saw (``launched_calls``). Another kernel alone is no difference.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rltrace.command_lines import line
from rltrace.diff.base.coverage import FINISHED
from rltrace.diff.base.kernels import kernel_differences
from rltrace.diff.base.model import Cause, Finding, OtherKernel, Pair
from rltrace.diff.base.sequences import grouped
from rltrace.diff.causes.operands import PERMUTED, hash_seed_text
from rltrace.diff.stream.compare import StreamResult
from rltrace.diff.stream.steps import bare_finding, compare_steps
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Phase, RowFlag, Step, StepFlag
from rltrace.trace.kernels.evidence import Evidence, kernel_texts
from rltrace.trace.kernels.library_reports import ReportedCall
from rltrace.trace.read.launched_calls import SeenCall, seen_calls
from rltrace.trace.read.process import ProcessTrace
from rltrace.wording import counted

MAX_EXAMPLES = 3


Equal = Callable[[str, int], bool | None]
"""Whether a row of A (name of the stream, number of the row) computed the same in B; None: not known."""


def other_kernels(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]], equal: Equal) -> Iterator[OtherKernel]:
    """Calls that ran other kernels in B, in processes whose kernels were recorded by name on both sides."""
    for a, b in pairs:
        if a.launches and b.launches:
            seen = {call.key: call.evidence(b) for call in seen_calls(b)}
            launched = ((call, call.evidence(a), seen.get(call.key, [])) for call in seen_calls(a))
            yield from _without_equal_kernels(a, launched, equal)
        if a.library_reports is None or b.library_reports is None:
            continue
        reported = grouped((call.key, evidence_of(b, call)) for call in b.library_reports.calls.values())
        own = ((call, [evidence_of(a, call)], reported.get(call.key, [])) for call in a.library_reports.calls.values())
        yield from _without_equal_kernels(a, own, equal)


def _without_equal_kernels(
    a: ProcessTrace,
    calls: Iterable[tuple[ReportedCall | SeenCall, Sequence[Evidence], Sequence[Evidence]]],
    equal: Equal,
) -> Iterator[OtherKernel]:
    """Calls with their evidence in A and in B, of which no two are equal: with other threads here and there, one that
    is the same will do."""
    names = {stream.index: stream.name for stream in a.streams}
    for call, own, others in calls:
        if not own or not others or not all(kernel_differences(x, y) for x in own for y in others):
            continue
        stream = names.get(call.stream, "")
        op, marked = _first_of(a, call.stream, call.row)
        on_a, on_b = kernel_texts(own[0], others[0])
        same = None if marked else equal(stream, call.row)
        differences = tuple(kernel_differences(own[0], others[0]))
        yield OtherKernel(stream, call.row, op, on_a or "", on_b or "", differences, same)


def evidence_of(process: ProcessTrace, call: ReportedCall) -> Evidence:
    """Kernel evidence of a call: that of its rows, and what its library reported."""
    return {**process.words.evidence(call.kernel), "names": list(call.names), "reported": list(call.reported)}


def _first_of(process: ProcessTrace, index: int, row: int) -> tuple[str, bool]:
    """Operator of the first row of a call, and whether that row may hold uninitialised memory."""
    stream = next((stream for stream in process.streams if stream.index == index), None)
    if stream is None or not 0 <= row < stream.rows:
        return "", True
    try:
        rows = stream.read(row, row + 1)
    except HoleError:
        return "", True
    return process.words.op(int(rows.columns[0, Column.OP])), bool(rows.flags(0) & RowFlag.MARKED)


def equal_in(results: Sequence[StreamResult]) -> Equal:
    """A test for equal rows: those before the first value that differs, where no side has extra ops."""
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
    """One sentence on the calls that gave the same bits; None: there are none."""
    same = [one for one in found if one.same_bits]
    if not same:
        return None
    examples = "; ".join(dict.fromkeys(f"{one.op}: {', '.join(one.differences)}" for one in same[:MAX_EXAMPLES]))
    kinds = "1 kind of call" if len(same) == 1 else f"{len(same):,} kinds of call"
    return f"different kernels, same bits: {kinds} ({examples}); {line('kernels', a, b)} lists them"


def permuted_note(result: StreamResult) -> str | None:
    """One sentence on the calls that got their tensors in another order; None: there are none."""
    if not result.permuted:
        return None
    calls = counted(result.permuted, "call")
    seed = hash_seed_text(result.a.process, result.b.process)
    return f"{calls} in {result.a.name} {PERMUTED}, and treat each by itself, so no value differs{seed}"


def exchanged_note(result: StreamResult) -> str | None:
    """One sentence on the ops that carry an equal object in other bytes; None: there are none."""
    if not result.exchanged:
        return None
    ops = counted(result.exchanged, "op carries", "ops carry")
    return f"{ops} equal objects in {result.a.name} in bytes that differ: the pickle of a tensor holds an address"


# --- steps ------------------------------------------------------------------------------------------------------------


def equal_steps_note(pairs: Sequence[tuple[ProcessTrace, ProcessTrace]]) -> str | None:
    """One sentence where an op differs and yet all gradients, parameters and RNG states of torch are equal, at the end
    of every optimizer step and of every process; None where they are not, or where that is not known."""
    attempts = 0
    for a, b in pairs:
        steps = compare_steps(a, b)
        if steps.finding or steps.ended or steps.open or any(steps.one_sided) or a.parameters != b.parameters:
            return None
        if steps.matched != len(a.steps) or a.state not in FINISHED or b.state not in FINISHED:
            return None
        attempts += steps.matched if a.parameters else 0
    if not attempts:
        return None
    return (
        f"gradients, parameters and RNG states are equal at the end of all {attempts:,} optimizer steps and of both "
        "runs: no trained parameter depends on this difference"
    )


# --- final parameters -------------------------------------------------------------------------------------------------
#
# Parameters at the end of two processes, where no later op shows a difference: an op of one side wrote them after their
# last use, or no op wrote them at all. Otherwise they are compared at the last attempt of their optimizer.


AT_THE_END = Phase.OTHER.name.lower()
"""Phase of a finding without an op or step, at the end of a process."""


def last_parameters(a: ProcessTrace, b: ProcessTrace, cause: Cause, why: str) -> Finding | None:
    """The finding at the first optimizer whose final parameters differ, with ``cause`` and ``why`` (a clause).

    Considers only processes that ended, and optimizers that existed to the end on both sides.
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
        why_at_end = (
            f"parameters differ at the end of the processes, but not after the last step of their optimizer: {why}"
        )
        outputs: tuple[Pair[str], ...] = (Pair(None, None), Pair(f"{ends[0]:016x}", f"{ends[1]:016x}"))
        return bare_finding(a, attempts[0], cause, why_at_end, len(a.steps), outputs, AT_THE_END)
    return None


def _last_attempt(process: ProcessTrace, ordinal: int) -> NDArray[np.uint64] | None:
    """The last attempt of an optimizer with digests; None: there is none."""
    steps = process.steps
    digested = (steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    rows = np.flatnonzero(process.are_of_optimizer(steps, ordinal) & digested)
    return None if not len(rows) else steps[rows[-1]]
