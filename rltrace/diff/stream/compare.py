"""Comparison of two streams of one name: bisection, a walk from the first difference, and rows after the last pair.

Owns the result for one pair of streams; decides nothing about the traces as wholes.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from rltrace.diff.align.blocks import find_extra_attempts
from rltrace.diff.base.bisect import MARKED, STRUCTURE, VALUES, Bisection, OnProbe, Unreadable
from rltrace.diff.base.context import DiffContext, Matching
from rltrace.diff.base.model import (
    Cause,
    EventSummary,
    Finding,
    NamedDifference,
    Probe,
    Structure,
    UninitialisedCount,
)
from rltrace.diff.base.view import StreamView, is_shifted
from rltrace.diff.causes.carried_state import name_carried_state
from rltrace.diff.causes.events import add_seeding_causes, event_explanation, trace_to_event
from rltrace.diff.causes.outside_data import OutsideData
from rltrace.diff.causes.uninitialised import MarkedRows, count_marked
from rltrace.diff.stream.end import classify_end, harmless_end
from rltrace.diff.stream.steps import compare_steps
from rltrace.diff.stream.walk import Progress, StreamWalk
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace


@dataclass
class StreamResult:
    """The result for one pair of streams."""

    a: StreamView
    b: StreamView
    first: Finding | None = None
    value: Finding | None = None
    harmful: Finding | None = None
    structure: Structure = field(default_factory=lambda: Structure(0, 0, 0, ()))
    undecided: str | None = None
    hole: Unreadable | None = None
    open: str | None = None
    """Why the comparison ends although all is equal so far; None: it does not."""
    same_rows: bool = False
    """Equal in structure and values, row by row, without an alignment."""
    skipped: bool = False
    moved_calls: int = 0
    """Matched ops with another call site or module."""
    matched: int = 0
    drew_one_sided: bool = False
    """There was a random draw on one side only."""
    looked_at: tuple[int, int] = (0, 0)
    """Rows of both sides that were compared or proven equal, without those that only one side's window began with."""
    permuted: int = 0
    """Calls that got their tensors in another order, and treat each by itself."""
    exchanged: int = 0
    """Ops that carry an object between processes, equal on both sides, in other bytes."""
    marked: UninitialisedCount = field(default_factory=lambda: UninitialisedCount(0, 0, None))
    events: EventSummary = field(default_factory=EventSummary)
    probes: tuple[Probe, ...] = ()
    context: DiffContext | None = None
    """What is known of the matched rows; None: they were not compared."""

    @property
    def decisive(self) -> Finding | None:
        """The earliest finding that makes the runs diverge."""
        return self.harmful or self.value  # the walk ends at a value, so a harmful op is before it

    def replace(self, old: Finding, new: Finding) -> None:
        """Put ``new`` wherever ``old`` is."""
        self.first = new if self.first is old else self.first
        self.value = new if self.value is old else self.value
        self.harmful = new if self.harmful is old else self.harmful

    @property
    def is_identical(self) -> bool:
        """Whether all ops are matched with equal order, call sites and values, and all events are equal."""
        counts = self.structure
        extra = counts.only_a or counts.only_b or counts.reordered or counts.reordered_steps or self.moved_calls
        if self.events.differing or self.exchanged:
            return False
        return self.same_rows or (self.first is None and self.undecided is None and not extra)

    @property
    def different_programs(self) -> bool:
        """Whether less than half of the compared rows are matched, and not even the first ones; not where a run failed
        before its first op."""
        few = any(2 * self.matched < rows for rows in self.looked_at)
        not_even_first = self.first is None or self.first.identical_before == 0
        failed = any(failed_at_once(view.process, view.stream) for view in (self.a, self.b))
        return few and not_even_first and not failed


def failed_at_once(process: ProcessTrace, stream: StreamTrace) -> bool:
    """Whether the process ended with an uncaught exception, and ran no op in this stream."""
    return not stream.rows and "exception" in (process.exit or {})


def compare_streams(
    a: StreamView,
    b: StreamView,
    settings: tuple[NamedDifference, ...],
    progress: Progress | None = None,
    watch: OnProbe | None = None,
) -> StreamResult:
    """Compare two streams op by op."""
    b.use_site_names_of(a)
    result = StreamResult(a, b)
    base = 0
    search: Bisection | None = None
    same_structure = False
    if a.process.windows == b.process.windows and not is_shifted(a.process, b.process):
        search = Bisection(a, b, watch=watch)
        base_or_none = _search(search, result)
        if base_or_none is None:
            result.context = DiffContext(a, b, Matching(result.matched), settings)
            return _with_marked(result, count_marked(search, min(result.looked_at), MarkedRows(whole=True)))
        base = base_or_none
        same_structure = a.rows == b.rows and search.first_structure.row is None
        find_extra_attempts(a, b, base)
    walk = _walk(StreamWalk(a, b, base, settings, is_aligned=search is not None, progress=progress))
    result.context = walk.context
    _apply_walk(result, walk, same_structure)
    if result.value is None and result.undecided is None:
        _apply_end(result, walk)
    result.drew_one_sided = walk.draws.any_one_sided
    _trace_back(result, walk, search)
    _with_marked(result, walk.marked if search is None else count_marked(search, walk.base, walk.marked))
    if search is not None:
        result.probes = tuple(search.probes)
    return result


def _search(search: Bisection, result: StreamResult) -> int | None:
    """Row from which the streams have to be walked; None where the search alone decides."""
    structure = search.first_structure = search.first(STRUCTURE)
    values = search.first(VALUES, before=structure.row)
    result.probes = tuple(search.probes)
    rows = [f.row for f in (structure, values) if f.row is not None]
    holes = [f.hole for f in (structure, values) if f.hole is not None]
    nearest = min(holes, key=lambda h: h.first) if holes else None
    if nearest is not None and (not rows or nearest.first < min(rows)):
        result.hole = nearest
        stop = nearest.first + nearest.rows - 1
        result.undecided = f"rows {nearest.first:,} to {stop:,} of {nearest.side.upper()} hide the first difference"
        result.matched = nearest.first
        result.looked_at = (nearest.first, nearest.first)
        return None
    a, b = search.a, search.b
    if not rows and a.rows == b.rows:
        result.same_rows = True
        result.matched = a.rows
        result.looked_at = (a.rows, b.rows)
        return None
    return min(rows) if rows else search.shorter


def _walk(walk: StreamWalk) -> StreamWalk:
    """The walk to the first difference of values; past data from outside, where a step that depends on none differs."""
    further = replace(walk, outside=(data := OutsideData()))  # of the walk that has not begun
    first = walk.run().value
    if first is None or first.cause is not Cause.OUTSIDE or first.received is not None or walk.harmful is not None:
        return walk
    steps = compare_steps(walk.a.process, walk.b.process)
    if not (steps.finding or steps.ended or steps.open):  # nothing is trained otherwise
        return walk
    other = further.run().value
    if other is None or further.undecided is not None or further.harmful is not None:
        return walk
    leading = data.leading(first, other)
    chosen = walk if leading.a_index == first.a_index else further
    if chosen.first is chosen.value:
        chosen.first = leading
    chosen.value = leading
    return chosen


def _trace_back(result: StreamResult, walk: StreamWalk, search: Bisection | None) -> None:
    """Replace the decisive finding by that at the event which it goes back to, if there is one."""
    decisive = result.decisive
    if decisive is None:
        return
    is_aligned = search is not None and search.first_structure.row is None and walk.base > 0
    first = search.first(MARKED, before=walk.base).row if search is not None and is_aligned else None
    no_event = is_aligned and first is None and decisive.a_index == walk.base  # no event before it differs
    matched_rows = walk.a.start + walk.done[0]
    origin = (
        None if no_event and walk.a.shortcuts.bisection else trace_to_event(walk.context, decisive, matched_rows, first)
    )
    origin = None if origin is None else name_carried_state(walk.context, origin)
    if origin is None:
        seeded = add_seeding_causes(walk.context, name_carried_state(walk.context, decisive))
        result.replace(decisive, seeded)
        return
    result.value, result.harmful = (origin, None) if origin.cause is Cause.OUTSIDE else (result.value, origin)
    if result.first is None or result.first.identical_before >= origin.identical_before or result.first is decisive:
        result.first = origin


def _with_marked(result: StreamResult, rows: MarkedRows) -> StreamResult:
    result.marked, result.events = rows.marked, rows.events
    if result.context is not None and result.events.row is not None:
        explanation = event_explanation(result.context, result.events.row)
        result.events = replace(result.events, explanation=explanation)
    return result


def _apply_walk(result: StreamResult, walk: StreamWalk, same_structure: bool) -> None:
    result.first, result.value, result.harmful = walk.first, walk.value, walk.harmful
    result.undecided, result.hole, result.skipped = walk.undecided, walk.hole, walk.skipped
    result.matched, result.moved_calls = walk.matched, walk.moved_calls
    result.permuted, result.exchanged = len(walk.context.permuted), len(walk.context.exchanged)
    result.looked_at = walk.done[0] - walk.opening[0], walk.done[1] - walk.opening[1]
    whole = same_structure or (walk.value is None and walk.undecided is None)
    result.structure = walk.hunks.structure(whole)


def _apply_end(result: StreamResult, walk: StreamWalk) -> None:
    more_a, more_b = walk.trailing
    if not more_a and not more_b:
        return
    shorter_is_a = more_a == 0
    shorter, longer = (result.a, result.b) if shorter_is_a else (result.b, result.a)
    rows = max(more_a, more_b)
    one_sided = walk.one_sided_rows(shorter_is_a), walk.one_sided_rows(not shorter_is_a)
    end = classify_end(shorter, longer, shorter_is_a, rows, walk.equal, one_sided, walk.draws)
    result.open = end.open
    if end.finding is not None:
        result.first = result.first or end.finding
        result.harmful = result.harmful or end.finding
    if end.harmless:
        places = np.arange(longer.rows - rows, longer.rows)
        walk.hunks.one_sided("only-b" if shorter_is_a else "only-a", places, np.full(rows, shorter.rows))
        result.structure = walk.hunks.structure(whole=True)
        result.first = result.first or harmless_end(longer, shorter_is_a, rows, walk.equal)
