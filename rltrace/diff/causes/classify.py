"""The cause of a difference between a matched pair of rows, and how it is known whether their inputs match.

Owns the order of the causes. A cause rests on facts that both sides recorded; where one is missing, the cause says so.
Pairs come in execution order: all matched pairs before are assumed equal, except for uninitialised memory.
"""

import re
from dataclasses import dataclass, replace

from rltrace import extension
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt, reach, writer_of
from rltrace.diff.base.kernels import (
    choice_text,
    code_settings,
    identifies_kernel,
    in_equal_blocks,
    is_another_grid,
    kernel_differences,
    same_launches,
    settings_choosing,
    settings_differences,
    settings_text,
)
from rltrace.diff.base.model import Cause, InputsMatch, Received
from rltrace.diff.base.row_diff import Difference, arguments_text, input_text, skeleton_text, written_text
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.carried_state import carried_input
from rltrace.diff.causes.collectives import ranks_of, receiving_collective
from rltrace.diff.causes.extra_ops import COMPILED
from rltrace.diff.causes.inputs import (
    Input,
    combine,
    elsewhere_text,
    entry_text,
    first_read,
    input_is_equal,
    is_reshaped,
    is_same_part,
    lazy_view_text,
    match_inputs,
    numbers_of_input,
    origin_of,
    producer_of,
)
from rltrace.diff.causes.operands import (
    HASH_SEED,
    another_operand,
    changed_in_another_order,
    hash_seed_text,
    permuted_text,
)
from rltrace.diff.causes.rng import draw_from_same_state, generators_text, is_first_draw
from rltrace.diff.causes.uninitialised import garbage_writers
from rltrace.diff.causes.untracked import (
    NO_RECORDED_OP,
    changes_text,
    is_known_unwritten,
    lost_link,
    repeats_for_certain,
    untracked_writes,
)
from rltrace.digest.small_numbers import seeds_of
from rltrace.trace.format.rows import Link
from rltrace.trace.format.schema import CALLS_BACK, PLACEMENT_ALIGNMENT, SOURCE, Column, Kind, Origin, RowFlag
from rltrace.trace.kernels.evidence import LAUNCH_ROWS, TRITON, kernel_text

# --- memory alignment -------------------------------------------------------------------------------------------------
#
# Inputs that are aligned differently in memory, by which kernels choose their loops; known for rows whose inputs were
# recorded, of others only where they begin in their storage. It is a hint, not a cause: MKL's dot and matrix-vector
# products give different bits where an input begins 4 or 8 bytes past a multiple of 16 (docs/internals/findings.md).


def alignments_text(a: RowAt, b: RowAt) -> str:
    """``; input 0 … is aligned to 64 bytes in A, to 4 in B, …``; "" where that is equal, or not known."""
    on_a, on_b = a.view.alignments(a.index), b.view.alignments(b.index)
    if on_a is None or on_b is None:
        return _offsets_text(a, b)
    places = sorted({*on_a, *on_b})
    found = [place for place in places if on_a.get(place, PLACEMENT_ALIGNMENT) != on_b.get(place, PLACEMENT_ALIGNMENT)]
    if not found:
        return ""
    x, y = (side.get(found[0], PLACEMENT_ALIGNMENT) for side in (on_a, on_b))
    what = f"{input_text(a, found[0])} is aligned to {x} bytes in A, to {y} in B"
    return f"; {what}, and kernels choose their loops by alignment"


def _offsets_text(a: RowAt, b: RowAt) -> str:
    """``; input 0 … begins at storage offset 0 in A, 3 in B, …``; "" where no offset differs."""
    for place, (x, y) in enumerate(zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False)):
        if x.offset != y.offset:
            what = f"{input_text(a, place)} begins at storage offset {x.offset:,} in A, {y.offset:,} in B"
            return f"; {what}, and kernels choose their loops by alignment"
    return ""


# --- opening rows -----------------------------------------------------------------------------------------------------
#
# The opening rows of a window hold the digests of all tensors that existed when it began. By its links, a parameter in
# a window is outside data; these digests distinguish it from an observation.


def equal_at_window_start(context: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether an input that differs is known to have been equal when the recording of ops began.

    ``x`` and ``y`` are the input's links, of which at least one is outside.
    """
    digests_a, digests_b = opening_digests_of(context.a, a, x), opening_digests_of(context.b, b, y)
    if x.distance == y.distance == Origin.OUTSIDE:
        return bool({x.digest, y.digest} & digests_a & digests_b)
    return bool({x.digest, y.digest} & (digests_a or written_digests(a, x)) & (digests_b or written_digests(b, y)))


def predates_window(context: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether one side knows the producer of an input, which the other side had before its window."""
    if x.distance == y.distance:
        return False
    view, digest = (context.a, x.digest) if x.distance == Origin.OUTSIDE else (context.b, y.digest)
    return digest in view.opening_digests


def opening_digests_of(view: StreamView, row: RowAt, link: Link) -> set[int]:
    return view.opening_digests if link.distance == Origin.OUTSIDE else set()


def digests_of(row: RowAt) -> set[int]:
    """Digests of what a row wrote; for an opening row, of the tensor that it describes."""
    if row.is_opening:
        start, stop = row.rows.digest_offsets[row.place : row.place + 2]
        return set(row.rows.digests[start:stop].tolist())
    return set(row.rows.outputs(row.place))


def written_digests(row: RowAt, link: Link) -> set[int]:
    """Digests of the outputs of the row that a link leads to."""
    target = reach(row, link.distance)
    return set() if target is None else set(target.rows.outputs(target.place))


# --- causes -----------------------------------------------------------------------------------------------------------


MAX_TRAIL = 256
"""Marked rows that are followed back at most to find the first one."""

SCRIPT_OBJECT = "ScriptObject"
"""Type of such an argument in the skeleton of a call."""

NOT_RERUN = "whether it is deterministic was not tried"


@dataclass(frozen=True)
class Classification:
    """The origin of a difference, and its cause."""

    a: RowAt
    b: RowAt
    judgement: Judgement


def judge(context: DiffContext, a: RowAt, b: RowAt, difference: Difference) -> Classification:
    """The cause of the first pair that differs."""
    inputs = match_inputs(context, a, b)
    known = combine(inputs)
    if not a.is_op:
        cause, why = event_cause(a)
        return Classification(a, b, Judgement(cause, InputsMatch.UNKNOWN, why))
    if difference.rng:
        why = f"the RNG state already differed before the op drew: {_seeds_text(a, b)}"
        return Classification(a, b, Judgement(Cause.RNG, known, why))
    unseen = _untracked_write(context, a, b, inputs)
    if unseen is not None:
        return Classification(a, b, unseen)
    if difference.marked and difference.value:
        return Classification(a, b, _unwritten_memory(context, a, b, inputs))
    marked = _marked_origin(context, a, b, inputs)
    if marked is not None:
        return marked
    lost = lost_link(a, b)
    if lost is not None:
        return Classification(a, b, Judgement(Cause.UNKNOWN, known, lost))
    unequal = [operand for operand in inputs if operand.match is InputsMatch.DIFFER]
    if unequal:
        changed = changed_in_another_order(a, b)
        outside = [e for e in changed or unequal if Origin.OUTSIDE in (e.a.distance, e.b.distance)]
        found = _input_judgement(context, a, b, (outside or changed or unequal)[0], difference)
        order, why = permuted_text(a, b, inputs), found.explanation
        if changed:
            why = f"{why}; it got the others in another order{hash_seed_text(a.view.process, b.view.process)}"
            return Classification(a, b, replace(found, explanation=why))
        if order:
            seed = "" if HASH_SEED in why else hash_seed_text(a.view.process, b.view.process)
            why = f"{order}; {why}{seed}"
        return Classification(a, b, replace(found, explanation=why))
    unmatched = _written_by_unmatched_ops(context, a, b, inputs, difference)
    if unmatched is not None:
        return Classification(a, b, unmatched)
    if difference.structure or difference.arguments:
        return Classification(a, b, Judgement(Cause.ARGUMENTS, known, arguments_text(a, b, difference)))
    if lazy := lazy_view_text(context, a, b):
        return Classification(a, b, Judgement(Cause.CONTROL_FLOW, InputsMatch.DIFFER, lazy))
    return Classification(a, b, _add_notes(_kernel_judgement(context, a, b, known), a, b))


def _seeds_text(a: RowAt, b: RowAt) -> str:
    """What is known of the states that a draw began with: seeds that nothing had drawn from, states set back to."""
    states = a.rows.rng(a.place), b.rows.rng(b.place)
    words_given = (str(word) for row in (a, b) for word in row.view.process.start_record.get("argv") or ())
    numbers = [int(number) for word in words_given for number in re.findall(r"\d{5,20}", word)]
    seeds = seeds_of({state for state in states if state}, numbers[:16])
    own = [seeds.get(state) if state else None for state in states]
    if None not in own:
        return f"its generator, which nothing had drawn from since, was seeded with {own[0]} in A, {own[1]} in B"
    known, is_set_back = [], False
    for side, row, seed in zip("AB", (a, b), own, strict=True):
        if seed is not None:
            known.append(f"in {side} its generator was seeded with {seed}, and nothing had drawn from it")
        elif (earlier := draw_from_same_state(row)) is not None:
            is_set_back, draw = True, f"{earlier} (row {earlier.index:,})"
            known.append(f"in {side} its generator had been set back to the state in which {draw} drew")
    if is_set_back:
        return f"{'; '.join(known)} (as fork_rng, set_rng_state, activation checkpointing and the same seed again do)"
    is_first = all(is_first_draw(row) for row, seed in zip((a, b), own, strict=True) if seed is None)
    random = "nothing drew from it before: another seed, or none, where torch takes one at random"
    return "; ".join([random if is_first else "another seed, or an earlier extra draw", *known])


# --- inputs ---------------------------------------------------------------------------------------------------------


def _input_judgement(context: DiffContext, a: RowAt, b: RowAt, operand: Input, difference: Difference) -> Judgement:
    """The cause where an input's bytes differ though every earlier matched op is equal."""
    what = input_text(a, operand.place, b)
    x, y = operand.a, operand.b
    carried = carried_input(context, a, b, operand)
    if carried is not None:
        return carried
    if Origin.OUTSIDE in (x.distance, y.distance):
        received = _received(context, a, x, b, y)
        if received is not None:
            why = f"{what} came from other processes with {received.op} (row {received.a_index:,}) and differs"
            return Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, why, received)
        if equal_at_window_start(context, a, x, b, y):
            why = f"{what} was equal when the recording of ops began, and its bytes changed {NO_RECORDED_OP}"
            return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)
        if predates_window(context, a, x, b, y):
            why = f"{what} dates from before the recording of ops began on one side, and differs"
            return Judgement(Cause.BEFORE_WINDOW, InputsMatch.DIFFER, why)
        another = another_operand(context, a, b, operand, difference)
        if another is not None:
            return another
        if is_reshaped(a, b, operand.place):
            why = f"{arguments_text(a, b, difference)}; {what} came from outside (no recorded op wrote it)"
            return Judgement(Cause.ARGUMENTS, InputsMatch.UNKNOWN, why)
        how = numbers_of_input(a, b, operand)
        how = (elsewhere_text(a, x, b, y, operand.place) if how == "differs" else "") or how
        why = f"{what} came from outside (no recorded op wrote it) and {how}"
        outputs = a.rows.outputs(a.place)
        if outputs and outputs == b.rows.outputs(b.place):
            why += ", though what the op returned is equal: it may not have used the elements that differ"
        why += entry_text(b if y.distance == Origin.OUTSIDE else a, operand.place)
        generators = generators_text(a, b)
        why += f"; {generators}" if generators else ""
        return Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, why)
    opening = _from_opening_row(a, x, b, y, what)
    if opening is not None:
        return opening
    another = another_operand(context, a, b, operand, difference)
    if another is not None:
        return another
    if difference.structure and not is_same_part(a, x, b, y, operand.place) and producer_of(a, x) and producer_of(b, y):
        return Judgement(Cause.ARGUMENTS, InputsMatch.DIFFER, arguments_text(a, b, difference))
    if all(found is not None and found[1].from_outside for found in (first_read(a, x), first_read(b, y))):
        why = f"{what} differs, though the ops that wrote a part of it are equal: what came from outside is another"
        return Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, why)
    several = _several_writers(x.distance, y.distance)
    if several is not None:
        return Judgement(Cause.CONTROL_FLOW, InputsMatch.DIFFER, f"{what} was last written by {several}")
    if Origin.UNKNOWN in (x.distance, y.distance):
        received = _received(context, a, x, b, y)
        if received is not None:
            sent = f"what came from other processes with {received.op} (row {received.a_index:,})"
            why = f"{what}, which another thread computed from {sent}, differs"
            return Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, why, received)
        why = f"{what} differs; another stream wrote it, or it is in memory that cannot be followed"
        return Judgement(Cause.UNKNOWN, InputsMatch.DIFFER, why)
    if lazy := lazy_view_text(context, a, b):
        return Judgement(Cause.CONTROL_FLOW, InputsMatch.DIFFER, lazy)
    writer = writer_of(a, x)
    who = "the ops that wrote it are" if writer is None else f"{writer} (row {writer.index:,}), which wrote it last, is"
    why = f"{what} differs here, though {who} equal on both sides: its bytes changed {NO_RECORDED_OP}"
    return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)


def _received(context: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link) -> Received | None:
    """The matched collective that both sides received an input from; None: there is none."""
    call_a, call_b = receiving_collective(a, x), receiving_collective(b, y)
    if call_a is None or call_b is None or context.matching.partner(call_a.index) != call_b.index:
        return None
    return Received(call_a.op, call_a.index, call_b.index, ranks_of(call_a))


def _several_writers(x: int, y: int) -> str | None:
    """The writers of an input that several ops wrote on one side only; None otherwise. ``x``, ``y``: link origins."""
    if (x == Origin.MIXED) == (y == Origin.MIXED):
        return None
    one, other = ("A", "B") if x == Origin.MIXED else ("B", "A")
    return f"several ops in {one}, and by one op in {other}"


def _from_opening_row(a: RowAt, x: Link, b: RowAt, y: Link, what: str) -> Judgement | None:
    """The cause where the last producer of an input is an opening row of a window; None otherwise."""
    writer_a, writer_b = writer_of(a, x), writer_of(b, y)
    if writer_a is None or writer_b is None or not (writer_a.is_opening or writer_b.is_opening):
        return None
    if digests_of(writer_a) & digests_of(writer_b):
        why = f"{what} was equal when the recording of ops began, and its bytes changed {NO_RECORDED_OP}"
        return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)
    why = f"{what} dates from before the recording of ops began, and differs"
    return Judgement(Cause.BEFORE_WINDOW, InputsMatch.DIFFER, why)


def _written_by_unmatched_ops(
    context: DiffContext, a: RowAt, b: RowAt, inputs: list[Input], difference: Difference
) -> Judgement | None:
    """The cause where an input was not read on both sides, and unmatched ops wrote it last; None otherwise."""
    for operand in inputs:
        if operand.match is InputsMatch.UNKNOWN and not input_is_equal(context, a, b, operand.place):
            another = another_operand(context, a, b, operand, difference)
            if another is not None:
                return another
            writers = _several_writers(origin_of(a, operand.a), origin_of(b, operand.b))
            if writers is not None:
                why = f"{input_text(a, operand.place)} was last written by {writers}"
                return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
    return None


def _marked_origin(context: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> Classification | None:
    """The first marked op that differs and that an input of this unmarked pair depends on; None: there is none."""
    if (a.rows.flags(a.place) | b.rows.flags(b.place)) & RowFlag.MARKED:
        return None
    found = _marked_producer(context, a, b, inputs)
    if found is None:
        return None
    origin = found
    for _ in range(MAX_TRAIL):
        earlier = _marked_producer(context, *origin, match_inputs(context, *origin))
        if earlier is None:
            break
        origin = earlier
    inputs = match_inputs(context, *origin)
    judgement = _untracked_write(context, *origin, inputs) or _unwritten_memory(context, *origin, inputs)
    why = f"{judgement.explanation}; {a} (row {a.index:,}) computes with what it returned"
    return Classification(*origin, replace(judgement, explanation=why))


def _untracked_write(context: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> Judgement | None:
    """The cause where the memory of an input is known to have been written by no recorded op; None otherwise."""
    changes = untracked_writes(context, a, b, inputs)
    return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, changes_text(a, changes)) if changes else None


def _differs_from_outside(operand: Input) -> bool:
    """Whether both sides read an input from outside, and other bytes."""
    a, b = operand.a, operand.b
    return a.distance == b.distance == Origin.OUTSIDE and None not in (a.digest, b.digest) and a.digest != b.digest


def _unwritten_memory(context: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> Judgement:
    """The cause where an op reads memory that no recorded op wrote, or where it does and another input explains what
    differs."""
    known = combine(inputs)
    for operand in inputs:
        sent = _received(context, a, operand.a, b, operand.b) if operand.match is InputsMatch.DIFFER else None
        if sent is not None:
            what, by = input_text(a, operand.place), f"{sent.op} (row {sent.a_index:,})"
            why = f"{what} was in flight: it reads what {by} may still be writing, before the program waits for that"
            return Judgement(Cause.UNTRACKED_WRITE, InputsMatch.DIFFER, why)
    brought = next((operand for operand in inputs if _differs_from_outside(operand)), None)
    if brought is not None and any(Origin.OUTSIDE not in (each.a.distance, each.b.distance) for each in inputs):
        return _input_judgement(context, a, b, brought, Difference())  # the memory is another input
    if is_known_unwritten(a, b):
        return Judgement(Cause.UNINITIALISED, known, "it reads uninitialised memory: nothing wrote it")
    why = "it reads memory that no recorded op wrote: uninitialised, or written by code that is not seen"
    return Judgement(Cause.UNKNOWN, known, f"{why}; record --check-links shows which")


def _marked_producer(context: DiffContext, a: RowAt, b: RowAt, inputs: list[Input]) -> tuple[RowAt, RowAt] | None:
    for operand in inputs:
        if operand.match is not InputsMatch.READ:
            found = garbage_writers(context, a, b, operand, context.unused)
            if found is not None:
                return found
    return None


# --- everything else ------------------------------------------------------------------------------------------------


def event_cause(a: RowAt) -> tuple[Cause, str]:
    """Cause of a difference in an event."""
    kind = int(a.rows.columns[a.place, Column.KIND])
    if kind == Kind.WINDOW:
        name = " ".join(filter(None, [a.module, skeleton_text(a)]))
        return Cause.BEFORE_WINDOW, f"{name or 'a tensor'} already differed when the recording of ops began"
    if kind in (Kind.ENVIRONMENT_STEP, Kind.ENVIRONMENT_RESET, Kind.CHECKPOINT):
        return Cause.OUTSIDE, f"what the {a.op} brought in differs"
    return Cause.UNKNOWN, f"the {a.op} differs"


def _add_notes(judgement: Judgement, a: RowAt, b: RowAt) -> Judgement:
    noted = _add_region_note(_add_memory_note(judgement, a, b), a)
    named = written_text(a, b)
    return replace(noted, explanation=f"{noted.explanation}; {named}") if named else noted


def _add_memory_note(judgement: Judgement, a: RowAt, b: RowAt) -> Judgement:
    """Add how inputs are aligned, and whether source and destination overlap, so that the access order matters."""
    why = judgement.explanation + alignments_text(a, b)
    if (a.rows.flags(a.place) | b.rows.flags(b.place)) & RowFlag.OVERLAPPING:
        why += "; it writes memory that it also reads (source and destination overlap), so its result depends on the"
        why += " order in which a kernel accesses it"
    return replace(judgement, explanation=why)


def _add_region_note(judgement: Judgement, a: RowAt) -> Judgement:
    """Add what is not known of code that is recorded as one op: a compiled region, a kernel outside torch."""
    notes = []
    if a.op.startswith(COMPILED):
        notes.append("a compiled region is recorded as one op; record --compile eager runs it op by op")
    elif a.op.startswith(LAUNCH_ROWS) and judgement.cause is not Cause.KERNEL:
        if a.kernel.get("library") != TRITON:
            notes.append("it may have read state that is in no argument")
        if any(link.distance == Origin.OVERWRITTEN for link in a.rows.inputs(a.place)):
            notes.append("it wrote to memory that no op had written, and what it leaves unwritten there can differ")
    called_back = _called_back(a)
    if called_back and judgement.cause is not Cause.KERNEL:
        notes.append(f"it uses what {called_back} returned to it, which is not recorded")
    return replace(judgement, explanation="; ".join([judgement.explanation, *notes]))


def _called_back(row: RowAt) -> str:
    """The functions of the program that a compiled function of JAX calls back, ``observe, act``; "" for any other."""
    for entry in str(row.view.process.facts.get(CALLS_BACK) or "").split("; "):
        op, _, names = entry.partition(": ")
        if op and f"{row.op}.".startswith(f"{op}."):
            return names
    return ""


def _kernel_judgement(context: DiffContext, a: RowAt, b: RowAt, known: InputsMatch) -> Judgement:
    """The cause where outputs differ and no input is known to differ.

    Another kernel explains a difference only where the inputs match; where that is not known, it is a hint.
    """
    same_state = "; the RNG state is the same" if a.rows.rng(a.place) is not None else ""
    reason = _kernel_difference(context, a, b)
    opaque = _takes_object(a)
    if known is InputsMatch.UNKNOWN or opaque:
        lead = f"; {reason}, which explains it if they match" if reason else ""
        what = "it takes an object whose content is not recorded, as packed parameters are, and not all of its inputs"
        why = f"its outputs differ, and {what if opaque else 'not all of its inputs'} could be compared"
        return Judgement(Cause.UNKNOWN, InputsMatch.UNKNOWN, f"{why}{same_state}{lead}")
    start = f"its inputs match and its outputs differ{same_state}"
    if reason:
        return Judgement(Cause.KERNEL, known, f"{start}: {reason}")
    known_a, known_b = identifies_kernel(a.kernel), identifies_kernel(b.kernel)
    if known_a and known_b and known is InputsMatch.INFERRED and repeats_for_certain(a):
        why = "its outputs differ, though by the ops that wrote them its inputs match, and it gives the same bits from"
        why += " equal inputs: memory that it reads may have been written by no recorded op (record --check-links)"
        return Judgement(Cause.UNKNOWN, InputsMatch.UNKNOWN, why)
    if known_a and known_b:
        inferred = " (by the ops that wrote them, not read again)" if known is InputsMatch.INFERRED else ""
        start = f"its inputs match{inferred} and its outputs differ{same_state}"
        why = f"{start} under the same kernel evidence ({kernel_text(a.kernel)}); {_repeats(a, b) or NOT_RERUN}"
        return Judgement(Cause.SAME_KERNEL, known, why)
    missing = "either side" if not known_a and not known_b else "A" if not known_a else "B"
    return Judgement(Cause.COMPUTATION, known, f"{start}; the kernel is unknown on {missing}")


def _repeats(a: RowAt, b: RowAt) -> str:
    """What extensions know of whether the op repeats itself within the runs; "": nothing."""
    sides = [(side, row.view.process, row.stack[:1]) for side, row in (("A", a), ("B", b))]
    return "; ".join(filter(None, (each.repeats_text(a.op, sides) for each in extension.findings())))


def _takes_object(row: RowAt) -> bool:
    """Whether an argument is an object of TorchScript, in which tensors may be that are no inputs of the row."""

    def holds(word: object) -> bool:
        if isinstance(word, list):
            return any(map(holds, word))
        return isinstance(word, dict) and word.get("object") == SCRIPT_OBJECT

    return holds(row.view.skeleton(row.rows, row.place))


def _edited_file(a: RowAt, b: RowAt) -> str | None:
    """The first source file of the stacks that differs between the runs; None: none is known to."""
    facts, others = a.view.process.facts, b.view.process.facts
    names = (f"{SOURCE}{frame.file}" for frame in (*a.stack, *b.stack))
    differing = (name for name in names if name in facts and name in others and facts[name] != others[name])
    return next((name.removeprefix(SOURCE) for name in differing), None)


def _kernel_difference(context: DiffContext, a: RowAt, b: RowAt) -> str | None:
    """How the kernels differ, by the evidence of the rows or else by the settings that select kernels; None: equal."""
    differences = kernel_differences(a.kernel, b.kernel) if a.kernel and b.kernel else []
    by_settings = settings_text(a.op, (a.kernel, b.kernel), settings_differences(a.settings, b.settings))
    if differences:
        what = "another kernel ran"
        if is_another_grid(a.kernel, b.kernel):
            on = "on another grid" if in_equal_blocks(a.kernel, b.kernel) else "in blocks of another size"
            what = f"the same kernel ran {on}"
        elif a.op.startswith(COMPILED) and (edited := _edited_file(a, b)):
            what = f"other code was compiled for it, and {edited} was edited"
        chosen = choice_text(a.op, a.kernel, b.kernel, context.settings)
        return f"{what} ({', '.join(differences)}){chosen}" + (f"; {by_settings}" if by_settings else "")
    if by_settings and not same_launches(a.kernel, b.kernel):
        return by_settings
    settings, what = context.settings, "the settings that select kernels differ"
    if same_launches(a.kernel, b.kernel):
        settings = code_settings(settings)
        what = "kernels of the same name ran, but the code behind the name may differ"
    if not settings:
        return None
    first = settings_choosing(a.op, a.kernel, b.kernel, settings)
    ranked = [*first, *(setting for setting in settings if setting not in first)]
    names = ", ".join(f"{d.name} {d.a or 'unset'} against {d.b or 'unset'}" for d in ranked[:3])
    more = "" if len(settings) <= 3 else f" and {len(settings) - 3} more"
    return f"{what} ({names}{more})"
