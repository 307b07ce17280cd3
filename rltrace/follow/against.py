"""A stream that is held against A's while it records, op by op, and stops to look where the two first part.

Owns that moment: the op has run and its row is about to be finished; its inputs and results are kept, and it is called
again on the same inputs, outside of the program's sight. Of ops that write what they read, the inputs were copied
before they ran. After the first difference nothing is compared any more: all that follows may be its consequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.diff.model import Cause, InputsMatch, Pair
from rltrace.errors import HoleError
from rltrace.follow.again import call_again, cause_in_words, paired
from rltrace.follow.cells import Fixed, OpenCells
from rltrace.follow.finding import First
from rltrace.follow.happened import Place
from rltrace.follow.held_events import HeldEvents
from rltrace.follow.judging import Here, Judged, Marked, Surroundings, judge
from rltrace.follow.kinds import innermost
from rltrace.follow.reference import Found, Ids, Partners, StepRows
from rltrace.follow.watch import Watch
from rltrace.record.arguments import op_tensors
from rltrace.record.events import EventForm
from rltrace.record.memory.lying import lying
from rltrace.record.open_rows import FIXED, OVERWRITTEN
from rltrace.record.process import ProcessState
from rltrace.record.stream import RowTaker, StreamRecorder
from rltrace.record.values.keeping import Hand, KeepingStream, state_bytes
from rltrace.reexecute.live import Call
from rltrace.reexecute.recorded import results_of_row
from rltrace.select import EVERYTHING
from rltrace.trace.evidence import kernel_text
from rltrace.trace.schema import Column

EARLY = 1 << 26
"""Bytes of one op's inputs that are copied before it writes over them; of larger ones it is said that they were not."""

MOST_MARKED = 1 << 14
"""Rows that differ in memory that nobody may have written, and are remembered."""

MOST_READS = 1 << 16
"""Inputs of ops that A does not run, of which is remembered what they were."""

TOO_LARGE = f"it overwrote its input, and more than {EARLY >> 20} MiB are not copied before each such op"


class AgainstStream(KeepingStream):
    """The rows of one thread, compared with A's as they come."""

    def __init__(
        self, process: ProcessState, number: int, name: str, committer: RowTaker, *, watch: Watch, stop: Any
    ) -> None:
        super().__init__(process, number, name, committer, keeper=watch.keeper, selector=EVERYTHING)
        self._watch = watch
        self._stop = stop
        self._reference = watch.reference(self)
        self._ids = Ids(watch.a, process.tables)
        self._cells = OpenCells(self, self._ids)
        self._events = HeldEvents(process, watch.a, self._ids)
        self._partners = Partners()
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

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op, write its row, and hold it against A's."""
        if self._watch.over:
            return StreamRecorder.observe(self, by, func, types, args, kwargs)
        if self.process.step != self._step:
            self._begin_step()
        before = self._hand
        try:
            self._hand = self._prepare(func, args, kwargs)
            out = StreamRecorder.observe(self, by, func, types, args, kwargs)
        finally:
            self._hand = before  # no tensor is held on to
        if self._watch.over and self._watch.take_stop():
            self._stop()
        return out

    def _begin_step(self) -> None:
        self._watch.tally.only_a += self.missed()
        self._step = self.process.step
        self._step_rows = None
        self._reads.clear()
        if self._reference is None:
            return
        try:
            with self._watch.lock:
                self._step_rows = self._reference.step_after(self.process.attempt)
        except HoleError:
            return  # these ops count as unchecked
        except Exception as error:
            self.process.fail(error)

    def opening(self, bits: int, name: str, owner: str, digests: list[int], tensor: torch.Tensor | None) -> None:
        """A row of what a window begins with; where A began with something else, nothing after it says anything."""
        super().opening(bits, name, owner, digests, tensor)
        if self._watch.over:
            return
        if self.process.step != self._step:
            self._begin_step()
        rows = self._step_rows
        if rows is None:
            return
        _, structure, _, module, scalars, _, _ = self.fixed[-FIXED:]
        key = (self._ids.of("modules", module), self._ids.of("scalars", scalars))
        try:
            found = rows.opening(*key, self._ids.of("structures", structure))
        except HoleError:
            return
        row = self.row - 1
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
        place = (self.name, row, found.row, self._step, "window", owner, None)
        judged = (Cause.BEFORE_WINDOW, InputsMatch.UNKNOWN, why)
        self._watch.differs(First(*place, *judged, none, pairs, None, "it is not an op"))

    def happened(
        self,
        form: EventForm,
        evidence: Sequence[int],
        digests: Sequence[int],
        integers: Sequence[int],
        floats: Sequence[float],
        frame: FrameType,
    ) -> None:
        """A row that is no op. What differs in it is no difference by itself; an op may differ because of it."""
        row, site = self.row, self._site(frame)
        super().happened(form, evidence, digests, integers, floats, frame)
        if self._watch.over:
            return
        if self.process.step != self._step:
            self._begin_step()
        if self._step_rows is None:
            return
        counts = len(form.counts)
        cells = evidence[:counts], evidence[counts:], digests, integers, floats
        at = Place(row, self._step, site)
        try:
            self._partners.add(row, self._events.hold(self._step_rows, form, cells, self._forms[form][1], at))
        except HoleError:
            self._step_rows = None

    # --- before the op ------------------------------------------------------------------------------------------------

    def _prepare(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Hand | None:
        """What has to be copied before the op runs: the generator's state, and inputs that it is about to change."""
        try:
            plan = self.process.calls.plan(func)
            hand = Hand(plan, args, kwargs)
            if self._step_rows is None:
                return hand
            if plan.draws:
                hand.state = state_bytes(args, kwargs or {})
            if plan.writes_any and plan.computes and not all(plan.writes.values()):
                self._before_write(hand)
        except Exception as error:
            self.process.fail(error)
            return None
        return hand

    def _before_write(self, hand: Hand) -> None:
        tensors = op_tensors(hand.args, hand.kwargs)
        hand.lying = lying(tensors)
        if sum(self.process.layouts.of(tensor).nbytes for tensor in tensors) <= EARLY:
            self._copy_early(hand)
        else:
            hand.early = dict.fromkeys(self.in_written_memory(hand), TOO_LARGE)

    # --- when it has run ----------------------------------------------------------------------------------------------

    def _keep_and_finish(self, fixed: Fixed) -> None:
        hand = self._hand
        if hand is not None and not self._watch.over:
            try:
                self._check(fixed, hand)
            except HoleError:
                self._step_rows = None  # A's rows cannot be read on: what is left of the step counts as unchecked
            except Exception as error:
                self.process.fail(error)
        self._finish_row(fixed)

    def _check(self, fixed: Fixed, hand: Hand) -> None:
        """Hold the row that is about to be finished against A's."""
        tally, rows = self._watch.tally, self._step_rows
        if rows is None:
            tally.unchecked += 1
            return
        place, content = self._cells.content(fixed)
        found = rows.take(place, content, lambda found: self._reads_alike(found, self._cells.here(fixed, content)))
        if found is None:
            self._partners.add(self.row, None)
            tally.only_here += 1
            self._remember_reads(self._cells.here(fixed, content))
            return
        self._partners.add(self.row, found.row)
        if not found.same:
            here = self._cells.here(fixed, content)
            judged = judge(found, here, self._around)
            if isinstance(judged, Judged):
                self._differs(found, fixed, here, judged, hand)
                return
            if isinstance(judged, Marked):
                tally.marked += 1
                if len(self._marked_rows) < MOST_MARKED:
                    self._marked_rows.add(self.row)
        tally.matched += 1

    def _reads_alike(self, found: Found, here: Here) -> bool:
        """Whether a row of A reads what ops wrote that match those whose results are read here."""
        partner, a = self._partners.of, found.row
        return all(
            partner(here.row - y.distance) == a - x.distance
            for x, y in zip(found.rows.inputs(found.i), here.inputs(), strict=False)
            if x.distance > 0 and y.distance > 0 and not (x.known or y.known)
        )

    @property
    def _around(self) -> Surroundings:
        assert self._reference is not None
        marked, reads = self._marked_rows, self._reads
        return Surroundings(self._partners.of, marked.__contains__, lambda *key: reads.get(key), self._reference.row)

    def _remember_reads(self, here: Here) -> None:
        """An op that A does not run may be the first of a step to read what others read after it."""
        if len(self._reads) < MOST_READS:
            inputs = enumerate(here.inputs())
            self._reads.update({(here.row, at): link.digest for at, link in inputs if link.digest is not None})

    # --- the first difference -----------------------------------------------------------------------------------------

    def _differs(
        self,
        found: Found,
        fixed: Fixed,
        here: Here,
        judged: Judged,
        hand: Hand,
    ) -> None:
        """Keep what the op had and gave, call it again where that tells something, and leave the finding: at the op,
        or at the event that brought in what differs."""
        site = innermost(self.process.tables.remembered, fixed[2])
        event = self._events.first(self.name, judged.cause, found, here, hand.plan.name, site)
        if event is not None:
            self._watch.differs(event)
            return
        if judged.cause is Cause.OUTSIDE:
            judged = replace(judged, because="; ".join([judged.because, *self._events.seeds()]))
        tensors = op_tensors(hand.args, hand.kwargs)
        hand.lying = hand.lying or lying(tensors)
        self._keep(hand)
        results_a = results_of_row(found.rows, found.i)
        results_b = (repr(here.number),) if here.number is not None else tuple(f"{d:016x}" for d in here.outputs if d)
        again, why_not = None, "its inputs differ from those in A"
        if judged.cause is Cause.COMPUTATION or (judged.cause, judged.inputs) == (Cause.UNKNOWN, InputsMatch.UNKNOWN):
            again, why_not = call_again(self._call(hand, tensors), results_a, results_b)
        kernels = self._kernels(found, hand, tensors)
        self._watch.differs(
            First(
                self.name,
                self.row,
                found.row,
                self._step,
                hand.plan.name,
                str(self.process.tables.remembered["modules"][fixed[3]]),
                site,
                *cause_in_words(judged, hand.plan.name, kernels, self._settings(found), again),
                Pair(*(kernel_text(kernel) for kernel in kernels)),
                paired(results_a, results_b),
                again,
                why_not,
            )
        )

    def _call(self, hand: Hand, tensors: list[torch.Tensor]) -> Call:
        links = self.links[len(self.links) - len(tensors) :]
        unread = frozenset(place for place, link in enumerate(links) if link == OVERWRITTEN)
        layouts = [self.process.layouts.of(tensor) for tensor in tensors]
        func, kwargs = hand.plan.func, hand.kwargs or {}
        return Call(func, hand.plan, hand.args, kwargs, tensors, layouts, hand.lying, unread, hand.early, hand.state)

    def _kernels(
        self, found: Found, hand: Hand, tensors: list[torch.Tensor]
    ) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """What is known of the kernel that ran, in A and here."""
        device = tensors[0].device.type if tensors else "cpu"
        number = self.process.kernels.of(hand.plan.name, torch.get_num_threads(), device)
        there: Any = self._watch.a.tables["kernels"].payloads[found.rows.columns[found.i, Column.KERNEL]]
        here: Any = self.process.tables.remembered["kernels"][number]
        return there or {}, here or {}

    def _settings(self, found: Found) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """What torch was set to when the op ran, in A and here."""
        payloads = self._watch.a.tables["settings"].payloads
        there: Any = payloads[found.rows.columns[found.i, Column.SETTINGS]]
        return there or {}, self.process.settings.payloads[self.settings.number]


def _reads(found: Found) -> list[int]:
    """What a row digested of its inputs."""
    return [link.digest for link in found.rows.inputs(found.i) if link.digest is not None]
