"""State that a run carries into the first step of a shifted comparison, and that a resumed run has to restore.

What was written before the comparison begins was written by other ops on the two sides: here by an optimizer, there by
a load. Equal bytes are equal state; other bytes are state that was not restored. So are the state of a generator at the
first draw from it, an environment at its first event, and data read at another position in the first step.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt, attempt_of, optimizer_count, row_at, writer_of
from rltrace.diff.base.model import Cause, Finding, InputsMatch, NotRestored
from rltrace.diff.base.row_diff import input_text
from rltrace.diff.base.view import StreamView, is_shifted
from rltrace.diff.causes.carried_objects import lost_objects
from rltrace.diff.causes.events import INPUT_EVENTS, MAX_ROWS_BACK, OF_ENVIRONMENTS, event_at, outside_digests
from rltrace.diff.causes.inputs import Input, numbers_of_input
from rltrace.diff.causes.no_op_writes import layouts_of
from rltrace.errors import HoleError
from rltrace.trace.format.events import DIGEST, NONE
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Generator, Kind, Origin, Phase, RowFlag, Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.wording import joined

LOADERS = ("torch/utils/data/",)
"""Paths of functions that read data in an order, from a position."""


# --- inputs -----------------------------------------------------------------------------------------------------------


def carried_input(context: DiffContext, a: RowAt, b: RowAt, operand: Input) -> Judgement | None:
    """The cause where an input that differs was written before the comparison begins, on one side at least."""
    if not is_shifted(context.a.process, context.b.process):
        return None
    x, y = operand.a, operand.b
    writers = writer_of(a, x), writer_of(b, y)
    before = [writer is not None and writer.index < writer.view.start for writer in writers]
    if not any(before) or any(
        writer is None and link.distance != Origin.OUTSIDE for writer, link in zip(writers, (x, y), strict=True)
    ):
        return None
    what, words = input_text(a, operand.place), [_writer_text(writer) for writer in writers]
    partners = context.matching.partner, context.matching.partner_in_a
    if any(
        writer is not None and not known and partner_of(writer.index) is not None
        for writer, known, partner_of in zip(writers, before, partners, strict=True)
    ):
        why = f"it was called on another tensor: {what} is of before the comparison begins on one side only"
        return Judgement(Cause.ARGUMENTS, InputsMatch.DIFFER, f"{why}; {words[0]} in A, {words[1]} in B")
    scaler = any(writer is not None and writer.op == SCALES for writer in writers)
    if scaler or a.phase == Phase.OPTIMIZER.name.lower():
        attempt = attempt_of(a)
        optimizer = "the optimizer" if attempt is None else attempt[0].name
        lost = NotRestored("scaler", "the gradient scaler") if scaler else NotRestored("optimizer", optimizer)
        noun = f"the state of {lost.name} {_was(a, b, operand.place)}: {what}"
    else:
        lost = NotRestored("tensor", what + (f" of {a.module}" if a.module else ""))
        noun = f"{lost.name} {_was(a, b, operand.place)}: it"
    why = f"{noun} {numbers_of_input(a, b, operand)} at its first use; {words[0]} in A, {words[1]} in B"
    return Judgement(Cause.BEFORE_WINDOW, InputsMatch.DIFFER, why, not_restored=lost)


def _was(a: RowAt, b: RowAt, place: int) -> str:
    """How state that the two sides read otherwise differs."""
    dtypes = [layouts[place][0] for layouts in map(layouts_of, (a, b)) if place < len(layouts)]
    if len(set(dtypes)) == 2:
        return f"came back in another dtype ({dtypes[0]} in A, {dtypes[1]} in B)"
    return "was not restored"


SCALES = "aten._amp_update_scale_.default"
"""The operator by which a gradient scaler sets its scale."""


def _writer_text(writer: RowAt | None) -> str:
    if writer is None:
        return "it was loaded or made outside the recorded ops"
    return f"{writer} wrote it (row {writer.index:,})"


# --- generators -------------------------------------------------------------------------------------------------------


def carried_generator(context: DiffContext, a: RowAt, b: RowAt, judgement: Judgement) -> Judgement:
    """The judgement of a draw from another RNG state, where it is the first draw from that generator."""
    if not is_shifted(context.a.process, context.b.process) or any(_has_drawn(row) for row in (a, b)):
        return judgement
    name = _generator_name(int(a.rows.generators[a.place]))
    why = f"the state of {name} was not restored: it differs before the first op that draws from it"
    return replace(judgement, explanation=why, not_restored=NotRestored("generator", name))


def _generator_name(number: int) -> str:
    if number == Generator.TORCH:
        return "torch's generator on the CPU"
    if Generator.DEVICE <= number < Generator.OWN:
        return f"torch's generator of device {number - Generator.DEVICE}"
    return "a generator that the program made" if number >= Generator.OWN else "a generator"


def _has_drawn(row: RowAt) -> bool:
    """Whether an op since the comparison begins has drawn from the generator that this row draws from."""
    number = int(row.rows.generators[row.place])
    for rows in _rows_back(row.view, row.index, row.view.start):
        drew = (rows.column(Column.FLAGS) & np.uint32(RowFlag.RNG)) != 0
        if (drew & (rows.generators == number) & (rows.column(Column.KIND) == Kind.OP)).any():
            return True
    return False


def _rows_back(view: StreamView, end: int, start: int) -> Iterator[Rows]:
    """The rows from ``start`` to ``end``, backwards, some at a time."""
    for stop in range(end, start, -(1 << 14)):
        yield view.read(max(start, stop - (1 << 14)), stop).rows


# --- steps ------------------------------------------------------------------------------------------------------------


def carried_step(
    a: ProcessTrace, b: ProcessTrace, step: NDArray[np.uint64], unequal: Collection[Step]
) -> tuple[NotRestored, str]:
    """What was not restored, and a sentence, where the digests of the first compared step differ in ``unequal``."""
    optimizer = optimizer_count(a, step)
    ordinal, name = optimizer.ordinal, optimizer.name
    began = [_parameters_at_start(process, ordinal) for process in (a, b)]
    if None not in began and began[0] != began[1]:
        return NotRestored("tensor", f"parameters of {name}"), "the parameters were not restored: they differ before it"
    if Step.GRADIENTS not in unequal and Step.PARAMETERS in unequal:
        for other, lost, why in lost_optimizer_state(a, b):
            if other == ordinal:
                return lost, why
        why = f"the gradients are equal: the state or the settings of {name} were not restored"
        return NotRestored("optimizer", name), why
    if Step.TORCH_GENERATOR in unequal or Step.DEVICE_GENERATORS in unequal:
        name = "torch's generator on the CPU" if Step.TORCH_GENERATOR in unequal else "torch's generators of devices"
        return NotRestored("generator", name), f"the state of {name} was not restored, or it was drawn from otherwise"
    why = "the parameters before it and torch's generators are equal: other data came in, of a loader or an environment"
    return NotRestored("data", "data of a loader or an environment"), f"{why}, whose position was not restored"


def _parameters_at_start(process: ProcessTrace, ordinal: int) -> int | None:
    """Digest of an optimizer's parameters as the comparison begins; None: not known."""
    before, start = _attempts_before(process, ordinal), process.optimizer_starts.get(ordinal)
    if len(before):
        return int(before[-1, Step.PARAMETERS]) or None
    return None if start is None else start.parameters


def _attempts_before(process: ProcessTrace, ordinal: int) -> NDArray[np.uint64]:
    """The attempts of an optimizer before the comparison begins."""
    before = process.steps_before
    return before[process.are_of_optimizer(before, ordinal)]


# --- findings ---------------------------------------------------------------------------------------------------------


def name_carried_state(context: DiffContext, finding: Finding) -> Finding:
    """A finding with the state that was not restored, where it is due to that."""
    if not is_shifted(context.a.process, context.b.process):
        return finding
    try:
        lost = _lost_object(context, finding)
        rules = [_of_environment] if lost else [_of_optimizer, _of_environment, _of_data]
        if finding.not_restored is not None:
            rules = rules[: rules.index(_of_environment)]
        found = next(filter(None, (rule(context, finding) for rule in rules)), finding)
        return found if lost is None else _with(found, *lost)
    except HoleError:
        return finding


def _lost_object(context: DiffContext, finding: Finding) -> tuple[NotRestored, str] | None:
    """The scheduler or the running statistics that were not restored, if the finding may be due to them."""
    optimizes = finding.cause is Cause.ARGUMENTS and finding.phase == Phase.OPTIMIZER.name.lower()
    due = {"scheduler": optimizes, "statistics": finding.cause is Cause.OUTSIDE}
    lost = lost_objects(context.a.process, context.b.process)
    return next((each for each in lost if due.get(each[0].kind)), None)


def _with(finding: Finding, lost: NotRestored, why: str) -> Finding:
    return replace(finding, explanation=f"{why}; {finding.explanation}", not_restored=lost)


# --- optimizers


def lost_optimizer_state(a: ProcessTrace, b: ProcessTrace) -> Iterator[tuple[int, NotRestored, str]]:
    """(ordinal, state, sentence) of every optimizer that began without the state that it had on the other side."""
    for side, other, whole, part in (("B", "A", a, b), ("A", "B", b, a)):
        if not len(whole.steps_before):
            continue
        for ordinal in sorted(whole.optimizer_starts.keys() & part.optimizer_starts.keys()):
            before = _attempts_before(whole, ordinal)
            kept, state = whole.optimizer_starts[ordinal].kept, part.optimizer_starts[ordinal].state
            lost = [name for name in kept if name not in state]
            if lost and len(before):
                optimizer = optimizer_count(whole, before[-1]).name
                why = (
                    f"the optimizer's state was not restored: {side}'s {optimizer} begins without {joined(lost)}, which"
                    f" {other}'s had after {len(before):,} step{'s' if len(before) > 1 else ''}"
                )
                yield ordinal, NotRestored("optimizer", f"{optimizer}: {', '.join(lost)}"), why


def _of_optimizer(context: DiffContext, finding: Finding) -> Finding | None:
    """The finding at an op of an optimizer's first attempt since the comparison begins, if its state was lost."""
    if finding.phase != Phase.OPTIMIZER.name.lower() or finding.optimizer is None:
        return None
    optimizer = finding.optimizer
    processes = context.a.process, context.b.process
    if optimizer.count not in [len(_attempts_before(process, optimizer.ordinal)) for process in processes]:
        return None
    for ordinal, lost, why in lost_optimizer_state(*processes):
        if ordinal == optimizer.ordinal:
            return replace(finding, cause=Cause.BEFORE_WINDOW, explanation=why, not_restored=lost)
    if finding.cause is not Cause.ARGUMENTS:
        return None
    why = f"a setting of {optimizer.name} was not restored (its learning rate, what a scheduler had changed)"
    return _with(finding, NotRestored("settings", optimizer.name), why)


# --- environments


def _of_environment(context: DiffContext, finding: Finding) -> Finding | None:
    """The finding at the first event of an environment, or at an op that reads what it returned before."""
    if finding.event is not None:
        if finding.a_index is None or _has_event(context.a, finding.a_index, finding.event.name):
            return None
        seed = event_at(row_at(context.a, finding.a_index)).evidence("seed")
        if seed not in (None, NONE) and "seed" not in {cell.name for cell in finding.event.cells}:
            return None  # a reset with one seed needs nothing of before
        name = finding.event.name + (f" ({finding.event.owner})" if finding.event.owner else "")
        return _with(finding, NotRestored("environment", name), f"{name} was not restored")
    if finding.cause is not Cause.OUTSIDE or finding.a_index is None or finding.b_index is None:
        return None
    rows = row_at(context.a, finding.a_index), row_at(context.b, finding.b_index)
    if _is_in_loader(rows[0]) or not all(_is_first_step(row) for row in rows):
        return None
    digests = outside_digests(*rows)
    proven = [[_event_before(row, digest) for row, digest in zip(rows, pair, strict=True)] for pair in digests]
    found = next((pair for pair in proven if None not in pair), [_event_before(row) for row in rows])
    if found[0] is None or found[1] is None:
        return None
    a, b = (_count_text(row) for row in found if row is not None)
    events = [event_at(row) for row in found if row is not None]
    if (a == b and found not in proven) or events[0].what != events[1].what:
        return None
    name = events[0].what + (f" ({found[0].module})" if found[0].module else "")
    if found in proven:
        why = f"{name} was not restored: A goes on from its {a}, B from its {b}"
    else:
        why = f"{name} may not have been restored: its last event before is {a} in A, {b} in B"
    return _with(finding, NotRestored("environment", name), why)


def _count_text(row: RowAt) -> str:
    event = event_at(row)
    for name in ("step", "reset"):
        count = event.evidence(name)
        if count is not None:
            return f"{name} {count:,}"
    return "last event"


def _has_event(view: StreamView, end: int, what: str) -> bool:
    """Whether an environment has had an event since the comparison begins."""
    for rows in _rows_back(view, end, view.start):
        for place in np.flatnonzero(np.isin(rows.column(Column.KIND), INPUT_EVENTS)).tolist():
            if event_at(RowAt(view, rows, place)).what == what:
                return True
    return False


def _event_before(row: RowAt, digest: int | None = None) -> RowAt | None:
    """The last event of an environment before a row; ``digest``: that brought in the bytes with this digest."""
    view = row.view
    for rows in _rows_back(view, row.index, max(0, view.start - MAX_ROWS_BACK)):
        for place in np.flatnonzero(np.isin(rows.column(Column.KIND), OF_ENVIRONMENTS))[::-1].tolist():
            found = RowAt(view, rows, place)
            cells = event_at(found).compared.values()
            if digest is None or any(cell.letter == DIGEST and int(cell.value) == digest for cell in cells):
                return found
    return None


# --- data


def _of_data(context: DiffContext, finding: Finding) -> Finding | None:
    """The finding in the first compared step, if it is due to other data."""
    view, index = (context.b, finding.b_index) if finding.a_index is None else (context.a, finding.a_index)
    row = None if index is None else row_at(view, index)
    if row is None or not _is_first_step(row):
        return None
    if _is_in_loader(row):
        return _with(finding, NotRestored("data", "data loader"), "the position of the data loader was not restored")
    if finding.cause is not Cause.OUTSIDE:
        return None
    why = "other data came in from outside torch: its position, a generator or other state there was not restored"
    return _with(finding, NotRestored("data", "data from outside torch"), why)


def _is_first_step(row: RowAt) -> bool:
    """Whether a row is of the first compared step."""
    steps = row.view.process.steps
    return bool(len(steps)) and row.step == int(steps[0, Step.STEP])


def _is_in_loader(row: RowAt) -> bool:
    words, site = row.view.process.words, int(row.rows.columns[row.place, Column.SITE])
    frames = (words.payload("frames", frame) for frame in words.payload("sites", site) or ())
    return any(frame is not None and str(frame.get("file", "")).startswith(LOADERS) for frame in frames)
