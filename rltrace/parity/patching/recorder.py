"""Activation patching while a run is recorded: A's activation rows in place of B's.

Owns the two moments at which that happens: right after a selected op has run, and when a selected module has returned,
before whoever called it sees the result. Rows of tensors that the replay itself keeps are taken after that, so they are
those that the program went on with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from rltrace.errors import HoleError
from rltrace.parity.matching.layouts import place_rows
from rltrace.parity.module_names import MapLine, ModulePartners
from rltrace.parity.patching.forward_tracker import RunningPasses, TrackedCall
from rltrace.parity.patching.row_table import CHOICES, NONE, OUTPUT, RowLookup, RowTable, TensorPlace, row_shape
from rltrace.parity.patching.tally import PatchCounts, PatchResult, RowAccount
from rltrace.recorder.capture.activation_tensors import ForwardNames, named_tensors
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.hooks import OpHook, Run
from rltrace.recorder.core.modules import members, tensors_of
from rltrace.recorder.core.op_info import OpPlan, results_of
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.cuda_graphs import unseen
from rltrace.recorder.digests.layouts import WORDS, dtype_name, is_compound
from rltrace.replay.injector import NotInjectedError
from rltrace.token_keys import NO_KEY, Numbers
from rltrace.trace.format.records import axes_of

# --- put --------------------------------------------------------------------------------------------------------------
#
# A's rows written over those of a tensor of the running program.
#
# Owns what is checked before anything is overwritten, and how it is: below autograd, unknown to a tensor's version, so
# that a backward pass takes the tensor as one that nobody has touched.


Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows of a tensor that A has as well, and where both stand."""

    axes: tuple[int, ...]
    parts: Numbers
    """[n, k]: rows of the tensor."""
    found: RowLookup
    alone: Numbers


def rows_of(table: RowTable, place: TensorPlace, tensor: Tensor, call: TrackedCall, step: int) -> SharedRows:
    """The rows of a tensor of ``call`` that A has too. Raises NotInjectedError where they cannot be identified."""
    if not is_plain(tensor):
        raise NotInjectedError("the tensor is made of others here (sparse, nested, a subclass, within a transform)")
    assert call.traversal is not None
    forward_pass = call.traversal.forward_pass
    grid, shape = forward_pass.grid, tuple(map(int, tensor.shape))
    usual = table.layouts.get((place.module, place.op, place.name), ())
    placed = place_rows(shape, grid.shape, table.axes, usual)
    if placed is not None:
        axes, parts, rows = placed[0], placed[1].parts, placed[1].rows
    else:
        axes = axes_of(table.axes, len(shape))
        known = next((one for one in call.inputs if one.fits(tuple(shape[axis] for axis in axes))), None)
        if known is None:
            raise NotInjectedError(f"unknown which rows of {list(shape)} belong to which of {list(grid.shape)} tokens")
        parts, rows = np.arange(len(known.rows))[:, None], known.rows
        parts, rows = parts[rows != NONE], rows[rows != NONE]
    keyed = grid.keys[rows] != NO_KEY
    parts, rows = parts[keyed], rows[keyed]
    found = table.find(place, grid.keys[rows], forward_pass.sequences[rows], step)
    shared = found.source != NONE
    own = RowLookup(found.source[shared], found.row[shared], found.several[shared])
    return SharedRows(axes, parts[shared], own, rows[~shared])


def put_in(table: RowTable, tensor: Tensor, rows: SharedRows, but: str = "") -> PatchResult:
    """Write A's rows over the tensor's. ``but``: why none may be overwritten that is not A's already.

    Raises NotInjectedError before anything is written, unless the memory refuses.
    """
    if not len(rows.parts):
        return PatchResult(0, 0, 0, rows.alone)
    _check(table, tensor, rows)
    if not tensor.numel():
        return PatchResult(len(rows.parts), 0, 0, rows.alone)
    flat = _Flat(tensor, rows.axes)
    wanted = torch.from_numpy(_values(table, rows)).to(tensor.device)
    index = torch.from_numpy(rows.parts).to(tensor.device)
    differ = (flat.rows[index] != wanted).flatten(1).any(dim=1)
    count = int(differ.sum())
    if count and but:
        raise NotInjectedError(but)
    if count:
        flat.write(index[differ], wanted[differ])
    return PatchResult(len(rows.parts), count, int(rows.found.several.sum()), rows.alone)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has rows and bytes of its own."""
    return not (is_compound(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def most_in(table: RowTable, rows: SharedRows) -> int:
    """The largest number among A's rows, which are of whole numbers."""
    values = [table.rows(number, own).max(initial=0) for number, own in _by_source(rows)]
    return int(max(values, default=0))


def _by_source(rows: SharedRows) -> list[tuple[int, Numbers]]:
    return [(int(n), rows.found.row[rows.found.source == n]) for n in np.unique(rows.found.source)]


def _check(table: RowTable, tensor: Tensor, rows: SharedRows) -> None:
    if tensor.is_conj() or tensor.is_neg():
        raise NotInjectedError("the tensor is a conjugate or negative that is not resolved here")
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise NotInjectedError("several elements of the tensor share one place in memory")
    shape = tuple(map(int, tensor.shape))
    here = dtype_name(tensor.dtype), row_shape(shape, rows.axes), rows.parts.shape[1]
    for number in np.unique(rows.found.source).tolist():
        form = table.sources[number].form
        if form != here:
            raise NotInjectedError(f"a row is {_form(here)} here and {_form(form)} in A")


def _form(form: tuple[str, tuple[int, ...], int]) -> str:
    dtype, shape, parts = form
    return f"{dtype}{list(shape if parts == 1 else (parts, *shape))}"


def _values(table: RowTable, rows: SharedRows) -> np.ndarray:
    """A's rows as integers of their size, [n, k, words]."""
    made: np.ndarray | None = None
    for number in np.unique(rows.found.source).tolist():
        own = rows.found.source == number
        try:
            values = table.rows(number, rows.found.row[own])
        except HoleError as error:
            raise NotInjectedError(str(error)) from None
        words = np.ascontiguousarray(values)
        words = words.view(_NUMPY_WORDS[min(8, words.dtype.itemsize)])
        if made is None:
            made = np.empty((len(own), *words.shape[1:]), words.dtype)
        made[own] = words
    assert made is not None  # ``put_in``: there are rows
    return made


_NUMPY_WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


class _Flat:
    """The rows of a tensor as integers of their size, [rows, words]."""

    def __init__(self, tensor: Tensor, axes: tuple[int, ...]) -> None:
        data = tensor.data  # the same memory under a version of its own
        if data.dtype is torch.complex128:
            data = torch.view_as_real(data)
        words = data.view(WORDS[data.element_size()])
        self._ahead = words.movedim(axes, tuple(range(len(axes)))) if axes else words
        count = int(np.prod([tensor.shape[axis] for axis in axes], dtype=np.int64))
        self.rows = self._ahead.reshape(count, -1)
        self._is_copy = self.rows.data_ptr() != self._ahead.data_ptr()

    def write(self, index: Tensor, rows: Tensor) -> None:
        """Raises NotInjectedError where the memory cannot be written."""
        try:
            self.rows[index] = rows
            if self._is_copy:
                self._ahead.copy_(self.rows.view(self._ahead.shape))
        except RuntimeError as error:
            raise NotInjectedError(f"its memory cannot be written: {error}") from None


# --- results ----------------------------------------------------------------------------------------------------------
#
# What an op of the running program gave, by the names that recordings have; and what goes with another choice.


def named_results(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Iterator[tuple[str, Tensor]]:
    """What an op wrote and returned, each named as a recording names it."""
    tensors = op_tensors(args, kwargs)
    written, returned = results_of(plan, args, kwargs, tensors, out)
    given = {id(tensor): name for name, tensor in named_tensors(plan.named(args, kwargs))}
    yield from ((given.get(id(tensor), ""), tensor) for tensor in written)
    names = {id(tensor): name for name, tensor in _returned_names(plan.func, out)}
    yield from ((names.get(id(tensor), ""), tensor) for tensor in returned)


def _returned_names(func: OpOverload, out: Any) -> Iterator[tuple[str, Tensor]]:
    """Where each of several tensors stands, as the operator's schema says, or by its place."""
    if not isinstance(out, (tuple, list)):
        return
    returns = getattr(getattr(func, "_schema", None), "returns", ())
    said = [returned.name or str(i) for i, returned in enumerate(returns)] if len(returns) > 1 else []
    for i, item in enumerate(out):
        yield from named_tensors(item, said[i] if i < len(said) else str(i))


# --- ops that choose --------------------------------------------------------------------------------------------------


def _chosen_from(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, int]:
    """What an op chose from, and along which axis."""
    named = plan.named(args, kwargs)
    source: Tensor = named["self"]
    dim: Any = named.get("dim", -1)
    return source, dim


def candidates(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Among how many an op chose."""
    source, dim = _chosen_from(plan, args, kwargs)
    return int(source.shape[dim]) if source.dim() else 1


def look_up(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], results: dict[str, Tensor]) -> None:
    """What goes with another choice: the program's own numbers at the places that were chosen."""
    source, dim = _chosen_from(plan, args, kwargs)
    chosen, values = results["indices"], results.get("values")
    if values is None or not source.dim():
        return
    if chosen.dim() < source.dim():  # of the largest alone
        chosen, values = chosen.unsqueeze(dim), values.unsqueeze(dim)
    values.copy_(source.gather(dim, chosen))


# --- stream -----------------------------------------------------------------------------------------------------------


GIVEN = "the module returns memory that it was given; what is in it was computed before"
ITS_OWN = "the module returns one of its parameters or buffers"
NO_SUCH = "A chose among more than there are here"


class RowPutter:
    """A's rows and what becomes of them in one process; shared by its threads."""

    def __init__(self, table: RowTable, lines: Sequence[MapLine] = ()) -> None:
        """``lines``: which modules of A are which here, where their names do not tell."""
        self.table = table
        self.lines = lines
        self.places = table.places
        self._tally = PatchCounts(table.selected)
        self._lock = threading.Lock()

    def put(
        self,
        call: TrackedCall,
        spot: TensorPlace,
        tensor: Tensor,
        step: int,
        *,
        but: str = "",
        below: int | None = None,
    ) -> int:
        """Put A's rows into a tensor of ``call``; how many were other ones. ``but``: as ``put_in`` has it.

        ``below``: what A's rows hold must be less, since they are places among so many.
        """
        assert call.traversal is not None
        over, again = call.traversal.forward_pass, call.traversal.is_repeated
        with self._lock:  # the trace is read, and counts are made
            asked = int((over.grid.keys != NO_KEY).sum())
            try:
                rows = rows_of(self.table, spot, tensor, call, step)
                asked = len(rows.parts)
                if below is not None and asked and most_in(self.table, rows) >= below:
                    raise NotInjectedError(NO_SUCH)
                done = put_in(self.table, tensor, rows, but)
            except NotInjectedError as error:
                self._tally.failed(spot.module, spot.op, call.path, asked, str(error))
                return 0
            wants = self._tally.wants_words(spot.module, spot.op)
            words = [over.describe(row) for row in done.alone[:wants].tolist()]
            self._tally.done(spot.module, spot.op, call.path, done, words, again=again)
            return done.put_in

    def account(self) -> RowAccount:
        return self._tally.account()


class PatchingHook(OpHook[None]):
    """Puts A's activation rows into what the ops and modules of one stream return."""

    def __init__(self, stream: OpRecorder, putter: RowPutter) -> None:
        process = stream.process
        roots = process.module_names.roots
        paths = lambda: (path for name, root in roots() for path in _paths_in(name, root))  # noqa: E731
        partners = ModulePartners(putter.table.modules, paths, putter.lines)
        self._process = process
        self._putter = putter
        self.passes = RunningPasses(putter.table, partners, process.layouts, lambda: process.step)
        hook = _CallPatches(stream, putter, self.passes)
        stream.modules.call_hooks.append(hook)
        stream.modules.autograd_call_hooks.append(hook)

    def replacement(self, func: OpOverload) -> Run | None:
        call = self.passes.call
        if call is None or call.traversal is None or call.module is None:
            return None
        ops = self._putter.places.get(call.module)
        return self._run if ops and self._process.calls.plan(func).name in ops else None

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op, and put A's rows into what it returns."""
        out = func(*args, **kwargs)
        try:
            call = self.passes.call
            if call is not None and call.traversal is not None and call.module is not None:
                self._put(call, call.module, self._process.calls.plan(func), args, kwargs, out)
        except Exception as error:
            self._process.fail(error)
        return out

    def _put(
        self, call: TrackedCall, module: str, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        assert call.traversal is not None
        nth, step = call.traversal.count(module, plan.name), self._process.step
        choice = CHOICES.get(plan.name)
        results = list(named_results(plan, args, kwargs, out))
        for name, tensor in sorted(results, key=lambda result: result[0] != choice):  # what was chosen comes first
            spot = TensorPlace(module, plan.name, nth, name)
            if spot not in self._putter.table:
                continue
            if name != choice:
                self._putter.put(call, spot, tensor, step)
            elif self._putter.put(call, spot, tensor, step, below=candidates(plan, args, kwargs)):
                look_up(plan, args, kwargs, dict(results))


class _CallPatches:
    """Puts A's activation rows into what modules return."""

    def __init__(self, stream: OpRecorder, putter: RowPutter, passes: RunningPasses) -> None:
        self._stream = stream
        self._putter = putter
        self._passes = passes
        self._names = ForwardNames()

    def begins(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int
    ) -> _Begun | None:
        try:
            with unseen():
                return self._begin(module, args, kwargs, depth)
        except Exception as error:
            self._stream.process.fail(error)
            return None

    def ended(self, call: _Begun | None, result: Any) -> None:
        if call is not None:
            try:
                with unseen():
                    self._end(call, result)
            except Exception as error:
                self._stream.process.fail(error)

    def raised(self, call: _Begun | None) -> None:
        if call is not None:
            self._passes.end(call.call)

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> _Begun:
        path = self._stream.process.module_names.path(module)
        arguments = [
            (where, tensor)
            for name, value in self._names.arguments(module, args, kwargs)
            for where, tensor in named_tensors(value, name)
            if is_plain(tensor)
        ]
        here = self._passes.call
        depth = depth or (1 if here is None else here.depth + 1)  # threads of autograd's own know none
        call = self._passes.begin(path, type(module).__name__, depth, arguments)
        if call.module is None or OUTPUT not in self._putter.places.get(call.module, ()):
            return _Begun(call)
        return _Begun(call, module, _versions(tensor for _, tensor in arguments))

    def _end(self, begun: _Begun, result: Any) -> None:
        call = begun.call
        self._passes.end(call)
        self._put(begun, result)
        self._passes.add_outputs(call, (tensor for _, tensor in named_tensors(result) if is_plain(tensor)))

    def _put(self, begun: _Begun, result: Any) -> None:
        call = begun.call
        if call.nth is None or begun.module is None or call.module is None or call.traversal is None:
            return
        own: set[int] | None = None
        for name, tensor in named_tensors(result):
            spot = TensorPlace(call.module, OUTPUT, call.nth, name)
            if spot not in self._putter.table:
                continue
            if own is None:
                own = {address_of(held) for _, held in tensors_of(begun.module)}
            but = _why_not(tensor, begun.versions, own)
            if self._putter.put(call, spot, tensor, self._stream.process.step, but=but):
                self._stream.forget_writer(tensor)


class _Begun:
    """A call that is under way."""

    __slots__ = ("call", "module", "versions")

    def __init__(
        self,
        call: TrackedCall,
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


def _paths_in(name: str, root: torch.nn.Module) -> Iterator[str]:
    """The paths of a module and all below it, without ``modules()``, which may be the program's own."""
    below, seen = [(name, root)], set[int]()
    while below:
        path, module = below.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path
            below += [(f"{path}.{own}", child) for own, child in members(module, "_modules") if child is not None]
