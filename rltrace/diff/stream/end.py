"""What it means that one stream goes on after the last op that both have.

Owns the line between a run that ended earlier, a trace that is not finished, and a few harmless ops at the very end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rltrace.diff.base.coverage import unfinished_text
from rltrace.diff.base.findings import Judgement, RowAt, make_finding, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.extra_ops import control_flow
from rltrace.diff.causes.rng import Draws
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Step

FINISHED = "complete"
LONGEST_HARMLESS = 1 << 16
"""Rows. A longer tail is no logging."""
MOST_SPARE = 4_096
"""Rows of the shorter side that are looked at, one by one."""


@dataclass(frozen=True)
class StreamEnd:
    """One of three things: a finding (the run ended earlier), a reason to leave it open, or so many harmless rows."""

    finding: Finding | None = None
    open: str | None = None
    harmless: int = 0


def judge_tail(
    shorter: StreamView,
    longer: StreamView,
    shorter_is_a: bool,
    rows: int,
    equal: int,
    one_sided: tuple[Indices, Indices],
    draws: Draws,
) -> StreamEnd:
    """The last ``rows`` of ``longer`` have no partner.

    ``one_sided``: rows before them that ``shorter`` alone has, and those that ``longer`` alone has.
    """
    side, other = ("A", "B") if shorter_is_a else ("B", "A")
    state = shorter.process.state
    if state != FINISHED:
        return StreamEnd(open=unfinished_text(side, shorter.process))
    if is_harmless(shorter, longer, rows, one_sided, draws):
        return StreamEnd(harmless=rows)
    try:
        row: RowAt = row_at(longer, longer.rows - rows)
    except HoleError as error:
        return StreamEnd(open=f"{side} ends where {other} cannot be read: {error}")
    steps = int(np.sum(longer.steps[:, Step.END_ROW] > np.uint64(longer.rows - rows))) if len(longer.steps) else 0
    more = f"{rows:,} ops more" + (f" and {steps:,} optimizer steps more" if steps else "")
    exception = (shorter.process.exit or {}).get("exception")
    ends = f"ends here with an uncaught {exception}" if exception else "is complete and ends here"
    why = f"{side} {ends}; {other} continues with {row}, {more}"
    decided = Judgement(Cause.ENDED, InputsMatch.UNKNOWN, why)
    return StreamEnd(
        finding=make_finding(None, row, decided, equal) if shorter_is_a else make_finding(row, None, decided, equal)
    )


def harmless_tail(longer: StreamView, longer_is_b: bool, rows: int, equal: int) -> Finding:
    """The finding at the first of a few ops that one side alone has at its end."""
    row = row_at(longer, longer.rows - rows)
    decided = control_flow("B" if longer_is_b else "A", row, "A" if longer_is_b else "B", None, "")
    return make_finding(None, row, decided, equal) if longer_is_b else make_finding(row, None, decided, equal)


def is_harmless(
    shorter: StreamView, longer: StreamView, rows: int, one_sided: tuple[Indices, Indices], draws: Draws
) -> bool:
    """Whether the tail is an addition (a last log line) rather than more of what the other run stopped doing.

    A line that was moved from the beginning of a loop to its end is neither, and so is one more round of what one side
    did more of all along (``one_sided`` has such ops), or of a thread that goes round beside the training, as often as
    timing has it: what it did for others is told by their streams.
    """
    start = longer.rows - rows
    ended = bool(len(longer.steps)) and bool(np.any(longer.steps[:, Step.END_ROW] > np.uint64(start)))
    if ended or rows > LONGEST_HARMLESS or dict(shorter.process.exit or {}) != dict(longer.process.exit or {}):
        return False
    try:
        stretch = longer.read(start, longer.rows)
    except HoleError:
        return False
    if not draws.are_settled(longer, stretch):
        return False
    sites = longer.keys("sites", np.unique(stretch.rows.column(Column.SITE)))
    known = np.isin(
        sites, shorter.keys("sites", np.arange(len(shorter.process.tables["sites"]), dtype=np.uint32))
    ).any()
    if not known or _is_beside_training(longer):
        return True
    return _ran_before(shorter, one_sided[0], stretch) or _did_so_before(longer, one_sided[1], stretch)


def _is_beside_training(view: StreamView) -> bool:
    """Whether this is a thread that makes no optimizer step, in a process of which another stream does."""
    return "/thread:" in view.name and not len(view.steps) and len(view.process.steps) > 0


def _ran_before(shorter: StreamView, spare: Indices, tail: RowRange) -> bool:
    """Whether the shorter side ran every op of the tail as well, where the other had none."""
    if not len(tail) <= len(spare) <= MOST_SPARE:
        return False
    return not Counter(tail.tokens.identity.tolist()) - Counter(_identities(shorter, spare))


def _did_so_before(longer: StreamView, extra: Indices, tail: RowRange) -> bool:
    """Whether the longer side had ops of the tail's places alone before, too, and went on with what both have."""
    return set(tail.tokens.identity.tolist()) <= set(_identities(longer, extra[-MOST_SPARE:]))


def _identities(view: StreamView, rows: Indices) -> list[int]:
    """Execution index tokens of single rows; none where one cannot be read."""
    try:
        return [int(view.read(row, row + 1).tokens.identity[0]) for row in rows.tolist()]
    except HoleError:
        return []
