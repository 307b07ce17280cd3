"""The hook by which a program that runs again is given what was recorded: before an op runs, and after it.

Owns the identity of an op within its step, and that a row has the digests of what the op reads and gives. What is given
comes from *providers*: recorded values (``values.py``), or those that extensions add. It happens in the dispatch mode,
below autograd, after the call site is known and before results are digested, so that the row holds the values with
which the program continues.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.recorder.capture.captures import Attachment, Captures, remember_names
from rltrace.recorder.core.calls import Call, op_tensors
from rltrace.recorder.core.hooks import FixedCells, OpHook, Run
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.rerun.account import record_of
from rltrace.rerun.plan import Attempt, Place


@dataclass(slots=True, eq=False)
class RunningOp:
    """An op of the program, before or after it runs."""

    stream: OpRecorder
    func: OpOverload
    plan: OpPlan
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Place
    _tensors: list[torch.Tensor] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Its tensor arguments, found once they are needed: few ops are given anything."""
        if self._tensors is None:
            self._tensors = op_tensors(self.args, self.kwargs)
        return self._tensors

    def inputs_written(self, places: Iterable[int], state: int | None) -> None:
        """What the op is about to read has been replaced: the tensors at these places, and the state of its generator
        by the one with this digest. The row's digests, which precede this, are corrected.
        """
        stream, count = self.stream, len(self.tensors)
        read = [place for place in range(count) if stream.links[place - count] & 1]
        start = len(stream.digests) - len(read) - self.plan.draws
        for place in set(read).intersection(places):
            stream.digests[start + read.index(place)] = stream.process.digests.of(self.tensors[place])
        if self.plan.draws and state is not None:
            stream.digests[-1] = state
        for hook in stream.hooks:
            hook.inputs_written(self.func, self.args, self.kwargs)


class OpInjection:
    """What a provider has for one op; methods do nothing unless overridden."""

    def before(self) -> None:
        """The op is about to run."""

    def after(self, out: Any) -> Any:
        """The op has returned ``out``; returns what it returns to the program."""
        return out

    def raised(self) -> None:
        """The op raised an error."""


class StreamProvider:
    """What a provider has for the ops of one stream; methods do nothing unless overridden."""

    def begins(self, step: int, attempt: Attempt) -> bool:
        """A step begins, after this attempt of an optimizer; returns whether ops of it are found by their places."""
        return False

    def may_have(self, func: OpOverload) -> bool:
        """Whether there may be something for an op, which runs now."""
        return True

    def find(self, op: RunningOp) -> OpInjection | None:
        """What there is for an op, once."""
        return None


class Provider(ABC):
    """What is given to one process of a program."""

    name: str
    """By which its account is found in a journal."""

    @abstractmethod
    def of_stream(self, stream: OpRecorder) -> StreamProvider:
        """What it has for one stream."""

    @abstractmethod
    def account(self) -> Any:
        """What was requested, and what of that was done, as a dataclass."""


class InjectionHook(OpHook[None]):
    """Gives the ops of one stream what a provider has for them."""

    def __init__(self, stream: OpRecorder, provider: Provider) -> None:
        self._stream = stream
        self._process = stream.process
        self._provider = provider.of_stream(stream)
        self._step = -1
        self._by_place = False
        self._seen: dict[tuple[str, int], int] = {}

    def replacement(self, func: OpOverload) -> Run | None:
        if self._process.step != self._step:
            self._step = self._process.step
            self._by_place = self._provider.begins(self._step, self._process.attempt)
            self._seen.clear()
        return self.run if self._provider.may_have(func) else None

    def needs_digests(self) -> bool:
        return self._by_place  # ``RunningOp.inputs_written`` writes digests of the current row

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        """Count the row, also of an op that is left to the class of its tensors and so does not come to ``run``."""
        if self._by_place:
            key = call.plan.name, self._process.tables.key_of("sites", cells[2])
            self._seen[key] = self._seen.get(key, 0) + 1

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op with what there is for it."""
        injection: OpInjection | None = None
        try:
            injection = self._provider.find(self._op(func, args, kwargs))
            if injection is not None:
                injection.before()
        except Exception as error:
            self._process.fail(error)
            injection = None
        if injection is None:
            return func(*args, **kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            injection.raised()
            raise
        try:
            return injection.after(out)
        except Exception as error:
            self._process.fail(error)
            return out

    def _op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunningOp:
        plan = self._process.calls.plan(func)
        site = self._process.tables.key_of("sites", self._stream.site)
        place = plan.name, site, self._seen.get((plan.name, site), 0)
        return RunningOp(self._stream, func, plan, args, kwargs, place)


class Injections(Attachment):
    """What providers have for one process, attached to its recording. Before an op the first of them does its work
    first, after it last.
    """

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        remember_names(process)
        own = (partial(InjectionHook, provider=provider) for provider in reversed(self._providers))
        return captures._replace(hooks=(*own, *captures.hooks))

    def records(self) -> list[dict[str, Any]]:
        return [record_of(provider.name, provider.account()) for provider in self._providers]
