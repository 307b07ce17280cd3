"""Injection while a run is recorded: values of another trace replace this run's.

Owns the lookup of the injection for an op. It happens after the call site is known and before the results are digested,
so that the row holds the values with which the program continues.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.recorder.core.calls import Call, op_tensors
from rltrace.recorder.core.hooks import FixedCells, OpHook, Run
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.rerun.follower import InjectionFollower, NotInjectedError
from rltrace.rerun.injector import Injector
from rltrace.rerun.op_kinds import OpDistance, OpKind, OpKinds
from rltrace.rerun.plan import Injection, Place


class InjectionHook(OpHook[None]):
    """Injects values of A into the ops of one stream that the plan has injections for."""

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
        return self._due is not None  # ``_correct_reads`` writes digests of the current row

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        """Count the row, also of an op that is left to the class of its tensors and so does not come to ``run``."""
        if self._due is not None:
            key = call.plan.name, self._process.tables.key_of("sites", cells[2])
            self._seen[key] = self._seen.get(key, 0) + 1

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op with its injection, if it has one."""
        due = self._due
        assert due is not None
        try:
            place = self._place(func)
        except Exception as error:
            self._process.fail(error)
            return func(*args, **kwargs)
        injection = due.get(place)
        if injection is None:
            return func(*args, **kwargs)
        tensors = op_tensors(args, kwargs)
        if self._follower.origins and self._receives(injection, tensors):
            out = func(*args, **kwargs)
            del due[place]
            self._follower.receive()
            return out
        distance = OpDistance()
        reason = self._before(injection, func, args, kwargs, tensors, distance)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self._follower.raised(injection)  # no row here, nor in A: the next call at this place has the row
            raise
        del due[place]
        if reason is None:
            out, reason = self._after(injection, func, args, kwargs, tensors, out, distance)
        if reason is None:
            self._follower.done(injection, lambda: self._kind(place[0], tensors), distance)
        else:
            self._follower.miss(injection, reason)
        return out

    def _kind(self, op: str, tensors: list[torch.Tensor]) -> OpKind:
        """Kind of the op that has just run."""
        device = tensors[0].device.type if tensors else "cpu"
        kernel = self._process.kernels.of(op, torch.get_num_threads(), device)
        return self._kinds.of(op, self._stream.site, kernel)

    def _receives(self, injection: Injection, tensors: list[torch.Tensor]) -> bool:
        """Whether inputs that recorded ops wrote differ from those in A."""
        try:
            return not self._injector.has_recorded_inputs(injection, tensors)
        except Exception as error:
            self._process.fail(error)
            return True

    def _place(self, func: OpOverload) -> Place:
        """Identity of this call in its step."""
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
        distance: OpDistance,
    ) -> str | None:
        """Inject what the op reads; returns the reason if that is impossible."""
        try:
            self._injector.before(injection, args, kwargs, tensors, distance)
            self._correct_reads(injection, func, tensors)
        except NotInjectedError as error:
            return str(error)
        except Exception as error:
            self._process.fail(error)
            return f"the recorder failed: {error}"
        return None

    def _correct_reads(self, injection: Injection, func: OpOverload, tensors: list[torch.Tensor]) -> None:
        """Replace the row's digests of inputs and RNG state, which precede the injection."""
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
        distance: OpDistance,
    ) -> tuple[Any, str | None]:
        """Inject the results; returns the return value, and the reason if that is impossible."""
        try:
            plan = self._process.calls.plan(func)
            out = self._injector.after(injection, plan, args, kwargs, tensors, out, distance)
        except NotInjectedError as error:
            return out, str(error)
        except Exception as error:
            self._process.fail(error)
            return out, f"the recorder failed: {error}"
        return out, None
