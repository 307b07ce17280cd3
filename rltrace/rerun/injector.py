"""One injection: values of A replace those of an op of B while it runs.

Owns the checks before a tensor is overwritten, and the write: in the dispatch mode, below autograd, so that a tensor
keeps its place in the graph, its aliases, its strides and its version. Only its bytes change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rltrace.errors import HoleError
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.op_info import OpPlan, results_of
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import WORDS, Layouts, is_compound
from rltrace.recorder.digests.rng_state import generator_of, state_digest
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.rerun.follower import NotInjectedError
from rltrace.rerun.op_kinds import OUTSIDE, RESULT, OpDistance
from rltrace.rerun.plan import Injection, Number
from rltrace.rerun.recorded_op import tensor_of
from rltrace.trace.read.values import Value

Tensor = torch.Tensor

Fetch = Callable[[int], Value | None]


class Injector:
    """Injects values of A into ops. Knows neither streams nor steps."""

    def __init__(self, digests: TensorDigests, layouts: Layouts, fetch: Fetch) -> None:
        self._digests = digests
        self._layouts = layouts
        self._fetch = fetch

    def has_recorded_inputs(self, injection: Injection, tensors: list[Tensor]) -> bool:
        """Whether the inputs of the op equal those in A, outside data aside."""
        digests, produced = self._digests, injection.produced_inputs
        return all(place < len(tensors) and digests.of(tensors[place]) == digest for place, digest in produced)

    def before(
        self,
        injection: Injection,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        distance: OpDistance,
    ) -> None:
        """Inject what the op reads: outside data and the RNG state.

        Adds the differences between A and B to ``distance``. Raises NotInjectedError.
        """
        devices = tuple(tensor.device.type for tensor in tensors)
        if devices != injection.devices:
            raise NotInjectedError(f"its tensors are on {_words(devices)} here and on {_words(injection.devices)} in A")
        pairs = [(_at(tensors, place), digest) for place, digest in injection.inputs]
        values = [self._fitting(tensor, digest) for tensor, digest in pairs]
        state = injection.state
        if state and self._set_state(generator_of(args, kwargs), state):
            distance.generator()
        for (tensor, digest), value in zip(pairs, values, strict=True):
            self._overwrite(tensor, value, digest, OUTSIDE, distance)

    def after(
        self,
        injection: Injection,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        out: Any,
        distance: OpDistance,
    ) -> Any:
        """Inject the results of the op; returns its new return value.

        Adds the differences between A and B to ``distance``. Raises NotInjectedError.
        """
        if injection.number is not None:
            number = _number(out, injection.number)
            if repr(out) != repr(number):
                distance.number(number, out)
            return number
        written, returned = results_of(plan, args, kwargs, tensors, out)
        results = [*written, *returned]
        if len(results) != len(injection.outputs):
            raise NotInjectedError(f"it has {len(results)} results here and {len(injection.outputs)} in A")
        targets = [(tensor, digest) for tensor, digest in zip(results, injection.outputs, strict=True) if digest]
        values = [self._fitting(tensor, digest) for tensor, digest in targets]
        inputs = {address_of(tensor) for tensor in tensors}
        fresh = set(map(id, returned))
        for (tensor, _), value in zip(targets, values, strict=True):
            if value is not None and id(tensor) in fresh and address_of(tensor) in inputs:
                raise NotInjectedError("it returned memory of an input")
        for (tensor, digest), value in zip(targets, values, strict=True):
            self._overwrite(tensor, value, digest, RESULT, distance)
        return out

    def _set_state(self, generator: torch.Generator | None, digest: int) -> bool:
        """Set the generator to A's state; returns whether it differed."""
        if generator is None:
            raise NotInjectedError("it draws from no generator here")
        if state_digest(generator) == digest:
            return False
        try:
            generator.set_state(torch.from_numpy(np.array(self._value(digest).raw)))
        except RuntimeError as error:
            raise NotInjectedError(f"the generator refuses A's state: {error}") from None
        return True

    def _fitting(self, tensor: Tensor, digest: int) -> Value | None:
        """A's value for a tensor of B; None: B has it already. Raises NotInjectedError where it does not fit."""
        if is_compound(tensor):
            raise NotInjectedError("the tensor consists of several here (sparse, nested, a subclass)")
        if self._digests.of(tensor) == digest:
            return None
        value = self._value(digest)
        here = str(tensor.dtype).removeprefix("torch."), tuple(map(int, tensor.shape))
        if here != (value.dtype, value.shape):
            both = f"{here[0]}{list(here[1])} here and {value.dtype}{list(value.shape)} in A"
            raise NotInjectedError(f"a tensor is {both}")
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise NotInjectedError("several elements of a tensor share one place in memory")
        return value

    def _value(self, digest: int) -> Value:
        try:
            value = self._fetch(digest)
        except HoleError as error:
            raise NotInjectedError(str(error)) from None
        if value is None:
            raise NotInjectedError(f"A has no value {digest:016x}")
        return value

    def _overwrite(self, tensor: Tensor, value: Value | None, digest: int, part: str, distance: OpDistance) -> None:
        if value is None:
            return
        raw = value.raw
        try:
            here = np.frombuffer(bytes_of(tensor, self._layouts.of(tensor)), raw.dtype)
        except NoBytesError as error:
            raise NotInjectedError(str(error)) from None
        distance.tensors(part, value.dtype, raw, here.reshape(raw.shape))
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
        _as_words(target.detach()).copy_(_as_words(source))


def _as_words(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(WORDS[tensor.element_size()])


def _at(tensors: Sequence[Tensor], place: int) -> Tensor:
    if place >= len(tensors):
        raise NotInjectedError(f"it has {len(tensors)} tensors here, fewer than in A")
    return tensors[place]


def _number(here: Any, number: Number) -> Number:
    """A's Python number, which replaces B's."""
    if type(here) is not type(number):
        raise NotInjectedError(f"it returns a {type(here).__name__} here and a {type(number).__name__} in A")
    return number


def _words(devices: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(devices)) or "no device"
