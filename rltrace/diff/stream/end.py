"""Rows at the end of one stream that the other does not have.

Distinguishes a run that ended earlier, a trace that is not finished, and a few harmless ops at the very end.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rltrace.diff.base.coverage import unfinished_text
from rltrace.diff.base.findings import Judgement, RowAt, one_sided_finding, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.extra_ops import control_flow
from rltrace.diff.causes.rng import Draws
from rltrace.errors import HoleError
from rltrace.trace.format.root import COMPLETE
from rltrace.trace.format.schema import Column, Step

MAX_HARMLESS = 1 << 16
"""Rows; more than that are no logging."""
MAX_IDENTITIES = 4_096
"""Rows whose identities are compared, read one by one."""


@dataclass(frozen=True)
class StreamEnd:
    """A finding (the run ended earlier), a reason why that is open, or a number of harmless rows."""

    finding: Finding | None = None
    open: str | None = None
    harmless: int = 0


def classify_end(
    shorter: StreamView,
    longer: StreamView,
    shorter_is_a: bool,
    rows: int,
    equal: int,
    one_sided: tuple[Indices, Indices],
    draws: Draws,
) -> StreamEnd:
    """Classify the last ``rows`` of ``longer``, which are unmatched.

    ``one_sided``: one-sided rows before them, of ``shorter`` and of ``longer``.
    """
    side, other = ("A", "B") if shorter_is_a else ("B", "A")
    if shorter.process.state != COMPLETE:
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
    return StreamEnd(one_sided_finding(row, not shorter_is_a, decided, equal))


def harmless_end(longer: StreamView, longer_is_b: bool, rows: int, equal: int) -> Finding:
    """The finding at the first of a few ops at the end of one side only."""
    row = row_at(longer, longer.rows - rows)
    decided = control_flow("B" if longer_is_b else "A", row, "A" if longer_is_b else "B", None, "")
    return one_sided_finding(row, not longer_is_b, decided, equal)


def is_harmless(
    shorter: StreamView, longer: StreamView, rows: int, one_sided: tuple[Indices, Indices], draws: Draws
) -> bool:
    """Whether these rows are an addition (a last log line), not more of what the other run stopped doing.

    Also harmless: a line that was moved from the beginning of a loop to its end; one more iteration of ops that one
    side ran more often before (``one_sided``); and those of a background thread, which loops as often as timing
    permits, as its effects on other threads show in their streams.
    """
    start = longer.rows - rows
    ended = bool(len(longer.steps)) and bool(np.any(longer.steps[:, Step.END_ROW] > np.uint64(start)))
    if ended or rows > MAX_HARMLESS or dict(shorter.process.exit or {}) != dict(longer.process.exit or {}):
        return False
    try:
        stretch = longer.read(start, longer.rows)
    except HoleError:
        return False
    if not draws.are_settled(longer, stretch):
        return False
    sites = longer.keys("sites", np.unique(stretch.rows.column(Column.SITE)))
    others = shorter.keys("sites", np.arange(len(shorter.process.tables["sites"]), dtype=np.uint32))
    known = np.isin(sites, others).any()
    # a background thread makes no optimizer step while another thread of the process does
    is_background = "/thread:" in longer.name and not len(longer.steps) and len(longer.process.steps) > 0
    if not known or is_background or _ran_before(shorter, one_sided[0], stretch):
        return True
    return set(stretch.tokens.identity.tolist()) <= set(_identities(longer, one_sided[1][-MAX_IDENTITIES:]))


def _ran_before(shorter: StreamView, unmatched: Indices, rest: RowRange) -> bool:
    """Whether the shorter side ran each of these ops before, unmatched."""
    if not len(rest) <= len(unmatched) <= MAX_IDENTITIES:
        return False
    return not Counter(rest.tokens.identity.tolist()) - Counter(_identities(shorter, unmatched))


def _identities(view: StreamView, rows: Indices) -> list[int]:
    """Identity tokens of rows; empty where one cannot be read."""
    try:
        return [int(view.read(row, row + 1).tokens.identity[0]) for row in rows.tolist()]
    except HoleError:
        return []
