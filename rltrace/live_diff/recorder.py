"""Live comparison: a stream is compared with A's while it is recorded, op by op, up to the first difference.

An op is compared after it ran and before its row is finished. If it differs, its inputs and results are recorded, and
it is called again on the same inputs, without effect on the program. Inputs that an op overwrites are copied before it
runs. Nothing is compared after the first difference, as it may cause all later ones.

An op that differs as it computes with uninitialised memory is no difference yet: it is held back up to the end of the
step, where that of an optimizer proves, as it does to ``diff``, that training did not use it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import starmap
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch._ops import OpOverload

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt
from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.diff.base.row_diff import Difference, compared_digests, difference, is_generator_event
from rltrace.diff.base.view import RowRange
from rltrace.diff.causes.classify import NOT_RERUN, event_cause, judge, rerun_text
from rltrace.diff.causes.events import outside_digests
from rltrace.diff.causes.uninitialised import computes_with_garbage
from rltrace.errors import HoleError, UsageError
from rltrace.live_diff.events import EventComparer, EventPlace
from rltrace.live_diff.reference_trace import Content, Ids, MatchedRow, Place, Reference, RowPartners, StepRows
from rltrace.live_diff.result import LiveCounts, LiveFinding, LiveResult, RepeatedResult, Repetition
from rltrace.live_diff.view import LiveRow, LiveView
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.capture.capture_queue import ValueQueue
from rltrace.recorder.capture.values import OpInFlight, ValueCopier, state_bytes
from rltrace.recorder.core.calls import Call
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.hooks import EventCells, FixedCells, OpHook
from rltrace.recorder.core.kernel_launches import KernelLaunch
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.placement import placements
from rltrace.recorder.core.regions import region_of
from rltrace.recorder.core.row_buffer import OVERWRITTEN, RowBuffer
from rltrace.recorder.digests.layouts import Layouts
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.replay.plan import Attempt, preceding_attempts
from rltrace.rerun_op.live_call import LiveCall, live_case
from rltrace.rerun_op.recorded_op import results_of_row
from rltrace.rerun_op.runner import SECONDS, TIMES, ResultDigests, repeat
from rltrace.trace.format.schema import VALUE_FLAGS, RowFlag
from rltrace.trace.kernels.evidence import CODE, TRITON, Evidence, kernel_texts
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace

# --- cells ------------------------------------------------------------------------------------------------------------
#
# The current row, read back from the row buffer with A's ids. Its cells are at the end of the arrays.


_BOOL, _FLOAT, _COMPLEX = int(RowFlag.VALUE_BOOL), int(RowFlag.VALUE_FLOAT), int(RowFlag.VALUE_COMPLEX)
_WHOLE = _BOOL | int(RowFlag.VALUE_INTEGER)
_NUMBER = int(VALUE_FLAGS)  # plain integers: the arithmetic of an IntFlag costs as much as all the rest


class _TranslatedIds(NamedTuple):
    """The ids of a row in A, and how many numbers its arguments have."""

    place: Place
    call_ids: tuple[int, int]
    integers: int
    floats: int


class LiveCells:
    """The current row of one stream."""

    def __init__(self, stream: RowBuffer, ids: Ids) -> None:
        self._row = stream
        self._ids = ids
        self._translated: dict[tuple[int, int, int, int], _TranslatedIds] = {}

    def _translate(self, ids: tuple[int, int, int, int]) -> _TranslatedIds:
        op, structure, site, scalars = ids
        counts, of = self._row.process.calls.scalar_counts, self._ids.of
        made = self._translated[ids] = _TranslatedIds(
            (of("ops", op), of("sites", site)),
            (of("structures", structure), of("scalars", scalars)),
            counts[2 * scalars],
            counts[2 * scalars + 1],
        )
        return made

    def content(self, fixed: FixedCells) -> tuple[Place, Content]:
        """Operator and call site of the row, and its content."""
        ids = fixed[0], fixed[1], fixed[2], fixed[4]
        flags, digests, row = fixed[5], fixed[6], self._row
        place, call_ids, integers, floats = self._translated.get(ids) or self._translate(ids)
        if flags & _NUMBER:
            integers += bool(flags & _WHOLE)
            floats += bool(flags & _FLOAT) + 2 * bool(flags & _COMPLEX)
        return place, Content(
            call_ids,
            row.integers[-integers:].tobytes() if integers else b"",
            row.floats[-floats:].tobytes() if floats else b"",
            row.digests[-digests:].tobytes() if digests else b"",
        )

    def live_row(self, fixed: FixedCells, content: Content) -> LiveRow:
        """The row with its links, for a comparison with A's."""
        row = self._row
        links = row.process.calls.structure_sizes[fixed[1]]
        cells = row.links[-links:].tobytes() if links else b""
        return LiveRow(row.row, row.process.step, fixed, cells, row.notes_here().tobytes(), content)


# --- rerun ------------------------------------------------------------------------------------------------------------
#
# The op that differs, called again by ``rltrace.rerun_op``. That does not affect the program: it uses new memory, and
# restores the RNG state.


def rerun(
    call: LiveCall, results_a: ResultDigests, results_b: ResultDigests, times: int = TIMES
) -> tuple[Repetition | None, str]:
    """The results of calling the op again; or None and the reason why it was not called."""
    digests = TensorDigests(Layouts(Tables()))  # separate tables: the program's are for its own ops
    try:
        results = repeat(live_case(call), times, lambda tensor: f"{digests.of(tensor):016x}", SECONDS)
    except (UsageError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return None, str(error).splitlines()[0]
    counts = results.get(results_a, 0), results.get(results_b, 0)
    listed = tuple(starmap(RepeatedResult, results.items()))
    return Repetition(sum(results.values()), len(results) == 1, listed, *counts), ""


def add_rerun_result(because: str, repetition: Repetition) -> str:
    """The sentence on the cause, with the results of calling the op again."""
    share = f"A's result came {repetition.of_a:,} times" if repetition.of_a else "none gave A's result"
    text = f"{rerun_text(repetition.times, repetition.repeats)}, and {share}"
    return because.replace(NOT_RERUN, text) if NOT_RERUN in because else f"{because}; {text}"


WARPS: Final = (1, 2, 4, 8, 16)
"""Numbers of warps in which a Triton kernel that does not repeat itself is tried; 4 is Triton's default."""

FEWER_TIMES: Final = 20
"""Calls in each other configuration."""


def other_configurations(a: Evidence, b: Evidence, *, repeats: bool) -> dict[str, Evidence]:
    """Configurations of a Triton kernel to call again in, by their text: A's, where it is another one, and other
    numbers of warps where the kernel does not repeat itself. ``b``: that of this run."""
    if b.get("library") != TRITON or a.get(CODE) != b.get(CODE):
        return {}
    differing = [name for name in a if a[name] != b.get(name)]
    found = {f"in A's configuration ({', '.join(f'{name} {a[name]}' for name in differing)})": a} if differing else {}
    if not repeats:
        others = [warps for warps in WARPS if warps != b.get("num_warps", 4)]
        found |= {f"at num_warps {warps}": {**b, "num_warps": warps} for warps in others}
    return found


def add_configurations(
    because: str, call: LiveCall, a: Evidence, repetition: Repetition, results: tuple[ResultDigests, ResultDigests]
) -> str:
    """The sentence on the cause, with the results of a Triton kernel in other configurations."""
    launch = region_of(call.func)
    if not isinstance(launch, KernelLaunch):
        return because
    for text, evidence in other_configurations(a, launch.name.evidence, repeats=repetition.repeats).items():
        configured = replace(call, func=launch.configured(evidence))  # type: ignore[arg-type]  # called like an operator
        found, _ = rerun(configured, *results, times=FEWER_TIMES)
        if found is not None:
            which = "A's" if found.of_a == found.times else "this run's" if found.of_b == found.times else "another"
            outcome = f"it gives {which} result" if found.repeats else "it is nondeterministic"
            because += f"; {text} {outcome}"
    return because


def paired(a: ResultDigests, b: ResultDigests) -> tuple[Pair[str], ...]:
    """Results of both sides, side by side."""
    count = max(len(a), len(b))
    return tuple(Pair(a[k] if k < len(a) else None, b[k] if k < len(b) else None) for k in range(count))


# --- shared state -----------------------------------------------------------------------------------------------------


class LiveStream(Protocol):
    """A thread that is compared with A's."""

    def count_missed(self) -> int:
        """Number of A's ops in the current step that it has not run."""

    def settle(self) -> None:
        """Decide on what was held back in steps that have ended."""


class LiveState:
    """State that the threads of one process share: A's trace, counts, the first difference. Thread-safe."""

    def __init__(self, a: ProcessTrace, values: ValueQueue, *, stop: bool) -> None:
        self.a = a
        self.values = values
        self.stop = stop
        self._attempts = frozenset(preceding_attempts(a).values())
        self.is_over = False
        self.tally = LiveCounts()
        self.lock = threading.Lock()
        self.first: LiveFinding | None = None
        self._held: dict[str, LiveFinding] = {}
        """By stream: the first op of the step that computes with uninitialised memory."""
        self._held_ops = 0
        self._stop_due = False
        self._streams: list[LiveStream] = []

    def reference(self, name: str, stream: LiveStream) -> Reference | None:
        self._streams.append(stream)
        found = next((s for s in self.a.streams if s.name == name), None)
        return None if found is None else Reference(self.a, found)

    def differs(self, first: LiveFinding) -> None:
        """Report a difference; the first report of all threads counts."""
        with self.lock:
            self.is_over = True
            self._stop_due = self.first is None and self.stop
            self.first = self.first or first

    def holds(self, stream: str) -> bool:
        """Whether a finding of this stream is held back in this step; counts one more such op."""
        self._held_ops += 1
        return stream in self._held

    def hold(self, finding: LiveFinding) -> None:
        """Hold a finding back: it is a difference unless an optimizer's step ends without using it."""
        with self.lock:
            self._held[finding.stream] = finding

    def settle(self, step: int, attempt: Attempt) -> None:
        """``step`` has begun, after ``attempt``: what was held back before is no difference if A's process made that
        attempt, too, and else the first one."""
        with self.lock:
            ended = [finding for finding in self._held.values() if (finding.step or 0) < step]
            if not ended:
                return
            matched, unused = attempt in self._attempts, self._held_ops
            self._held.clear()
            self._held_ops = 0
            self.tally.unused += unused if matched else 0
        if not matched and not self.is_over:
            self.differs(ended[0])

    def should_stop(self) -> bool:
        """Whether the program is to be stopped now; True only once."""
        due, self._stop_due = self._stop_due, False
        return due

    def found(self, process: str) -> LiveResult:
        for stream in self._streams:
            stream.settle()
        with self.lock:
            held = next(iter(self._held.values()), None)
        if held is not None and not self.is_over:  # no step of an optimizer follows
            self.differs(held)
        if not self.is_over:
            self.tally.only_a += sum(stream.count_missed() for stream in self._streams)
        return LiveResult(process, self.tally, self.first)


# --- hook -------------------------------------------------------------------------------------------------------------


MAX_EARLY = 1 << 26
"""Bytes of one op's inputs that are copied before it overwrites them; larger ones are not copied."""

MAX_UNEQUAL = 1 << 14
"""Rows that differ and are no difference, and are remembered: the last ones."""

MAX_EXTRA = 1 << 14
"""Rows that A does not have and that are remembered."""

COMPUTED = (Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION)
"""Causes for which the op is called again."""

GARBAGE = "it computes with memory that no recorded op wrote"

TOO_LARGE = f"it overwrote its input, and more than {MAX_EARLY >> 20} MiB are not copied before each such op"


class _Judged(NamedTuple):
    """A pair of rows that differ, and why."""

    a: RowAt
    b: RowAt
    judgement: Judgement

    @property
    def site(self) -> Site | None:
        """Call site of the op."""
        return self.b.stack[0] if self.b.stack else None

    @property
    def results(self) -> tuple[ResultDigests, ResultDigests]:
        """What the op returned and wrote on both sides."""
        return results_of_row(self.a.rows, self.a.place), results_of_row(self.b.rows, self.b.place)


class LiveDiffHook(OpHook[OpInFlight]):
    """Compares the rows of one stream with A's while they are recorded."""

    def __init__(self, stream: OpRecorder, state: LiveState, stop: Callable[[], None]) -> None:
        process = stream.process
        self._stream = stream
        self._process = process
        self._state = state
        self._stop = stop
        self._values = ValueCopier(stream, state.values)
        self._reference = state.reference(stream.name, self)
        self._ids = Ids(state.a, process.tables)
        self._cells = LiveCells(stream, self._ids)
        self._events = EventComparer(process, state.a, self._ids)
        self._partners = RowPartners()
        self._unequal: dict[int, LiveRow] = {}
        """By row: ops that differ as they read uninitialised memory, or compute with it."""
        self._unused: set[int] = set()
        """Rows of A that match the latter."""
        self._extra: deque[LiveRow] = deque(maxlen=MAX_EXTRA)
        """Ops that A does not run."""
        self._opening: set[int] = set()
        """Digests of the opening rows."""
        self._step = -1
        self._step_rows: StepRows | None = None

    def count_missed(self) -> int:
        """Number of A's ops in the current step that this thread has not run; 0 where they cannot be read."""
        try:
            return 0 if self._step_rows is None else self._step_rows.pending
        except HoleError:
            return 0

    def settle(self) -> None:
        self._state.settle(self._process.step, self._process.attempt)

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpInFlight | None:
        """Copy what the op is about to change: the RNG state, and inputs that it overwrites."""
        if self._state.is_over:
            return None
        self._follow_step()
        plan = self._process.calls.plan(func)
        op = OpInFlight(plan, args, kwargs)
        if self._step_rows is not None:
            if plan.draws:
                op.state = state_bytes(args, kwargs)
            if plan.writes_any and plan.computes and not all(plan.writes.values()):
                self._before_write(op)
        return op

    def end(self) -> None:
        if self._state.is_over and self._state.should_stop():
            self._stop()

    def drop(self) -> None:
        self._state.values.forget(self._stream.number, self._stream.row)

    def _follow_step(self) -> None:
        if self._process.step != self._step:
            self._begin_step()

    def _begin_step(self) -> None:
        self._state.tally.only_a += self.count_missed()
        self._step = self._process.step
        self._step_rows = None
        self.settle()
        if self._reference is None:
            return
        try:
            with self._state.lock:
                self._step_rows = self._reference.step_after(self._process.attempt)
        except HoleError:
            return  # these ops count as unchecked
        except Exception as error:
            self._process.fail(error)

    def window_row(
        self, cells: FixedCells, row: int, name: str, owner: str, digests: list[int], tensor: torch.Tensor | None
    ) -> None:
        """Compare an opening row; if it differs, it is the first difference."""
        if self._state.is_over:
            return
        self._follow_step()
        rows = self._step_rows
        if rows is None:
            return
        _, structure, _, module, scalars, _, _ = cells
        key = (self._ids.of("modules", module), self._ids.of("scalars", scalars))
        try:
            found = rows.opening(*key, self._ids.of("structures", structure))
        except HoleError:
            return
        self._partners.add(row, None if found is None else found.row)
        if found is None:
            return
        self._opening.update(digests)
        digests_a = compared_digests(found.rows, found.i)
        if digests_a == digests or self._reference is None:
            return
        a = RowAt(self._reference.view, found.rows, found.i)
        if is_generator_event(RowRange(a.view, a.rows), a.place):
            return
        cause, why = event_cause(a)
        pairs = paired(*(tuple(f"{digest:016x}" for digest in side) for side in (digests_a, digests)))
        where = (self._stream.name, row, found.row, self._step, "window", owner, None)
        none = Pair[str](None, None)
        self._state.differs(LiveFinding(*where, cause, InputsMatch.UNKNOWN, why, none, pairs, None, "it is not an op"))

    def event(self, form: EventForm, cells: EventCells, scalars: int, row: int, site: int) -> None:
        """Compare an event. It is no difference itself, but an op may differ because of it."""
        if self._state.is_over:
            return
        self._follow_step()
        if self._step_rows is None:
            return
        evidence, *others = cells
        counts = len(form.counts)
        split = evidence[:counts], evidence[counts:], *others
        try:
            at = EventPlace(row, self._step, site)
            self._partners.add(row, self._events.compare(self._step_rows, form, split, scalars, at))
        except HoleError:
            self._step_rows = None

    def _before_write(self, op: OpInFlight) -> None:
        tensors = op.tensors
        op.lying = placements(tensors)
        if sum(self._process.layouts.of(tensor).nbytes for tensor in tensors) <= MAX_EARLY:
            op.copy_early(self._process.layouts)
        else:
            op.early = dict.fromkeys(op.in_written_memory(), TOO_LARGE)

    # --- after the op -------------------------------------------------------------------------------------------------

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        op = self.op
        if op is None or self._state.is_over:
            return
        try:
            self._check(cells, op, call, out)
        except HoleError:
            self._step_rows = None  # A's rows cannot be read: the rest of the step counts as unchecked

    def _check(self, fixed: FixedCells, op: OpInFlight, call: Call, out: Any) -> None:
        """Compare the current row with A's."""
        tally, rows = self._state.tally, self._step_rows
        if rows is None:
            tally.unchecked += 1
            self._partners.add(self._stream.row, None)
            return
        place, content = self._cells.content(fixed)
        found = rows.pop(place, content, lambda found: self._reads_matched(found, self._cells.live_row(fixed, content)))
        if found is None:
            self._partners.add(self._stream.row, None)
            tally.only_b += 1
            self._extra.append(self._cells.live_row(fixed, content))
            return
        self._partners.add(self._stream.row, found.row)
        if not found.same:
            live = self._cells.live_row(fixed, content)
            differs = live.harmless_difference(found.rows, found.i) if found.only_digests else None
            if differs is None:
                a, b = self._pair(found, live)
                differs = difference(RowRange(a.view, a.rows), a.place, RowRange(b.view, b.rows), b.place)
                if differs.found:
                    if computes_with_garbage(self._context(a, b), a, b, differs, self._unused):
                        self._hold(found, live, differs, op)
                        return
                    written, returned = call.results(op.tensors, out)
                    self._differs(found, live, differs, op, written + returned)
                    return
            if differs.marked:
                tally.marked += 1
                self._remember(live)
        tally.matched += 1

    def _reads_matched(self, found: MatchedRow, live: LiveRow) -> bool:
        """Whether the inputs of a row of A were written by ops that match the producers of ``live``."""
        partner, a = self._partners.of, found.row
        return all(
            partner(live.row - y.distance) == a - x.distance
            for x, y in zip(found.rows.inputs(found.i), live.rows().inputs(0), strict=False)
            if x.distance > 0 and y.distance > 0 and not (x.known or y.known)
        )

    def _pair(self, found: MatchedRow, live: LiveRow, kernel: int = 0, settings: int = 0) -> tuple[RowAt, RowAt]:
        """A's row and the current row, for a comparison; ``kernel`` and ``settings``: ids of the latter."""
        assert self._reference is not None
        a = RowAt(self._reference.view, found.rows, found.i)
        tables, shift = self._process.tables, live.step - a.step
        view = LiveView(a.view, tables, self._partners, self._unmatched_row, self._opening, shift)
        return a, RowAt(view, live.rows(kernel, settings), 0)

    def _unmatched_row(self, row: int) -> LiveRow | None:
        return self._unequal.get(row) or next((one for one in self._extra if one.row == row), None)

    def _context(self, a: RowAt, b: RowAt) -> DiffContext:
        return DiffContext(a.view, b.view, self._partners, (), self._unused)

    def _remember(self, live: LiveRow) -> None:
        self._unequal[live.row] = live
        if len(self._unequal) > MAX_UNEQUAL:
            oldest = next(iter(self._unequal))
            del self._unequal[oldest]
            self._unused.discard(self._partners.of(oldest) or 0)

    # --- the first difference -----------------------------------------------------------------------------------------

    def _judge(self, found: MatchedRow, live: LiveRow, differs: Difference, op: OpInFlight) -> _Judged:
        device = op.tensors[0].device.type if op.tensors else "cpu"
        kernel = self._process.kernels.of(op.plan.name, torch.get_num_threads(), device)
        a, b = self._pair(found, live, kernel, self._stream.settings.number)
        classification = judge(self._context(a, b), a, b, differs)
        because = classification.judgement.explanation
        if classification.b.index != b.index:
            read = "which read memory that no recorded op wrote"
            because = f"an input was written by row {classification.b.index:,}, {read}"
        return _Judged(a, b, replace(classification.judgement, explanation=because))

    def _hold(self, found: MatchedRow, live: LiveRow, differs: Difference, op: OpInFlight) -> None:
        """The op computes with uninitialised memory, and nothing but tensors depends on it so far."""
        if not self._state.holds(self._stream.name):
            self._state.hold(self._finding(self._judge(found, live, differs, op), None, GARBAGE))
        self._remember(live)
        self._unused.add(found.row)

    def _differs(
        self, found: MatchedRow, live: LiveRow, differs: Difference, op: OpInFlight, results: list[torch.Tensor]
    ) -> None:
        """Record inputs and results of the op, call it again where that helps, and report the finding: at the op, or at
        the event that it goes back to."""
        tensors = op.tensors
        judged = self._judge(found, live, differs, op)
        a, b, judgement = judged
        cause, inputs, because = judgement.cause, judgement.inputs_match, judgement.explanation
        event = self._events.first(
            self._stream.name, cause, outside_digests(a, b), b.index, (b.op, judged.site, a.index)
        )
        if event is not None:
            self._state.differs(event)
            return
        if cause is Cause.OUTSIDE:
            because = "; ".join([because, *self._events.seeding_texts_before()])
        op.lying = op.lying or placements(tensors)
        self._values.record(op, results)
        results_a, results_b = judged.results
        repetition, why_not = None, "its inputs differ from those in A"
        if cause in COMPUTED or (cause, inputs) == (Cause.UNKNOWN, InputsMatch.UNKNOWN):
            call = self._call(op, tensors)
            repetition, why_not = rerun(call, results_a, results_b)
            if repetition is not None:
                because = add_rerun_result(because, repetition)
                because = add_configurations(because, call, a.kernel, repetition, (results_a, results_b))
        self._state.differs(
            self._finding(judged._replace(judgement=replace(judgement, explanation=because)), repetition, why_not)
        )

    def _finding(self, judged: _Judged, repetition: Repetition | None, why_not: str) -> LiveFinding:
        a, b, judgement = judged
        where = (self._stream.name, b.index, a.index, self._step, b.op, b.module, judged.site)
        what = judgement.cause, judgement.inputs_match, judgement.explanation
        evidence = Pair(*kernel_texts(a.kernel, b.kernel)), paired(*judged.results)
        return LiveFinding(*where, *what, *evidence, repetition, why_not)

    def _call(self, op: OpInFlight, tensors: list[torch.Tensor]) -> LiveCall:
        links = self._stream.links[len(self._stream.links) - len(tensors) :]
        unread = frozenset(place for place, link in enumerate(links) if link == OVERWRITTEN)
        layouts = [self._process.layouts.of(tensor) for tensor in tensors]
        func, kwargs = op.plan.func, op.kwargs or {}
        return LiveCall(func, op.plan, op.args, kwargs, tensors, layouts, op.lying, unread, op.early, op.state)
