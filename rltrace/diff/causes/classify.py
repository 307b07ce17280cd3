"""What kind of difference a matched pair of rows shows, and how it is known whether their inputs matched.

Owns the order of the causes. A verdict rests on facts that both sides recorded; where one is missing it says so
rather than assume. Pairs must be handed in in execution order: every matched pair before is taken to be equal, bytes
that no op wrote aside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt, row_at, writer_of
from rltrace.diff.base.kernels import (
    behind_a_name,
    choosing,
    chosen_text,
    is_another_grid,
    kernel_differences,
    seen_alike,
    settings_differences,
    settings_text,
    tells_what_ran,
)
from rltrace.diff.base.model import Cause, InputsMatch, Received
from rltrace.diff.base.row_diff import Difference, arguments_text, input_text, skeleton_text
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.collectives import came_with, ranks_of
from rltrace.diff.causes.inputs import Input, combined, input_is_equal, match_inputs, origin_of, same_bytes
from rltrace.diff.causes.rng import generators_text
from rltrace.errors import HoleError
from rltrace.trace.format.rows import Link
from rltrace.trace.format.schema import PLACEMENT_ALIGNMENT, Column, Kind, Origin, RowFlag
from rltrace.trace.kernels.evidence import kernel_text

# --- lying ------------------------------------------------------------------------------------------------------------
#
# Whether the inputs of an op lay otherwise aligned in memory on the other side: kernels choose their loops by that.
#
# Owns the comparison and its words. It is known of rows whose inputs were kept; a lead, no cause: measured, MKL's dot
# and matrix-vector products give other bits where an input begins 4 or 8 bytes past a multiple of 16
# (docs/internals/findings.md).


def alignments_text(a: RowAt, b: RowAt) -> str:
    """``; input 0 begins at a multiple of 64 bytes in A, of 4 in B, …``; "" where it is the same, or not known."""
    on_a, on_b = a.view.alignments(a.index), b.view.alignments(b.index)
    if on_a is None or on_b is None:
        return ""
    places = sorted({*on_a, *on_b})
    found = [place for place in places if on_a.get(place, PLACEMENT_ALIGNMENT) != on_b.get(place, PLACEMENT_ALIGNMENT)]
    if not found:
        return ""
    x, y = (side.get(found[0], PLACEMENT_ALIGNMENT) for side in (on_a, on_b))
    what = f"{input_text(a, found[0])} is aligned to {x} bytes in A, to {y} in B"
    return f"; {what}, and kernels choose their loops by alignment"


# --- opening ----------------------------------------------------------------------------------------------------------
#
# What the opening rows of a window prove: the digests of everything that had a history when recording began.
#
# Within a window, a parameter comes from outside as far as links tell. Owns the look-up that tells it from an
# observation.


def was_equal_when_the_window_began(scene: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether an input that differs now is known to have been equal when the recording of ops began.

    ``x`` and ``y`` are the input's links; at least one of them says "outside".
    """
    held_a, held_b = held_at_opening(scene.a, a, x), held_at_opening(scene.b, b, y)
    if x.distance == y.distance == Origin.OUTSIDE:
        return bool({x.digest, y.digest} & held_a & held_b)
    return bool({x.digest, y.digest} & (held_a or written(a, x)) & (held_b or written(b, y)))


def held_before_the_window(scene: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether one side knows the writer of an input, and for the other it is from before its window."""
    if x.distance == y.distance:
        return False
    view, digest = (scene.a, x.digest) if x.distance == Origin.OUTSIDE else (scene.b, y.digest)
    return digest in view.opening_digests


def held_at_opening(view: StreamView, row: RowAt, link: Link) -> set[int]:
    return view.opening_digests if link.distance == Origin.OUTSIDE else set()


def is_opening(row: RowAt) -> bool:
    """Whether a row is one of a window's opening rows."""
    return int(row.rows.columns[row.place, Column.KIND]) == Kind.WINDOW


def digests_of(row: RowAt) -> set[int]:
    """What a row wrote, or, of an opening row, what it found."""
    if is_opening(row):
        start, stop = row.rows.digest_offsets[row.place : row.place + 2]
        return set(row.rows.digests[start:stop].tolist())
    return set(row.rows.outputs(row.place))


def written(row: RowAt, link: Link) -> set[int]:
    """Digests of what the row that a link leads to wrote."""
    if not 0 < link.distance <= row.index:
        return set()
    try:
        target = row_at(row.view, row.index - link.distance)
    except HoleError:
        return set()
    return set(target.rows.outputs(target.place))


# --- causes -----------------------------------------------------------------------------------------------------------


LONGEST_TRAIL = 256
"""How many marked rows are followed back to the first one."""

COMPILED = "inductor."
"""How the operators of regions that torch.compile has made begin."""

NOT_TRIED = "whether it is deterministic was not tried"


def tried_text(times: int, repeats: bool) -> str:
    """In place of ``NOT_TRIED``, of an op that was called again where it ran."""
    words = "is deterministic" if repeats else "is nondeterministic"
    return f"re-executed {times:,} times on its inputs while it was recorded, it {words}"


@dataclass(frozen=True)
class Classification:
    """Where the origin of a difference is, and what it is."""

    a: RowAt
    b: RowAt
    decided: Judgement


def judge(scene: DiffContext, a: RowAt, b: RowAt, difference: Difference) -> Classification:
    """The cause of the first pair that differs."""
    inputs = match_inputs(scene, a, b)
    known = combined(inputs)
    if not a.is_op:
        cause, why = event_cause(a)
        return Classification(a, b, Judgement(cause, InputsMatch.UNKNOWN, why))
    if difference.marked and difference.value:
        return Classification(a, b, Judgement(Cause.UNINITIALISED, known, "it may have read uninitialised memory"))
    if difference.rng:
        why = "the RNG state already differed before the op drew: another seed, or an earlier extra draw"
        return Classification(a, b, Judgement(Cause.RNG, known, why))
    marked = _marked_origin(scene, a, b, inputs)
    if marked is not None:
        return marked
    unequal = [entered for entered in inputs if entered.match is InputsMatch.DIFFER]
    if unequal:
        outside = [e for e in unequal if Origin.OUTSIDE in (e.a.distance, e.b.distance)]
        return Classification(a, b, _of_input(scene, a, b, (outside or unequal)[0]))
    strangers = _written_by_strangers(scene, a, b, inputs)
    if strangers is not None:
        return Classification(a, b, strangers)
    if difference.structure or difference.arguments:
        return Classification(a, b, Judgement(Cause.ARGUMENTS, known, arguments_text(a, b, difference)))
    return Classification(a, b, _noting_region(_noting_memory(_of_kernel(scene, a, b, known), a, b), a))


# --- inputs ---------------------------------------------------------------------------------------------------------


def _of_input(scene: DiffContext, a: RowAt, b: RowAt, entered: Input) -> Judgement:
    """The cause where an input's bytes differ though every earlier matched op is equal."""
    what = input_text(a, entered.place)
    x, y = entered.a, entered.b
    if Origin.OUTSIDE in (x.distance, y.distance):
        received = _received(scene, a, x, b, y)
        if received is not None:
            why = f"{what} came from other processes with {received.op} (row {received.a_index:,}) and differs"
            return Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, why, received)
        if was_equal_when_the_window_began(scene, a, x, b, y):
            why = f"{what} was equal when the recording of ops began, and its bytes changed without any recorded op"
            return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)
        if held_before_the_window(scene, a, x, b, y):
            why = f"{what} dates from before the recording of ops began on one side, and differs"
            return Judgement(Cause.BEFORE_WINDOW, InputsMatch.DIFFER, why)
        why = f"{what} came from outside (no recorded op wrote it) and differs"
        generators = generators_text(a, b)
        why += f"; {generators}" if generators else ""
        return Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, why)
    opening = _from_opening_row(a, x, b, y, what)
    if opening is not None:
        return opening
    writers = _writers(scene, a, x, b, y)
    if writers is not None:
        return Judgement(Cause.CONTROL_FLOW, InputsMatch.DIFFER, f"{what} was last written by {writers}")
    several = _several(x.distance, y.distance)
    if several is not None:
        return Judgement(Cause.CONTROL_FLOW, InputsMatch.DIFFER, f"{what} was last written by {several}")
    if Origin.UNKNOWN in (x.distance, y.distance):
        why = f"{what} differs; another stream wrote it, or it is in memory that cannot be followed"
        return Judgement(Cause.UNKNOWN, InputsMatch.DIFFER, why)
    writer = writer_of(a, x)
    who = "the ops that wrote it are" if writer is None else f"{writer} (row {writer.index:,}), which wrote it last, is"
    why = f"{what} differs here, though {who} equal on both sides: its bytes changed without any recorded op"
    return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)


def _received(scene: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> Received | None:
    """The collective with which both sides were sent an input; None where either was not, or it is not one op."""
    with_a, with_b = came_with(a, x), came_with(b, y)
    if with_a is None or with_b is None or scene.matching.partner(with_a.index) != with_b.index:
        return None
    return Received(with_a.op, with_a.index, with_b.index, ranks_of(with_a))


def _several(x: int, y: int) -> str | None:
    """Who wrote an input, where that is several ops on one side alone; by where its links lead."""
    if (x == Origin.MIXED) == (y == Origin.MIXED):
        return None
    one, other = ("A", "B") if x == Origin.MIXED else ("B", "A")
    return f"several ops in {one}, and by one op in {other}"


def _from_opening_row(a: RowAt, x: Link, b: RowAt, y: Link, what: str) -> Judgement | None:
    """The cause where the last that is known of an input is what a window began with."""
    writer_a, writer_b = writer_of(a, x), writer_of(b, y)
    if writer_a is None or writer_b is None or not (is_opening(writer_a) or is_opening(writer_b)):
        return None
    if digests_of(writer_a) & digests_of(writer_b):
        why = f"{what} was equal when the recording of ops began, and its bytes changed without any recorded op"
        return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)
    why = f"{what} dates from before the recording of ops began, and differs"
    return Judgement(Cause.BEFORE_WINDOW, InputsMatch.DIFFER, why)


def _writers(scene: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> str | None:
    """Who wrote an input, where that is not the same op on both sides."""
    writer_a, writer_b = writer_of(a, x), writer_of(b, y)
    if writer_a is None or writer_b is None or scene.matching.partner(writer_a.index) == writer_b.index:
        return None
    wrote_a, wrote_b = (writer.rows.outputs(writer.place) for writer in (writer_a, writer_b))
    if wrote_a and wrote_a == wrote_b:  # one of two equal ops: whichever it was, what it wrote is what B's wrote
        return None
    return f"{writer_a} in A (row {writer_a.index:,}) and by {writer_b} in B (row {writer_b.index:,})"


def _written_by_strangers(scene: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> Judgement | None:
    """The cause where nobody read an input on both sides, and ops that are not the same wrote it last."""
    for entered in inputs:
        if entered.match is InputsMatch.UNKNOWN and not input_is_equal(scene, a, b, entered.place):
            writers = _writers(scene, a, entered.a, b, entered.b)
            if writers is None:
                writers = _several(origin_of(a, entered.a), origin_of(b, entered.b))
            if writers is not None:
                why = f"{input_text(a, entered.place)} was last written by {writers}"
                return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
    return None


def _marked_origin(scene: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> Classification | None:
    """The first op that read unwritten memory, where an input of this unmarked pair goes back to one that differs."""
    if (a.rows.flags(a.place) | b.rows.flags(b.place)) & RowFlag.MARKED:
        return None
    found = _marked_producer(scene, a, b, inputs)
    if found is None:
        return None
    origin = found
    for _ in range(LONGEST_TRAIL):
        earlier = _marked_producer(scene, *origin, match_inputs(scene, *origin))
        if earlier is None:
            break
        origin = earlier
    why = f"it may have read uninitialised memory: its outputs differ, and {a} (row {a.index:,}) computes with them"
    return Classification(*origin, Judgement(Cause.UNINITIALISED, combined(match_inputs(scene, *origin)), why))


def _marked_producer(scene: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> tuple[RowAt, RowAt] | None:
    for entered in inputs:
        writer_a, writer_b = writer_of(a, entered.a), writer_of(b, entered.b)
        if entered.match is InputsMatch.READ or writer_a is None or writer_b is None:
            continue
        flags = writer_a.rows.flags(writer_a.place) | writer_b.rows.flags(writer_b.place)
        matched = scene.matching.partner(writer_a.index) == writer_b.index
        if matched and flags & RowFlag.MARKED and not same_bytes(writer_a, None, writer_b, None):
            return writer_a, writer_b
    return None


# --- everything else ------------------------------------------------------------------------------------------------


def event_cause(a: RowAt) -> tuple[Cause, str]:
    """Cause of a difference in a row that is no op."""
    kind = int(a.rows.columns[a.place, Column.KIND])
    if kind == Kind.WINDOW:
        name = " ".join(filter(None, [a.module, skeleton_text(a)]))
        return Cause.BEFORE_WINDOW, f"{name or 'a tensor'} already differed when the recording of ops began"
    if kind in (Kind.ENVIRONMENT_STEP, Kind.ENVIRONMENT_RESET, Kind.CHECKPOINT):
        return Cause.OUTSIDE, f"what the {a.op} brought in differs"
    return Cause.UNKNOWN, f"the {a.op} differs"


def _noting_memory(decided: Judgement, a: RowAt, b: RowAt) -> Judgement:
    """Where an op writes over what it reads, the order in which its kernel goes through memory decides the result."""
    why = decided.explanation + alignments_text(a, b)
    if (a.rows.flags(a.place) | b.rows.flags(b.place)) & RowFlag.OVERLAPPING:
        why += "; it writes memory that it also reads (source and destination overlap), so its result depends on the"
        why += " order in which a kernel accesses it"
    return replace(decided, explanation=why)


def _noting_region(decided: Judgement, a: RowAt) -> Judgement:
    """What torch.compile has made is one op: that it gave something else is known, and no more."""
    if not a.op.startswith(COMPILED):
        return decided
    inside = "a compiled region is recorded as one op; record --compile eager runs it op by op"
    return replace(decided, explanation=f"{decided.explanation}; {inside}")


def _of_kernel(scene: DiffContext, a: RowAt, b: RowAt, known: InputsMatch) -> Judgement:
    """The cause where outputs differ and nothing that went in is known to.

    That another kernel ran explains a difference only where the inputs match. Where that is not known it is a lead.
    """
    same_state = "; the RNG state is the same" if a.rows.rng(a.place) is not None else ""
    another = _another_kernel(scene, a, b)
    if known is InputsMatch.UNKNOWN:
        lead = f"; {another}, which explains it if they match" if another else ""
        why = f"its outputs differ, and not all of its inputs could be compared{same_state}{lead}"
        return Judgement(Cause.UNKNOWN, known, why)
    start = f"its inputs match and its outputs differ{same_state}"
    if another:
        return Judgement(Cause.KERNEL, known, f"{start}: {another}")
    known_a, known_b = tells_what_ran(a.kernel), tells_what_ran(b.kernel)
    if known_a and known_b:
        why = f"{start} under the same kernel evidence ({kernel_text(a.kernel)}); {NOT_TRIED}"
        return Judgement(Cause.SAME_KERNEL, known, why)
    missing = "either side" if not known_a and not known_b else "A" if not known_a else "B"
    return Judgement(Cause.COMPUTATION, known, f"{start}; the kernel is unknown on {missing}")


def _another_kernel(scene: DiffContext, a: RowAt, b: RowAt) -> str | None:
    """In what the kernels of the two sides differ, by the rows' own evidence or else by what selects kernels."""
    differences = kernel_differences(a.kernel, b.kernel) if a.kernel and b.kernel else []
    under = settings_text(a.op, (a.kernel, b.kernel), settings_differences(a.settings, b.settings))
    if differences:
        what = "the same kernel ran on another grid" if is_another_grid(a.kernel, b.kernel) else "another kernel ran"
        chosen = chosen_text(a.op, a.kernel, b.kernel, scene.settings)
        return f"{what} ({', '.join(differences)}){chosen}" + (f"; {under}" if under else "")
    if under and not seen_alike(a.kernel, b.kernel):
        return under
    settings, what = scene.settings, "the settings that select kernels differ"
    if seen_alike(a.kernel, b.kernel):
        settings, what = (
            behind_a_name(settings),
            "kernels of the same name ran, but the code behind the name may differ",
        )
    if not settings:
        return None
    first = choosing(a.op, a.kernel, b.kernel, settings)
    ranked = [*first, *(setting for setting in settings if setting not in first)]
    names = ", ".join(f"{d.name} {d.a or 'unset'} against {d.b or 'unset'}" for d in ranked[:3])
    more = "" if len(settings) <= 3 else f" and {len(settings) - 3} more"
    return f"{what} ({names}{more})"
