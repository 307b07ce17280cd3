"""Runs the profiler during a recording, in cycles of rows of the first stream, in the thread of that stream.

Owns where a cycle begins and ends: between ops, not in a backward pass, not in the ``forward`` of an
``autograd.Function`` or a compiled region (a scope of the profiler that would outlive the cycle), not while a CUDA
graph is captured, and not while the program runs a profiler. At the end of a cycle its rows are committed, then their
launches: a program that is killed loses the kernel names of one cycle and no row. Unknown launches are recorded with
the reason.

Nothing of this is loaded where kernels are not requested, nothing starts where the program uses no device, and its
failures do not end the recording: they cost the names.
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

from rltrace.extensions.kernels.profiler import kineto
from rltrace.extensions.kernels.profiler.launch_matching import Joined, Launch, ProfilerEvent, join
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.core.row_buffer import NO_LIMIT
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


# --- profilers of the program -----------------------------------------------------------------------------------------
#
# The recorder's session is paused before the program starts a profiler: Kineto runs one session at a time, and the
# program's must neither fail nor contain events of the recorder. ``torch.profiler``, ``torch.autograd.profiler``, its
# older form, ``emit_nvtx`` and ``emit_itt`` all call the functions patched here.


BEGIN: Final = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
END: Final = ("_disable_profiler", "_disable_profiler_legacy")

MODULES: Final = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")
"""Modules that have these functions."""


class ProgramProfilers:
    """Those of one process that start between ``watch`` and ``ignore``."""

    def __init__(self, on_start: Callable[[], None]) -> None:
        """``on_start``: called before each, in the thread that starts it; must not raise."""
        self.running = False
        """Whether one has been prepared or started, and has not ended."""
        self._on_start = on_start
        self._patches = Patches()

    def install(self) -> None:
        for name in (*BEGIN, *END):
            modules = (sys.modules.get(module) for module in MODULES)
            around = self._before if name in BEGIN else self._after
            self._patches.wrap_all((torch._C._autograd, *modules), name, around)

    def uninstall(self) -> None:
        self.running = False
        self._patches.undo_all()

    def _before(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.running = True
        self._on_start()
        return original(*args, **kwargs)

    def _after(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self.running = False


# --- launches ---------------------------------------------------------------------------------------------------------
#
# Owns the range of rows of each cycle, and that they are committed before their launches. A row whose launches are
# known gets them with its earlier kernel evidence (the device that it ran on); others keep that evidence.


OTHER_THREADS = "they ran in other threads, which the profiler does not record"
NOT_SEEN = "their launches were not recorded on the device: they were captured into a CUDA graph, or lost"
BLIND = "the profiler recorded nothing of the device: another tool may use it (nsys, ncu), or permission is missing"

MAX_STRAYS: Final = 200
"""Kinds of launches for no row that are recorded for one cycle; the others are added up."""

MAX_RUNS: Final = 64
"""Runs of unknown rows that are recorded by place for one cycle; of more only the number of rows."""

MAX_KNOWN: Final = 1 << 16

JOIN_COLUMNS: Final = [Column.OP, Column.KERNEL, Column.KIND]


class LaunchRecorder:
    """Records the launches of one process."""

    def __init__(self, process: ProcessState, streams: Streams, committer: Committer) -> None:
        self._process = process
        self._streams = streams
        self._committer = committer
        self.first = 0
        """First row whose launches are not recorded yet."""
        self._rows: list[NDArray[np.uint32]] | None = None
        """JOIN_COLUMNS of the committed rows of this cycle; None: none is running."""
        self._other_streams: dict[int, int] = {}
        self._unknown: list[Unknown] = []
        self._raised: list[int] = []
        self._known: dict[tuple[int, tuple[Launch, ...]], int] = {}

    def begin(self) -> None:
        """Rows are written from now on."""
        self.first = self._streams.main.row
        self._other_streams = {stream.number: stream.row for stream in self._streams.others}
        self._committer.on_commit = self._add_rows

    def collect(self) -> None:
        """A cycle begins."""
        self._rows = []
        self._raised.clear()
        self._streams.main.raised_rows = self._raised

    def write(self, events: Sequence[ProfilerEvent], why: str | None, *, unfinished: bool) -> None:
        """Commit the rows so far, and the launches of those since ``collect``; ``why``: they are unknown.

        ``unfinished``: the call of the last row has not returned; its launches are written with a later cycle's if
        ``events`` are without that call.
        """
        self._streams.main.raised_rows = None
        self._committer.flush_stream(self._streams.main, lambda: self._new_launched(events, why, unfinished))
        self._rows = None

    def drop(self, why: str) -> None:
        """Drop the cycle: the launches of its rows are unknown."""
        self._rows = self._streams.main.raised_rows = None
        self.miss(why)

    def miss(self, why: str) -> None:
        """The launches of the rows up to here are unknown."""
        main = self._streams.main
        if main.row > self.first:
            self._unknown.append(Unknown(why, main.number, self.first, main.row - self.first))
            self.first = main.row

    def end(self, why: str | None) -> None:
        """Rows are no longer written. ``why``: the remaining launches are unknown; None: need not be recorded."""
        if why is not None:
            self.miss(why)
            if self._unknown:
                self._committer.flush_stream(self._streams.main, lambda: self._new_launched((), None, unfinished=False))
        self.abandon()

    def abandon(self) -> None:
        self._committer.on_commit = None
        self._rows = self._streams.main.raised_rows = None
        self._unknown.clear()

    def _add_rows(self, stream: int, rows: Rows) -> None:
        """Rows are being committed; called by the thread that commits, one at a time."""
        if self._rows is not None and stream == self._streams.main.number and rows.first + len(rows) > self.first:
            self._rows.append(rows.columns[max(self.first - rows.first, 0) :, JOIN_COLUMNS])

    def _new_launched(self, events: Sequence[ProfilerEvent], why: str | None, unfinished: bool) -> NewLaunches | None:
        main = self._streams.main
        rows = np.concatenate([np.zeros((0, len(JOIN_COLUMNS)), np.uint32), *(self._rows or ())])
        first, self.first = self.first, main.row
        unknown, self._unknown = [*self._unknown, *self._of_other_threads()], []
        try:
            ids, strays, reasons = self._join(rows, events, why, unfinished)
        except Exception as error:  # whatever it is, the recording goes on
            ids, strays = np.zeros(0, np.uint32), ()
            reasons = [(f"{type(error).__name__}: {error}", 0, len(rows))] if len(rows) else []
        if unfinished:  # the last row is left to the next call where nothing is said of it
            self.first = first + (len(ids) or sum(count for _, _, count in reasons))
        unknown += [Unknown(reason, main.number, first + start, count) for reason, start, count in reasons]
        return NewLaunches(main.number, first, ids, tuple(unknown), strays) if len(ids) or unknown or strays else None

    def _join(
        self, rows: NDArray[np.uint32], events: Sequence[ProfilerEvent], why: str | None, unfinished: bool
    ) -> tuple[NDArray[np.uint32], tuple[tuple[str, str, int], ...], list[tuple[str, int, int]]]:
        """Ids of evidence, launches for no row, and (why, first row, rows) of unknown launches."""
        ids = np.zeros(len(rows), np.uint32)
        if why is not None or not len(rows):
            return ids[:0], (), [(why, 0, len(rows))] if why is not None and len(rows) else []
        ops = rows[:, 2] == Kind.OP
        places = np.flatnonzero(ops)
        names = self._process.calls.op_names
        operators = [names[op] for op in rows[ops, 0].tolist()]
        found = join(events, operators, self._places_of_raised(ops), unfinished=unfinished)
        reason = found.why or (BLIND if self._is_blind(rows, found) else "")
        if reason:
            return ids[:0], found.strays, [(reason, 0, len(rows))]
        if len(found.launches) < len(places):
            ids, places = ids[: places[-1]], places[:-1]
        evidence = zip(places.tolist(), rows[places, 1].tolist(), found.launches, strict=True)
        ids[places] = [self._evidence(kernel, launches) for _, kernel, launches in evidence]
        lost = places[sorted(found.lost)] if found.lost else places[:0]
        ids[lost] = 0
        runs = list(_runs(lost))
        if len(runs) > MAX_RUNS:
            runs = [(runs[0][0], len(lost))]
        return ids, _merge_rest(found.strays), [(NOT_SEEN, first, count) for first, count in runs]

    def _is_blind(self, rows: NDArray[np.uint32], found: Joined) -> bool:
        """Whether ops ran on a device and no launch at all is known."""
        if found.strays or found.lost or any(found.launches):
            return False
        payloads = self._process.kernels.payloads
        return any("device" in payloads.get(kernel, {}) for kernel in np.unique(rows[:, 1]).tolist())

    def _evidence(self, kernel: int, launches: tuple[Launch, ...]) -> int:
        """Id of the evidence ``kernel`` of a row with its launches; 0: there is nothing to add."""
        found = self._known.get((kernel, launches))
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[kernel, launches] = self._intern(kernel, launches)
        return found

    def _intern(self, kernel: int, launches: tuple[Launch, ...]) -> int:
        plain = self._process.kernels.payloads.get(kernel, {})
        if not launches and "device" not in plain:
            return 0
        geometry = [[list(launch.grid), list(launch.block)] for launch in launches]
        payload = {**plain, "names": [launch.name for launch in launches], LAUNCHES: geometry}
        return self._process.tables.intern("kernels", portable_key("kernel", payload), payload)

    def _places_of_raised(self, ops: NDArray[np.bool_]) -> list[int]:
        """Of each call that raised: the number of ops of the cycle before it."""
        before = np.concatenate([[0], np.cumsum(ops)])
        start = self.first - len(ops)
        return [int(before[min(max(row - start, 0), len(ops))]) for row in self._raised]

    def _of_other_threads(self) -> Iterator[Unknown]:
        """Rows of other streams since the last call."""
        for stream in self._streams.others:
            before, now = self._other_streams.get(stream.number, 0), stream.row
            if now > before:
                self._other_streams[stream.number] = now
                yield Unknown(OTHER_THREADS, stream.number, before, now - before)


def _merge_rest(strays: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    if len(strays) <= MAX_STRAYS:
        return strays
    rest = strays[MAX_STRAYS:]
    return (*strays[:MAX_STRAYS], (f"{len(rest):,} others", "", sum(count for *_, count in rest)))


def _runs(rows: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, count) of consecutive ones."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            yield int(run[0]), len(run)


# --- cycles -----------------------------------------------------------------------------------------------------------


CYCLE_ROWS: Final = 8_192
"""A cycle ends at the first possible moment after so many rows, of which the profiler holds some 10 kB each."""

MAX_CYCLES: Final = 4
"""Longest cycle, in multiples of CYCLE_ROWS, where no such moment comes."""

SCOPES: Final = (("autograd/function.py", "apply"), ("_dynamo/eval_frame.py", "compile_wrapper"))
"""File suffixes and names of torch's functions that are on the stack while torch itself has a scope open."""

ModuleCalled = Callable[[FrameType], None]

NOT_BEGUN = "the profiler had not started"
OTHER_PROFILER = "a profiler of the program ran"
NO_MOMENT = "no point between two ops was reached"
OVERRUN = "the profiler's memory for the device was full"
STILL_OPEN = "a scope of the profiler was not closed: {}"
OTHER_THREAD = "the recording ended in another thread"


class Cycles:
    """The profiler beside one process's first stream."""

    def __init__(self, process: ProcessState, streams: Streams, committer: Committer) -> None:
        self._streams = streams
        self._committer = committer
        self._owner = get_ident()
        self._launches = LaunchRecorder(process, streams, committer)
        self._program_profilers = ProgramProfilers(self._before_program_profiler)
        self._kinds: tuple[str, ...] | None = None
        """Kinds of devices of the current cycle; None: there is none."""
        self._why = NOT_BEGUN
        """Why there is none."""
        self._over = False
        """No cycle follows."""
        self._ever = False
        self._on_outermost: ModuleCalled | None = None
        self._is_watching = False

    @property
    def _main(self) -> OpRecorder:
        return self._streams.main

    # --- the window ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Rows are written from now on, or still."""
        if not self._is_watching:
            self._is_watching = True
            self._launches.begin()
            self._program_profilers.install()
            self._committer.on_full = self.full
            self._main.modules.on_outermost = self._module_called(self._main.modules.on_outermost)
        self.between_ops()

    def uninstall(self) -> None:
        """Rows are no longer written; the launches so far are."""
        if not self._is_watching:
            return
        if self._kinds is not None and get_ident() != self._owner:  # only its own thread can stop it
            self._kinds, self._why, self._over = None, OTHER_THREAD, True
        self.pause(self._why)
        self._is_watching = False
        self._program_profilers.uninstall()
        self._committer.on_full = None
        self._main.modules.on_outermost = self._on_outermost
        self._launches.end(self._why if self._ever or kineto.devices() else None)

    def abandon(self) -> None:
        """In a forked child: the profiler is the parent's."""
        self._is_watching, self._kinds = False, None
        self._program_profilers.uninstall()
        self._launches.abandon()

    # --- moments ------------------------------------------------------------------------------------------------------

    def _module_called(self, original: ModuleCalled | None) -> ModuleCalled:
        """Wrap the hook for calls of outermost modules, which are moments between ops, too."""
        self._on_outermost = original

        def called(frame: FrameType) -> None:
            self.between_ops()
            if original is not None:
                original(frame)

        return called

    def between_ops(self) -> None:
        """The calling thread may be between ops: a cycle may end here, and another begin."""
        if not self._is_watching or self._over or get_ident() != self._owner:
            return
        if self._kinds is not None and self._main.row - self._launches.first < CYCLE_ROWS:
            return
        try:
            if self._program_profilers.running or not (self._kinds or kineto.devices()) or not _is_safe(self._streams):
                return
            if self._kinds is not None:
                self._end()
            if not self._over:
                self._begin()
        except Exception as error:  # whatever it is, it costs only the names
            self._give_up(error)

    def full(self, stream: RowBuffer) -> None:
        """End a cycle that has reached its longest; called while its last row is being written."""
        if stream is not self._main or self._kinds is None or stream.row < stream.wake_by:
            return
        if torch._C._current_autograd_node() is None and not kineto.is_captured():
            self.pause(NO_MOMENT, unfinished=True)

    def pause(self, why: str, *, unfinished: bool = False) -> None:
        """End the current cycle, wherever the thread is; launches are unknown until the next one begins.

        ``unfinished``: the call of the last row has not returned.
        """
        if self._kinds is None or get_ident() != self._owner:
            return
        try:
            self._end(unfinished=unfinished)
            self._why = why if not self._over else self._why
        except Exception as error:
            self._give_up(error)

    def _before_program_profiler(self) -> None:
        """The program is about to start a profiler."""
        if self._is_watching:
            if self._kinds is None and not self._over:
                self._launches.miss(self._why)
                self._why = OTHER_PROFILER
            self.pause(OTHER_PROFILER)

    # --- cycles -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if torch._C._autograd._profiler_enabled():  # since before ``watch``
            self._why = OTHER_PROFILER
            return
        kinds = kineto.devices()
        self._launches.miss(self._why)
        kineto.start(kinds)
        self._kinds, self._ever = kinds, True
        self._main.wake_by = self._main.row + MAX_CYCLES * CYCLE_ROWS
        self._main.limit = min(self._main.limit, self._main.wake_by)
        self._launches.collect()

    def _end(self, *, unfinished: bool = False) -> None:
        kinds, self._kinds = self._kinds or (), None
        self._main.wake_by = NO_LIMIT
        overrun = kineto.is_overrun()
        with _without_collections():
            events, still_open = kineto.stop(kinds)
            self._launches.write(events, OVERRUN if overrun else None, unfinished=unfinished)
            del events
        self._why = NOT_BEGUN
        scope = next((name for name in still_open if "::" not in name and name not in kineto.OF_ONE_OP), None)
        if scope is not None:  # if another session runs when it ends, it writes into memory of this one
            self._over, self._why = True, STILL_OPEN.format(scope)

    def _give_up(self, error: Exception) -> None:
        self._over, self._kinds = True, None
        self._why = f"{type(error).__name__}: {error}"
        self._launches.drop(self._why)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage: each collection would traverse the program's objects (half of the time)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _is_safe(streams: Streams) -> bool:
    """Whether the calling thread has nothing open that the profiler tracks."""
    if streams.between_ops() is not streams.main or torch._C._current_autograd_node() is not None:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if any(code.co_name == name and code.co_filename.endswith(file) for file, name in SCOPES):
            return False
        frame = frame.f_back
    return not kineto.is_captured()
