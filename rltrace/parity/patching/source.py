"""The rows of a recorded trace that are to be put in: read from its module calls and ops, each with its key.

Owns what a selector means here, which of A's forward passes a tensor belongs to, and what the trace must hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.command_lines import line
from rltrace.digest.activation_rows import row_digests
from rltrace.errors import HoleError, UsageError
from rltrace.parity.call_range import CallRange, RecordedStream, inputs_of, outputs_of
from rltrace.parity.matching.forward_passes import forwards_of
from rltrace.parity.matching.layouts import RowLayout
from rltrace.parity.matching.row_keying import KeyedRows, Keying, fold
from rltrace.parity.matching.token_grids import TokenGrid, token_grids
from rltrace.parity.patching.layout import Observed, chosen, grid_of, places, readings, root_of
from rltrace.parity.patching.row_table import CHOICES, NONE, OUTPUT, RowSource, RowTable, TensorPlace
from rltrace.parity.selection import around, finds_call, ops_in
from rltrace.selectors import OP_KEYS, Selector
from rltrace.token_keys import NO_KEY
from rltrace.trace.format import dtypes
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.schema import Column, Phase
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace

# --- recorded ---------------------------------------------------------------------------------------------------------
#
# The forward passes of a recorded stream: what was given them, and which of them a call or an op is of.
#
# Owns the same questions for A that ``passes`` owns for the running program, and answers them by the same rules.


def numbered_grids(stretch: CallRange, begun: int) -> list[TokenGrid]:
    """Its forward passes over tokens, the sequences numbered from ``begun`` on."""
    return [
        replace(grid, sequences=np.where(grid.sequences < 0, NONE, grid.sequences + begun))
        for grid in token_grids(forwards_of(stretch))
        if len(grid.keys)
    ]


def observed_grids(stretch: CallRange) -> list[TokenGrid]:
    """Its forward passes over observations."""
    observed, grids = Observed(), []
    for call in stretch.outermost:
        if call.phase == "backward":
            continue
        root = root_of(call.module)
        digests = observed.first_new(root, [tensor.digests for tensor in inputs_of(call) if _has_rows(tensor)])
        if digests is not None:
            grids.append(grid_of(call, digests))
        for tensor in outputs_of(call):
            if _has_rows(tensor):
                observed.gave(root, tensor.digests)
    return grids


def _has_rows(tensor: ActivationRows) -> bool:
    return "float" in tensor.dtype and bool(tensor.axes) and tensor.digests.size > 0


class Begun(NamedTuple):
    """Where it changes which forward pass is under way."""

    number: int
    """Of the call, and …"""
    row: int
    """… row of the stream that came next."""
    grid: TokenGrid | None


class RecordedPasses:
    """Which forward pass what a stream computed is of: the last one of its root that was given its tokens before.

    A call in which tokens were given is of that pass, if it is one alone. Until they are, and where another call of
    that module is given none (but embeddings, say), it is not known what is computed.
    """

    def __init__(self, stretch: CallRange, grids: Sequence[TokenGrid]) -> None:
        self._around: dict[int, TokenGrid | None] = {}
        self._begun: dict[str, list[Begun]] = {}
        anchors = {grid.anchor.number: grid for grid in grids}
        for grid in grids:
            for call in stretch.around(grid.anchor):
                self._around[call.number] = None if call.number in self._around else grid
        enclosing = {stretch.by_number[number].module for number in self._around}
        for call in stretch.calls:
            if call.number in anchors or call.module in enclosing:
                entry = Begun(call.number, call.first_row, anchors.get(call.number))
                self._begun.setdefault(root_of(call.module), []).append(entry)

    def of_call(self, module: str, number: int) -> TokenGrid | None:
        return self._around[number] if number in self._around else self._last(module, number, "number")

    def at(self, module: str, row: int) -> TokenGrid | None:
        """Of an op, by its row in the stream."""
        return self._last(module, row, "row")

    def _last(self, module: str, limit: int, by: Literal["number", "row"]) -> TokenGrid | None:
        own = self._begun.get(root_of(module), [])
        at = bisect_right(own, limit, key=attrgetter(by)) - 1
        return own[at].grid if at >= 0 else None


# --- source -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """A tensor that was selected."""

    process: ProcessTrace
    spot: TensorPlace
    tensor: ActivationRows
    grid: TokenGrid
    step: int
    order: int
    grad: bool
    keyed: Callable[[], KeyedRows | None]
    """What the evidence of the whole stretch tells of its rows, where its shape does not."""


@dataclass
class _Found:
    """What is found in all streams."""

    tensors: list[_Tensor] = field(default_factory=list)
    grids: list[TokenGrid] = field(default_factory=list)
    axes: tuple[int, ...] | None = None
    kept: bool = False
    """Rows were kept at all."""
    observed: bool = False
    """Rows are told by what a policy is given: it is given no tokens."""


def read_table(trace: Trace, selector: Selector, texts: Sequence[str], *, weights: bool = False) -> RowTable:
    """The rows of all tensors of ``trace`` that the selector, which ``texts`` say, finds.

    ``weights``: of ops that choose, what they gave for it as well. Raises UsageError where the trace lacks what it
    takes, HoleError where damage is in the way.
    """
    found = _Found(observed=not _has_tokens(trace))
    for process in trace.processes:
        if not process.kept_rows:
            continue
        found.kept = True
        found.axes = None if process.kept_rows.asked is None else process.kept_rows.asked.axes
        for stream in process.streams:
            stretch = _stretch(process, stream)
            _read_stream(stretch, process, selector, found, weights=weights)
            if stretch.holes:
                raise HoleError(stretch.holes[0])
    _check(trace, found, texts)
    return _table(trace, found, texts)


def _stretch(process: ProcessTrace, stream: StreamTrace) -> CallRange:
    calls, ops = process.kept_rows.calls(stream.index), process.kept_rows.ops(stream.index)
    return CallRange("a", tuple(calls), ops=ops, find=process.values.get, recorded=RecordedStream(process, stream))


def _has_tokens(trace: Trace) -> bool:
    """Whether any forward pass of A is over tokens."""
    return any(
        forwards_of(_stretch(process, stream))
        for process in trace.processes
        if process.kept_rows
        for stream in process.streams
    )


def _read_stream(
    stretch: CallRange, process: ProcessTrace, selector: Selector, found: _Found, *, weights: bool
) -> None:
    begun = max((int(grid.sequences.max(initial=NONE)) + 1 for grid in found.grids), default=0)
    grids = observed_grids(stretch) if found.observed else numbered_grids(stretch, begun)
    passes = RecordedPasses(stretch, grids)
    found.grids += grids
    keying = cache(lambda: Keying(stretch, grids))
    found.tensors += _of_calls(stretch, process, selector, passes, keying)
    found.tensors += _of_ops(stretch, process, selector, passes, weights=weights)


def _of_calls(
    stretch: CallRange, process: ProcessTrace, selector: Selector, passes: RecordedPasses, keying: Callable[[], Keying]
) -> Iterator[_Tensor]:
    """Outputs of the module calls that are found by what asks for nothing that only ops have."""
    seen: dict[tuple[int, str], int] = {}
    for call in stretch.calls:
        grid = None if call.phase == "backward" else passes.of_call(call.module, call.number)
        if grid is None:  # what is computed anew in a backward pass is in the trace twice
            continue
        nth = seen.get((id(grid), call.module), 0)
        seen[id(grid), call.module] = nth + 1
        if finds_call(selector, stretch, call):
            for tensor in outputs_of(call):
                spot = TensorPlace(call.module, OUTPUT, nth, tensor.name)
                keyed = partial(_by_evidence, keying, call, tensor, grid)
                grad = _with_gradient(stretch, call)
                yield _Tensor(process, spot, tensor, grid, call.step, call.number, grad, keyed)


def _by_evidence(
    keying: Callable[[], Keying], call: ModuleCall, tensor: ActivationRows, grid: TokenGrid
) -> KeyedRows | None:
    for keyed in keying().of(call):
        if (keyed.tensor.part, keyed.tensor.name) == (tensor.part, tensor.name):
            return keyed if isinstance(keyed, KeyedRows) and keyed.grid is grid and not keyed.assumed else None
    return None


def _of_ops(
    stretch: CallRange, process: ProcessTrace, selector: Selector, passes: RecordedPasses, *, weights: bool
) -> Iterator[_Tensor]:
    """Results of the ops that are found by what asks for something that only ops have."""
    wanted = dict(ops_in(stretch, selector.filter_clauses(lambda keys: not OP_KEYS.isdisjoint(keys))))
    if not wanted:
        return
    assert stretch.recorded is not None
    words, names = process.words, set(wanted.values())
    asked = [number for number in range(words.size("ops")) if words.op(number) in names]
    seen: dict[tuple[int, str, str], int] = {}
    for segment in stretch.recorded.stream.segments:
        rows = stretch.recorded.stream.read_segment(segment)
        may = np.isin(rows.column(Column.OP), asked) & (rows.column(Column.PHASE) != Phase.BACKWARD)
        for i in np.flatnonzero(may).tolist():
            row = rows.first + i
            op, module = words.op(int(rows.columns[i, Column.OP])), words.module(int(rows.columns[i, Column.MODULE]))
            grid = passes.at(module, row)
            if grid is None:
                continue
            nth = seen.get((id(grid), module, op), 0)
            seen[id(grid), module, op] = nth + 1
            if row not in wanted:
                continue
            step, only = int(rows.columns[i, Column.STEP]), None if weights else CHOICES.get(op)
            for tensor in stretch.ops[row].tensors:
                if tensor.part is Part.OUTPUT and only in (None, tensor.name):
                    spot, grad = (
                        TensorPlace(module, op, nth, tensor.name),
                        _with_gradient(stretch, around(stretch, row)),
                    )
                    yield _Tensor(process, spot, tensor, grid, step, row, grad, lambda: None)


def _with_gradient(stretch: CallRange, call: ModuleCall | None) -> bool:
    """As the outermost call around it has it."""
    return call is not None and (call, *stretch.around(call))[-1].grad


# --- what the trace must hold -----------------------------------------------------------------------------------------


def _check(trace: Trace, found: _Found, texts: Sequence[str]) -> None:
    """Raise UsageError where the trace lacks what it takes."""
    record = _record_command(texts)
    if not found.kept:
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
            f"are to be injected; the first is of {lacking[0].spot.module}; record it again: {record}"
        )


def _record_command(texts: Sequence[str]) -> str:
    rows = ["all"] if "all" in texts else ["module=*", *texts]
    given = [("--rows", text) for text in rows], [("--values", text) for text in texts]
    return line("record", *(word for pairs in given for pair in pairs for word in pair), "--", "CMD")


def _table(trace: Trace, found: _Found, texts: Sequence[str]) -> RowTable:
    usual = _usual(found)
    sampled = {(one.spot.module, one.spot.op) for one in found.tensors if not one.grad}
    sources = []
    for one in found.tensors:
        if one.grad and (one.spot.module, one.spot.op) in sampled:  # what the trainer computed; the rollout's are meant
            continue
        source = _source(one, found.axes, usual[_tensor_of(one.spot)])
        if source is not None:
            sources.append(source)
    if not any(len(source.keys) for source in sources):
        first = found.tensors[0]
        raise UsageError(
            f"no tensor that the selector finds in {trace.path} has a row for each token: {first.spot.module} "
            f"returns {first.tensor.dtype}{list(first.tensor.shape)}, for {list(first.grid.shape)} tokens"
        )
    keys = np.concatenate([grid.keys for grid in found.grids])
    sequences = np.concatenate([grid.sequences for grid in found.grids])
    own = (keys != NO_KEY) & (sequences != NONE)
    anchors = {grid.anchor.module for grid in found.grids}
    steps = np.concatenate([np.full(len(grid.keys), grid.anchor.step) for grid in found.grids])
    told = keys[own], sequences[own], steps[own]
    return RowTable(sources, anchors, told, found.axes, usual, observed=found.observed)


def _tensor_of(spot: TensorPlace) -> tuple[str, str, str]:
    return spot.module, spot.op, spot.name


def _usual(found: _Found) -> dict[tuple[str, str, str], frozenset[RowLayout]]:
    """For each tensor of a module the layouts that the shapes of all its calls allow."""
    allowed: dict[tuple[str, str, str], frozenset[RowLayout]] = {}
    for one in found.tensors:
        possible = readings(one.tensor.shape, one.grid.shape, found.axes)
        if possible:
            layouts = frozenset(reading.layout for reading in possible)
            key = _tensor_of(one.spot)
            allowed[key] = allowed.get(key, layouts) & layouts
    return {_tensor_of(one.spot): allowed.get(_tensor_of(one.spot), frozenset()) for one in found.tensors}


def _source(one: _Tensor, axes: tuple[int, ...] | None, usual: frozenset[RowLayout]) -> RowSource | None:
    """The rows of one tensor; None: it has none for the tokens."""
    tensor, grid = one.tensor, one.grid
    reading = chosen(readings(tensor.shape, grid.shape, axes), usual)
    if reading is not None:
        counted, (parts, rows) = reading.axes, places(tensor.shape, grid.shape, reading)
    elif (keyed := one.keyed()) is not None:
        counted, parts, rows = keyed.tensor.axes, keyed.parts, keyed.rows
    else:
        return None
    own = grid.keys[rows] != NO_KEY
    parts, rows = parts[own], rows[own]
    digests = tensor.digests if counted == tensor.axes else _digests(one, counted)
    return RowSource(
        one.spot,
        tensor.whole,
        tensor.dtype,
        tensor.shape,
        counted,
        grid.keys[rows],
        parts,
        fold(digests.ravel()[parts]),
        grid.sequences[rows],
        one.step,
        one.order,
        one.process.values.get,
    )


def _digests(one: _Tensor, axes: tuple[int, ...]) -> NDArray[np.uint64]:
    value = one.process.values.get(one.tensor.whole)
    assert value is not None  # ``_check``
    return row_digests(value.data, value.dtype, value.shape, dtypes.itemsize(value.dtype) or 1, axes)
