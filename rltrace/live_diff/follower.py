"""Two traces compared as both grow: ``record --against`` of a trace that has ended, or goes on, or does not exist yet.

Owns what is compared at each look, and when a difference is final. Compares what both have committed, in another
process than either program: neither waits. No torch.

A look costs what has been committed since the last one: the digests of new steps, and the prefix digests of new rows.
Only where one of these differs are the traces compared as ``diff`` compares them. Its finding counts once the step that
it is in has ended on both sides, in all processes: what ``diff`` takes into account of later rows (an op that came in
another order, uninitialised memory that training did not use) is decided as a step ends. So it is the finding of the
whole traces as well.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.model import Cause, Comparison, Finding, InputsMatch, Pair, Verdict
from rltrace.diff.compare import compare
from rltrace.diff.processes import process_pairs
from rltrace.errors import NotATraceError, RltraceError
from rltrace.trace.format.journal import Record
from rltrace.trace.format.location import Location, TraceURL
from rltrace.trace.format.process_start import STARTS, is_alive, this_process
from rltrace.trace.format.root import JOURNAL, KILLED, PROCESSES, RUNNING
from rltrace.trace.format.schema import Step
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.read.stream import StreamTrace


class LiveOutcome(StrEnum):
    """The outcome of a whole run."""

    DIFFERS = "differs"
    EQUAL = "equal"
    ONE_SIDED = "one-sided"  # all matched ops are equal; some ops are on one side only
    NOTHING = "nothing-compared"


@dataclass(frozen=True)
class LiveFinding:
    """The first difference from A."""

    stream: str
    b_index: int | None
    """Row of this run; None: A alone has the op, or no op is known."""
    a_index: int | None
    """None: this run alone has the op or event, or no op is known."""
    step: int | None
    op: str
    """Empty: only steps were recorded."""
    module: str
    site: Site | None
    cause: Cause
    inputs_match: InputsMatch
    explanation: str
    kernel: Pair[str]
    outputs: tuple[Pair[str], ...]


@dataclass
class LiveCounts:
    """Counts of the ops of one process."""

    steps: int = 0
    """Steps of which all digests are equal, where no ops were compared."""
    matched: int = 0
    """Ops that A has, and that gave the same."""
    only_b: int = 0
    """Ops of this run that A does not have."""
    only_a: int = 0
    """Ops of A that the program did not run, in steps that have ended."""
    marked: int = 0
    """Ops that differ and may have read uninitialised memory."""
    unused: int = 0
    """Ops that differ as they compute with what those returned, which the step of an optimizer after them did not
    use."""
    unchecked: int = 0
    """Ops of steps that A does not have."""


@dataclass(frozen=True)
class LiveResult:
    """The result of one process."""

    process: str
    """Empty: several processes, counted together."""
    counts: LiveCounts = field(default_factory=LiveCounts)
    first: LiveFinding | None = None

    @property
    def word(self) -> LiveOutcome:
        if self.first is not None:
            return LiveOutcome.DIFFERS
        if not self.counts.matched and not self.counts.steps:
            return LiveOutcome.NOTHING
        return LiveOutcome.ONE_SIDED if self.counts.only_b or self.counts.only_a else LiveOutcome.EQUAL


def word_of(found: list[LiveResult]) -> LiveOutcome:
    """The outcome of all processes together."""
    words = {one.word for one in found}
    return next(
        (word for word in (LiveOutcome.DIFFERS, LiveOutcome.ONE_SIDED, LiveOutcome.EQUAL) if word in words),
        LiveOutcome.NOTHING,
    )


COMPARED = (
    Step.STREAM,
    Step.PREFIX_STRUCTURE,
    Step.PREFIX_VALUES,
    Step.PARAMETERS,
    Step.GRADIENTS,
    Step.TORCH_GENERATOR,
    Step.DEVICE_GENERATORS,
)
"""Cells of a step that are equal where nothing differs up to its end."""


class Reach(StrEnum):
    """How far a trace has come."""

    MISSING = "missing"
    """There is none yet."""
    GROWING = "growing"
    ENDED = "ended"
    """Its launch has ended."""
    KILLED = "killed"
    """A process of it was killed, none runs on this machine, and its launch has no end."""


def reach(trace: Trace) -> Reach:
    """How far a trace has come; one of another machine that has no end is taken for growing."""
    if trace.exit is not None:
        return Reach.ENDED
    starts = [process.start_record for process in trace.processes] + [each.record for each in trace.unrecorded]
    states = [process.state for process in trace.processes] + [each.state for each in trace.unrecorded]
    if KILLED not in states or RUNNING in states or isinstance(trace.path, TraceURL):
        return Reach.GROWING
    return Reach.KILLED if all(_is_of_this_machine(start) for start in starts) else Reach.GROWING


@dataclass
class _Equal:
    """How much of a pair of processes is known to be equal."""

    steps: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    """By stream."""


class Follower:
    """Compares A with B as they grow."""

    def __init__(self, a: Location, b: Location) -> None:
        self._places = a, b
        self._sizes: list[object] = []
        self._equal: dict[str, _Equal] = {}
        self._identity: tuple[object, object] = None, None
        self._differs = False
        """Whether a digest differed, which may have no consequence."""
        self._candidate: tuple[object, int, int] | None = None
        """A finding of the last look, and the rows and steps of both sides then."""
        self.a: Trace | None = None
        """As of the last look; None: it did not exist."""
        self.b: Trace | None = None
        self.trouble = ""
        """Why A cannot be read; "": it can, or does not exist yet."""
        self.comparison: Comparison | None = None
        """Of the last look that compared rows."""
        self.finding: Finding | None = None
        """The first difference, once it is final; after ``conclude`` any."""
        self.is_final = False

    @property
    def reach(self) -> Reach:
        """How far A had come."""
        return Reach.MISSING if self.a is None else reach(self.a)

    @property
    def step(self) -> int:
        """The last step that any process of B has ended; -1: none has."""
        return -1 if self.b is None else max((_last_step(process) for process in self.b.processes), default=-1)

    @property
    def equal_steps(self) -> int:
        """Number of steps of which all digests are equal, in every process that makes steps; 0: it is not known."""
        counts = [known.steps for known in self._equal.values() if known.steps]
        return 0 if self._differs else min(counts, default=0)

    @property
    def is_equal(self) -> bool | None:
        """Whether the last comparison found nothing but steps that A does not have; None: that is not known."""
        done = self.comparison
        if done is None or (self.finding is not None and not self.is_final):
            return None
        return done.agrees if self.finding is not None or done.verdict is not Verdict.DIVERGED else True

    @property
    def undecided(self) -> str:
        """Why the last comparison is undecided; empty: it is not."""
        done = self.comparison
        if self.finding is not None:
            return "" if self.is_final else "its step has not ended on both sides, which may change what differs first"
        return done.why if done is not None and done.verdict is Verdict.UNKNOWN else ""

    @property
    def ending(self) -> str:
        """How A's launch ended, in words."""
        ended = (self.a.exit if self.a is not None else None) or {}
        return str(ended.get("signal") or f"status {ended.get('status')}")

    def look(self) -> None:
        """Compare what has come since the last look, unless the first difference is known."""
        if self.finding is not None:
            return
        sizes = [*(_sizes(place) for place in self._places), self._runs()]
        if sizes != self._sizes or None in sizes:
            self._look(sizes)

    def _look(self, sizes: list[object], *, last: bool = False) -> None:
        try:
            a, b = (open_trace(place) for place in self._places)
            self.a, self.b, self.trouble = a, b, ""
            if (identity := (a.created, b.created)) != self._identity:  # a trace was replaced: begin again
                self._identity, self._equal, self._differs, self._candidate = identity, {}, False, None
            self._differs = self._differs or not self._is_equal_so_far(a, b)
            if self._differs or last:
                self._compare(a, b)
        except NotATraceError:
            self.trouble = ""
        except RltraceError as error:
            self.trouble = str(error)
        else:
            self._sizes = sizes

    def conclude(self) -> None:
        """Compare the traces as they are, B having ended: what a comparison of them says now."""
        known, self.finding = self.finding, None
        self._look([], last=True)
        done = self.comparison
        if self.finding is None and known is not None:
            self.finding = known
        elif self.finding is None and done is not None:
            self.finding = _difference(done)

    def result(self) -> list[LiveResult]:
        """The result so far, of all processes together."""
        done = self.comparison
        if done is None:
            return []
        found = None if self.finding is None else _live_finding(self.finding)
        counts = LiveCounts(
            matched=sum(done.compared.values()) - (found is not None and found.b_index is not None),
            only_b=done.structure.only_b,
            only_a=done.structure.only_a,
            marked=done.marked.differing,
            unused=done.marked.unused,
        )
        if found is None and not counts.matched:
            counts.steps = self.equal_steps
        if found is None:
            counts.unchecked = max(done.b.ops - counts.matched - counts.only_b, 0)
        names = [process.name for process in done.b.processes]
        return [LiveResult(names[0] if len(names) == 1 else "", counts, found)]

    def _runs(self) -> list[bool]:
        """Which processes of A are known to run."""
        return [] if self.a is None else [is_alive(process.start_record) for process in self.a.processes]

    # --- digests ----------------------------------------------------------------------------------------------------

    def _is_equal_so_far(self, a: Trace, b: Trace) -> bool:
        """Whether the digests that both sides have are equal, so that no row need be read."""
        return all(
            _has_equal_steps(*pair, known) and _has_equal_rows(*pair, known)
            for pair in process_pairs(a, b)
            for known in [self._equal.setdefault(pair[0].name, _Equal())]
        )

    # --- rows -------------------------------------------------------------------------------------------------------

    def _compare(self, a: Trace, b: Trace) -> None:
        done = self.comparison = compare(a, b)
        if _difference(done) is None:
            return
        # A draw of one side, before it, may be put back by rows to come, or not: as it is put back by none so far, it
        # comes first.
        done = compare(a.as_if_stopped(), b.as_if_stopped())
        found = _difference(done)
        if found is None:
            return
        self.comparison = done
        rows = done.a.ops + done.a.steps, done.b.ops + done.b.steps
        place = found.stream, found.a_index, found.b_index, found.step
        before, self._candidate = self._candidate, (place, *rows)
        if not _has_ended(found, a, b):
            return
        if _has_one_stream(a) and _has_one_stream(b):
            self.finding, self.is_final = found, True
            return
        # a thread or process without steps may commit what belongs to this step after the others
        grew = before is not None and before[0] == place
        grew = grew and all(
            ended or now > then
            for ended, now, then in zip((_is_over(a), _is_over(b)), rows, before[1:] if before else (), strict=False)
        )
        if grew or (_is_over(a) and _is_over(b)):
            self.finding, self.is_final = found, True


# --- traces -----------------------------------------------------------------------------------------------------------


def may_grow(folder: Path) -> bool:
    """Whether a trace may still be written, or does not exist yet. Raises what ``open_trace`` does."""
    try:
        return not folder.exists() or reach(open_trace(folder)) is Reach.GROWING
    except NotATraceError:
        if folder.is_dir() and {path.name for path in folder.iterdir()} <= BEGUN:
            return True
        raise


BEGUN = {"zarr.json", "journal", STARTS, PROCESSES}
"""Entries of a trace; one that is being created may not have its journal yet."""


def _sizes(place: Location) -> object:
    """Another object after every commit to a trace in a folder; None: not known."""
    if isinstance(place, TraceURL):
        return None
    found = []
    for path in (place / JOURNAL, *sorted(place.glob(f"{PROCESSES}/*/{JOURNAL}"))):
        with suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


def _is_of_this_machine(start: Record) -> bool:
    own = this_process()
    return (start.get("host"), start.get("boot")) == (own["host"], own["boot"])


def _is_over(trace: Trace) -> bool:
    return reach(trace) in (Reach.ENDED, Reach.KILLED)


# --- digests ----------------------------------------------------------------------------------------------------------


def _has_equal_steps(a: ProcessTrace, b: ProcessTrace, known: _Equal) -> bool:
    """Whether the steps that both have committed since are equal; counts them as known."""
    stop = min(_step_count(a), _step_count(b))
    if stop > known.steps:
        cells_a, cells_b = (_steps(side, known.steps, stop)[:, list(COMPARED)] for side in (a, b))
        if len(cells_a) < stop - known.steps or not np.array_equal(cells_a, cells_b):
            return False
        known.steps = stop
    return True


def _has_equal_rows(a: ProcessTrace, b: ProcessTrace, known: _Equal) -> bool:
    """The same of the rows of each thread, where both have a prefix digest of one row."""
    others = {stream.name.removeprefix(b.name): stream for stream in b.streams}
    for stream in a.streams:
        name = stream.name.removeprefix(a.name)
        start = known.rows.get(name, 0)
        marks_a, marks_b = _marks(stream, start), _marks(others[name], start) if name in others else {}
        both = sorted(marks_a.keys() & marks_b.keys())
        if any(marks_a[row] != marks_b[row] for row in both):
            return False
        known.rows[name] = both[-1] if both else start
    return True


def _marks(stream: StreamTrace, start: int) -> dict[int, tuple[int, int]]:
    """Prefix digests of structure and values after row ``start``, by row."""
    segments = (segment for segment in stream.segments if segment.stop > start)
    return {mark[0]: mark[1:3] for segment in segments for mark in segment.marks if mark[0] > start}


def _step_count(process: ProcessTrace) -> int:
    return process.step_parts[-1].stop if process.step_parts else 0


def _steps(process: ProcessTrace, start: int, stop: int) -> NDArray[np.uint64]:
    """Attempts ``start`` to ``stop``, in the order of their end; fewer where some cannot be read."""
    parts = [part for part in process.step_parts if part.stop > start and part.first < stop]
    found = [process.steps_of(part)[max(start - part.first, 0) : stop - part.first] for part in parts]
    return np.concatenate([np.zeros((0, len(Step)), np.uint64), *found])


def _last_step(process: ProcessTrace) -> int:
    """Number of the last step that has ended; -1: none has."""
    count = _step_count(process)
    last = _steps(process, max(count - 1, 0), count)
    return int(last[-1, Step.STEP]) if len(last) else -1


# --- findings ---------------------------------------------------------------------------------------------------------


def _difference(done: Comparison) -> Finding | None:
    """The first difference; a run that ends before the other is none."""
    found = done.decisive if done.verdict is Verdict.DIVERGED else None
    return None if found is None or found.cause is Cause.ENDED else found


def _has_ended(found: Finding, a: Trace, b: Trace) -> bool:
    """Whether the step of a finding has ended on both sides, in all processes that make steps."""
    if found.step is None:
        return _is_over(a) and _is_over(b)
    numbers = found.step, found.step if found.b_step is None else found.b_step
    for pair in process_pairs(a, b):
        reached = [
            _is_closed(trace, process) or _last_step(process) >= number
            for trace, process, number in zip((a, b), pair, numbers, strict=True)
        ]
        makes_steps = any(_step_count(process) for process in pair) or found.stream.startswith(pair[0].name)
        if makes_steps and not all(reached):
            return False
    return True


def _is_closed(trace: Trace, process: ProcessTrace) -> bool:
    """Whether nothing more comes of a process."""
    was_killed = process.state == KILLED and _is_of_this_machine(process.start_record)
    return trace.exit is not None or process.exit is not None or was_killed


def _has_one_stream(trace: Trace) -> bool:
    return len(trace.processes) + len(trace.unrecorded) == 1 == sum(len(p.streams) for p in trace.processes)


def _live_finding(found: Finding) -> LiveFinding:
    where = found.stream, found.b_index, found.a_index, found.step, found.op or "", found.module or "", found.site
    return LiveFinding(*where, found.cause, found.inputs_match, found.explanation, found.kernel, found.outputs)
