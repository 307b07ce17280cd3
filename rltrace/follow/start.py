"""The recorder with A's values at its side: how a process of a replay starts.

Owns the companion of a recording that is a replay. A process that A does not have is recorded as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.follow.account import Account, add_up, record_of
from rltrace.follow.only import ALL, Only, read_only
from rltrace.follow.plan import Plan, compile_of, make_plans, window_of
from rltrace.follow.stream import Follower, FollowingStream
from rltrace.record import current_session
from rltrace.record import session as sessions
from rltrace.record.keepers import Keepers
from rltrace.record.library import recording
from rltrace.record.options import RecordOptions
from rltrace.record.process import ProcessState
from rltrace.record.session import Session
from rltrace.record.stream import RowTaker, StreamRecorder
from rltrace.select import parse_selectors
from rltrace.trace.reader import Trace, open_trace


class Replaying:
    """Goes along with the recording of one process and puts A's values in."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def joined(self, keepers: Keepers) -> Keepers:
        return keepers._replace(make_stream=self._make_stream)

    def _make_stream(self, process: ProcessState, number: int, name: str, committer: RowTaker) -> StreamRecorder:
        if not process.tables.remembered:
            process.tables.remember("frames", "kernels", "sites")
        return FollowingStream(process, number, name, committer, follower=self._follower)

    def records(self) -> list[dict[str, Any]]:
        return [record_of(self._follower.account())]


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process as part of a replay; called once, by the bootstrap."""
    trace = open_trace(options.replay)
    only = read_only(options.kinds, options.only)
    plans = make_plans(trace, parse_selectors(options.inject), only, lockstep=options.lockstep)
    return sessions.start(options, token, lambda name: companion(trace, plans, name, origins=options.origins))


def companion(trace: Trace, plans: Mapping[str, Plan], name: str, *, origins: bool = False) -> Replaying | None:
    """What goes along with the process of that name; None where nothing of A's is meant for it."""
    plan = plans.get(name)
    if plan is None:
        return None
    process = next(process for process in trace.processes if process.name == name)
    return Replaying(Follower(plan, process, origins=origins))


@dataclass
class Replay:
    """A replay within this process; ``account`` is there when its block has ended."""

    account: Account | None = None


@contextmanager
def replay_block(
    a: str | Path,
    inject: str | tuple[str, ...],
    path: str | Path,
    *,
    only: Only = ALL,
    lockstep: bool = False,
    origins: bool = False,
    force: bool = False,
) -> Iterator[Replay]:
    """Record the block's ops into a new trace at ``path``, with values of ``a`` put in where ``inject`` finds ops.

    ``only``, ``lockstep`` and ``origins`` are those of ``make_plans`` and ``RecordOptions``.

    Raises UsageError, HoleError where there is nothing to put in; RecordError where the recording broke off.
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
    with recording(options, force=force, companion=lambda name: companion(trace, plans, name, origins=origins)):
        yield replay
    replay.account = add_up(plans, open_trace(path))
