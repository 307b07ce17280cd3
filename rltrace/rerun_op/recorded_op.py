"""One recorded op made ready to be run again: its case, from what the trace holds of it.

Owns what a trace must hold for that (the bytes of everything the op reads, and the generator's state), and the words
for what is missing. The memory of its inputs is put together here; running is ``rerun``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._ops import OpOverload

from rltrace.errors import UsageError
from rltrace.recorder.core.op_info import OpPlan, Role, make_plan, written_places
from rltrace.rerun_op.arguments import NAME, Arguments, arguments_of
from rltrace.rerun_op.runner import OpCase, ResultDigests, RngState, TensorSpec
from rltrace.rerun_op.torch_flags import fits
from rltrace.trace.format import dtypes
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.read.values import StoredPlacement, Value

# --- memory -----------------------------------------------------------------------------------------------------------
#
# The memory of a case's inputs, put together: which storages there are, and every value where its tensor lies.
#
# Owns that layout, whether the values come from a trace or from a program that is running. NumPy alone.


Layout = tuple[str, Sequence[int], Sequence[int], str]
"""dtype, shape, strides, device of one tensor."""


@dataclass(frozen=True)
class Memory:
    """Of one call."""

    tensors: list[TensorSpec]
    storages: list[NDArray[np.uint8]]
    alignments: list[int]


def lay_out(layouts: Sequence[Layout], lying: Mapping[int, StoredPlacement]) -> Memory:
    """Tensors with these layouts, in storages that hold zeros; ``lying``: of those that do not lie plainly."""
    places = [lying.get(place) or StoredPlacement(place, 0, 0, False, False) for place in range(len(layouts))]
    numbers = {first: number for number, first in enumerate(dict.fromkeys(place.with_ for place in places))}
    tensors = [
        TensorSpec(
            str(dtype),
            tuple(shape),
            tuple(strides),
            numbers[place.with_],
            place.offset,
            str(device),
            conjugated=place.conjugated,
            negated=place.negated,
        )
        for (dtype, shape, strides, device), place in zip(layouts, places, strict=True)
    ]
    sizes = [max(t.offset + t.span for t in tensors if t.storage == number) for number in range(len(numbers))]
    alignments = {place.with_: place.alignment for place in places}
    return Memory(tensors, [np.zeros(size, np.uint8) for size in sizes], [alignments[first] for first in numbers])


def fill(memory: Memory, place: int, data: bytes | memoryview) -> None:
    """Put the logical bytes of a tensor where it lies."""
    tensor = memory.tensors[place]
    if not tensor.span:
        return
    raw = dtypes.raw(tensor.dtype, data).reshape(tensor.shape)
    if tensor.conjugated or tensor.negated:
        if tensor.dtype not in dtypes.PLAIN:
            raise UsageError(f"a lazily conjugated or negated {tensor.dtype} tensor cannot be reconstructed")
        raw = np.conj(raw) if tensor.conjugated else raw
        raw = np.negative(raw) if tensor.negated else raw
    strides = [stride * raw.dtype.itemsize for stride in tensor.strides]
    storage = memory.storages[tensor.storage]
    np.ndarray(tensor.shape, raw.dtype, storage.data, tensor.offset, strides)[...] = raw


# --- recorded ---------------------------------------------------------------------------------------------------------


class MissingValuesError(UsageError):
    """The trace lacks bytes that the op read; the text says which."""


@dataclass(frozen=True)
class RecordedOp:
    """One op of a trace, ready to be run."""

    name: str
    """``aten.addmm.default``."""
    arguments: Arguments
    case: OpCase
    results: ResultDigests
    """What it gave when it was recorded, as ``rerun.repeat`` tells it."""


def recorded_op(process: ProcessTrace, stream: StreamTrace, row: int) -> RecordedOp:
    """Raises UsageError where it cannot be run again (MissingValuesError: for want of values), HoleError."""
    rows = stream.read(row, row + 1)
    func, plan = _operator(process, rows)
    arguments = arguments_of(process.words.skeleton(int(rows.columns[0, Column.SCALARS])), rows, 0)
    memory = _memory(process, stream, rows)
    args, kwargs = arguments.values(_stand_ins(len(memory.tensors)), None)
    written = written_places(plan, args, kwargs).all

    def call(tensors: list[torch.Tensor], generator: torch.Generator | None) -> Any:
        positional, named = arguments.values(tensors, generator)
        return func(*positional, **named)

    generator = _generator(process, rows, arguments, memory.tensors)
    places = written, returned_places(plan)
    settings = settings_of(process, rows)
    case = OpCase(call, memory.tensors, memory.storages, memory.alignments, *places, generator, settings)
    return RecordedOp(plan.name, arguments, case, results_of_row(rows, 0))


def settings_of(process: ProcessTrace, rows: Rows) -> dict[str, Any]:
    """What torch was set to when the op of the first of these rows ran, as far as it can be set again."""
    known = process.words.settings(int(rows.columns[0, Column.SETTINGS]))
    return {name: value for name, value in known.items() if fits(name, value)}


def results_of_row(rows: Rows, i: int) -> ResultDigests:
    """What a row says that its op gave, as ``rerun.repeat`` tells it; a library's workspaces (digest 0) aside."""
    number = rows.value(i)
    return (repr(number),) if number is not None else tuple(f"{digest:016x}" for digest in rows.outputs(i) if digest)


def returned_places(plan: OpPlan) -> tuple[int, ...] | None:
    """Which of the things that an op returns are results of its row; None: all."""
    if plan.computes and not plan.returns_new:
        return ()
    if not plan.aliased and not plan.scratch:
        return None
    count = len(plan.func._schema.returns)
    aliased = plan.aliased or (False,) * count
    return tuple(i for i in range(count) if not aliased[i] and i not in plan.scratch)


# --- the operator -------------------------------------------------------------------------------------------------


def find_operator(name: str) -> OpOverload:
    """The operator of that name in this process. Raises UsageError where there is none."""
    parts = name.split(".")
    found: Any = torch.ops
    try:
        for part in parts:
            if not NAME.fullmatch(part):
                raise AttributeError
            found = getattr(found, part)
    except AttributeError:
        raise UsageError(
            f"this Python has no operator {name}: it was registered by the program or by a library that is not "
            "loaded; name the module that registers it with --import MODULE"
        ) from None
    if not isinstance(found, OpOverload):
        raise UsageError(f"{name} is no plain operator: what it calls in turn is not in the trace")
    return found


def _operator(process: ProcessTrace, rows: Rows) -> tuple[OpOverload, OpPlan]:
    """The operator of the row. Raises UsageError where its result is nothing that could be computed again."""
    name = process.words.op(int(rows.columns[0, Column.OP]))
    where = f"row {rows.first:,}"
    if int(rows.columns[0, Column.KIND]) != Kind.OP:
        raise UsageError(f"{where} is an event, not an op: there is nothing to run")
    flags = rows.flags(0)
    if flags & RowFlag.VIEW:
        raise UsageError(f"{where}, {name}, only makes a view: it computes nothing")
    if flags & RowFlag.ALLOCATION:
        raise UsageError(f"{where}, {name}, returns uninitialised memory: there is no result to compare")
    func = find_operator(name)
    plan = make_plan(0, func)
    if plan.arrives or plan.role in (Role.IN_FLIGHT, Role.ARRIVED):
        raise UsageError(f"{where}, {name}, needs the other processes of its group: it cannot be re-executed")
    return func, plan


# --- its memory ---------------------------------------------------------------------------------------------------


def _memory(process: ProcessTrace, stream: StreamTrace, rows: Rows) -> Memory:
    """The tensor arguments, and the storages they lie in with everything in its place."""
    memory = lay_out(layouts_of(process, rows), process.values.lying(stream.index, rows.first))
    for place, value in enumerate(_values(process, stream, rows, memory.tensors)):
        if value is not None:
            fill(memory, place, value.data)
    return memory


def alignments_of(process: ProcessTrace, stream: StreamTrace, row: int) -> tuple[int, ...] | None:
    """Address of each storage of a row's inputs modulo 64; None where nobody wrote down how they lay."""
    lying = process.values.lying(stream.index, row)
    if not lying and not process.values.inputs(stream.index, row):
        return None
    try:
        return tuple(lay_out(layouts_of(process, stream.read(row, row + 1)), lying).alignments)
    except UsageError:
        return None


def layouts_of(process: ProcessTrace, rows: Rows) -> list[Layout]:
    """Of the tensor arguments of the first of these rows. Raises UsageError where one has no plain bytes."""
    payloads = process.words.tensors(int(rows.columns[0, Column.STRUCTURE]))
    for place, (dtype, _shape, strides, _device) in enumerate(payloads):
        if not isinstance(strides, list) or dtypes.itemsize(dtype) is None:
            raise UsageError(
                f"input {place} of the op is {dtype}, {strides if isinstance(strides, str) else 'quantized'}: such "
                "a tensor has no plain bytes, and cannot be reconstructed"
            )
    return payloads


def _values(process: ProcessTrace, stream: StreamTrace, rows: Rows, specs: Sequence[TensorSpec]) -> list[Value | None]:
    """What the op read, by place; None where it only overwrote. Raises MissingValuesError, HoleError."""
    links = list(rows.inputs(0))
    kept = process.values.inputs(stream.index, rows.first)
    digests = [_digest(place, link, kept) for place, link in enumerate(links)]
    values = [None if digest is None else process.values.get(digest) for digest in digests]
    lacking = [
        place
        for place, (link, value, spec) in enumerate(zip(links, values, specs, strict=True))
        if value is None and link.distance != Origin.OVERWRITTEN and spec.span
    ]
    if lacking:
        raise MissingValuesError(_missing(process, stream, rows.first, lacking, len(links)))
    return values


def _digest(place: int, link: Link, kept: Any) -> int | None:
    """Of the very bytes that the op read; where it took them from does not tell through which view."""
    if link.distance == Origin.OVERWRITTEN:
        return None
    digest: int | None = kept.get(place, link.digest)
    return digest


def _missing(process: ProcessTrace, stream: StreamTrace, row: int, lacking: Sequence[int], count: int) -> str:
    which = f"input{'s' if len(lacking) > 1 else ''} {', '.join(map(str, lacking[:8]))}"
    why = process.values.why_missing(stream.index, row)
    if why is None and not process.values:
        why = "no values were recorded"
    elif why is None and process.asked is not None and not process.asked.inputs:
        why = "it was recorded without --values-inputs"
    elif why is None:
        why = "no selector of the recording found this op"
    return f"the trace lacks the bytes of {which} of {count} of this op: {why}"


# --- its generator ------------------------------------------------------------------------------------------------


def _generator(process: ProcessTrace, rows: Rows, arguments: Arguments, specs: Sequence[TensorSpec]) -> RngState | None:
    digest = rows.rng(0)
    if digest is None:
        return None
    device = specs[0].device if specs else str(getattr(arguments.named.get("device"), "text", "cpu"))
    state = process.values.get(digest) if digest else None
    if state is None:
        why = "its state cannot be queried" if not digest else "its state was not recorded"
        raise MissingValuesError(f"the op draws from a generator, and {why}")
    return RngState(device, np.array(state.raw), arguments.takes_generator)


def _stand_ins(count: int) -> list[torch.Tensor]:
    """Something that counts as a tensor, for each."""
    return [torch.empty(0, device="meta")] * count


def import_modules(names: Sequence[str]) -> None:
    """Import what registers operators. Raises UsageError."""
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            raise UsageError(f"--import {name}: {type(error).__name__}: {error}") from None
