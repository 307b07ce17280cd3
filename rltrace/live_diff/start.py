"""Starts a live comparison: the extension of a recording under ``record --against``.

A process that A does not have is recorded as usual, without a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.live_diff.recorder import LiveDiffHook, LiveState
from rltrace.live_diff.result import LiveResult, read_results, to_record
from rltrace.live_diff.view import PAYLOADS
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.capture_queue import ValueQueue
from rltrace.recorder.capture.captures import Captures, RecordingExtension
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.api import recording
from rltrace.recorder.session.session import Session
from rltrace.replay.plan import window_of
from rltrace.trace.format.records import ValueRequest
from rltrace.trace.read.reader import Trace, open_trace

RECORDED_VALUES = "the first op that differs"
"""What the trace gives as selector of the recorded values."""


class LiveDiffExtension(RecordingExtension):
    """Compares the recording of one process with A's."""

    def __init__(self, trace: Trace, name: str, options: RecordOptions) -> None:
        self._name = name
        process = next(process for process in trace.processes if process.name == name)
        values = ValueQueue(ValueRequest((RECORDED_VALUES,), True, options.values_limit))
        self._state = LiveState(process, values, stop=options.stop)

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        process.tables.remember(*PAYLOADS)
        hooks = lambda stream: LiveDiffHook(stream, self._state, _stop), *captures.hooks
        return captures._replace(hooks=hooks, values=self._state.values)

    def records(self) -> list[dict[str, Any]]:
        return [to_record(self._state.found(self._name))]


def _stop() -> None:
    session = sessions.current.session
    if session is not None:
        session.stop_program("--stop ended it at the first op that differs")


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process and to compare it with A; called once, by the bootstrap."""
    trace = open_trace(options.against)
    return sessions.start(options, token, lambda name: make_extension(trace, options, name))


def make_extension(trace: Trace, options: RecordOptions, name: str) -> LiveDiffExtension | None:
    """The extension for the process of that name; None where A has no such process."""
    return LiveDiffExtension(trace, name, options) if any(process.name == name for process in trace.processes) else None


@dataclass
class LiveRecording:
    """A recording within this process; ``found`` is set when its block has ended."""

    found: list[LiveResult] | None = None


@contextmanager
def against_block(
    a: str | Path, path: str | Path, *, stop: bool = False, force: bool = False
) -> Iterator[LiveRecording]:
    """Record the block's ops into a new trace at ``path``, compared with ``a``; ``stop``: the first difference raises
    KeyboardInterrupt in it. Raises UsageError where A has no ops; RecordError where the recording failed.
    """
    if current_session() is not None:
        raise UsageError("this process is already being recorded; recordings cannot be nested")
    trace = open_trace(a)
    options = RecordOptions(str(Path(path).absolute()), *window_of(trace), against=str(Path(a).absolute()), stop=stop)
    live = LiveRecording()
    try:
        with recording(options, force=force, extend=lambda name: make_extension(trace, options, name)):
            yield live
    finally:
        live.found = read_results(open_trace(path))
