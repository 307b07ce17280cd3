"""Two streams of one name compared: search, then a walk from where they part, then what follows the last common op.

Owns the order of these and the account of one pair of streams; decides nothing about the traces as wholes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rltrace.diff.curves import curve_points
from rltrace.diff.findings import RowAt
from rltrace.diff.hunks import HunkCounter
from rltrace.diff.model import CurvePoint, EnvironmentDifference, Finding, Marked, Probe, Structure
from rltrace.diff.search import MARKED, STRUCTURE, VALUES, Bisection, Unreadable, Watch
from rltrace.diff.tail import harmless_tail, judge_tail
from rltrace.diff.view import StreamView
from rltrace.diff.walk import Progress, Walk
from rltrace.errors import HoleError
from rltrace.trace.schema import RowFlag

MARKED_SCAN = 1 << 18
"""Rows that are read at most to count marked ones, where nothing else needs them read."""


@dataclass
class StreamResult:
    """What was found out about one pair of streams."""

    a: StreamView
    b: StreamView
    first: Finding | None = None
    value: Finding | None = None
    harmful: Finding | None = None
    structure: Structure = field(default_factory=lambda: Structure(0, 0, 0, ()))
    undecided: str | None = None
    hole: Unreadable | None = None
    open: str | None = None
    """Equal so far, and this is why nothing more can be said."""
    same_rows: bool = False
    """Row by row equal in structure and values, without any alignment."""
    skipped: bool = False
    elsewhere: int = 0
    """Matched ops that are called from another place in the code, or in another module."""
    matched: int = 0
    drew_alone: bool = False
    """One side alone drew from a generator."""
    looked_at: tuple[int, int] = (0, 0)
    """Rows of both sides that were compared or proven equal."""
    marked: Marked = field(default_factory=lambda: Marked(0, 0, None))
    probes: tuple[Probe, ...] = ()
    curves: tuple[CurvePoint, ...] = ()

    @property
    def decisive(self) -> Finding | None:
        """The earliest finding that makes two runs different ones."""
        return self.harmful or self.value  # the walk ends at a value: whatever harm it met came before

    @property
    def is_identical(self) -> bool:
        """Every op that both sides recorded is the same op at the same place, and nothing was added."""
        counts = self.structure
        extra = counts.only_a or counts.only_b or counts.reordered or counts.reordered_steps or self.elsewhere
        return self.same_rows or (self.first is None and self.undecided is None and not extra)

    @property
    def different_programs(self) -> bool:
        """Not even half of what was looked at is matched, and not even the beginning is."""
        half = any(2 * self.matched < rows for rows in self.looked_at)
        return half and (self.first is None or self.first.identical_before == 0)


def compare_streams(
    a: StreamView,
    b: StreamView,
    settings: tuple[EnvironmentDifference, ...],
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> StreamResult:
    """Compare two streams op by op."""
    b.compared_with(a)
    result = StreamResult(a, b)
    base = 0
    search: Bisection | None = None
    same_structure = False
    if _same_windows(a, b):
        search = Bisection(a, b, watch=watch)
        base_or_none = _search(search, result)
        if base_or_none is None:
            return replace(result, marked=_count_marked(search, result))
        base = base_or_none
        same_structure = a.rows == b.rows and search.first_structure.row is None
    walk = Walk(a, b, base, settings, in_step=search is not None, progress=progress).run()
    _take_walk(result, walk, same_structure)
    if result.value is None and result.undecided is None:
        _take_tail(result, walk)
    result.drew_alone = walk.draws.any_alone
    if search is not None:
        result.marked = _count_marked(search, result, walk)
        result.probes = tuple(search.probes)
    else:
        result.marked = Marked(walk.marked_rows, walk.marked_differing, walk.marked_first, whole=False)
    if result.value is not None:
        result.curves = curve_points(a, b, result.value, same_structure)
    return result


def _search(search: Bisection, result: StreamResult) -> int | None:
    """Row from which the streams have to be walked; None where the search alone has the answer."""
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


def _take_walk(result: StreamResult, walk: Walk, same_structure: bool) -> None:
    result.first, result.value, result.harmful = walk.first, walk.value, walk.harmful
    result.undecided, result.hole, result.skipped = walk.undecided, walk.hole, walk.skipped
    result.matched, result.elsewhere = walk.matched, walk.elsewhere
    result.looked_at = walk.done
    whole = same_structure or (walk.value is None and walk.undecided is None)
    result.structure = walk.hunks.structure(whole)


def _take_tail(result: StreamResult, walk: Walk) -> None:
    more_a, more_b = walk.trailing
    if not more_a and not more_b:
        return
    shorter_is_a = more_a == 0
    shorter, longer = (result.a, result.b) if shorter_is_a else (result.b, result.a)
    rows = max(more_a, more_b)
    one_sided = walk.one_sided_rows(shorter_is_a), walk.one_sided_rows(not shorter_is_a)
    tail = judge_tail(shorter, longer, shorter_is_a, rows, walk.equal, one_sided, walk.draws)
    result.open = tail.open
    if tail.finding is not None:
        result.first = result.first or tail.finding
        result.harmful = result.harmful or tail.finding
    if tail.harmless:
        _add_harmless(result, walk.hunks, longer, rows)
        result.first = result.first or harmless_tail(longer, shorter_is_a, rows, walk.equal)


def _add_harmless(result: StreamResult, hunks: HunkCounter, longer: StreamView, rows: int) -> None:
    kind, end = ("only-a", result.b.rows) if longer is result.a else ("only-b", result.a.rows)
    places = np.arange(longer.rows - rows, longer.rows)
    hunks.one_sided(kind, places, np.full(rows, end))
    result.structure = hunks.structure(whole=True)


def _same_windows(a: StreamView, b: StreamView) -> bool:
    return a.process.windows == b.process.windows


# --- marked rows ----------------------------------------------------------------------------------------------


def _count_marked(search: Bisection, result: StreamResult, walk: Walk | None = None) -> Marked:
    """Rows that may hold unwritten memory, and how many of them differ, as far as they are read anyway or cheaply."""
    if walk is not None and walk.marked_differing:
        return Marked(walk.marked_rows, walk.marked_differing, walk.marked_first, whole=False)
    end = walk.base if walk is not None else min(result.looked_at)
    first = search.first(MARKED, before=end)
    if first.row is None:
        rows = walk.marked_rows if walk is not None else 0
        return Marked(rows, 0, None, whole=False)
    if walk is not None:
        return Marked(walk.marked_rows + 1, 1, _words(search.a, first.row), whole=False)
    return _scan_marked(search, first.row, end)


def _scan_marked(search: Bisection, start: int, end: int) -> Marked:
    """Count from the first marked row that differs on."""
    rows = differing = 0
    stop = min(end, start + MARKED_SCAN)
    try:
        for at in range(start, stop, 1 << 16):
            a = search.a.read(at, min(at + (1 << 16), stop))
            b = search.b.read(at, min(at + (1 << 16), stop))
            rows += int(a.flags(RowFlag.MARKED).sum())
            differing += int(np.sum(a.hashes.marked != b.hashes.marked))
    except HoleError:
        stop = start
    return Marked(rows, differing, _words(search.a, start), whole=stop == end)


def _words(view: StreamView, row: int) -> str:
    rows, place = view.row(row)
    return f"{RowAt(view, rows, place)}, row {row:,}"
