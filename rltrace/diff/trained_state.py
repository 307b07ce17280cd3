"""Whether two runs trained the same, so that what differs between them is nothing that training depends on.

The proof is of the runs as wholes and says nothing of the op that differs: all digests of what was trained are equal,
at every attempt of an optimizer and at the end, and what both sides drew or saved at a step is equal. Where a digest is
missing there is no proof.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from rltrace.diff.align.blocks import match_steps
from rltrace.diff.base.coverage import FINISHED, recorded_throughout
from rltrace.diff.base.view import StreamView
from rltrace.diff.processes import CHUNK_ROWS
from rltrace.errors import HoleError
from rltrace.trace.format.journal import Record
from rltrace.trace.format.root import COMPLETE
from rltrace.trace.format.schema import Column, RowFlag, Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

MAX_SCANNED = 1 << 24
"""Rows of a side that are searched for draws at most."""

Draw = tuple[int, int]
"""The step that a draw was made in, as a number of A, and the token of its call."""

Drawn = tuple[tuple[int, ...], bool]
"""Digests of what a draw returned, and whether they are of memory that no recorded op wrote."""


def trained_alike(a: Trace, b: Trace, pairs: Sequence[tuple[ProcessTrace, ProcessTrace]]) -> int | None:
    """The number of attempts of both runs, where they trained the same; None where they did not, or that is not known.

    Both are complete, and made the same attempts. At each, gradients and parameters are equal, and at the end
    parameters, buffers and optimizer states. Every draw that both made gave the same numbers, and files that both
    wrote after an attempt hold the same tensors.
    """
    training = [(x, y) for x, y in pairs if len(x.steps) or len(y.steps)]
    paired = {id(process) for pair in training for process in pair}
    if any(len(p.steps) and id(p) not in paired for trace in (a, b) for p in trace.processes):
        return None
    if not training or not all(_trained_alike(*pair) for pair in training):
        return None
    every = [process for trace in (a, b) for process in trace.processes]
    if not all(process.state in FINISHED and recorded_throughout(process) for process in every):
        return None
    if sum(process.after_op for process in every) > 2 * MAX_SCANNED or not all(_drew_alike(*pair) for pair in pairs):
        return None
    return sum(len(process.steps) for process, _ in training)


def trained_alike_text(attempts: int) -> str:
    return (
        "the runs differ only in what nothing trained depends on: gradients and parameters are equal at the end of all "
        f"{attempts:,} optimizer steps, parameters, buffers and optimizer states at the end of both runs, and so is "
        "every draw that both made"
    )


def _trained_alike(a: ProcessTrace, b: ProcessTrace) -> bool:
    if not (a.state == b.state == COMPLETE and a.exit == b.exit):
        return False
    at_a, at_b = match_steps(a, a.steps, b, b.steps)
    if not len(at_a) == len(at_b) == len(a.steps) == len(b.steps):
        return False
    columns = [Step.GRADIENTS, Step.PARAMETERS]
    digested = (a.steps[at_a, Step.FLAGS] & b.steps[at_b, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    equal = digested.all() and all(np.array_equal(a.steps[at_a, c], b.steps[at_b, c]) for c in columns)
    last, other = _last_state(a), _last_state(b)
    if last is None or other is None or any(last[key] != other[key] for key in ("tensors", "digest")):
        return False
    return bool(equal and a.parameters and a.parameters == b.parameters and not _saved_otherwise(last, other))


def _last_state(process: ProcessTrace) -> Record | None:
    """The record of parameters, buffers and optimizer state at the end, and of what was saved; None: there is none."""
    found = [r for r in process.journal.records if r["type"] == "state"]
    return found[-1] if len(found) == 1 and found[-1].get("tensors") else None


def saved_text(a: ProcessTrace, b: ProcessTrace) -> str | None:
    """A clause if both saved other tensors though no op that both ran shows it; None: equal, or not known."""
    last, other = _last_state(a), _last_state(b)
    steps = [] if last is None or other is None else _saved_otherwise(last, other)
    if not steps:
        return None
    when = f"after step {steps[0] - 1:,}" if steps[0] else "before its first step"
    return f"but a file that {a.name} saved {when} holds other tensors in B"


def _saved_otherwise(a: Record, b: Record) -> list[int]:
    """The attempts after which each side saved tensors that the other did not; one that only saved less is no such."""
    saved_a, saved_b = (Counter(map(tuple, record.get("saved", ()))) for record in (a, b))
    steps = {step for step, _ in saved_a} & {step for step, _ in saved_b}
    only_a, only_b = (Counter(step for step, _ in own.elements()) for own in (saved_a - saved_b, saved_b - saved_a))
    return sorted(int(step) for step in steps if only_a[step] and only_b[step])


def _drew_alike(a: ProcessTrace, b: ProcessTrace) -> bool:
    """Whether each draw that both made gave the same: all draws of a call in their order, at whatever steps, as one of
    a sampler that more workers read ahead of; else all of a call within each step that both made it in. Of one that a
    side makes more often within a step, it is not known which are the same."""
    at_a, at_b = match_steps(a, a.steps, b, b.steps)
    step_of = dict(zip(b.steps[at_b, Step.STEP].tolist(), a.steps[at_a, Step.STEP].tolist(), strict=True))
    others = {stream.name.removeprefix(b.name): stream for stream in b.streams}
    for stream in a.streams:
        other = others.get(stream.name.removeprefix(a.name))
        if other is None:
            continue
        view_a, view_b = StreamView(a, stream), StreamView(b, other)
        view_b.use_site_names_of(view_a)
        try:
            drawn_a, drawn_b = _drawn(view_a, None), _drawn(view_b, step_of)
        except HoleError:
            return False
        all_a, all_b = _by_call(drawn_a), _by_call(drawn_b)
        for step, call in drawn_a.keys() & drawn_b.keys():
            of_a, of_b = drawn_a[step, call], drawn_b[step, call]
            if (of_a != of_b and all_a[call] != all_b[call]) or any(marked for _, marked in of_a):
                return False
    return True


def _by_call(drawn: Mapping[Draw, Sequence[Drawn]]) -> dict[int, list[Drawn]]:
    """What each call drew in all steps, in order."""
    found: dict[int, list[Drawn]] = {}
    for (_, call), each in drawn.items():
        found.setdefault(call, []).extend(each)
    return found


def _drawn(view: StreamView, step_of: dict[int, int] | None) -> dict[Draw, list[Drawn]]:
    """What a stream drew, by step and call, in order. ``step_of``: A's steps by those of B; None: the stream is A's."""
    found: dict[Draw, list[Drawn]] = {}
    for start in range(0, view.rows, CHUNK_ROWS):
        stretch = view.read(start, min(start + CHUNK_ROWS, view.rows))
        marked, steps = stretch.flags(RowFlag.MARKED), stretch.rows.column(Column.STEP).tolist()
        for place in np.flatnonzero(stretch.flags(RowFlag.RNG)).tolist():
            step = steps[place] if step_of is None else step_of.get(steps[place], steps[place])
            drawn = tuple(stretch.rows.outputs(place)), bool(marked[place])
            found.setdefault((step, int(stretch.tokens.identity[place])), []).append(drawn)
    return found
