"""The recorder with A at its side to be held against: how a process of ``record --against`` starts.

Owns the extension of such a recording. A process that A does not have is recorded as any other, and nothing is said of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.live_diff.recorder import LiveDiffHook, LiveState
from rltrace.live_diff.result import LiveResult, found_in, record_of
from rltrace.live_diff.view import PAYLOADS
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import Captures
from rltrace.recorder.capture.values import ValueQueue
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.api import recording
from rltrace.recorder.session.session import Session
from rltrace.replay.plan import window_of
from rltrace.trace.format.records import ValueRequest
from rltrace.trace.read.reader import Trace, open_trace

RECORDED = "the first op that differs"
"""In place of a selector, in the trace: which values are recorded."""


class LiveDiffExtension:
    """Goes along with the recording of one process and holds it against A's."""

    def __init__(self, trace: Trace, name: str, options: RecordOptions) -> None:
        self._name = name
        process = next(process for process in trace.processes if process.name == name)
        values = ValueQueue(ValueRequest((RECORDED,), True, options.values_limit))
        self._state = LiveState(process, values, stop=options.stop)

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        process.tables.remember(*PAYLOADS)
        hooks = lambda stream: LiveDiffHook(stream, self._state, _stop), *captures.hooks
        return replace(captures, hooks=hooks, values=self._state.values)

    def records(self) -> list[dict[str, Any]]:
        return [record_of(self._state.found(self._name))]


def _stop() -> None:
    session = sessions.current.session
    if session is not None:
        session.stop_program()


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process and to hold it against A; called once, by the bootstrap."""
    trace = open_trace(options.against)
    return sessions.start(options, token, lambda name: extension(trace, options, name))


def extension(trace: Trace, options: RecordOptions, name: str) -> LiveDiffExtension | None:
    """What goes along with the process of that name; None where A has none."""
    return LiveDiffExtension(trace, name, options) if any(process.name == name for process in trace.processes) else None


@dataclass
class LiveRecording:
    """A recording within this process; ``found`` is there when its block has ended."""

    found: list[LiveResult] | None = None


@contextmanager
def against_block(
    a: str | Path, path: str | Path, *, stop: bool = False, force: bool = False
) -> Iterator[LiveRecording]:
    """Record the block's ops into a new trace at ``path``, held against ``a``; ``stop`` raises KeyboardInterrupt in it.

    Raises UsageError where A has no ops; RecordError where the recording broke off.
    """
    if current_session() is not None:
        raise UsageError("this process is already being recorded; recordings cannot be nested")
    trace = open_trace(a)
    options = RecordOptions(str(Path(path).absolute()), *window_of(trace), against=str(Path(a).absolute()), stop=stop)
    held = LiveRecording()
    try:
        with recording(options, force=force, extend=lambda name: extension(trace, options, name)):
            yield held
    finally:
        held.found = found_in(open_trace(path))
