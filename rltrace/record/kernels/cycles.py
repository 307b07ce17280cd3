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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Final

import torch

from rltrace.record.kernels import kineto
from rltrace.record.kernels.programs_own import ProgramsOwn
from rltrace.record.kernels.seen import Seen
from rltrace.record.open_rows import NO_LIMIT

if TYPE_CHECKING:
    from rltrace.record.commit import Committer
    from rltrace.record.open_rows import OpenRows
    from rltrace.record.process import ProcessState
    from rltrace.record.stream import StreamRecorder
    from rltrace.record.streams import Streams

CYCLE_ROWS: Final = 8_192
"""A cycle ends at the first chance after so many rows; what the profiler keeps of them is some 10 kB a row."""

LONGEST: Final = 4
"""So many times as long a cycle gets at most where no chance comes."""

SCOPES: Final = (("autograd/function.py", "apply"), ("_dynamo/eval_frame.py", "compile_wrapper"))
"""Functions of torch that are on the stack while a scope is open that it opens itself: endings of files, and names."""

ModuleCalled = Callable[[FrameType], None]

NOT_BEGUN = "the profiler had not begun"
ANOTHER = "a profiler of the program's own ran"
NO_MOMENT = "no moment between two ops was met"
OVERRUN = "the profiler's memory for the device was full"
STILL_OPEN = "a scope of the profiler's stayed open: {}"
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
    def _main(self) -> StreamRecorder:
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

    def full(self, stream: OpenRows) -> None:
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
