"""Live comparison: a stream is compared with A's while it is recorded, op by op, up to the first difference.

Owns that moment: the op has run and its row is about to be finished; its inputs and results are recorded, and it is
called again on the same inputs, unseen by the program. Of ops that write what they read, the inputs were copied before
they ran. After the first difference nothing is compared any more: all that follows may be its consequence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch._ops import OpOverload

from rltrace.diff.base.kernels import Settings, kernel_differences, settings_differences, settings_text, tells_what_ran
from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.errors import HoleError, UsageError
from rltrace.live_diff.classify import LiveClassification, LiveRow, RowContext, UninitialisedDifference, judge
from rltrace.live_diff.events import EventComparer, EventPlace
from rltrace.live_diff.reference_trace import Content, Ids, MatchedRow, Place, Reference, RowPartners, StepRows
from rltrace.live_diff.result import LiveCounts, LiveFinding, LiveResult, Repetition
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
from rltrace.replay.op_kinds import innermost
from rltrace.rerun_op.live_call import LiveCall, live_case
from rltrace.rerun_op.recorded_op import results_of_row
from rltrace.rerun_op.runner import SECONDS, TIMES, ResultDigests, repeat, summary
from rltrace.trace.format.schema import VALUE_FLAGS, Column, RowFlag
from rltrace.trace.kernels.evidence import kernel_text
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
        """The same, with its links, for the judge."""
        row = self._row
        links = self._row.process.calls.structure_sizes[fixed[1]]
        flags = fixed[5] & 0xFFFF
        digests = row.digests[-fixed[6] :].tolist() if fixed[6] else []
        cells = row.links[-links:].tolist() if links else []
        return LiveRow(row.row, content, digests, cells, flags, self._number(flags))

    def _number(self, flags: int) -> bool | int | float | complex | None:
        row = self._row
        if flags & _FLOAT:
            return row.floats[-1]
        if flags & _COMPLEX:
            return complex(*row.floats[-2:])
        if flags & _WHOLE:
            return bool(row.integers[-1]) if flags & _BOOL else row.integers[-1]
        return None


# --- again ------------------------------------------------------------------------------------------------------------
#
# The op that differs, called again on the spot, and what that says of the cause.
#
# Owns the words. The calling is for ``rltrace.rerun_op``; nothing of the program is touched by it: memory is fresh, and
# the generator that the op draws from is put back.


Evidence = Mapping[str, object]


def call_again(call: LiveCall, results_a: ResultDigests, results_here: ResultDigests) -> tuple[Repetition | None, str]:
    """What comes out; or None and why it was not called."""
    digests = TensorDigests(Layouts(Tables()))  # of its own: the program's tables are for what the program did
    try:
        gave = repeat(live_case(call), TIMES, lambda tensor: f"{digests.of(tensor):016x}", SECONDS)
    except (UsageError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return None, str(error).splitlines()[0]
    counts = gave.get(results_a, 0), gave.get(results_here, 0)
    return Repetition(sum(gave.values()), len(gave) == 1, tuple(gave.items()), *counts), ""


def cause_in_words(
    judged: LiveClassification,
    op: str,
    kernels: tuple[Evidence, Evidence],
    settings: tuple[Settings, Settings],
    again: Repetition | None,
) -> tuple[Cause, InputsMatch, str]:
    """The cause, with what the kernels and the calls on the spot say of it."""
    cause, because = judged.cause, judged.because
    if cause is Cause.COMPUTATION:
        differences = kernel_differences(*kernels) if all(kernels) else []
        under = settings_text(op, kernels, settings_differences(*settings))
        if differences or under:
            another = f"another kernel ran ({', '.join(differences)})" if differences else ""
            cause, because = Cause.KERNEL, f"{because}: {'; '.join(filter(None, [another, under]))}"
        elif all(map(tells_what_ran, kernels)):
            cause = Cause.SAME_KERNEL
            because = f"{because} under the same kernel evidence ({kernel_text(kernels[1])})"
    if again is not None:
        told = summary(dict(again.gave))
        whose = f"A's result came {again.of_a:,} times" if again.of_a else "none gave A's result"
        because = f"{because}; re-executed on the same inputs, {told}, and {whose}"
    return cause, judged.inputs, because


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

MAX_READS = 1 << 16
"""Inputs of ops that A does not run, of which is remembered what they were."""

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
        self._marked_rows: set[int] = set()
        self._reads: dict[tuple[int, int], int] = {}
        """What ops of this step that A does not run read, by row and place."""
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
        self._reads.clear()
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
        there = _reads(found) + found.rows.outputs(found.i)
        if there == digests:
            return
        what = " ".join(filter(None, [owner, name]))
        why = f"{what or 'a tensor'} already differed when the recording of ops began"
        pairs = tuple(Pair(f"{a:016x}", f"{b:016x}") for a, b in zip(there, digests, strict=False))
        none = Pair[str](None, None)
        place = (self._stream.name, row, found.row, self._step, "window", owner, None)
        judged = (Cause.BEFORE_WINDOW, InputsMatch.UNKNOWN, why)
        self._state.differs(LiveFinding(*place, *judged, none, pairs, None, "it is not an op"))

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
            return
        place, content = self._cells.content(fixed)
        found = rows.take(place, content, lambda found: self._reads_alike(found, self._cells.here(fixed, content)))
        if found is None:
            self._partners.add(self._stream.row, None)
            tally.only_here += 1
            self._remember_reads(self._cells.here(fixed, content))
            return
        self._partners.add(self._stream.row, found.row)
        if not found.same:
            here = self._cells.here(fixed, content)
            judged = judge(found, here, self._around)
            if isinstance(judged, LiveClassification):
                written, returned = call.results(hand.tensors, out)
                self._differs(found, fixed, here, judged, hand, written + returned)
                return
            if isinstance(judged, UninitialisedDifference):
                tally.marked += 1
                if len(self._marked_rows) < MAX_MARKED:
                    self._marked_rows.add(self._stream.row)
        tally.matched += 1

    def _reads_alike(self, found: MatchedRow, here: LiveRow) -> bool:
        """Whether a row of A reads what ops wrote that match those whose results are read here."""
        partner, a = self._partners.of, found.row
        return all(
            partner(here.row - y.distance) == a - x.distance
            for x, y in zip(found.rows.inputs(found.i), here.inputs(), strict=False)
            if x.distance > 0 and y.distance > 0 and not (x.known or y.known)
        )

    @property
    def _around(self) -> RowContext:
        assert self._reference is not None
        marked, reads = self._marked_rows, self._reads
        return RowContext(self._partners.of, marked.__contains__, lambda *key: reads.get(key), self._reference.row)

    def _remember_reads(self, here: LiveRow) -> None:
        """An op that A does not run may be the first of a step to read what others read after it."""
        if len(self._reads) < MAX_READS:
            inputs = enumerate(here.inputs())
            self._reads.update({(here.row, at): link.digest for at, link in inputs if link.digest is not None})

    # --- the first difference -----------------------------------------------------------------------------------------

    def _differs(
        self,
        found: MatchedRow,
        fixed: FixedCells,
        here: LiveRow,
        judged: LiveClassification,
        hand: OpInFlight,
        results: list[torch.Tensor],
    ) -> None:
        """Keep what the op had and gave, call it again where that tells something, and leave the finding: at the op,
        or at the event that brought in what differs."""
        site = innermost(self._process.tables.remembered, fixed[2])
        event = self._events.first(self._stream.name, judged.cause, found, here, hand.plan.name, site)
        if event is not None:
            self._state.differs(event)
            return
        if judged.cause is Cause.OUTSIDE:
            judged = replace(judged, because="; ".join([judged.because, *self._events.seeds()]))
        tensors = hand.tensors
        hand.lying = hand.lying or placements(tensors)
        self._values.record(hand, results)
        results_a = results_of_row(found.rows, found.i)
        results_b = (repr(here.number),) if here.number is not None else tuple(f"{d:016x}" for d in here.outputs if d)
        again, why_not = None, "its inputs differ from those in A"
        if judged.cause is Cause.COMPUTATION or (judged.cause, judged.inputs) == (Cause.UNKNOWN, InputsMatch.UNKNOWN):
            again, why_not = call_again(self._call(hand, tensors), results_a, results_b)
        kernels = self._kernels(found, hand, tensors)
        self._state.differs(
            LiveFinding(
                self._stream.name,
                self._stream.row,
                found.row,
                self._step,
                hand.plan.name,
                str(self._process.tables.remembered["modules"][fixed[3]]),
                site,
                *cause_in_words(judged, hand.plan.name, kernels, self._settings(found), again),
                Pair(*(kernel_text(kernel) for kernel in kernels)),
                paired(results_a, results_b),
                again,
                why_not,
            )
        )

    def _call(self, hand: OpInFlight, tensors: list[torch.Tensor]) -> LiveCall:
        links = self._stream.links[len(self._stream.links) - len(tensors) :]
        unread = frozenset(place for place, link in enumerate(links) if link == OVERWRITTEN)
        layouts = [self._process.layouts.of(tensor) for tensor in tensors]
        func, kwargs = hand.plan.func, hand.kwargs or {}
        return LiveCall(
            func, hand.plan, hand.args, kwargs, tensors, layouts, hand.lying, unread, hand.early, hand.state
        )

    def _kernels(
        self, found: MatchedRow, hand: OpInFlight, tensors: list[torch.Tensor]
    ) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """What is known of the kernel that ran, in A and here."""
        device = tensors[0].device.type if tensors else "cpu"
        number = self._process.kernels.of(hand.plan.name, torch.get_num_threads(), device)
        there: Any = self._state.a.tables["kernels"].payloads[found.rows.columns[found.i, Column.KERNEL]]
        here: Any = self._process.tables.remembered["kernels"][number]
        return there or {}, here or {}

    def _settings(self, found: MatchedRow) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """What torch was set to when the op ran, in A and here."""
        payloads = self._state.a.tables["settings"].payloads
        there: Any = payloads[found.rows.columns[found.i, Column.SETTINGS]]
        return there or {}, self._process.settings.payloads[self._stream.settings.number]


def _reads(found: MatchedRow) -> list[int]:
    """What a row digested of its inputs."""
    return [link.digest for link in found.rows.inputs(found.i) if link.digest is not None]
