"""``--at``: the op of a trace that a text names, and the matching op of another trace.

Owns the grammar: a row as ``rltrace diff`` and ``rltrace ops`` print it (``1234``, ``rank0/main:1234``, ``1,234 of
rank0/main``, ``1,234 (A), 1,236 (B) of rank0/main``), or a selector that matches exactly one op. Never prints.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rltrace.errors import HoleError, SelectorError, UsageError
from rltrace.query.ops import op_line, row_bounds
from rltrace.rerun.plan import preceding_attempts
from rltrace.selectors import Key, Range, Selector, escape, parse_selectors
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, RowFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.stream import StreamTrace

MAX_CANDIDATES = 8
"""Ops that the error lists where a selector matches several."""

_NUMBER = r"[0-9][0-9,]*"
_FORMS = (
    re.compile(rf"(?P<row>{_NUMBER})(?: \(A\), (?P<b>{_NUMBER}) \(B\))?(?: \([AB] only\))?(?: of (?P<stream>\S+))?"),
    re.compile(rf"(?P<stream>\S+):(?P<row>{_NUMBER})(?P<b>)"),
)


@dataclass(frozen=True)
class Located:
    """One row of a trace."""

    trace: Trace
    process: ProcessTrace
    stream: StreamTrace
    row: int

    def __str__(self) -> str:
        return f"{self.stream.name}:{self.row}"

    @property
    def rows(self) -> Rows:
        """This row only. Raises HoleError."""
        return self.stream.read(self.row, self.row + 1)

    @property
    def call(self) -> tuple[int, str, int]:
        """Step, operator, and key of the call site. Raises HoleError."""
        step, op, site = self.rows.columns[0, [Column.STEP, Column.OP, Column.SITE]].tolist()
        return step, self.process.words.op(op), int(self.process.tables["sites"].keys[site])


def locate(trace: Trace, text: str, *, is_b: bool = False) -> Located:
    """The op that ``text`` names; with ``is_b`` the second of two rows. Raises UsageError, HoleError."""
    text = text.strip()
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is not None:
            number = (found["b"] if is_b else None) or found["row"]
            return _row(trace, found["stream"], int(number.replace(",", "")))
    if "=" not in text:
        raise UsageError(
            f"--at {text}: give a row, as in 1234 or rank0/main:1234, or a selector that matches one op, as in "
            "op=addmm,step=3,nth=0"
        )
    return _selected(trace, text)


def names_both(text: str) -> bool:
    """Whether ``text`` names a row of A and one of B."""
    found = _FORMS[0].fullmatch(text.strip())
    return found is not None and bool(found["b"])


def matching_op(a: Located, b: Trace) -> Located:
    """The op of ``b`` with the same stream, step, call site, operator and occurrence. Raises UsageError."""
    process, stream = _stream(b, a.stream.name)
    step_a, op, site = a.call
    attempt_a = preceding_attempts(a.process).get(step_a)
    step = next((number for number, attempt in preceding_attempts(process).items() if attempt == attempt_a), None)
    if step is not None:
        rows_a = _occurrences(a.process, a.stream, step_a, op, site)
        rows_b = _occurrences(process, stream, step, op, site)
        if rows_a.index(a.row) < len(rows_b):
            return Located(b, process, stream, rows_b[rows_a.index(a.row)])
    raise UsageError(
        f"{b.path} has no op that matches {op} at {a}: no such call in that step from that line; name both rows, as"
        f' rltrace diff prints them: --at "{a.row} (A), N (B) of {a.stream.name}"'
    )


def selector_of(at: Located) -> str:
    """A selector that also matches this op in another recording of the program."""
    line = op_line(at.rows, 0, at.stream.name, at.process.words)
    conditions = [f"op={escape(line.op)}", f"stream={escape(at.stream.name)}", f"step={line.step},phase={line.phase}"]
    if line.site is not None:
        conditions.append(f"site={escape(line.site.file)}:{escape(line.site.function)}")
    conditions += [f"module={escape(line.module)}"] if line.module else []
    nth = _occurrences(at.process, at.stream, *at.call).index(at.row)
    return ",".join([*conditions, f"nth={nth}"])


def is_unique(at: Located, selector: str) -> bool:
    """Whether a selector matches this op and no other op of its trace."""
    return len(list(islice(_matches(at.trace, selector), 2))) == 1


def _row(trace: Trace, name: str | None, row: int) -> Located:
    process, stream = _stream(trace, name)
    if row >= stream.rows:
        raise UsageError(f"{stream.name} of {trace.path} has rows 0 to {stream.rows - 1}: there is no row {row}")
    return Located(trace, process, stream, row)


def _stream(trace: Trace, name: str | None) -> tuple[ProcessTrace, StreamTrace]:
    """The stream of that name; for None the first that has rows."""
    streams = [(process, stream) for process in trace.processes for stream in process.streams if stream.rows]
    found = next((pair for pair in streams if name in (None, pair[1].name)), None)
    if found is None:
        existing = ", ".join(stream.name for _, stream in streams) or "none"
        wanted = "stream" if name is None else f"stream {name}"
        raise UsageError(f"{trace.path} has no rows of a {wanted}; streams with rows: {existing}")
    return found


def _selected(trace: Trace, text: str) -> Located:
    """The one op that a selector matches. Raises UsageError for none or several."""
    found: list[tuple[Located, str]] = []
    for at, line in _matches(trace, text):
        found.append((at, line))
        if len(found) > MAX_CANDIDATES:
            break
    if len(found) == 1:
        return found[0][0]
    if not found:
        raise UsageError(
            f"--at {text} matches no op in {trace.path} that computes something (views and allocations not "
            "counted); rltrace ops lists what a selector matches"
        )
    lines = [f"  --at {at}  {line}" for at, line in found[:MAX_CANDIDATES]]
    more = ["  ..."] if len(found) > MAX_CANDIDATES else []
    raise UsageError("\n".join([f"--at {text} matches more than one op; name one of them:", *lines, *more]))


def _matches(trace: Trace, text: str) -> Iterator[tuple[Located, str]]:
    selector = parse_selectors([text])
    for process in trace.processes:
        for stream in process.streams:
            mask = RowMask(selector, stream.name, process.words)
            start, stop = row_bounds(process, stream, selector.steps)
            for segment in stream.segments if mask.is_possible else ():
                if segment.stop <= start or segment.first >= stop:
                    continue
                try:
                    rows = stream.read_segment(segment)
                except HoleError:
                    mask.skip()
                    continue
                computes = (rows.column(Column.FLAGS) & np.uint32(RowFlag.VIEW | RowFlag.ALLOCATION)) == 0
                found = mask.op_indices(rows)
                for i in found[computes[found]].tolist():
                    line = op_line(rows, i, stream.name, process.words)
                    where = f"{line.site.file}:{line.site.line} {line.site.function}" if line.site else ""
                    yield Located(trace, process, stream, rows.first + i), f"{line.op}  step {line.step}  {where}"


def _occurrences(process: ProcessTrace, stream: StreamTrace, step: int, op: str, site: int) -> list[int]:
    """Rows of one operator from one call site within a step, in order. Raises HoleError."""
    tables = process.tables
    found: list[int] = []
    start, stop = row_bounds(process, stream, Range(step, step + 1))
    for segment in stream.segments:
        if segment.stop <= start or segment.first >= stop:
            continue
        rows = stream.read_segment(segment)
        ops = np.array([process.words.op(i) == op for i in range(len(tables["ops"]))], bool)
        sites = tables["sites"].keys == np.uint64(site)
        same = ops[rows.column(Column.OP)] & sites[rows.column(Column.SITE)]
        same &= (rows.column(Column.STEP) == step) & (rows.column(Column.KIND) == Kind.OP)
        found += [segment.first + int(i) for i in np.flatnonzero(same)]
    return found


# --- seek -------------------------------------------------------------------------------------------------------------


def next_row(
    process: ProcessTrace,
    stream: StreamTrace,
    selector: Selector,
    start: int,
    direction: int = 1,
    cancelled: Callable[[], bool] = lambda: False,
    guard: AbstractContextManager[object] | None = None,
) -> int | None:
    """The first row from ``start`` on (with ``direction`` -1: the last up to it) that ``selector`` matches, or None.

    Reads a segment at a time and skips rows that cannot be read; ``guard`` is held for each read. Raises SelectorError
    for ``nth``, which needs all rows of a step.
    """
    if Key.NTH in selector.keys:
        raise SelectorError("nth= cannot be used here; rltrace ops finds it")
    mask = RowMask(selector, stream.name, process.words)
    if not mask.is_possible:
        return None
    segments = [s for s in stream.segments if (s.stop > start if direction > 0 else s.first <= start)]
    for segment in segments if direction > 0 else reversed(segments):
        if cancelled():
            return None
        try:
            with guard or nullcontext():
                rows = stream.read_segment(segment)
        except HoleError:
            mask.skip()
            continue
        found = segment.first + np.flatnonzero(mask.compute(rows))
        matches = found[found >= start] if direction > 0 else found[found <= start]
        if len(matches):
            return int(matches[0 if direction > 0 else -1])
    return None
