"""Data of a report page: the comparison of two traces, and the ops, values and curves around its finding.

Owns which rows are read beside the comparison; never reads a whole trace. Rows that cannot be read are left out, with
the reason. Decides no verdict, lays nothing out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from rltrace.diff import compare
from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import Comparison, Finding, Pair
from rltrace.diff.base.view import StreamView
from rltrace.diff.display.browser import Browser
from rltrace.diff.display.row_pairs import Relation
from rltrace.diff.metrics.timeline import Curve, Timeline, curves, timelines
from rltrace.diff.shift import begin, shifted
from rltrace.errors import HoleError
from rltrace.query.ops import OpLine, op_line
from rltrace.query.values import OpValues, op_values, recording_commands
from rltrace.trace.format.location import Location
from rltrace.trace.read.reader import Trace, open_both

BEFORE, AFTER = 8, 32
"""Lines shown before a finding and after it."""


@dataclass(frozen=True)
class LaunchSummary:
    """How a run was launched; "" or () where unknown."""

    command: tuple[str, ...]
    folder: str
    host: str
    created: str


@dataclass(frozen=True)
class ExcerptLine:
    """One row, on both sides or one, or a fold."""

    a: OpLine | None
    b: OpLine | None
    relation: Relation | None
    """None: a fold."""
    moved: bool = False
    found: bool = False
    """Whether this is the finding."""
    folded: int = 0
    """Rows of a fold, on the side that has more."""
    equal: bool = False
    """Whether the rows of the fold are identical; otherwise they were not loaded."""
    step: int | None = None
    """The step in which a fold begins."""
    trouble: str = ""


@dataclass(frozen=True)
class PageData:
    """Everything that a page shows."""

    comparison: Comparison
    runs: Pair[LaunchSummary]
    timelines: tuple[Timeline, ...]
    curves: tuple[Curve, ...]
    excerpt: tuple[ExcerptLine, ...] = ()
    values: OpValues | None = None
    """Recorded values of the first finding's tensors."""
    to_record: tuple[str, ...] = ()
    """Commands that record these values."""
    trouble: str = ""
    """Why the excerpt is missing."""


Progress = Callable[[str, int, int], None]


def gather(
    a: Location | str, b: Location | str, progress: Progress | None = None, starts: Pair[int] | None = None
) -> PageData:
    """Compare two traces and read the data of a page. ``starts``, and the errors raised: as of ``compare``."""
    trace_a, trace_b = open_both(a, b)
    comparison = compare(trace_a, trace_b, starts=starts, progress=progress)
    trace_a, trace_b = shifted(trace_a, trace_b, comparison.shift)
    runs = Pair(_run(trace_a), _run(trace_b))
    always = (comparison, runs, timelines(trace_a, trace_b, comparison), curves(trace_a, trace_b))
    finding = comparison.shown
    if finding is None or finding.op is None:
        return PageData(*always)
    views = [_view(trace, finding.stream) for trace in (trace_a, trace_b)]
    if views[0] is None or views[1] is None:
        return PageData(*always)
    begin(views[0], views[1])
    try:
        lines = tuple(_excerpt(views[0], views[1], comparison, finding))
    except HoleError as error:
        return PageData(*always, trouble=str(error))
    places = (finding.a_index, finding.b_index)
    rows = [
        None if index is None else row_at(view, index) for view, index in zip((views[0], views[1]), places, strict=True)
    ]
    commands = recording_commands((trace_a, trace_b), next(row for row in rows if row is not None))
    return PageData(*always, lines, op_values(*rows), commands)


def _run(trace: Trace) -> LaunchSummary:
    launch = trace.launch
    command = launch.get("command")
    return LaunchSummary(
        tuple(map(str, command)) if isinstance(command, list) else (),
        str(launch.get("cwd") or ""),
        str(launch.get("host") or ""),
        _moment(trace.created),
    )


def _moment(created: object) -> str:
    """As the launcher wrote it; seconds since the epoch as a date."""
    if not isinstance(created, (int, float)):
        return str(created or "")
    try:
        return datetime.fromtimestamp(created, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # out of range
        return str(created)


def _view(trace: Trace, name: str) -> StreamView | None:
    return next((StreamView(p, s) for p in trace.processes for s in p.streams if s.name == name), None)


def _excerpt(a: StreamView, b: StreamView, comparison: Comparison, finding: Finding) -> Iterator[ExcerptLine]:
    """The lines around a finding. Raises HoleError."""
    findings = (finding, comparison.first_value, comparison.first, *comparison.unordered, *comparison.later)
    browser = Browser(a, b, [f for f in findings if f])
    side, row = ("a", finding.a_index) if finding.a_index is not None else ("b", finding.b_index)
    assert row is not None
    at, found = browser.reveal(side, row), (finding.a_index, finding.b_index)
    sides = [view for view in (browser.a, browser.b) if view is not None]
    for number in range(max(0, at - BEFORE), min(len(browser), at + AFTER + 1)):
        line = browser.line(number)
        if line.relation is None:
            piece = line.piece
            assert piece is not None
            yield ExcerptLine(
                None,
                None,
                None,
                folded=piece.rows,
                equal=piece.equal,
                step=browser.step_of(piece),
                trouble=piece.trouble,
            )
            continue
        on_a, on_b = (
            None if index is None else _line(view, index) for view, index in zip(sides, (line.a, line.b), strict=True)
        )
        yield ExcerptLine(on_a, on_b, line.relation, line.moved, (line.a, line.b) == found)


def _line(view: StreamView, index: int) -> OpLine:
    row = row_at(view, index)
    return op_line(row.rows, row.place, view.name, view.process.words)
