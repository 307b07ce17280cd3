"""Injection while a run is recorded: values of another trace in place of this run's.

Owns the way from an op that runs to the injection that is meant for it. It happens when the call site is known and the
results are not digested yet; so the row holds what the program went on with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.hooks import OpHook, Run
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.replay.injector import Injector, NotInjectedError
from rltrace.replay.op_kinds import OpDistance, OpKind, OpKinds, Tallies
from rltrace.replay.plan import Attempt, Injection, InjectionPlan, Place
from rltrace.replay.report import NO_STEP, NO_STREAM, NOT_REACHED, RAISED, Account, Missed, missed
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.values import Value


class InjectionFollower:
    """The injections of one process, while it runs."""

    def __init__(self, plan: InjectionPlan, process: ProcessTrace, *, origins: bool = False) -> None:
        """``origins``: values are put in only where an op was given what it was given in A."""
        self.plan = plan
        self.origins = origins
        self._received = 0
        self._values = process.values
        self._lock = threading.Lock()
        self._left = {
            name: {step: dict(places) for step, places in steps.items()} for name, steps in plan.streams.items()
        }
        self._met: set[str] = set()
        self._came: set[tuple[str, Attempt]] = set()
        self._done = 0
        self._missed: list[Missed] = []
        self._kinds = OpKinds(process.words)
        self._other = Tallies()
        self._raised: set[tuple[str, int]] = set()

    def fetch(self, digest: int) -> Value | None:
        """A's value; any thread may ask. Raises HoleError."""
        with self._lock:
            return self._values.get(digest)

    def begin(self, stream: str) -> None:
        self._met.add(stream)

    def due_in(self, stream: str, step: Attempt) -> dict[Place, Injection] | None:
        """The injections of the step that follows ``step``; whoever carries one out takes it from there."""
        self._came.add((stream, step))
        return self._left.get(stream, {}).get(step)

    def done(self, injection: Injection, here: Callable[[], OpKind], apart: OpDistance) -> None:
        """One injection happened; ``apart``: what B had otherwise there, at an op of the kind ``here``."""
        with self._lock:
            self._done += 1
            if apart:
                kind = self._kinds.of(injection.place[0], injection.site, injection.kernel)
                self._other.add(kind, here(), injection.stream, injection.row, injection.step, apart)

    def receive(self) -> None:
        """One injection was not for an op that had been given other values than in A: it only passes them on."""
        with self._lock:
            self._received += 1

    def miss(self, injection: Injection, why: str) -> None:
        with self._lock:
            self._missed.append(missed(injection, why))

    def raised(self, injection: Injection) -> None:
        """The op raised an error; should nothing come after it, that is why the injection did not happen."""
        with self._lock:
            self._raised.add((injection.stream, injection.row))

    def account(self) -> Account:
        """What became of all of them."""
        found = list(self._missed)
        for name, steps in self._left.items():
            for step, places in steps.items():
                why = NOT_REACHED if (name, step) in self._came else NO_STEP
                why = why if name in self._met else NO_STREAM
                raised = {left.row for left in places.values() if (name, left.row) in self._raised}
                found += [missed(left, RAISED if left.row in raised else why) for left in places.values()]
        return Account(len(self.plan), self._done, tuple(found), self._other.kinds(), self._received)


class InjectionHook(OpHook[None]):
    """Puts values of A into the ops of one stream where the plan has an injection for them."""

    def __init__(self, stream: OpRecorder, follower: InjectionFollower) -> None:
        process = stream.process
        self._stream = stream
        self._process = process
        self._follower = follower
        self._injector = Injector(process.digests, process.layouts, follower.fetch)
        self._kinds = OpKinds(process.tables.words)
        self._step = -1
        self._due: dict[Place, Injection] | None = None
        self._seen: dict[tuple[str, int], int] = {}
        follower.begin(stream.name)

    def replacement(self, func: OpOverload) -> Run | None:
        if self._process.step != self._step:
            self._step = self._process.step
            self._due = self._follower.due_in(self._stream.name, self._process.attempt)
            self._seen.clear()
        return None if self._due is None else self.run

    def needs_digests(self) -> bool:
        return self._due is not None  # ``_correct_reads`` writes digests of the row at hand

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op, with what is to be injected."""
        due = self._due
        assert due is not None
        try:
            place = self._place(func)
        except Exception as error:
            self._process.fail(error)
            return func(*args, **kwargs)
        injection = due.get(place)
        if injection is None:
            out = func(*args, **kwargs)
            self._seen[place[:2]] = place[2] + 1
            return out
        tensors = op_tensors(args, kwargs)
        if self._follower.origins and self._receives(injection, tensors):
            out = func(*args, **kwargs)
            self._seen[place[:2]] = place[2] + 1
            del due[place]
            self._follower.receive()
            return out
        apart = OpDistance()
        why = self._before(injection, func, args, kwargs, tensors, apart)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self._follower.raised(injection)  # no row here, nor in A: the next call at this place is the one meant
            raise
        self._seen[place[:2]] = place[2] + 1
        del due[place]
        if why is None:
            out, why = self._after(injection, func, args, kwargs, tensors, out, apart)
        if why is None:
            self._follower.done(injection, lambda: self._kind(place[0], tensors), apart)
        else:
            self._follower.miss(injection, why)
        return out

    def _kind(self, op: str, tensors: list[torch.Tensor]) -> OpKind:
        """Of the op that has just run here."""
        device = tensors[0].device.type if tensors else "cpu"
        kernel = self._process.kernels.of(op, torch.get_num_threads(), device)
        return self._kinds.of(op, self._stream.site, kernel)

    def _receives(self, injection: Injection, tensors: list[torch.Tensor]) -> bool:
        """Whether recorded ops gave the op other values here than in A."""
        try:
            return not self._injector.is_given(injection, tensors)
        except Exception as error:
            self._process.fail(error)
            return True

    def _place(self, func: OpOverload) -> Place:
        """What this call is, among those of its step."""
        site = self._process.tables.key_of("sites", self._stream.site)
        name = self._process.calls.plan(func).name
        return name, site, self._seen.get((name, site), 0)

    def _before(
        self,
        injection: Injection,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        apart: OpDistance,
    ) -> str | None:
        """Put in what belongs before the op; why that was not possible."""
        try:
            self._injector.before(injection, args, kwargs, tensors, apart)
            self._correct_reads(injection, func, tensors)
        except NotInjectedError as error:
            return str(error)
        except Exception as error:
            self._process.fail(error)
            return f"the recorder failed: {error}"
        return None

    def _correct_reads(self, injection: Injection, func: OpOverload, tensors: list[torch.Tensor]) -> None:
        """The row had its digests of inputs and generator taken before they were replaced; put those of now."""
        draws = self._process.calls.plan(func).draws
        links = self._stream.links[len(self._stream.links) - len(tensors) :]
        read = [place for place, link in enumerate(links) if link & 1]
        start = len(self._stream.digests) - len(read) - draws
        for place, digest in injection.inputs:
            if place in read:
                self._stream.digests[start + read.index(place)] = digest
        if draws and injection.state:
            self._stream.digests[-1] = injection.state

    def _after(
        self,
        injection: Injection,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        out: Any,
        apart: OpDistance,
    ) -> tuple[Any, str | None]:
        """What the op returns then, and why nothing could be put in."""
        try:
            plan = self._process.calls.plan(func)
            out = self._injector.after(injection, plan, args, kwargs, tensors, out, apart)
        except NotInjectedError as error:
            return out, str(error)
        except Exception as error:
            self._process.fail(error)
            return out, f"the recorder failed: {error}"
        return out, None
