"""Live comparison: a stream is compared with A's while it is recorded, op by op, up to the first difference.

Owns that moment: the op has run and its row is about to be finished; its inputs and results are recorded, and it is
called again on the same inputs, unseen by the program. Of ops that write what they read, the inputs were copied before
they ran. After the first difference nothing is compared any more: all that follows may be its consequence.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch._ops import OpOverload

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.diff.base.row_diff import Difference, compared_digests, difference, is_generator_event
from rltrace.diff.base.view import RowRange
from rltrace.diff.causes.classify import NOT_RERUN, event_cause, judge, rerun_text
from rltrace.diff.causes.events import outside_digests
from rltrace.errors import HoleError, UsageError
from rltrace.live_diff.events import EventComparer, EventPlace
from rltrace.live_diff.reference_trace import Content, Ids, MatchedRow, Place, Reference, RowPartners, StepRows
from rltrace.live_diff.result import LiveCounts, LiveFinding, LiveResult, Repetition
from rltrace.live_diff.view import LiveRow, LiveView
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.capture.values import OpInFlight, ValueCopier, ValueQueue, state_bytes
from rltrace.recorder.core.calls import Call
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.hooks import EventCells, FixedCells, OpHook
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.placement import placements
from rltrace.recorder.core.row_buffer import OVERWRITTEN, RowBuffer
from rltrace.recorder.digests.layouts import Layouts
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.rerun_op.live_call import LiveCall, live_case
from rltrace.rerun_op.recorded_op import results_of_row
from rltrace.rerun_op.runner import SECONDS, TIMES, ResultDigests, repeat
from rltrace.trace.format.schema import VALUE_FLAGS, RowFlag
from rltrace.trace.kernels.evidence import kernel_texts
from rltrace.trace.read.process import ProcessTrace

# --- cells ------------------------------------------------------------------------------------------------------------
#
# The row that a stream is about to finish, read back from the arrays it is made in, in A's ids.
#
# Owns where its cells stand: at the end of the arrays, since nothing of the next row is there yet.


_BOOL, _FLOAT, _COMPLEX = int(RowFlag.VALUE_BOOL), int(RowFlag.VALUE_FLOAT), int(RowFlag.VALUE_COMPLEX)
_WHOLE = _BOOL | int(RowFlag.VALUE_INTEGER)
_NUMBER = int(VALUE_FLAGS)  # plain integers: the arithmetic of an IntFlag costs as much as all the rest


class _Known(NamedTuple):
    """What the ids of a row mean in A, and how many numbers its arguments have."""

    place: Place
    called: tuple[int, int]
    integers: int
    floats: int


class OpenCells:
    """The last row of one stream."""

    def __init__(self, stream: RowBuffer, ids: Ids) -> None:
        self._row = stream
        self._ids = ids
        self._known: dict[tuple[int, int, int, int], _Known] = {}

    def _translate(self, ids: tuple[int, int, int, int]) -> _Known:
        op, structure, site, scalars = ids
        counts, of = self._row.process.calls.scalar_counts, self._ids.of
        made = self._known[ids] = _Known(
            (of("ops", op), of("sites", site)),
            (of("structures", structure), of("scalars", scalars)),
            counts[2 * scalars],
            counts[2 * scalars + 1],
        )
        return made

    def content(self, fixed: FixedCells) -> tuple[Place, Content]:
        """What the row is, and what it tells."""
        ids = fixed[0], fixed[1], fixed[2], fixed[4]
        flags, digests, row = fixed[5], fixed[6], self._row
        place, called, integers, floats = self._known.get(ids) or self._translate(ids)
        if flags & _NUMBER:
            integers += bool(flags & _WHOLE)
            floats += bool(flags & _FLOAT) + 2 * bool(flags & _COMPLEX)
        return place, Content(
            called,
            row.integers[-integers:].tobytes() if integers else b"",
            row.floats[-floats:].tobytes() if floats else b"",
            row.digests[-digests:].tobytes() if digests else b"",
        )

    def here(self, fixed: FixedCells, content: Content) -> LiveRow:
        """The same, with its links, for a comparison with A's."""
        row = self._row
        links = row.process.calls.structure_sizes[fixed[1]]
        return LiveRow(row.row, row.process.step, fixed, row.links[-links:].tobytes() if links else b"", content)


# --- again ------------------------------------------------------------------------------------------------------------
#
# The op that differs, called again on the spot, and what that says of the cause.
#
# Owns the words. The calling is for ``rltrace.rerun_op``; nothing of the program is touched by it: memory is fresh, and
# the generator that the op draws from is put back.


def call_again(call: LiveCall, results_a: ResultDigests, results_here: ResultDigests) -> tuple[Repetition | None, str]:
    """What comes out; or None and why it was not called."""
    digests = TensorDigests(Layouts(Tables()))  # of its own: the program's tables are for what the program did
    try:
        gave = repeat(live_case(call), TIMES, lambda tensor: f"{digests.of(tensor):016x}", SECONDS)
    except (UsageError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return None, str(error).splitlines()[0]
    counts = gave.get(results_a, 0), gave.get(results_here, 0)
    return Repetition(sum(gave.values()), len(gave) == 1, tuple(gave.items()), *counts), ""


def with_what_was_tried(because: str, again: Repetition) -> str:
    """The sentence on the cause, with what the calls on the spot say of it."""
    whose = f"A's result came {again.of_a:,} times" if again.of_a else "none gave A's result"
    tried = f"{rerun_text(again.times, again.repeats)}, and {whose}"
    return because.replace(NOT_RERUN, tried) if NOT_RERUN in because else f"{because}; {tried}"


def paired(a: ResultDigests, b: ResultDigests) -> tuple[Pair[str], ...]:
    """Results of both sides, side by side."""
    count = max(len(a), len(b))
    return tuple(Pair(a[k] if k < len(a) else None, b[k] if k < len(b) else None) for k in range(count))


# --- watch ------------------------------------------------------------------------------------------------------------
#
# What the threads of one process share while they are held against A: what was found, and whether to look on.
#
# Owns that state. Any thread may use it.


class LiveStream(Protocol):
    """One thread that is compared with A's."""

    def missed(self) -> int:
        """Ops of A that it has not come by, in a step that it did come by."""


class LiveState:
    """What the threads of one process share: A's side, what was found, whether there is anything left to look for."""

    def __init__(self, a: ProcessTrace, values: ValueQueue, *, stop: bool) -> None:
        self.a = a
        self.values = values
        self.stop = stop
        self.over = False
        self.tally = LiveCounts()
        self.lock = threading.Lock()
        self.first: LiveFinding | None = None
        self._stop_due = False
        self._streams: list[LiveStream] = []

    def reference(self, name: str, stream: LiveStream) -> Reference | None:
        self._streams.append(stream)
        found = next((s for s in self.a.streams if s.name == name), None)
        return None if found is None else Reference(self.a, found)

    def differs(self, first: LiveFinding) -> None:
        """Of several threads the first one to say so counts."""
        with self.lock:
            self.over = True
            self._stop_due = self.first is None and self.stop
            self.first = self.first or first

    def take_stop(self) -> bool:
        """Whether the program is to be stopped now; once."""
        due, self._stop_due = self._stop_due, False
        return due

    def found(self, process: str) -> LiveResult:
        if not self.over:
            self.tally.only_a += sum(stream.missed() for stream in self._streams)
        return LiveResult(process, self.tally, self.first)


# --- against ----------------------------------------------------------------------------------------------------------


MAX_EARLY = 1 << 26
"""Bytes of one op's inputs that are copied before it writes over them; of larger ones it is said that they were not."""

MAX_MARKED = 1 << 14
"""Rows that differ in memory that nobody may have written, and are remembered."""

MAX_EXTRA = 1 << 14
"""Rows that A does not have, and are remembered."""

COMPUTED = (Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION)
"""Causes of which calling the op again says more."""

TOO_LARGE = f"it overwrote its input, and more than {MAX_EARLY >> 20} MiB are not copied before each such op"


class LiveDiffHook(OpHook[OpInFlight]):
    """Compares the rows of one stream with A's as they come."""

    def __init__(self, stream: OpRecorder, state: LiveState, stop: Callable[[], None]) -> None:
        process = stream.process
        self._stream = stream
        self._process = process
        self._state = state
        self._stop = stop
        self._values = ValueCopier(stream, state.values)
        self._reference = state.reference(stream.name, self)
        self._ids = Ids(state.a, process.tables)
        self._cells = OpenCells(stream, self._ids)
        self._events = EventComparer(process, state.a, self._ids)
        self._partners = RowPartners()
        self._marked_rows: dict[int, LiveRow] = {}
        self._extra: deque[LiveRow] = deque(maxlen=MAX_EXTRA)
        """Ops that A does not run."""
        self._opening: set[int] = set()
        """Digests of what the recording of ops began with."""
        self._step = -1
        self._step_rows: StepRows | None = None

    def missed(self) -> int:
        """Ops of A that this thread has not come by, in a step that it did come by; 0 where they cannot be read."""
        try:
            return 0 if self._step_rows is None else self._step_rows.left
        except HoleError:
            return 0

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpInFlight | None:
        """What has to be copied before the op runs: the generator's state, and inputs that it is about to change."""
        if self._state.over:
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
        if self._state.over and self._state.take_stop():
            self._stop()

    def drop(self) -> None:
        self._state.values.forget(self._stream.number, self._stream.row)

    def _follow_step(self) -> None:
        if self._process.step != self._step:
            self._begin_step()

    def _begin_step(self) -> None:
        self._state.tally.only_a += self.missed()
        self._step = self._process.step
        self._step_rows = None
        if self._reference is None:
            return
        try:
            with self._state.lock:
                self._step_rows = self._reference.step_after(self._process.attempt)
        except HoleError:
            return  # these ops count as unchecked
        except Exception as error:
            self._process.fail(error)

    def window_row(self, cells: FixedCells, row: int, name: str, owner: str, digests: list[int]) -> None:
        """Where A's window began with another value, nothing after it says anything."""
        if self._state.over:
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
        there = compared_digests(found.rows, found.i)
        if there == digests or self._reference is None:
            return
        a = RowAt(self._reference.view, found.rows, found.i)
        if is_generator_event(RowRange(a.view, a.rows), a.place):
            return
        cause, why = event_cause(a)
        pairs = paired(*(tuple(f"{digest:016x}" for digest in side) for side in (there, digests)))
        where = (self._stream.name, row, found.row, self._step, "window", owner, None)
        none = Pair[str](None, None)
        self._state.differs(LiveFinding(*where, cause, InputsMatch.UNKNOWN, why, none, pairs, None, "it is not an op"))

    def event(self, form: EventForm, cells: EventCells, scalars: int, row: int, site: int) -> None:
        """What differs in an event is no difference by itself; an op may differ because of it."""
        if self._state.over:
            return
        self._follow_step()
        if self._step_rows is None:
            return
        evidence, *others = cells
        counts = len(form.counts)
        split = evidence[:counts], evidence[counts:], *others
        try:
            at = EventPlace(row, self._step, site)
            self._partners.add(row, self._events.hold(self._step_rows, form, split, scalars, at))
        except HoleError:
            self._step_rows = None

    def _before_write(self, hand: OpInFlight) -> None:
        tensors = hand.tensors
        hand.lying = placements(tensors)
        if sum(self._process.layouts.of(tensor).nbytes for tensor in tensors) <= MAX_EARLY:
            hand.copy_early(self._process.layouts)
        else:
            hand.early = dict.fromkeys(hand.in_written_memory(), TOO_LARGE)

    # --- when it has run ----------------------------------------------------------------------------------------------

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        op = self.op
        if op is None or self._state.over:
            return
        try:
            self._check(cells, op, call, out)
        except HoleError:
            self._step_rows = None  # A's rows cannot be read on: what is left of the step counts as unchecked

    def _check(self, fixed: FixedCells, hand: OpInFlight, call: Call, out: Any) -> None:
        """Compare the row that is about to be finished with A's."""
        tally, rows = self._state.tally, self._step_rows
        if rows is None:
            tally.unchecked += 1
            self._partners.add(self._stream.row, None)
            return
        place, content = self._cells.content(fixed)
        found = rows.take(place, content, lambda found: self._reads_alike(found, self._cells.here(fixed, content)))
        if found is None:
            self._partners.add(self._stream.row, None)
            tally.only_here += 1
            self._extra.append(self._cells.here(fixed, content))
            return
        self._partners.add(self._stream.row, found.row)
        if not found.same:
            here = self._cells.here(fixed, content)
            differs = here.harmless_difference(found.rows, found.i) if found.only_digests else None
            if differs is None:
                a, b = self._pair(found, here)
                differs = difference(RowRange(a.view, a.rows), a.place, RowRange(b.view, b.rows), b.place)
            if differs.found:
                written, returned = call.results(hand.tensors, out)
                self._differs(found, here, differs, hand, written + returned)
                return
            if differs.marked:
                tally.marked += 1
                if len(self._marked_rows) < MAX_MARKED:
                    self._marked_rows[here.row] = here
        tally.matched += 1

    def _reads_alike(self, found: MatchedRow, here: LiveRow) -> bool:
        """Whether a row of A reads what ops wrote that match those whose results are read here."""
        partner, a = self._partners.of, found.row
        return all(
            partner(here.row - y.distance) == a - x.distance
            for x, y in zip(found.rows.inputs(found.i), here.rows().inputs(0), strict=False)
            if x.distance > 0 and y.distance > 0 and not (x.known or y.known)
        )

    def _pair(self, found: MatchedRow, here: LiveRow, kernel: int = 0, settings: int = 0) -> tuple[RowAt, RowAt]:
        """A's row and the one at hand, as a comparison takes them; ``kernel`` and ``settings``: ids of the latter."""
        assert self._reference is not None
        a = RowAt(self._reference.view, found.rows, found.i)
        tables, shift = self._process.tables, here.step - a.step
        view = LiveView(a.view, tables, self._partners, self._kept_row, self._opening, shift)
        return a, RowAt(view, here.rows(kernel, settings), 0)

    def _kept_row(self, row: int) -> LiveRow | None:
        return self._marked_rows.get(row) or next((one for one in self._extra if one.row == row), None)

    # --- the first difference -----------------------------------------------------------------------------------------

    def _differs(
        self, found: MatchedRow, here: LiveRow, differs: Difference, hand: OpInFlight, results: list[torch.Tensor]
    ) -> None:
        """Keep what the op had and gave, call it again where that tells something, and leave the finding: at the op,
        or at the event that brought in what differs."""
        tensors = hand.tensors
        device = tensors[0].device.type if tensors else "cpu"
        kernel = self._process.kernels.of(hand.plan.name, torch.get_num_threads(), device)
        a, b = self._pair(found, here, kernel, self._stream.settings.number)
        judged = judge(DiffContext(a.view, b.view, self._partners, ()), a, b, differs)
        cause, inputs, because = judged.judgement.cause, judged.judgement.inputs_match, judged.judgement.because
        site = b.stack[0] if b.stack else None
        event = self._events.first(self._stream.name, cause, outside_digests(a, b), b.index, (b.op, site, a.index))
        if event is not None:
            self._state.differs(event)
            return
        if judged.b.index != b.index:
            because = f"an input was written by row {judged.b.index:,}, which may have read uninitialised memory"
        if cause is Cause.OUTSIDE:
            because = "; ".join([because, *self._events.seeds()])
        hand.lying = hand.lying or placements(tensors)
        self._values.record(hand, results)
        results_a, results_b = (results_of_row(row.rows, row.place) for row in (a, b))
        again, why_not = None, "its inputs differ from those in A"
        if cause in COMPUTED or (cause, inputs) == (Cause.UNKNOWN, InputsMatch.UNKNOWN):
            again, why_not = call_again(self._call(hand, tensors), results_a, results_b)
            because = because if again is None else with_what_was_tried(because, again)
        where = (self._stream.name, b.index, a.index, self._step, b.op, b.module, site)
        kernels, outputs = Pair(*kernel_texts(a.kernel, b.kernel)), paired(results_a, results_b)
        self._state.differs(LiveFinding(*where, cause, inputs, because, kernels, outputs, again, why_not))

    def _call(self, hand: OpInFlight, tensors: list[torch.Tensor]) -> LiveCall:
        links = self._stream.links[len(self._stream.links) - len(tensors) :]
        unread = frozenset(place for place, link in enumerate(links) if link == OVERWRITTEN)
        layouts = [self._process.layouts.of(tensor) for tensor in tensors]
        func, kwargs = hand.plan.func, hand.kwargs or {}
        return LiveCall(
            func, hand.plan, hand.args, kwargs, tensors, layouts, hand.lying, unread, hand.early, hand.state
        )
