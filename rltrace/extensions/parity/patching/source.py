"""A's activation rows for injection, read from the module calls and ops of its trace, with their keys.

Owns what a selector finds, the errors where the trace lacks something, and the options of such a replay, which are
those of A.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.command_lines import line
from rltrace.digest.activation_rows import row_digests
from rltrace.errors import HoleError, UsageError
from rltrace.extensions.parity.call_range import (
    CallRange,
    RecordedStream,
    around,
    finds_call,
    ops_in,
    outputs_of,
    point_of,
    split_facts,
)
from rltrace.extensions.parity.matching.forward_passes import forwards_of
from rltrace.extensions.parity.matching.key_choice import observation_grids
from rltrace.extensions.parity.matching.layouts import (
    RowPlacement,
    place_rows,
)
from rltrace.extensions.parity.matching.row_keying import KeyedRows, Keying, fold, passes_of
from rltrace.extensions.parity.matching.token_grids import TokenGrid, token_grids
from rltrace.extensions.parity.module_names import root_of
from rltrace.extensions.parity.patching.row_table import CHOICES, OUTPUT, RowSource, RowTable, TensorPlace
from rltrace.extensions.parity.patching.tally import PROVIDER
from rltrace.extensions.parity.token_keys import NO_KEY, NONE
from rltrace.recorder.base.options import RecordOptions
from rltrace.rerun.plan import compile_of, window_of
from rltrace.selectors import OP_KEYS, Selector
from rltrace.trace.format import dtypes
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.location import local_folder
from rltrace.trace.format.schema import Column, Phase
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace

# --- options ----------------------------------------------------------------------------------------------------------


WEIGHTS, NAMES = "weights", "names"
"""Options of the provider: whether values of ops that choose are injected as well, path of a map of modules."""


def options_of(
    trace: Trace,
    path: str,
    inject: tuple[str, ...],
    until: int | None = None,
    *,
    weights: bool,
    names: str | Path | None = None,
) -> RecordOptions:
    """The options of a replay into ``path`` with rows of ``trace``: those of the trace."""
    kept = next((p.activations.request for p in trace.processes if p.activations.request is not None), None)
    if kept is None:
        raise UsageError(f"{trace.path} holds no activation rows")  # ``read_table`` has the remedy
    level, steps = window_of(trace)
    given = {WEIGHTS: "yes"} if weights else {}
    given |= {} if names is None else {NAMES: str(Path(names).absolute())}
    options = RecordOptions(
        path,
        level=level,
        steps=steps,
        until=until,
        rows=kept.selectors,
        row_axes=kept.axes,
        rows_limit=kept.limit,
        compile=compile_of(trace),
        replay=str(local_folder(trace.path, "replay").absolute()),
        inject=inject,
        provider=PROVIDER,
        provider_options=given,
    )
    asked = next((p.values.request for p in trace.processes if p.values), None)
    if asked is None:
        return options
    return replace(options, values=asked.selectors, values_inputs=asked.inputs, values_limit=asked.limit)


# --- forward passes ---------------------------------------------------------------------------------------------------


def placed_calls(call_range: CallRange, grids: Sequence[TokenGrid]) -> Iterator[tuple[ModuleCall, TokenGrid]]:
    """The calls of forward passes, without those that a running program meets before it can know to which they
    belong, and those that a backward pass recomputed: the trace holds them twice."""
    passes = passes_of(call_range, grids)
    for call in call_range.calls:
        grid = passes.get(call.number)
        if grid is not None and call.phase != "backward":
            anchor = grid.anchor
            if call.number >= anchor.number or call in call_range.around(anchor):
                yield call, grid


# --- selected tensors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """A selected tensor."""

    process: ProcessTrace
    place: TensorPlace
    tensor: ActivationRows
    grid: TokenGrid
    step: int
    order: int
    grad: bool
    keyed: Callable[[], KeyedRows | None]
    """Its rows by content, where its shape does not identify them."""


@dataclass
class _Found:
    """What all streams hold."""

    tensors: list[_Tensor] = field(default_factory=list)
    grids: list[TokenGrid] = field(default_factory=list)
    axes: tuple[int, ...] | None = None
    recorded: bool = False
    """Whether any rows were recorded."""
    observed: bool = False
    """Whether keys are of observations, not tokens."""


def read_table(trace: Trace, selector: Selector, texts: Sequence[str], *, weights: bool = False) -> RowTable:
    """The rows of all tensors of ``trace`` that the selector finds. ``texts``: the text of the selector.

    ``weights``: of ops that choose, the values as well as the indices. Raises UsageError where the trace lacks
    something, HoleError where it is damaged.
    """
    found = _Found(observed=not _has_tokens(trace))
    for process in trace.processes:
        if not process.activations:
            continue
        found.recorded = True
        found.axes = None if process.activations.request is None else process.activations.request.axes
        for stream in process.streams:
            call_range = _call_range(process, stream)
            _read_stream(call_range, process, selector, found, weights=weights)
            if call_range.holes:
                raise HoleError(call_range.holes[0])
    _check(trace, found, texts)
    return _table(trace, found, texts)


def _call_range(process: ProcessTrace, stream: StreamTrace) -> CallRange:
    calls, facts = split_facts(tuple(process.activations.calls(stream.index)))
    calls = tuple(replace(c, tensors=tuple(t for t in c.tensors if point_of(t) is None)) for c in calls)
    ops, recorded = process.activations.ops(stream.index), RecordedStream(process, stream)
    return CallRange("a", calls, ops=ops, find=process.values.get, recorded=recorded, facts=facts)


def _has_tokens(trace: Trace) -> bool:
    """Whether any forward pass is over tokens."""
    return any(
        forwards_of(_call_range(process, stream))
        for process in trace.processes
        if process.activations
        for stream in process.streams
    )


def _read_stream(
    call_range: CallRange, process: ProcessTrace, selector: Selector, found: _Found, *, weights: bool
) -> None:
    first = max((int(grid.sequences.max(initial=NONE)) + 1 for grid in found.grids), default=0)
    every = observation_grids(call_range) if found.observed else token_grids(forwards_of(call_range), first=first)
    grids = [grid for grid in every if len(grid.keys)]
    placed = list(placed_calls(call_range, grids))
    found.grids += grids
    keying = cache(lambda: Keying(call_range, grids))
    found.tensors += _of_calls(call_range, process, selector, placed, keying)
    found.tensors += _of_ops(call_range, process, selector, placed, weights=weights)


Placed = Sequence[tuple[ModuleCall, TokenGrid]]


def _of_calls(
    call_range: CallRange,
    process: ProcessTrace,
    selector: Selector,
    placed: Placed,
    keying: Callable[[], Keying],
) -> Iterator[_Tensor]:
    """Outputs of the module calls that clauses without conditions of ops select."""
    counts: Counter[tuple[int, str]] = Counter()
    for call, grid in placed:
        nth = counts[id(grid), call.module]
        counts[id(grid), call.module] += 1
        if finds_call(selector, call_range, call):
            for tensor in outputs_of(call):
                place = TensorPlace(call.module, OUTPUT, nth, tensor.name)
                keyed = partial(_by_evidence, keying, call, tensor, grid)
                grad = call_range.has_gradient(call)
                yield _Tensor(process, place, tensor, grid, call.step, call.number, grad, keyed)


def _by_evidence(
    keying: Callable[[], Keying], call: ModuleCall, tensor: ActivationRows, grid: TokenGrid
) -> KeyedRows | None:
    for keyed in keying().of(call):
        if (keyed.tensor.part, keyed.tensor.name) == (tensor.part, tensor.name):
            return keyed if isinstance(keyed, KeyedRows) and keyed.grid is grid else None
    return None


@dataclass(frozen=True)
class CountedOp:
    """An op of which occurrences are counted."""

    row: int
    name: str
    module: str
    step: int


def _ops(call_range: CallRange, process: ProcessTrace, selected: set[str]) -> Iterator[CountedOp]:
    """All ops of these names outside of backward passes."""
    if not selected:
        return
    assert call_range.recorded is not None
    words = process.words
    numbers = [number for number in range(words.size("ops")) if words.op(number) in selected]
    for segment in call_range.recorded.stream.segments:
        rows = call_range.recorded.stream.read_segment(segment)
        may = np.isin(rows.column(Column.OP), numbers) & (rows.column(Column.PHASE) != Phase.BACKWARD)
        for i in np.flatnonzero(may).tolist():
            op, module = words.op(int(rows.columns[i, Column.OP])), words.module(int(rows.columns[i, Column.MODULE]))
            yield CountedOp(rows.first + i, op, module, int(rows.columns[i, Column.STEP]))


def _of_ops(
    call_range: CallRange, process: ProcessTrace, selector: Selector, placed: Placed, *, weights: bool
) -> Iterator[_Tensor]:
    """Results of the ops that clauses with conditions of ops select; an op is of the forward pass of its module's last
    call, which need not be recorded: then of that of its model."""
    selected = dict(ops_in(call_range, selector.filter_clauses(lambda keys: not OP_KEYS.isdisjoint(keys))))
    grids = {call.number: grid for call, grid in placed}
    pending = deque(call_range.calls)
    current: dict[str, TokenGrid | None] = {}
    counts: Counter[tuple[int, str, str]] = Counter()
    for op in _ops(call_range, process, set(selected.values())):
        while pending and pending[0].first_row <= op.row:
            call = pending.popleft()
            current[root_of(call.module)] = grids.get(call.number)
        around_op = around(call_range, op.row)
        if around_op is not None and around_op.module == op.module:
            grid = grids.get(around_op.number)
        else:
            grid = current.get(root_of(op.module))
        if grid is None:
            continue
        nth = counts[id(grid), op.module, op.name]
        counts[id(grid), op.module, op.name] += 1
        if op.row not in selected:
            continue
        only = None if weights else CHOICES.get(op.name)
        for tensor in call_range.ops[op.row].tensors:
            if tensor.part is Part.OUTPUT and only in (None, tensor.name):
                place = TensorPlace(op.module, op.name, nth, tensor.name)
                grad = around_op is not None and call_range.has_gradient(around_op)
                yield _Tensor(process, place, tensor, grid, op.step, op.row, grad, lambda: None)


# --- the table --------------------------------------------------------------------------------------------------------


def _check(trace: Trace, found: _Found, texts: Sequence[str]) -> None:
    """Raise UsageError where the trace lacks something."""
    record = _record_command(texts)
    if not found.recorded:
        raise UsageError(f"{trace.path} holds no activation rows; record it again: {record}")
    if not found.grids:
        raise UsageError(
            f"{trace.path} does not identify its rows: it holds no call of a module with token ids or observations "
            f"as input; record it again: {record}"
        )
    if not found.tensors:
        raise UsageError(
            f"the selector finds nothing in {trace.path} whose rows were recorded within a forward pass over "
            f"tokens; record it again: {record}"
        )
    lacking = [one for one in found.tensors if one.tensor.whole not in one.process.values]
    if lacking:
        raise UsageError(
            f"{trace.path} lacks the values of {len(lacking):,} of the {len(found.tensors):,} tensors whose rows "
            f"are to be injected; the first is of {lacking[0].place.module}; record it again: {record}"
        )


def _record_command(texts: Sequence[str]) -> str:
    rows = ["all"] if "all" in texts else ["module=*", *texts]
    given = [("--rows", text) for text in rows], [("--values", text) for text in texts]
    return line("record", *(word for pairs in given for pair in pairs for word in pair), "--", "CMD")


def _table(trace: Trace, found: _Found, texts: Sequence[str]) -> RowTable:
    sampled = {(one.place.module, one.place.op) for one in found.tensors if not one.grad}
    sources = []
    for one in found.tensors:
        if one.grad and (one.place.module, one.place.op) in sampled:  # of the trainer
            continue
        source = _source(one, found.axes)
        if source is not None:
            sources.append(source)
    if not any(len(source.keys) for source in sources):
        first = found.tensors[0]
        raise UsageError(
            f"no tensor that the selector finds in {trace.path} has a row for each token: {first.place.module} "
            f"returns {first.tensor.dtype}{list(first.tensor.shape)}, for {list(first.grid.shape)} tokens"
        )
    keys = np.concatenate([grid.keys for grid in found.grids])
    sequences = np.concatenate([grid.sequences for grid in found.grids])
    own = (keys != NO_KEY) & (sequences != NONE)
    anchors = {grid.anchor.module for grid in found.grids}
    steps = np.concatenate([np.full(len(grid.keys), grid.anchor.step) for grid in found.grids])
    tokens = keys[own], sequences[own], steps[own]
    return RowTable(sources, anchors, tokens, found.axes, observed=found.observed)


def _source(one: _Tensor, axes: tuple[int, ...] | None) -> RowSource | None:
    """The rows of one tensor; None: they are not identified."""
    tensor, grid = one.tensor, one.grid
    placed = place_rows(tensor.shape, grid.shape, axes)
    if placed is None and (keyed := one.keyed()) is not None:
        placed = keyed.tensor.axes, RowPlacement(keyed.tensor_rows, keyed.tokens)
    if placed is None:
        return None
    own_axes, placement = placed
    own = grid.keys[placement.tokens] != NO_KEY
    tensor_rows, tokens = placement.tensor_rows[own], placement.tokens[own]
    digests = tensor.digests if own_axes == tensor.axes else _digests(one, own_axes)
    return RowSource(
        one.place,
        tensor.whole,
        tensor.dtype,
        tensor.shape,
        own_axes,
        grid.keys[tokens],
        tensor_rows,
        fold(digests.ravel()[tensor_rows]),
        grid.sequences[tokens],
        one.step,
        one.order,
        one.process.values.get,
    )


def _digests(one: _Tensor, axes: tuple[int, ...]) -> NDArray[np.uint64]:
    value = one.process.values.get(one.tensor.whole)
    assert value is not None  # by ``_check``
    return row_digests(value.data, value.dtype, value.shape, dtypes.itemsize(value.dtype) or 1, axes)
