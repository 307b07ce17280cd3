"""When the profiler runs beside a recording: in cycles of rows of the first stream, by the thread that writes it.

Owns the decision where a cycle begins and ends. That is between ops, not within a backward pass, not in the ``forward``
of an ``autograd.Function`` or a region that torch has compiled (either is a scope of the profiler's that would outlive
the cycle), not while a CUDA graph is being captured, and not while a profiler of the program's own runs. At the end of
a cycle its rows are committed, then what was launched for them (``seen.py``): a program that is killed loses the names
of one cycle and no row. Whatever cannot be told is told of with the reason.

Nothing of this is loaded where kernels are not asked for, nothing begins where the program uses no device, and no
failure of it is one of the recording: it costs the names.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.portable_keys import portable_key
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.core.row_buffer import NO_LIMIT
from rltrace.recorder.profiler import kineto
from rltrace.recorder.profiler.launch_matching import Joined, Launch, ProfilerEvent, join
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.kernels.evidence import LAUNCHES
from rltrace.trace.kernels.launches import NewLaunches, Unknown

if TYPE_CHECKING:
    from rltrace.recorder.core.op_recorder import OpRecorder
    from rltrace.recorder.core.process_state import ProcessState
    from rltrace.recorder.core.row_buffer import RowBuffer
    from rltrace.recorder.streams.committer import Committer
    from rltrace.recorder.streams.threads import Streams


# --- programs own -----------------------------------------------------------------------------------------------------
#
# Profilers that the recorded program starts itself: the recorder's steps aside before, and may go on after.
#
# Owns what stands in for the functions of torch that begin and end one: ``torch.profiler``,
# ``torch.autograd.profiler``, its older form, ``emit_nvtx`` and ``emit_itt`` all call these. Kineto runs one session at
# a time, and a session of the program's own must neither fail nor hold anything of the recorder's.


BEGIN: Final = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
END: Final = ("_disable_profiler", "_disable_profiler_legacy")

MODULES: Final = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")
"""All that have these functions under their names."""


class ProgramsOwn:
    """Those of one process, from ``watch`` to ``ignore``. What began before is not known here."""

    def __init__(self, begins: Callable[[], None]) -> None:
        """``begins``: called before each, in the thread that starts it; must not raise."""
        self.running = False
        """One has been prepared, or started, and has not ended."""
        self._begins = begins
        self._patches = Patches()

    def watch(self) -> None:
        for name in (*BEGIN, *END):
            modules = (sys.modules.get(module) for module in MODULES)
            around = self._before if name in BEGIN else self._after
            self._patches.wrap_all((torch._C._autograd, *modules), name, around)

    def ignore(self) -> None:
        self.running = False
        self._patches.undo_all()

    def _before(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.running = True
        self._begins()
        return original(*args, **kwargs)

    def _after(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self.running = False


# --- seen -------------------------------------------------------------------------------------------------------------
#
# What the profiler saw of a stretch of rows of the first stream, and what could not be seen: from there to the trace.
#
# Owns which rows a stretch has, and that they are committed before anything is told of them. A row whose launches are
# known gets the evidence that it was written with (what it ran on) and the launches; all others keep what they have.


OTHER_THREADS = "they ran in other threads, which the profiler does not record"
NOT_SEEN = "their launches were not recorded on the device: they were captured into a CUDA graph, or lost"
BLIND = "the profiler recorded nothing of the device: another tool may use it (nsys, ncu), or permission is missing"

MOST_STRAYS: Final = 200
"""Of what was launched for no row, so many kinds are told of one stretch; the others together."""

MOST_RUNS: Final = 64
"""Of a stretch, so many runs of unknown rows are told by their places; of more how many rows, from the first on."""

MOST_KNOWN: Final = 1 << 16

NEEDED: Final = [Column.OP, Column.KERNEL, Column.KIND]


class Seen:
    """One process's."""

    def __init__(self, process: ProcessState, streams: Streams, committer: Committer) -> None:
        self._process = process
        self._streams = streams
        self._committer = committer
        self.first = 0
        """Row with which the stretch begins that nothing is told of yet."""
        self._rows: list[NDArray[np.uint32]] | None = None
        """What the join needs of the rows of this stretch that are committed; None: nothing is to be joined."""
        self._others: dict[int, int] = {}
        self._unknown: list[Unknown] = []
        self._raised: list[int] = []
        self._known: dict[tuple[int, tuple[Launch, ...]], int] = {}

    def begin(self) -> None:
        """Rows are being written from now on."""
        self.first = self._streams.main.row
        self._others = {stream.number: stream.row for stream in self._streams.others}
        self._committer.taken = self._taken

    def collect(self) -> None:
        """The profiler runs from now on."""
        self._rows = []
        self._raised.clear()
        self._streams.main.raised = self._raised

    def tell(self, events: Sequence[ProfilerEvent], why: str | None) -> None:
        """Commit the rows so far, and what events tell of those since ``collect``; ``why``: nothing can be told."""
        self._streams.main.raised = None
        self._committer.settle(self._streams.main, lambda: self._told(events, why))
        self._rows = None

    def drop(self, why: str) -> None:
        """Nothing is known of the rows since, nor what the profiler saw."""
        self._rows = self._streams.main.raised = None
        self.miss(why)

    def miss(self, why: str) -> None:
        """Nothing is known of the rows up to here."""
        main = self._streams.main
        if main.row > self.first:
            self._unknown.append(Unknown(why, main.number, self.first, main.row - self.first))
            self.first = main.row

    def end(self, why: str | None) -> None:
        """Rows are not written any more. ``why``: of those nothing is told of yet; None: nobody needs to know."""
        if why is not None:
            self.miss(why)
            if self._unknown:
                self._committer.settle(self._streams.main, lambda: self._told((), None))
        self.abandon()

    def abandon(self) -> None:
        self._committer.taken = None
        self._rows = self._streams.main.raised = None
        self._unknown.clear()

    def _taken(self, stream: int, rows: Rows) -> None:
        """Rows are being committed. Called by whoever does it, one at a time; the first stream waits, or goes on."""
        if self._rows is not None and stream == self._streams.main.number and rows.first + len(rows) > self.first:
            self._rows.append(rows.columns[max(self.first - rows.first, 0) :, NEEDED])

    def _told(self, events: Sequence[ProfilerEvent], why: str | None) -> NewLaunches | None:
        main = self._streams.main
        rows = np.concatenate([np.zeros((0, len(NEEDED)), np.uint32), *(self._rows or ())])
        first, self.first = self.first, main.row
        unknown, self._unknown = [*self._unknown, *self._of_other_threads()], []
        try:
            ids, strays, reasons = self._joined(rows, events, why)
        except Exception as error:  # whatever it is, it is no failure of the recording
            ids, strays = np.zeros(0, np.uint32), ()
            reasons = [(f"{type(error).__name__}: {error}", 0, len(rows))] if len(rows) else []
        unknown += [Unknown(reason, main.number, first + at, count) for reason, at, count in reasons]
        return NewLaunches(main.number, first, ids, tuple(unknown), strays) if len(ids) or unknown or strays else None

    def _joined(
        self, rows: NDArray[np.uint32], events: Sequence[ProfilerEvent], why: str | None
    ) -> tuple[NDArray[np.uint32], tuple[tuple[str, str, int], ...], list[tuple[str, int, int]]]:
        """Ids of evidence, what was launched for no row, and (why, place, rows) of what cannot be told."""
        ids = np.zeros(len(rows), np.uint32)
        if why is not None or not len(rows):
            return ids[:0], (), [(why, 0, len(rows))] if why is not None and len(rows) else []
        ops = rows[:, 2] == Kind.OP
        places = np.flatnonzero(ops)
        names = self._process.calls.op_names
        found = join(events, [names[op] for op in rows[ops, 0].tolist()], self._places_of_raised(ops))
        reason = found.why or (BLIND if self._is_blind(rows, found) else "")
        if reason:
            return ids[:0], found.strays, [(reason, 0, len(rows))]
        evidence = zip(places.tolist(), rows[ops, 1].tolist(), found.launches, strict=True)
        ids[places] = [self._evidence(kernel, launches) for _, kernel, launches in evidence]
        lost = places[sorted(found.lost)] if found.lost else places[:0]
        ids[lost] = 0
        runs = list(_runs(lost))
        if len(runs) > MOST_RUNS:
            runs = [(runs[0][0], len(lost))]
        return ids, _most(found.strays), [(NOT_SEEN, first, count) for first, count in runs]

    def _is_blind(self, rows: NDArray[np.uint32], found: Joined) -> bool:
        """Whether ops ran on a device and nothing at all is known to have been launched."""
        if found.strays or found.lost or any(found.launches):
            return False
        payloads = self._process.kernels.payloads
        return any("device" in payloads.get(kernel, {}) for kernel in np.unique(rows[:, 1]).tolist())

    def _evidence(self, kernel: int, launches: tuple[Launch, ...]) -> int:
        """Id of what is known of a row that was written with evidence ``kernel``; 0: nothing more than that."""
        found = self._known.get((kernel, launches))
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[kernel, launches] = self._made(kernel, launches)
        return found

    def _made(self, kernel: int, launches: tuple[Launch, ...]) -> int:
        plain = self._process.kernels.payloads.get(kernel, {})
        if not launches and "device" not in plain:
            return 0
        told: dict[str, Any] = {"names": [launch.name for launch in launches]}
        told[LAUNCHES] = [[list(launch.grid), list(launch.block)] for launch in launches]
        payload = {**plain, **told}
        return self._process.tables.intern("kernels", portable_key("kernel", payload), payload)

    def _places_of_raised(self, ops: NDArray[np.bool_]) -> list[int]:
        """Of the calls that raised: how many ops of the stretch came before each."""
        before = np.concatenate([[0], np.cumsum(ops)])
        start = self.first - len(ops)
        return [int(before[min(max(row - start, 0), len(ops))]) for row in self._raised]

    def _of_other_threads(self) -> Iterator[Unknown]:
        """Rows that other streams got since the last time."""
        for stream in self._streams.others:
            before, now = self._others.get(stream.number, 0), stream.row
            if now > before:
                self._others[stream.number] = now
                yield Unknown(OTHER_THREADS, stream.number, before, now - before)


def _most(strays: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    if len(strays) <= MOST_STRAYS:
        return strays
    rest = strays[MOST_STRAYS:]
    return (*strays[:MOST_STRAYS], (f"{len(rest):,} others", "", sum(count for *_, count in rest)))


def _runs(rows: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, how many) of those that follow each other."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            yield int(run[0]), len(run)


# --- cycles -----------------------------------------------------------------------------------------------------------


CYCLE_ROWS: Final = 8_192
"""A cycle ends at the first chance after so many rows; what the profiler keeps of them is some 10 kB a row."""

LONGEST: Final = 4
"""So many times as long a cycle gets at most where no chance comes."""

SCOPES: Final = (("autograd/function.py", "apply"), ("_dynamo/eval_frame.py", "compile_wrapper"))
"""Functions of torch that are on the stack while a scope is open that it opens itself: endings of files, and names."""

ModuleCalled = Callable[[FrameType], None]

NOT_BEGUN = "the profiler had not started"
ANOTHER = "a profiler of the program ran"
NO_MOMENT = "no point between two ops was reached"
OVERRUN = "the profiler's memory for the device was full"
STILL_OPEN = "a scope of the profiler was not closed: {}"
ELSEWHERE = "the recording ended in another thread"


class Cycles:
    """The profiler beside one process's first stream."""

    def __init__(self, process: ProcessState, streams: Streams, committer: Committer) -> None:
        self._streams = streams
        self._committer = committer
        self._owner = get_ident()
        self._seen = Seen(process, streams, committer)
        self._own = ProgramsOwn(self._step_aside)
        self._kinds: tuple[str, ...] | None = None
        """Kinds of devices of the cycle that is under way; None: none is."""
        self._why = NOT_BEGUN
        """Why none is."""
        self._over = False
        """There will be no more."""
        self._ever = False
        self._told_before: ModuleCalled | None = None
        self._watching = False

    @property
    def _main(self) -> OpRecorder:
        return self._streams.main

    # --- the window ---------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Rows are being written from now on, or go on."""
        if not self._watching:
            self._watching = True
            self._seen.begin()
            self._own.watch()
            self._committer.full = self.full
            self._main.modules.on_outermost = self._module_called(self._main.modules.on_outermost)
        self.between_ops()

    def ignore(self) -> None:
        """They are not any more; what was seen is told."""
        if not self._watching:
            return
        if self._kinds is not None and get_ident() != self._owner:  # no other thread can stop it
            self._kinds, self._why, self._over = None, ELSEWHERE, True
        self.pause(self._why)
        self._watching = False
        self._own.ignore()
        self._committer.full = None
        self._main.modules.on_outermost = self._told_before
        self._seen.end(self._why if self._ever or kineto.devices() else None)

    def abandon(self) -> None:
        """In a forked child: nothing here is its own."""
        self._watching, self._kinds = False, None
        self._own.ignore()
        self._seen.abandon()

    # --- moments ------------------------------------------------------------------------------------------------------

    def _module_called(self, told: ModuleCalled | None) -> ModuleCalled:
        """``told`` of the call of an outermost module, which is a moment, too."""
        self._told_before = told

        def called(frame: FrameType) -> None:
            self.between_ops()
            if told is not None:
                told(frame)

        return called

    def between_ops(self) -> None:
        """The calling thread is between ops, as far as the caller knows: a cycle may end here, and one begin."""
        if not self._watching or self._over or get_ident() != self._owner:
            return
        if self._kinds is not None and self._main.row - self._seen.first < CYCLE_ROWS:
            return
        try:
            if self._own.running or not (self._kinds or kineto.devices()) or not _is_safe(self._streams):
                return
            if self._kinds is not None:
                self._end()
            if not self._over:
                self._begin()
        except Exception as error:  # whatever it is, it is the profiler's
            self._give_up(error)

    def full(self, stream: RowBuffer) -> None:
        """Many rows have come together, the last of which is being written: longer than that no cycle gets."""
        if stream is not self._main or self._kinds is None or stream.row < stream.most:
            return
        if torch._C._current_autograd_node() is None and not kineto.is_captured():
            self.pause(NO_MOMENT)

    def pause(self, why: str) -> None:
        """End the cycle that is under way, wherever that is; what follows is not known until the next one begins."""
        if self._kinds is None or get_ident() != self._owner:
            return
        try:
            self._end()
            self._why = why if not self._over else self._why
        except Exception as error:
            self._give_up(error)

    def _step_aside(self) -> None:
        """The program is about to start a profiler."""
        if self._watching:
            if self._kinds is None and not self._over:
                self._seen.miss(self._why)
                self._why = ANOTHER
            self.pause(ANOTHER)

    # --- cycles -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if torch._C._autograd._profiler_enabled():  # since before anybody looked
            self._why = ANOTHER
            return
        kinds = kineto.devices()
        self._seen.miss(self._why)
        kineto.start(kinds)
        self._kinds, self._ever = kinds, True
        self._main.most = self._main.row + LONGEST * CYCLE_ROWS
        self._main.limit = min(self._main.limit, self._main.most)
        self._seen.collect()

    def _end(self) -> None:
        kinds, self._kinds = self._kinds or (), None
        self._main.most = NO_LIMIT
        overrun = kineto.is_overrun()
        with _without_collections():
            events, still_open = kineto.stop(kinds)
            self._seen.tell(events, OVERRUN if overrun else None)
            del events
        self._why = NOT_BEGUN
        scope = next((name for name in still_open if "::" not in name and name not in kineto.OF_ONE_OP), None)
        if scope is not None:  # it writes into memory of this session when it ends, if another one runs then
            self._over, self._why = True, STILL_OPEN.format(scope)

    def _give_up(self, error: Exception) -> None:
        self._over, self._kinds = True, None
        self._why = f"{type(error).__name__}: {error}"
        self._seen.drop(self._why)


@contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage is collected for what lives within: each would go through the program's objects (half of the time)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _is_safe(streams: Streams) -> bool:
    """Whether nothing is under way in the calling thread of which the profiler keeps an account."""
    if streams.between_ops() is not streams.main or torch._C._current_autograd_node() is not None:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if any(code.co_name == name and code.co_filename.endswith(file) for file, name in SCOPES):
            return False
        frame = frame.f_back
    return not kineto.is_captured()
