"""Ops on one side only, and whether the rest of the program depends on them.

An extra op is harmful if it drew from a generator, or if what the first matched op that differs reads depends on it.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import PROFILER, Judgement, RowAt, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.inputs import input_is_equal, producer_of
from rltrace.diff.causes.no_op_writes import writes_in_place
from rltrace.trace.format.schema import VALUE_FLAGS, Column, Kind, Origin, RowFlag

MAX_TRIED = 256
"""One-sided rows that are searched for the writer of a part of a tensor, or for the first of a chain."""


def control_flow(side: str, row: RowAt, other: str, opposite: RowAt | None, harm: str) -> Judgement:
    """The cause of an op that only ``side`` runs; ``opposite``: the other side's op at this place; ``harm``: why it
    matters, "" where it does not."""
    why = f"only {side} runs it"
    if opposite is not None:
        is_region = row.op.startswith(COMPILED)
        region, ops = (row, opposite) if is_region else (opposite, row)
        as_region = _region_text(*((side, region, other) if is_region else (other, region, side)), ops)
        why = as_region or f"{why}; there {other} continues with {opposite}"
    if harm:
        why += f"{AFFECTS_RESULTS}{harm}"
    return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)


AFFECTS_RESULTS = "; it affects results: "


def without_effect(finding: Finding) -> Finding:
    """The same finding, of runs that are known to have trained alike."""
    return replace(finding, explanation=finding.explanation.replace(AFFECTS_RESULTS, "; "))


COMPILED = "inductor."
"""Start of the operator names of regions compiled by torch.compile."""

SEEDS_BY_INDUCTOR = "aten.randint.low_out"
"""What a compiled region calls for the seeds of its random numbers, unless Inductor's ``fallback_random`` is on."""


def _region_text(side: str, region: RowAt, other: str, row: RowAt) -> str:
    """``B runs Actor.forward as one compiled region, A op by op; …``; "" where they are not of one function."""
    name = region.stack[0].function if region.stack else ""
    if not region.op.startswith(COMPILED) or name not in (frame.function for frame in row.stack):
        return ""
    if region.rows.rng(region.place) is None:
        does = "it may round otherwise"
    elif SEEDS_BY_INDUCTOR in str(region.kernel.get("names", "")):
        does = "it draws its random numbers by Inductor's code, not as those ops do (fallback_random is off)"
    else:
        does = "it draws random numbers"
    return f"{side} runs {name} as one compiled region, {other} op by op; {does}"


def one_sided_writers(context: DiffContext, a: RowAt, b: RowAt, one_sided: tuple[Indices, Indices]) -> Iterator[RowAt]:
    """The one-sided rows that wrote inputs of a matched pair whose bytes are not proven equal.

    ``one_sided``: rows of A, rows of B, ascending.
    """
    for place, links in enumerate(zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False)):
        if input_is_equal(context, a, b, place):
            continue
        mixed = [link.distance == Origin.MIXED for link in links]
        for own, link, rows, one_has_several in zip(
            (a, b), links, one_sided, (mixed[0] > mixed[1], mixed[1] > mixed[0]), strict=True
        ):
            producer = producer_of(own, link)
            if producer is not None and np.isin(producer.row.index, rows):
                yield producer.row
                continue
            found = _last_writer_in_place(own.view, own.index, rows) if one_has_several else None
            if found is not None:
                yield found


def first_read_of(start: RowAt, one_sided: Indices) -> tuple[RowAt, RowAt] | None:
    """A one-sided row, and the row of the phase of ``start`` that first reads what it wrote; None: there is none."""
    for number in range(start.index, min(start.index + MAX_TRIED, start.view.rows)):
        row = row_at(start.view, number)
        if row.phase != start.phase:
            return None
        producers = (producer_of(row, link) for link in row.rows.inputs(row.place))
        for written in (producer.row for producer in producers if producer is not None):
            if written.phase != start.phase and np.isin(written.index, one_sided):
                return written, row
    return None


def first_of_chain(last: RowAt, one_sided: Indices) -> RowAt:
    """The earliest one-sided row that ``last`` depends on, through one-sided rows alone; ``last`` if there is none."""
    found, left = {last.index: last}, [last]
    while left and len(found) < MAX_TRIED:
        row = left.pop()
        producers = (producer_of(row, link) for link in row.rows.inputs(row.place))
        for written in (producer.row for producer in producers if producer is not None):
            if written.index not in found and np.isin(written.index, one_sided):
                found[written.index] = written
                left.append(written)
    return found[min(found)]


def first_of_line(row: RowAt, one_sided: Indices) -> RowAt:
    """The first of the run of one-sided rows of one line that ``row`` is in."""
    for _ in range(MAX_TRIED):
        if not np.isin(row.index - 1, one_sided):
            break
        before = row_at(row.view, row.index - 1)
        if before.stack[:1] != row.stack[:1] or before.op.startswith(PROFILER):
            break
        row = before
    return row


def without_results(stretch: RowRange) -> NDArray[np.bool_]:
    """Which rows are ops that compute, and have no results of their own: those that send to other processes."""
    rows = stretch.rows
    outputs = rows.column(Column.DIGESTS) - rows.reads - stretch.flags(RowFlag.RNG)
    idle = stretch.flags(RowFlag.VIEW | RowFlag.ALLOCATION | VALUE_FLAGS) | (rows.column(Column.KIND) != Kind.OP)
    found: NDArray[np.bool_] = (outputs == 0) & ~idle
    return found


def _last_writer_in_place(view: StreamView, before: int, one_sided: Indices) -> RowAt | None:
    """The last one-sided row before row ``before`` that wrote one of its arguments in place."""
    for number in one_sided[one_sided < before][::-1][:MAX_TRIED].tolist():
        row = row_at(view, number)
        if writes_in_place(row):
            return row
    return None
