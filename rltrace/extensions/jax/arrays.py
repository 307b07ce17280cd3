"""Injection into a JAX program: arrays of A replace those of B before and after its calls, and between iterations.

Owns the checks before an array is replaced. JAX never writes an array twice, so others that share its memory keep
theirs. Imports no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rltrace.errors import RecordError
from rltrace.extensions.jax import JAX_ENGINE, hook
from rltrace.extensions.jax.programs import array_like, host_array
from rltrace.extensions.jax.rows import Operand, RowPlace, RowTemplate
from rltrace.recorder import current_session
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.options import RecordOptions
from rltrace.rerun.account import record_of
from rltrace.rerun.follower import InjectionFollower, NotInjectedError, check_fits, device_words
from rltrace.rerun.op_kinds import OUTSIDE, RESULT, OpDistance, OpKinds
from rltrace.rerun.plan import Injection, plans_of
from rltrace.trace.format.schema import Column
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.values import Value

OTHER_CARRY = "a value fits an array of the same name, dtype and shape only: run the program that A is a run of"


class ArrayInjector:
    """Injects values of A into the rows of one process: an ``ArrayHook``."""

    def __init__(self, follower: InjectionFollower, tables: Tables) -> None:
        self._follower = follower
        tables.remember("frames", "kernels", "sites")
        self._kinds = OpKinds(tables.words)
        self._streams: set[int] = set()
        self._begun: dict[int, tuple[OpDistance, str | None]] = {}
        """By stream, of the call that runs now: how B's outside data differs, and why A's was not injected."""

    def begin(self, place: RowPlace, inputs: list[Operand], arrays: list[Any]) -> None:
        injection = self._due(place)
        if injection is None or self._receives(injection, inputs):
            return
        distance = OpDistance()
        reason = _reason(lambda: self._inject_inputs(injection, inputs, arrays, distance))
        self._begun[place.number] = distance, reason

    def finish(
        self,
        place: RowPlace,
        template: RowTemplate,
        inputs: Sequence[Operand],
        outputs: list[Operand],
        arrays: list[Any],
    ) -> None:
        distance, reason = self._begun.pop(place.number, (OpDistance(), None))
        injection = self._due(place)
        if injection is None:
            return
        due = self._follower.due_in(place.stream, place.attempt)
        assert due is not None, "it has an injection"
        del due[place.key]
        if self._receives(injection, inputs):
            self._follower.receive()
            return
        reason = reason or _reason(lambda: self._inject_outputs(injection, template, inputs, outputs, arrays, distance))
        if reason is None:
            kernel = template.columns[Column.KERNEL]
            self._follower.done(injection, lambda: self._kinds.of(place.key[0], place.site, kernel), distance)
        else:
            self._follower.miss(injection, reason)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return (record_of("values", self._follower.account()),)

    def _due(self, place: RowPlace) -> Injection | None:
        if place.number not in self._streams:
            self._streams.add(place.number)
            self._follower.begin(place.stream)
        return (self._follower.due_in(place.stream, place.attempt) or {}).get(place.key)

    def _receives(self, injection: Injection, inputs: Sequence[Operand]) -> bool:
        """Whether inputs that recorded rows wrote differ from those in A, and injections are to be made at origins."""
        produced = injection.produced_inputs if self._follower.origins else ()
        return any(at >= len(inputs) or inputs[at].digest != digest for at, digest in produced)

    def _inject_inputs(
        self, injection: Injection, inputs: list[Operand], arrays: list[Any], distance: OpDistance
    ) -> None:
        """Replace what the call takes from outside. Raises NotInjectedError."""
        devices = tuple(operand.layout.device.partition(":")[0] for operand in inputs)
        if devices != injection.devices:
            here, there = device_words(devices), device_words(injection.devices)
            raise NotInjectedError(f"its arrays are on {here} here and on {there} in A")
        values = [(at, self._fitting(inputs[at], digest)) for at, digest in injection.inputs]
        for at, value in values:
            if value is None:
                continue
            if at >= len(arrays):
                raise NotInjectedError("what differs is a constant of the compiled function: make it an argument")
            inputs[at], arrays[at] = _replaced(inputs[at], arrays[at], value, OUTSIDE, distance)

    def _inject_outputs(
        self,
        injection: Injection,
        template: RowTemplate,
        inputs: Sequence[Operand],
        outputs: list[Operand],
        arrays: list[Any],
        distance: OpDistance,
    ) -> None:
        """Replace what the row wrote. Raises NotInjectedError."""
        if any(at >= len(inputs) or inputs[at].digest != digest for at, digest in injection.inputs):
            raise NotInjectedError("what the loop reads differs, and was computed before these steps")
        if template.names != injection.names or len(outputs) != len(injection.outputs):
            theirs, own = _names(injection.names, injection.outputs), _names(template.names, outputs)
            raise NotInjectedError(f"it writes {own} here and {theirs} in A; {OTHER_CARRY}")
        values = [
            self._fitting(operand, digest) if digest else None
            for operand, digest in zip(outputs, injection.outputs, strict=True)
        ]
        for at, value in enumerate(values):
            if value is not None:
                outputs[at], arrays[at] = _replaced(outputs[at], arrays[at], value, RESULT, distance)

    def _fitting(self, operand: Operand, digest: int) -> Value | None:
        """A's value for an array of B; None: B has it already. Raises NotInjectedError where it does not fit."""
        if operand.digest == digest:
            return None
        value, layout = self._follower.value(digest), operand.layout
        check_fits(value, "an array", layout.dtype, layout.shape, f"; {OTHER_CARRY}")
        return value


def _replaced(operand: Operand, array: Any, value: Value, part: str, distance: OpDistance) -> tuple[Operand, Any]:
    """The operand and the array with A's value in place of B's."""
    here = host_array(array)
    distance.tensors(part, value.dtype, value.raw, here.view(value.raw.dtype))
    content = value.raw.copy().view(here.dtype)
    return Operand(operand.layout, value.digest), array_like(array, content)


def _reason(inject: Callable[[], None]) -> str | None:
    """Why an injection cannot be made; None: it has been made."""
    try:
        inject()
    except NotInjectedError as error:
        return str(error)
    return None


def _names(names: Sequence[str], arrays: Sequence[object]) -> str:
    """``3 arrays (weights, key)``."""
    named = ", ".join(filter(None, names))
    return f"{len(arrays)} arrays" + (f" ({named})" if named else "")


def start_injecting(options: RecordOptions, token: str) -> None:
    """Start to record this process in a replay of a JAX trace; called once, by the bootstrap. Raises RecordError."""
    trace = open_trace(options.replay)
    if current_session() is None and not any(process.engine == JAX_ENGINE for process in trace.processes):
        raise RecordError(f"{trace.path} is of a program that computes with torch, and this one imports JAX first")
    plans = plans_of(trace, options.inject, options.kinds, options.only, lockstep=options.lockstep)
    processes = {process.name: process for process in trace.processes}

    def injector(name: str, tables: Tables) -> ArrayInjector | None:
        if name not in plans:
            return None
        return ArrayInjector(InjectionFollower(plans[name], processes[name], origins=options.origins), tables)

    hook.start(options, token, injector)
