"""The start of a replay in a process: the recorder, extended by injections.

A process that A does not have is recorded without injections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import Captures
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.api import recording
from rltrace.recorder.session.session import Session
from rltrace.replay.plan import ALL, InjectionFilter, InjectionPlan, compile_of, make_plans, read_filter, window_of
from rltrace.replay.recorder import InjectionFollower, InjectionHook
from rltrace.replay.report import Account, add_up, record_of
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import Trace, open_trace


class ReplayExtension:
    """Extends the recording of one process by injections of A's values."""

    def __init__(self, follower: InjectionFollower) -> None:
        self._follower = follower

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        process.tables.remember("frames", "kernels", "sites")
        return captures._replace(hooks=(lambda stream: InjectionHook(stream, self._follower), *captures.hooks))

    def records(self) -> list[dict[str, Any]]:
        return [record_of(self._follower.account())]


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process in a replay; called once, by the bootstrap."""
    trace = open_trace(options.replay)
    only = read_filter(options.kinds, options.only)
    plans = make_plans(trace, parse_selectors(options.inject), only, lockstep=options.lockstep)
    return sessions.start(options, token, lambda name: extension(trace, plans, name, origins=options.origins))


def extension(
    trace: Trace, plans: Mapping[str, InjectionPlan], name: str, *, origins: bool = False
) -> ReplayExtension | None:
    """The extension for the process of that name; None: the plan has no injections for it."""
    plan = plans.get(name)
    if plan is None:
        return None
    process = next(process for process in trace.processes if process.name == name)
    return ReplayExtension(InjectionFollower(plan, process, origins=origins))


@dataclass
class Replay:
    """A replay within this process; ``account`` is set at the end of its block."""

    account: Account | None = None


@contextmanager
def replay_block(
    a: str | Path,
    inject: str | tuple[str, ...],
    path: str | Path,
    *,
    only: InjectionFilter = ALL,
    lockstep: bool = False,
    origins: bool = False,
    force: bool = False,
) -> Iterator[Replay]:
    """Record the block's ops into a new trace at ``path``, and inject values of ``a`` into ops that ``inject`` matches.

    ``only``, ``lockstep`` and ``origins``: see ``make_plans`` and ``RecordOptions``. Raises UsageError, HoleError where
    nothing can be injected; RecordError where the recording failed.
    """
    if current_session() is not None:
        raise UsageError("this process is already being recorded; a replay needs a process that is not")
    trace = open_trace(a)
    selectors = (inject,) if isinstance(inject, str) else tuple(inject)
    plans = make_plans(trace, parse_selectors(selectors), only, lockstep=lockstep)
    options = RecordOptions(
        str(Path(path).absolute()),
        *window_of(trace),
        compile=compile_of(trace),
        replay=str(Path(a).absolute()),
        inject=selectors,
    )
    replay = Replay()
    with recording(options, force=force, extend=lambda name: extension(trace, plans, name, origins=origins)):
        yield replay
    replay.account = add_up(plans, open_trace(path))
