"""The provider of recorded values: those of A replace what an op of B reads, draws and gives.

Owns the checks before a tensor is overwritten, and the write, by which a tensor keeps its place in the graph, its
aliases, its strides and its version. Only its bytes change. Also starts the recorder of a program that runs again with
values injected, whatever provides them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from rltrace.extension import extensions
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.op_info import results_of
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import in_words, is_compound
from rltrace.recorder.digests.rng_state import generator_of, state_digest
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.session import Session
from rltrace.rerun.account import Account
from rltrace.rerun.follower import InjectionFollower, NotInjectedError, check_fits, device_words
from rltrace.rerun.hook import Injections, OpInjection, Provider, RunningOp, StreamProvider
from rltrace.rerun.op_kinds import OUTSIDE, RESULT, OpDistance, OpKind, OpKinds
from rltrace.rerun.plan import Attempt, Injection, InjectionPlan, Number, Place, plans_of
from rltrace.rerun.recorded_op import tensor_of
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.read.values import Value

Tensor = torch.Tensor


class ValuesProvider(Provider):
    """A's values for one process."""

    name = "values"

    def __init__(self, follower: InjectionFollower) -> None:
        self._follower = follower

    def of_stream(self, stream: OpRecorder) -> StreamValues:
        return StreamValues(stream, self._follower)

    def account(self) -> Account:
        return self._follower.account()


class StreamValues(StreamProvider):
    """A's values for one stream."""

    def __init__(self, stream: OpRecorder, follower: InjectionFollower) -> None:
        self._name = stream.name
        self.follower = follower
        self.kinds = OpKinds(stream.process.tables.words)
        self._due: dict[Place, Injection] | None = None
        follower.begin(stream.name)

    def begins(self, step: int, attempt: Attempt) -> bool:
        self._due = self.follower.due_in(self._name, attempt)
        return self._due is not None

    def may_have(self, func: OpOverload) -> bool:
        return self._due is not None

    def find(self, op: RunningOp) -> ValueInjection | None:
        injection = None if self._due is None else self._due.get(op.place)
        return None if injection is None else ValueInjection(self, op, injection)

    def made(self, op: RunningOp) -> None:
        """An op has run: its injection is due no longer."""
        if self._due is not None:
            del self._due[op.place]


class ValueInjection(OpInjection):
    """A's values for one op."""

    def __init__(self, values: StreamValues, op: RunningOp, injection: Injection) -> None:
        self._values = values
        self._op = op
        self._injection = injection
        self._digests = op.stream.process.digests
        self._distance = OpDistance()
        self._reason: str | None = None
        """Why it is impossible; None: it is not, so far."""
        self._is_propagated = values.follower.origins and not self._has_recorded_inputs()

    def _has_recorded_inputs(self) -> bool:
        """Whether the inputs of the op equal those in A, outside data aside."""
        tensors, digests = self._op.tensors, self._digests
        return all(
            place < len(tensors) and digests.of(tensors[place]) == digest
            for place, digest in self._injection.produced_inputs
        )

    def before(self) -> None:
        """Inject what the op reads: outside data and the RNG state."""
        if not self._is_propagated:
            with self._reasons():
                self._inject_inputs()

    def after(self, out: Any) -> Any:
        """Inject the results of the op; returns its new return value."""
        values, follower = self._values, self._values.follower
        values.made(self._op)
        if self._is_propagated:
            follower.receive()
            return out
        if self._reason is None:
            with self._reasons():
                out = self._inject_results(out)
        if self._reason is None:
            follower.done(self._injection, self._kind, self._distance)
        else:
            follower.miss(self._injection, self._reason)
        return out

    def raised(self) -> None:
        """There is no row here, nor in A: the next call at this place has the row."""
        if not self._is_propagated:
            self._values.follower.raised(self._injection)

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except NotInjectedError as error:
            self._reason = str(error)

    def _kind(self) -> OpKind:
        """Kind of the op here."""
        op, process = self._op, self._op.stream.process
        device = op.tensors[0].device.type if op.tensors else "cpu"
        kernel = process.kernels.of(op.plan.name, torch.get_num_threads(), device)
        return self._values.kinds.of(op.plan.name, op.stream.site, kernel)

    def _inject_inputs(self) -> None:
        op, injection = self._op, self._injection
        devices = tuple(tensor.device.type for tensor in op.tensors)
        if devices != injection.devices:
            here, there = device_words(devices), device_words(injection.devices)
            raise NotInjectedError(f"its tensors are on {here} here and on {there} in A")
        pairs = [(_at(op.tensors, place), digest) for place, digest in injection.inputs]
        values = [self._fitting(tensor, digest) for tensor, digest in pairs]
        if injection.state and self._set_state(generator_of(op.args, op.kwargs), injection.state):
            self._distance.generator()
        for (tensor, digest), value in zip(pairs, values, strict=True):
            self._overwrite(tensor, value, digest, OUTSIDE)
        if injection.inputs or injection.state:
            op.inputs_written([place for place, _ in injection.inputs], injection.state)

    def _inject_results(self, out: Any) -> Any:
        op, injection = self._op, self._injection
        if injection.number is not None:
            number = _number(out, injection.number)
            if repr(out) != repr(number):
                self._distance.number(number, out)
            return number
        written, returned = results_of(op.plan, op.args, op.kwargs, op.tensors, out)
        results = [*written, *returned]
        if len(results) != len(injection.outputs):
            raise NotInjectedError(f"it has {len(results)} results here and {len(injection.outputs)} in A")
        targets = [(tensor, digest) for tensor, digest in zip(results, injection.outputs, strict=True) if digest]
        values = [self._fitting(tensor, digest) for tensor, digest in targets]
        inputs = {address_of(tensor) for tensor in op.tensors}
        fresh = set(map(id, returned))
        for (tensor, _), value in zip(targets, values, strict=True):
            if value is not None and id(tensor) in fresh and address_of(tensor) in inputs:
                raise NotInjectedError("it returned memory of an input")
        for (tensor, digest), value in zip(targets, values, strict=True):
            self._overwrite(tensor, value, digest, RESULT)
        return out

    def _set_state(self, generator: torch.Generator | None, digest: int) -> bool:
        """Set the generator to A's state; returns whether it differed."""
        if generator is None:
            raise NotInjectedError("it draws from no generator here")
        if state_digest(generator) == digest:
            return False
        try:
            generator.set_state(torch.from_numpy(np.array(self._values.follower.value(digest).raw)))
        except RuntimeError as error:
            raise NotInjectedError(f"the generator refuses A's state: {error}") from None
        return True

    def _fitting(self, tensor: Tensor, digest: int) -> Value | None:
        """A's value for a tensor of B; None: B has it already. Raises NotInjectedError where it does not fit."""
        if is_compound(tensor):
            raise NotInjectedError("the tensor consists of several here (sparse, nested, a subclass)")
        if self._digests.of(tensor) == digest:
            return None
        value = self._values.follower.value(digest)
        check_fits(value, "a tensor", str(tensor.dtype).removeprefix("torch."), tuple(map(int, tensor.shape)))
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise NotInjectedError("several elements of a tensor share one place in memory")
        return value

    def _overwrite(self, tensor: Tensor, value: Value | None, digest: int, part: str) -> None:
        if value is None:
            return
        raw = value.raw
        try:
            here = np.frombuffer(bytes_of(tensor, self._op.stream.process.layouts.of(tensor)), raw.dtype)
        except NoBytesError as error:
            raise NotInjectedError(str(error)) from None
        self._distance.tensors(part, value.dtype, raw, here.reshape(raw.shape))
        try:
            with torch.no_grad():
                _copy(tensor_of(value), tensor)
        except RuntimeError as error:
            raise NotInjectedError(f"its memory cannot be written: {error}") from None
        if self._digests.of(tensor) != digest:
            raise NotInjectedError("A's bytes could not be written to its memory")


def _copy(source: Tensor, target: Tensor) -> None:
    """Copy the bytes of ``source``: as integers, since copies of some dtypes fail or change bits."""
    if target.is_conj() or target.is_neg():
        target.copy_(source)
    else:
        in_words(target.detach()).copy_(in_words(source))


def _at(tensors: Sequence[Tensor], place: int) -> Tensor:
    if place >= len(tensors):
        raise NotInjectedError(f"it has {len(tensors)} tensors here, fewer than in A")
    return tensors[place]


def _number(here: Any, number: Number) -> Number:
    """A's Python number, which replaces B's."""
    if type(here) is not type(number):
        raise NotInjectedError(f"it returns a {type(here).__name__} here and a {type(number).__name__} in A")
    return number


def values_of(
    trace: Trace, plans: dict[str, InjectionPlan], name: str, *, origins: bool = False
) -> ValuesProvider | None:
    """A's values for the process of that name; None: the plans have none."""
    process = next((process for process in trace.processes if process.name == name and name in plans), None)
    return None if process is None else ValuesProvider(InjectionFollower(plans[name], process, origins=origins))


def values_provider(options: RecordOptions) -> Callable[[str], ValuesProvider | None]:
    """What makes the provider of a process of that name."""
    trace = open_trace(options.replay)
    chosen = options.kinds, options.only
    plans = plans_of(trace, options.inject, *chosen, lockstep=options.lockstep)
    return lambda name: values_of(trace, plans, name, origins=options.origins)


MakeProvider = Callable[[str], Provider | None]
"""Makes the provider of the process of that name; None: there is nothing for it."""


def attach_by(makers: Sequence[MakeProvider]) -> Callable[[str], Injections | None]:
    """What makes the injections of a process; None: it is recorded without."""

    def attach(name: str) -> Injections | None:
        providers = [provider for make in makers if (provider := make(name)) is not None]
        return Injections(providers) if providers else None

    return attach


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process; called once, by the bootstrap."""
    known = {"": "rltrace.rerun.values:values_provider"}
    for extension in extensions():
        known |= extension.providers
    return sessions.start(options, token, attach_by([resolve_name(known[options.provider])(options)]))
