"""Recorded ops run again one after the other, each on what those before it left in memory (``record --rerunnable``).

Owns how their memory is built: a storage begins with the bytes that the trace has for it, and every tensor is one of
the recorded layout at its recorded place. No program runs: what it decided, and what other processes sent, is as it was
recorded.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from rltrace.digest import digest_buffer, seed_of
from rltrace.errors import UsageError
from rltrace.extensions.repro.rerun_result import OpOutcome
from rltrace.rerun.recorded_op import (
    MissingValuesError,
    RecordedOp,
    op_of_row,
    settings_of,
    tensor_of,
)
from rltrace.rerun.runner import Memory, ResultDigests, TensorSpec, logical_bytes, restored, results_of_call
from rltrace.rerun.torch_flags import temporary_switches
from rltrace.selectors import Selector
from rltrace.trace.format.collectives import brings_data
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import (
    PLACEMENT_SHIFT,
    TENSOR_SHIFT,
    Column,
    Kind,
    Origin,
    PlacementBit,
    RowFlag,
    ValueIndex,
    ValueKind,
)
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.stream import StreamTrace

# --- what was recorded ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceOp:
    """One op that can be run again."""

    stream: StreamTrace
    row: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    """Those in storages that its arguments are not in."""
    contents: Mapping[int, int]
    """Digests of what storages held before the op, by number, where no earlier op left it."""
    name: str
    """Of the operator; empty: the row is of a window's beginning."""

    @property
    def tensors(self) -> Iterator[TensorSpec]:
        """All of its tensors."""
        yield from self.inputs
        yield from self.outputs


def op_sequence(process: ProcessTrace) -> list[SequenceOp]:
    """The ops of a process that can be run again, in the order in which they ran.

    Raises MissingValuesError, HoleError.
    """
    if process.values.left_out:
        left = process.values.left_out[0]
        raise MissingValuesError(
            f"{left.values:,} values of the ops ({left.bytes:,} bytes) were not recorded, as {left.why}: record them "
            "with a larger --values-limit"
        )
    index = process.values.index
    kinds = index[:, ValueIndex.KIND]
    found = index[np.isin(kinds, (ValueKind.STORAGE, ValueKind.CONTENT, ValueKind.TENSOR))]
    by_row: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for entry in found.tolist():
        by_row[entry[ValueIndex.STREAM], entry[ValueIndex.ROW]].append(entry)
    streams = {stream.index: stream for stream in process.streams}
    ops: list[tuple[int, SequenceOp]] = []
    for (stream, row), entries in by_row.items():
        tensors = [entry for entry in entries if entry[ValueIndex.KIND] == ValueKind.TENSOR]
        if not tensors or stream not in streams or row >= streams[stream].rows:
            continue
        contents = {
            entry[ValueIndex.PLACE]: entry[ValueIndex.DIGEST]
            for entry in entries
            if entry[ValueIndex.KIND] != ValueKind.TENSOR
        }
        order = tensors[0][ValueIndex.DIGEST] >> 32
        sides: tuple[list[TensorSpec], list[TensorSpec]] = [], []
        for entry in tensors:
            tensor, is_output = _tensor(process, entry)
            sides[is_output].append(tensor)
        columns = streams[stream].read(row, row + 1).columns[0]
        name = process.words.op(int(columns[Column.OP])) if columns[Column.KIND] == Kind.OP else ""
        ops.append((order, SequenceOp(streams[stream], row, tuple(sides[0]), tuple(sides[1]), contents, name)))
    return [op for _, op in sorted(ops, key=lambda item: item[0]) if not brings_data(op.name)]


WRITE_NOTHING: Final = "profiler."
"""Ops of this library mark ranges of time."""


def ops_not_run(process: ProcessTrace, ops: Sequence[SequenceOp], selector: Selector) -> Counter[str]:
    """The selected ops between those of a sequence that cannot be run again, by name. Views and allocations are left
    out. Raises HoleError.
    """
    names: Counter[str] = Counter()
    for stream in process.streams:
        own = sorted(op.row for op in ops if op.stream is stream and op.name)
        if not own:
            continue
        rows = stream.read(own[0], own[-1] + 1)
        wanted = RowMask(selector, stream.name, process.words).compute(rows)
        wanted &= rows.columns[:, Column.KIND] == Kind.OP
        wanted &= rows.columns[:, Column.FLAGS] & (RowFlag.VIEW | RowFlag.ALLOCATION) == 0
        wanted[np.array(own) - own[0]] = False
        names.update(process.words.op(op) for op in rows.columns[wanted, Column.OP].tolist())
    return Counter({name: count for name, count in names.items() if not name.startswith(WRITE_NOTHING)})


def ops_of(process: ProcessTrace, ops: Sequence[SequenceOp], selector: Selector) -> list[SequenceOp]:
    """The ops of a sequence that a selector finds. Raises HoleError."""
    found: set[tuple[int, int]] = set()
    for stream in process.streams:
        own = [op.row for op in ops if op.stream is stream]
        if own:
            mask = RowMask(selector, stream.name, process.words).compute(stream.read(min(own), max(own) + 1))
            found.update((stream.index, min(own) + int(i)) for i in np.flatnonzero(mask))
    return [op for op in ops if (op.stream.index, op.row) in found]


def _tensor(process: ProcessTrace, entry: Sequence[int]) -> tuple[TensorSpec, bool]:
    place = entry[ValueIndex.PLACE]
    bits = PlacementBit(place & (1 << PLACEMENT_SHIFT) - 1)
    dtype, shape, strides, device, *_ = process.words.payload("layouts", entry[ValueIndex.LAYOUT])
    spec = TensorSpec(
        dtype,
        tuple(shape),
        tuple(strides),
        entry[ValueIndex.DIGEST] & 0xFFFF_FFFF,
        entry[ValueIndex.OFFSET],
        place >> PLACEMENT_SHIFT & 0xFF,
        device,
        conjugated=PlacementBit.CONJUGATED in bits,
        negated=PlacementBit.NEGATED in bits,
        index=place >> TENSOR_SHIFT,
    )
    return spec, PlacementBit.OUTPUT in bits


# --- run again --------------------------------------------------------------------------------------------------------


class SequenceRun:
    """A run of the ops of a sequence in this process."""

    def __init__(self, process: ProcessTrace) -> None:
        self._process = process
        self.memory = Memory()
        self.last: tuple[RecordedOp, Sequence[Any]] | None = None
        """The op that ran last, and its results, with the recorded bytes where the trace has them."""
        self._differing: set[int] = set()
        """Storages with other bytes than were recorded."""
        self._placed: dict[int, TensorSpec] = {}
        """By number of a storage: a tensor in it."""

    def run(
        self, ops: Sequence[SequenceOp], before: Callable[[SequenceOp], None] = lambda op: None
    ) -> Iterator[OpOutcome]:
        """Run the ops; ``before`` is called with each before it runs, when memory is as it finds it.

        Raises UsageError where one of them cannot be, MissingValuesError, HoleError.
        """
        # what an op finds in a storage may be for a later one
        self._placed = {spec.storage: spec for op in ops for spec in op.tensors}
        known: Mapping[str, Any] = {}
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for op in ops:
                if not op.name:
                    self._fill(op)
                    continue
                rows = op.stream.read(op.row, op.row + 1)
                settings = settings_of(self._process, rows)
                if settings != known:
                    stack.close()
                    stack.enter_context(torch.no_grad())
                    stack.enter_context(temporary_switches(settings))
                    known = settings
                self._fill(op)
                if RowFlag.ALLOCATION in rows.flags(0):
                    for spec in op.outputs:
                        self.memory.allocate(spec)
                else:
                    before(op)
                    yield self._run(op, rows)

    def _fill(self, op: SequenceOp) -> None:
        """Let memory hold what the op finds there that no earlier one left. Raises MissingValuesError."""
        for number, digest in op.contents.items():
            like = self._placed.get(number)
            if like is None:
                continue  # no op reads it
            value = self._process.values.get(digest)
            if value is None:
                raise MissingValuesError(f"the trace lacks the bytes of a storage that row {op.row:,} reads")
            self.memory.fill(like, np.array(value.raw))
            self._differing.discard(number)

    def _run(self, op: SequenceOp, rows: Rows) -> OpOutcome:
        again = op_of_row(self._process, rows, op.inputs, op.outputs)
        for spec, link in zip(op.inputs, rows.inputs(0), strict=True):
            if link.distance == Origin.OVERWRITTEN and not self.memory.size(spec):
                self.memory.allocate(spec)
        tensors = [self._tensor(spec, op) for spec in op.inputs]
        read = (spec.storage for i, spec in enumerate(op.inputs) if i not in again.unread)
        inputs_equal = self._differing.isdisjoint(read)
        out = again.call.call(tensors, restored(again.call.generator))
        results = results_of_call(again.call, tensors, out)
        here, recorded = tuple(map(_digest, results)), again.results
        distances = self._put_back(results, here, recorded) if here != recorded else ()
        self.memory.keep(op.outputs, out)
        self.last = again, results
        equal = distances is not None
        for i in again.call.written:
            spec = op.inputs[i]
            if not equal:
                self._differing.add(spec.storage)
            elif i in again.unread and tensors[i].nbytes == self.memory.size(spec):
                self._differing.discard(spec.storage)
        for spec in op.outputs:
            (self._differing.discard if equal else self._differing.add)(spec.storage)
        distance = None if distances is None else max(distances, default=0.0)
        return OpOutcome(op.stream.name, rows, recorded, here, inputs_equal, distance)

    def _put_back(
        self, results: Sequence[Any], here: ResultDigests, recorded: ResultDigests
    ) -> tuple[float, ...] | None:
        """Give the results that differ their recorded bytes, so that later ops read these; their largest distances.

        None: the trace does not hold the bytes of them all.
        """
        differing = [i for i, (a, b) in enumerate(zip(here, recorded, strict=True)) if a != b]
        if not all(isinstance(results[i], torch.Tensor) for i in differing):
            return None
        values = [self._process.values.get(int(recorded[i], 16)) for i in differing]
        if any(value is None for value in values):
            return None
        distances = []
        for i, value in zip(differing, values, strict=True):
            assert value is not None
            put = tensor_of(value)
            distances.append(_distance(results[i], put))
            results[i].copy_(put)
        return tuple(distances)

    def _tensor(self, spec: TensorSpec, op: SequenceOp) -> torch.Tensor:
        if not self.memory.holds(spec):
            raise UsageError(
                f"row {op.row:,} reads memory that no earlier op of this run made, and that the trace has no bytes of"
            )
        return self.memory.tensor(spec)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest distance of two elements; infinite where only one of them is a number."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    apart = (a.to("cpu", wide) - b.to(wide)).abs()
    same = (a.cpu() == b) | (a.isnan().cpu() & b.isnan())
    return float(apart.masked_fill(same, 0).nan_to_num(float("inf"), float("inf")).max()) if apart.numel() else 0.0


def _digest(result: Any) -> str:
    if not isinstance(result, torch.Tensor):
        return repr(result)
    dtype = str(result.dtype).removeprefix("torch.")
    return f"{digest_buffer(logical_bytes(result), seed_of(dtype, tuple(result.shape))):016x}"
