"""Activation patching while a run is recorded: A's activation rows in place of B's.

Owns the injection: right after a selected op has run, and when a selected module has returned, before its caller and
the recorder see the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._ops import OpOverload

from rltrace.errors import HoleError
from rltrace.extensions.parity.capture.activation_tensors import ForwardNames, named_tensors
from rltrace.extensions.parity.capture.activations import returned_names
from rltrace.extensions.parity.matching.layouts import place_rows
from rltrace.extensions.parity.module_names import MapLine, ModulePartners, read_map
from rltrace.extensions.parity.patching.forward_tracker import RunningPasses, TrackedCall
from rltrace.extensions.parity.patching.row_table import (
    CHOICES,
    OUTPUT,
    RowLookup,
    RowTable,
    TensorPlace,
    row_shape,
)
from rltrace.extensions.parity.patching.source import NAMES, WEIGHTS, read_table
from rltrace.extensions.parity.patching.tally import PROVIDER, ModuleRows, PatchCounts, RowAccount
from rltrace.extensions.parity.token_keys import NO_KEY, NONE, Numbers
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.modules import ModuleNames, members, tensors_of
from rltrace.recorder.core.op_info import OpPlan, results_of
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.cuda_graphs import overrides_disabled
from rltrace.recorder.digests.layouts import WORDS, dtype_name, is_compound
from rltrace.rerun.follower import NotInjectedError
from rltrace.rerun.hook import OpInjection, Provider, RunningOp, StreamProvider
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import open_trace

# --- writing rows -----------------------------------------------------------------------------------------------------
#
# Rows are written below autograd and without a change of the tensor's version, so that a backward pass accepts it.


Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows of a tensor that A has too."""

    axes: tuple[int, ...]
    tensor_rows: Numbers
    """[n, k]: rows of the tensor."""
    found: RowLookup
    unmatched: Numbers
    """Tokens of the others, as indices into the grid."""


def rows_of(table: RowTable, place: TensorPlace, tensor: Tensor, call: TrackedCall, step: int) -> SharedRows:
    """The rows of a tensor of ``call`` that A has too. Raises NotInjectedError where they cannot be identified."""
    if not is_plain(tensor):
        raise NotInjectedError("the tensor is made of others here (sparse, nested, a subclass, within a transform)")
    assert call.traversal is not None
    forward_pass = call.traversal.forward_pass
    grid, shape = forward_pass.grid, tuple(map(int, tensor.shape))
    placed = place_rows(shape, grid.shape, table.axes)
    if placed is None:
        raise NotInjectedError(f"unknown which rows of {list(shape)} belong to which of {list(grid.shape)} tokens")
    axes, tensor_rows, tokens = placed[0], placed[1].tensor_rows, placed[1].tokens
    keyed = grid.keys[tokens] != NO_KEY
    tensor_rows, tokens = tensor_rows[keyed], tokens[keyed]
    found = table.find(place, grid.keys[tokens], forward_pass.sequences[tokens], step)
    shared = found.source != NONE
    own = RowLookup(found.source[shared], found.row[shared], found.several[shared])
    return SharedRows(axes, tensor_rows[shared], own, tokens[~shared])


def inject(table: RowTable, tensor: Tensor, rows: SharedRows, refusal: str = "") -> int:
    """Write A's rows over the tensor's; returns how many differed. ``refusal``: why rows that differ must not be
    overwritten; empty: they may.

    Raises NotInjectedError, before anything is written unless the memory cannot be.
    """
    if not len(rows.tensor_rows):
        return 0
    _check(table, tensor, rows)
    if not tensor.numel():
        return 0
    flat = _Flat(tensor, rows.axes)
    values = torch.from_numpy(_values(table, rows)).to(tensor.device)
    index = torch.from_numpy(rows.tensor_rows).to(tensor.device)
    differ = (flat.rows[index] != values).flatten(1).any(dim=1)
    count = int(differ.sum())
    if count and refusal:
        raise NotInjectedError(refusal)
    if count:
        flat.write(index[differ], values[differ])
    return count


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has rows and bytes itself."""
    return not (is_compound(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def largest_in(table: RowTable, rows: SharedRows) -> int:
    """The largest number among A's rows, of integers."""
    found = rows.found
    values = (table.rows(n, found.row[found.source == n]).max(initial=0) for n in np.unique(found.source).tolist())
    return int(max(values, default=0))


def _check(table: RowTable, tensor: Tensor, rows: SharedRows) -> None:
    if tensor.is_conj() or tensor.is_neg():
        raise NotInjectedError("the tensor is a conjugate or negative that is not resolved here")
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise NotInjectedError("several elements of the tensor share one place in memory")
    shape = tuple(map(int, tensor.shape))
    own = dtype_name(tensor.dtype), row_shape(shape, rows.axes), rows.tensor_rows.shape[1]
    for number in np.unique(rows.found.source).tolist():
        form = table.sources[number].form
        if form != own:
            raise NotInjectedError(f"a row is {_form(own)} here and {_form(form)} in A")


def _form(form: tuple[str, tuple[int, ...], int]) -> str:
    dtype, shape, count = form
    return f"{dtype}{list(shape if count == 1 else (count, *shape))}"


def _values(table: RowTable, rows: SharedRows) -> np.ndarray:
    """A's rows as integers of their size, [n, k, words]."""
    found: np.ndarray | None = None
    for number in np.unique(rows.found.source).tolist():
        own = rows.found.source == number
        try:
            values = table.rows(number, rows.found.row[own])
        except HoleError as error:
            raise NotInjectedError(str(error)) from None
        words = np.ascontiguousarray(values)
        words = words.view(_NUMPY_WORDS[min(8, words.dtype.itemsize)])
        if found is None:
            found = np.empty((len(own), *words.shape[1:]), words.dtype)
        found[own] = words
    assert found is not None  # ``inject``: there are rows
    return found


_NUMPY_WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


class _Flat:
    """The rows of a tensor as integers of their size, [rows, words]."""

    def __init__(self, tensor: Tensor, axes: tuple[int, ...]) -> None:
        data = tensor.data  # the same memory with a separate version
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


# --- results of ops ---------------------------------------------------------------------------------------------------


def named_results(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that an op wrote and returned, with their names in a recording."""
    tensors = op_tensors(args, kwargs)
    written, returned = results_of(plan, args, kwargs, tensors, out)
    inputs = {id(tensor): name for name, tensor in named_tensors(plan.named(args, kwargs))}
    yield from ((inputs.get(id(tensor), ""), tensor) for tensor in written)
    names = {id(tensor): name for name, tensor in returned_names(plan.func, out)}
    yield from ((names.get(id(tensor), ""), tensor) for tensor in returned)


# --- ops that choose --------------------------------------------------------------------------------------------------


def _chosen_from(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, int]:
    """The tensor that an op chose from, and the axis."""
    named = plan.named(args, kwargs)
    source: Tensor = named["self"]
    dim: Any = named.get("dim", -1)
    return source, dim


def candidates(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of candidates that an op chose from."""
    source, dim = _chosen_from(plan, args, kwargs)
    return int(source.shape[dim]) if source.dim() else 1


def look_up(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], results: dict[str, Tensor]) -> None:
    """Set the values of an op to the program's own at the injected indices."""
    source, dim = _chosen_from(plan, args, kwargs)
    chosen, values = results["indices"], results.get("values")
    if values is None or not source.dim():
        return
    if chosen.dim() < source.dim():  # of ``max`` without ``keepdim``
        chosen, values = chosen.unsqueeze(dim), values.unsqueeze(dim)
    values.copy_(source.gather(dim, chosen))


# --- hooks of a stream ------------------------------------------------------------------------------------------------


GIVEN = "the module returns memory that it was given; what is in it was computed before"
ITS_OWN = "the module returns one of its parameters or buffers"
NO_SUCH = "A chose among more than there are here"


class RowInjector(Provider):
    """A's rows, and the counts of injected ones, in one process; shared by its threads: a provider."""

    name = PROVIDER

    def __init__(self, table: RowTable, lines: Sequence[MapLine] = ()) -> None:
        """``lines`` of a map file: partners of modules whose names differ."""
        self.table = table
        self.lines = lines
        self.places = table.places
        self._counts = PatchCounts(table.selected)
        self._lock = threading.Lock()

    def inject(
        self,
        call: TrackedCall,
        place: TensorPlace,
        tensor: Tensor,
        step: int,
        *,
        refusal: str = "",
        below: int | None = None,
    ) -> int:
        """Write A's rows into a tensor of ``call``; return how many differed. ``refusal``: as of ``inject``.

        ``below``: an upper limit of A's numbers, which are indices.
        """
        assert call.traversal is not None
        forward_pass = call.traversal.forward_pass
        own = ModuleRows(place.module, (call.path,), place.op)
        with self._lock:  # of the cache of values, and the counts
            selected = int((forward_pass.grid.keys != NO_KEY).sum())
            try:
                rows = rows_of(self.table, place, tensor, call, step)
                selected = len(rows.tensor_rows)
                if below is not None and selected and largest_in(self.table, rows) >= below:
                    raise NotInjectedError(NO_SUCH)
                injected = inject(self.table, tensor, rows, refusal)
            except NotInjectedError as error:
                failures = {str(error): selected}
                self._counts.add(replace(own, selected=selected, failed=selected, failures=failures))
                return 0
            if call.traversal.is_repeated:
                self._counts.add(ModuleRows(place.module, (), place.op, recomputed=selected))
                return injected
            listed = rows.unmatched[: self._counts.unlisted(place.module, place.op)].tolist()
            self._counts.add(
                replace(
                    own,
                    tensors=int(selected > 0),
                    selected=selected,
                    injected=injected,
                    equal=selected - injected,
                    unmatched=len(rows.unmatched),
                    several=int(rows.found.several.sum()) if tensor.numel() else 0,
                    first_unmatched=tuple(map(forward_pass.describe, listed)),
                )
            )
            return injected

    def of_stream(self, stream: OpRecorder) -> StreamRows:
        return StreamRows(stream, self)

    def account(self) -> RowAccount:
        return self._counts.account()


class StreamRows(StreamProvider):
    """A's activation rows for the ops and modules of one stream."""

    def __init__(self, stream: OpRecorder, injector: RowInjector) -> None:
        process = stream.process
        paths = partial(_paths, process.module_names)
        partners = ModulePartners(injector.table.modules, paths, injector.lines)
        self._process = process
        self._injector = injector
        self.passes = RunningPasses(injector.table, partners, process.layouts, lambda: process.step)
        hook = _CallPatches(stream, injector, self.passes)
        stream.modules.call_hooks.append(hook)
        stream.modules.autograd_call_hooks.append(hook)

    def may_have(self, func: OpOverload) -> bool:
        call = self.passes.call
        if call is None or call.traversal is None or call.module is None:
            return False
        ops = self._injector.places.get(call.module, frozenset())
        return bool(ops) and self._process.calls.plan(func).name in ops

    def find(self, op: RunningOp) -> RowInjection:
        return RowInjection(self, op)

    def inject(self, op: RunningOp, out: Any) -> None:
        """Write A's rows into the results of an op."""
        call = self.passes.call
        if call is None or call.traversal is None or call.module is None:
            return
        plan, step = op.plan, self._process.step
        nth = call.traversal.count(call.module, plan.name)
        choice = CHOICES.get(plan.name)
        results = list(named_results(plan, op.args, op.kwargs, out))
        for name, tensor in sorted(results, key=lambda result: result[0] != choice):  # indices first
            place = TensorPlace(call.module, plan.name, nth, name)
            if place not in self._injector.table:
                continue
            if name != choice:
                self._injector.inject(call, place, tensor, step)
            elif self._injector.inject(call, place, tensor, step, below=candidates(plan, op.args, op.kwargs)):
                look_up(plan, op.args, op.kwargs, dict(results))


@dataclass(frozen=True, eq=False)
class RowInjection(OpInjection):
    """A's activation rows for one op."""

    rows: StreamRows
    op: RunningOp

    def after(self, out: Any) -> Any:
        self.rows.inject(self.op, out)
        return out


class _CallPatches:
    """Writes A's activation rows into the outputs of modules."""

    def __init__(self, stream: OpRecorder, injector: RowInjector, passes: RunningPasses) -> None:
        self._stream = stream
        self._injector = injector
        self._passes = passes
        self._names = ForwardNames()

    def begins(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int
    ) -> _OpenCall | None:
        try:
            with overrides_disabled():
                return self._begin(module, args, kwargs, depth)
        except Exception as error:
            self._stream.process.fail(error)
            return None

    def ended(self, call: _OpenCall | None, result: Any) -> None:
        if call is not None:
            try:
                with overrides_disabled():
                    self._end(call, result)
            except Exception as error:
                self._stream.process.fail(error)

    def raised(self, call: _OpenCall | None) -> None:
        if call is not None:
            self._passes.end(call.call)

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> _OpenCall:
        path = self._stream.process.module_names.path(module)
        arguments = [
            (where, tensor)
            for name, value in zip(*self._names.arguments(module, args, kwargs), strict=False)
            for where, tensor in named_tensors(value, name)
            if is_plain(tensor)
        ]
        around = self._passes.call
        depth = depth or (1 if around is None else around.depth + 1)  # autograd's threads have none
        call = self._passes.begin(path, type(module).__name__, depth, arguments)
        if call.module is None or OUTPUT not in self._injector.places.get(call.module, ()):
            return _OpenCall(call)
        return _OpenCall(call, module, {address_of(tensor): _version(tensor) for _, tensor in arguments})

    def _end(self, open_call: _OpenCall, result: Any) -> None:
        call = open_call.call
        self._passes.end(call)
        self._inject(open_call, result)
        self._passes.add_outputs(call, (tensor for _, tensor in named_tensors(result) if is_plain(tensor)))

    def _inject(self, open_call: _OpenCall, result: Any) -> None:
        call = open_call.call
        if call.nth is None or open_call.module is None or call.module is None or call.traversal is None:
            return
        own: set[int] | None = None
        for name, tensor in named_tensors(result):
            place = TensorPlace(call.module, OUTPUT, call.nth, name)
            if place not in self._injector.table:
                continue
            if own is None:
                own = {address_of(held) for _, held in tensors_of(open_call.module)}
            refusal = _refusal(tensor, open_call.versions, own)
            if self._injector.inject(call, place, tensor, self._stream.process.step, refusal=refusal):
                self._stream.forget_writer(tensor)


class _OpenCall(NamedTuple):
    """A call that has not ended."""

    call: TrackedCall
    module: torch.nn.Module | None = None
    """None: nothing is injected into its outputs."""
    versions: Mapping[int, int] = {}
    """Of its inputs, by address."""


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _refusal(tensor: Tensor, versions: Mapping[int, int], own: set[int]) -> str:
    """Why a result must not be overwritten: not only the caller reads it. Empty: it may be."""
    address = address_of(tensor)
    if address in own:
        return ITS_OWN
    return GIVEN if versions.get(address) == _version(tensor) else ""


def _paths(names: ModuleNames) -> Iterator[str]:
    """The paths of all modules of the program, without ``modules()``, which may be the program's own."""
    for name, root in names.roots():
        below, seen = [(name, root)], set[int]()
        while below:
            path, module = below.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield path
                below += [(f"{path}.{own}", child) for own, child in members(module, "_modules") if child is not None]


# --- the provider -----------------------------------------------------------------------------------------------------


def rows_provider(options: RecordOptions) -> Callable[[str], RowInjector]:
    """What makes the provider of a process of that name."""
    given = options.provider_options
    weights = WEIGHTS in given
    table = read_table(open_trace(options.replay), parse_selectors(options.inject), options.inject, weights=weights)
    lines = read_map(given[NAMES]) if NAMES in given else ()
    return lambda name: RowInjector(table, lines)
