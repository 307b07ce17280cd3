"""A stream that takes A's rows in while it records.

Owns the two moments at which that happens: right after a selected op has run, and when a selected module has returned,
before whoever called it sees the result. Rows of tensors that the replay itself keeps are taken after that, so they are
those that the program went on with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.follow.inject import NotInjectedError
from rltrace.follow.rows.choices import CHOICES
from rltrace.follow.rows.names import Names
from rltrace.follow.rows.passes import Passes
from rltrace.follow.rows.put import is_plain, most_in, put_in, rows_of
from rltrace.follow.rows.results import candidates, look_up, named_results
from rltrace.follow.rows.table import OUTPUT, RowTable, Spot
from rltrace.follow.rows.tally import RowAccount, Tally
from rltrace.follow.rows.walks import OpenCall
from rltrace.parity.mapfile import Line
from rltrace.record.memory.storages import address_of
from rltrace.record.modules import CallWatcher, members
from rltrace.record.overrides import StandIn
from rltrace.record.plans import OpPlan
from rltrace.record.rows.stream import KeepingWithRows, WithRows
from rltrace.record.rows.walk import ForwardNames, named_tensors
from rltrace.record.series import unseen
from rltrace.record.stream import StreamRecorder
from rltrace.row_keys import NO_KEY

Tensor = torch.Tensor

GIVEN = "the module returns memory that it was given; what is in it was computed before"
ITS_OWN = "the module returns one of its parameters or buffers"
NO_SUCH = "A chose among more than there are here"


class RowPutter:
    """A's rows and what becomes of them in one process; shared by its threads."""

    def __init__(self, table: RowTable, lines: Sequence[Line] = ()) -> None:
        """``lines``: which modules of A are which here, where their names do not tell."""
        self.table = table
        self.lines = lines
        self.places = table.places
        self._tally = Tally(table.selected)
        self._lock = threading.Lock()

    def put(
        self, call: OpenCall, spot: Spot, tensor: Tensor, step: int, *, but: str = "", below: int | None = None
    ) -> int:
        """Put A's rows into a tensor of ``call``; how many were other ones. ``but``: as ``put_in`` has it.

        ``below``: what A's rows hold must be less, since they are places among so many.
        """
        assert call.walk is not None
        over, again = call.walk.over, call.walk.again
        with self._lock:  # the trace is read, and counts are made
            asked = int((over.grid.keys != NO_KEY).sum())
            try:
                rows = rows_of(self.table, spot, tensor, call, over, step)
                asked = len(rows.parts)
                if below is not None and asked and most_in(self.table, rows) >= below:
                    raise NotInjectedError(NO_SUCH)
                done = put_in(self.table, tensor, rows, but)
            except NotInjectedError as error:
                self._tally.failed(spot.module, spot.op, call.path, asked, str(error))
                return 0
            wants = self._tally.wants_words(spot.module, spot.op)
            words = [over.words(row) for row in done.alone[:wants].tolist()]
            self._tally.done(spot.module, spot.op, call.path, done, words, again=again)
            return done.put_in

    def account(self) -> RowAccount:
        return self._tally.account()


class PuttingRows(StreamRecorder):
    """Mixed in before the class of a stream that keeps rows."""

    def __init__(self, *args: Any, putter: RowPutter, **others: Any) -> None:
        super().__init__(*args, **others)
        names = Names(putter.table.modules, self.process.module_names.roots, putter.lines)
        self._putter = putter
        self.passes = Passes(putter.table, names, self.process.layouts, lambda: self.process.step)
        self._stand_ins: dict[int, StandIn] = {}
        self.modules.calls = _Calls(self, putter, self.passes, self.modules.calls)
        self.modules.calls_of_autograd = _Calls(self, putter, self.passes, None)

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op, put A's rows into what it gave, and write its row."""
        call = self.passes.here
        ops = None if call is None or call.walk is None or call.module is None else self._putter.places.get(call.module)
        if not ops or self.process.calls.plan(func).name not in ops:
            return super().observe(by, func, types, args, kwargs)
        stand_in: Any = self._stand_ins.get(id(func))
        if stand_in is None:
            stand_in = self._stand_ins[id(func)] = StandIn(func, self._run)
        return super().observe(by, stand_in, types, args, kwargs)

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op itself. Called by the recorder underneath, in place of the op."""
        out = func(*args, **kwargs)
        try:
            call = self.passes.here
            if call is not None and call.walk is not None and call.module is not None:
                self._put(call, call.module, self.process.calls.plan(func), args, kwargs, out)
        except Exception as error:
            self.process.fail(error)
        return out

    def _put(
        self, call: OpenCall, module: str, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        assert call.walk is not None
        nth, step = call.walk.count(module, plan.name), self.process.step
        choice = CHOICES.get(plan.name)
        results = list(named_results(plan, args, kwargs, out))
        for name, tensor in sorted(results, key=lambda result: result[0] != choice):  # what was chosen comes first
            spot = Spot(module, plan.name, nth, name)
            if spot not in self._putter.table:
                continue
            if name != choice:
                self._putter.put(call, spot, tensor, step)
            elif self._putter.put(call, spot, tensor, step, below=candidates(plan, args, kwargs)):
                look_up(plan, args, kwargs, dict(results))

    def written_behind(self, tensor: Tensor) -> None:
        """A tensor was overwritten by no op: whoever reads it next is to look at it."""
        self._writers.drop(address_of(tensor))


class PuttingWithRows(PuttingRows, WithRows):
    """Of a replay that keeps rows,"""


class PuttingKeepingWithRows(PuttingRows, KeepingWithRows):
    """and values as well."""


class _Calls:
    """Told of the calls of modules, and tells them on to whoever keeps their rows."""

    def __init__(self, stream: PuttingRows, putter: RowPutter, passes: Passes, then: CallWatcher | None) -> None:
        self._stream = stream
        self._putter = putter
        self._passes = passes
        self._then = then
        self._names = ForwardNames()

    def begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> Any:
        try:
            with unseen():
                own = self._begin(module, args, kwargs, depth)
        except Exception as error:
            self._stream.process.fail(error)
            own = None
        return own, self._then and self._then.begins(module, args, kwargs, depth)

    def ended(self, call: Any, result: Any) -> None:
        own, kept = call
        if own is not None:
            try:
                with unseen():
                    self._end(own, result)
            except Exception as error:
                self._stream.process.fail(error)
        if self._then is not None:
            self._then.ended(kept, result)

    def raised(self, call: Any) -> None:
        own, kept = call
        if own is not None:
            self._passes.end(own.call)
        if self._then is not None:
            self._then.raised(kept)

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> _Begun:
        path = self._stream.process.module_names.path(module)
        arguments = [
            (where, tensor)
            for name, value in self._names.arguments(module, args, kwargs)
            for where, tensor in named_tensors(value, name)
            if is_plain(tensor)
        ]
        here = self._passes.here
        depth = depth or (1 if here is None else here.depth + 1)  # threads of autograd's own know none
        call = self._passes.begin(path, type(module).__name__, depth, arguments)
        if call.module is None or OUTPUT not in self._putter.places.get(call.module, ()):
            return _Begun(call)
        return _Begun(call, module, _versions(tensor for _, tensor in arguments))

    def _end(self, begun: _Begun, result: Any) -> None:
        call = begun.call
        self._passes.end(call)
        self._put(begun, result)
        self._passes.gave(call, (tensor for _, tensor in named_tensors(result) if is_plain(tensor)))

    def _put(self, begun: _Begun, result: Any) -> None:
        call = begun.call
        if call.nth is None or begun.module is None or call.module is None or call.walk is None:
            return
        own: set[int] | None = None
        for name, tensor in named_tensors(result):
            spot = Spot(call.module, OUTPUT, call.nth, name)
            if spot not in self._putter.table:
                continue
            if own is None:
                own = {address_of(held) for held in (*_held(begun.module),)}
            but = _why_not(tensor, begun.versions, own)
            if self._putter.put(call, spot, tensor, self._stream.process.step, but=but):
                self._stream.written_behind(tensor)


class _Begun:
    """A call that is under way."""

    __slots__ = ("call", "module", "versions")

    def __init__(
        self,
        call: OpenCall,
        module: torch.nn.Module | None = None,
        versions: dict[int, int] | None = None,
    ) -> None:
        self.call = call
        self.module = module
        """Where its outputs may be put in."""
        self.versions = versions or {}
        """Of what it was given, by address."""


def _versions(tensors: Iterator[Tensor]) -> dict[int, int]:
    return {address_of(tensor): _version(tensor) for tensor in tensors}


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _why_not(tensor: Tensor, versions: dict[int, int], own: set[int]) -> str:
    """Why a result must not be overwritten: others than the caller would see it."""
    address = address_of(tensor)
    if address in own:
        return ITS_OWN
    return GIVEN if versions.get(address) == _version(tensor) else ""


def _held(module: torch.nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module and all in it; walks them itself, as ``parameters()`` may be the program's."""
    below, met = [module], set[int]()
    while below:
        one = below.pop()
        if id(one) in met:
            continue
        met.add(id(one))
        yield from (held for kind in ("_parameters", "_buffers") for _, held in members(one, kind) if held is not None)
        below += [child for _, child in members(one, "_modules") if child is not None]
