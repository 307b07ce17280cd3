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
from rltrace.recorder.capture.captures import Captures, Extend, ProgramState, RecordingExtension, remember_names
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.api import recording
from rltrace.recorder.session.session import Session
from rltrace.rerun.follower import InjectionFollower
from rltrace.rerun.memory import MemoryFollower, MemoryHook, StepMemory, restore, restore_generator
from rltrace.rerun.op_sequence import RecordedMemory
from rltrace.rerun.plan import ALL, InjectionFilter, InjectionPlan, compile_of, make_plans, plans_of, window_of
from rltrace.rerun.process_groups import leave_alone
from rltrace.rerun.program import account_record, rank_of
from rltrace.rerun.recorder import InjectionHook
from rltrace.rerun.report import Account, add_up, record_of
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.wording import counted


class ReplayExtension(RecordingExtension):
    """Extends the recording of one process by injections of A's values."""

    def __init__(self, follower: InjectionFollower) -> None:
        self._follower = follower

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        remember_names(process)
        return captures._replace(hooks=(lambda stream: InjectionHook(stream, self._follower), *captures.hooks))

    def records(self) -> list[dict[str, Any]]:
        return [record_of(self._follower.account())]


class MemoryExtension(RecordingExtension):
    """Extends the recording of one process by the memory of recorded steps, which the program runs again."""

    def __init__(self, follower: MemoryFollower, step: int) -> None:
        """``step``: the first of them."""
        self._follower = follower
        self._step = step

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        remember_names(process)
        return captures._replace(hooks=(lambda stream: MemoryHook(stream, self._follower, _stop), *captures.hooks))

    def wakes(self, state: ProgramState) -> None:
        memory = self._follower.memory
        past = memory.past(self._step)
        unknown = set(past.ordinals) - state.ordinals()
        if unknown:
            optimizers = counted(len(unknown), "optimizer") + " of the recorded process"
            state.stop_program(f"{optimizers} made no attempt in the steps before: raise --warm-up")
            return
        restore(memory, state.tensors())
        restore_generator(memory)
        state.count_from(past)

    def records(self) -> list[dict[str, Any]]:
        return [account_record(self._follower.account())]


class Extensions(RecordingExtension):
    """Several extensions of one recording. Before an op those that come first do their work, after it the last ones."""

    def __init__(self, *parts: RecordingExtension) -> None:
        self._parts = parts

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        for part in self._parts:
            captures = part.join(captures, process)
        return captures

    def records(self) -> list[dict[str, Any]]:
        return [record for part in self._parts for record in part.records()]

    def wakes(self, state: ProgramState) -> None:
        for part in self._parts:
            part.wakes(state)


def _stop(why: str) -> None:
    session = current_session()
    if session is not None:
        session.stop_program(why)


def memory_extension(options: RecordOptions, trace: Trace, name: str) -> MemoryExtension | None:
    """The extension for the process of that name; None: it is not the recorded one."""
    if name != options.process:
        return None
    process = next(process for process in trace.processes if process.name == name)
    follower = MemoryFollower(StepMemory(process, options.pause, RecordedMemory(trace, process)))

    def refuse(why: str) -> None:
        if follower.refuse(why):
            _stop(why)

    place = rank_of(process)
    if place is not None:
        leave_alone(*place, refuse, lambda: follower.has_begun)
    return MemoryExtension(follower, options.first_step)


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process in a replay, on the memory of recorded steps, or both; called once, by the
    bootstrap.
    """
    makers: list[Extend] = []
    if options.rerun:
        recorded = open_trace(options.rerun)
        makers.append(lambda name: memory_extension(options, recorded, name))
    if options.replay:
        trace = open_trace(options.replay)
        plans = plans_of(
            trace, options.inject, options.kinds, options.only, lockstep=options.lockstep, process=options.process
        )
        makers.append(lambda name: extension(trace, plans, name, origins=options.origins))

    def extend(name: str) -> RecordingExtension | None:
        parts = [part for make in makers if (part := make(name)) is not None]
        return Extensions(*parts) if parts else None

    return sessions.start(options, token, extend)


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
    level, first, end = window_of(trace)
    options = RecordOptions(
        str(Path(path).absolute()),
        level=level,
        steps=(first, end),
        compile=compile_of(trace),
        replay=str(Path(a).absolute()),
        inject=selectors,
    )
    replay = Replay()
    with recording(options, force=force, extend=lambda name: extension(trace, plans, name, origins=origins)):
        yield replay
    replay.account = add_up(plans, open_trace(path))
