"""One recorded op as a case that can be run again.

Owns what a trace must hold for that (the bytes of all inputs, and the RNG state), the messages on missing data, and the
memory layout of the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch._ops import OpOverload

from rltrace.errors import UsageError
from rltrace.recorder.core.op_info import OpPlan, Role, make_plan, written_places
from rltrace.rerun.arguments import NAME, Arguments, arguments_of
from rltrace.rerun.runner import OpCase, ResultDigests, RngState, TensorSpec
from rltrace.rerun.torch_flags import fits
from rltrace.trace.format import dtypes
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.read.values import StoredPlacement, Value

# --- memory -----------------------------------------------------------------------------------------------------------


Layout = tuple[str, Sequence[int], Sequence[int], str]
"""dtype, shape, strides, device of one tensor."""


@dataclass(frozen=True)
class Memory:
    """The storages of one call, and its tensors in them."""

    tensors: list[TensorSpec]
    storages: list[NDArray[np.uint8]]
    alignments: list[int]


def lay_out(layouts: Sequence[Layout], placements: Mapping[int, StoredPlacement]) -> Memory:
    """Tensors with these layouts, in zeroed storages; a tensor without a placement gets a separate one."""
    places = [placements.get(place) or StoredPlacement(place, 0, 0, False, False) for place in range(len(layouts))]
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
    """Write the logical bytes of a tensor to its storage."""
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


# --- recorded ops -----------------------------------------------------------------------------------------------------


class MissingValuesError(UsageError):
    """The trace lacks bytes of inputs; the text names them."""


@dataclass(frozen=True)
class RecordedOp:
    """One op of a trace, ready to be run."""

    name: str
    """``aten.addmm.default``."""
    arguments: Arguments
    case: OpCase
    results: ResultDigests
    """The recorded results, in the form of ``runner.repeat``."""


def recorded_op(process: ProcessTrace, stream: StreamTrace, row: int) -> RecordedOp:
    """The op of a row. Raises UsageError where it cannot be run again (MissingValuesError for values), HoleError."""
    rows = stream.read(row, row + 1)
    func, plan = operator_of(process, rows)
    arguments = arguments_of(process.words.skeleton(int(rows.columns[0, Column.SCALARS])), rows, 0)
    memory = _memory(process, stream, rows)
    args, kwargs = arguments.values(_placeholders(len(memory.tensors)), None)
    written = written_places(plan, args, kwargs).all

    def call(tensors: list[torch.Tensor], generator: torch.Generator | None) -> Any:
        positional, named = arguments.values(tensors, generator)
        return func(*positional, **named)

    device = memory.tensors[0].device if memory.tensors else "cpu"
    generator = generator_of(process, rows, arguments, device)
    places = written, returned_places(plan)
    settings = settings_of(process, rows)
    case = OpCase(call, memory.tensors, memory.storages, memory.alignments, *places, generator, settings)
    return RecordedOp(plan.name, arguments, case, results_of_row(rows, 0))


def settings_of(process: ProcessTrace, rows: Rows) -> dict[str, Any]:
    """What torch was set to when the op of the first of these rows ran, as far as it can be set again."""
    known = process.words.settings(int(rows.columns[0, Column.SETTINGS]))
    return {name: value for name, value in known.items() if fits(name, value)}


def results_of_row(rows: Rows, i: int) -> ResultDigests:
    """The recorded results of a row, in the form of ``runner.repeat``, without library workspaces (digest 0)."""
    number = rows.value(i)
    return (repr(number),) if number is not None else tuple(f"{digest:016x}" for digest in rows.outputs(i) if digest)


def returned_places(plan: OpPlan) -> tuple[int, ...] | None:
    """Indices of the returned values that are results of the row; None: all."""
    if plan.computes and not plan.returns_new:
        return ()
    if not plan.aliased and not plan.scratch:
        return None
    count = len(plan.func._schema.returns)
    aliased = plan.aliased or (False,) * count
    return tuple(i for i in range(count) if not aliased[i] and i not in plan.scratch)


# --- the operator -------------------------------------------------------------------------------------------------


REGISTERED_BY: Final = {"fsdp": "torch.distributed.fsdp"}
"""Modules of torch that register operators of their own when they are imported, by namespace."""


def find_operator(name: str) -> OpOverload:
    """The operator of that name in this process. Raises UsageError where it does not exist."""
    parts = name.split(".")
    if parts[0] in REGISTERED_BY:
        import_modules([REGISTERED_BY[parts[0]]])
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


def operator_of(process: ProcessTrace, rows: Rows) -> tuple[OpOverload, OpPlan]:
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
    if name.startswith(LAUNCH_ROWS):
        raise UsageError(
            f"{where}, {name}, is a call of code outside torch, which is not in the trace: it cannot be re-executed by "
            "itself"
        )
    func = find_operator(name)
    plan = make_plan(0, func)
    if plan.arrives or plan.role in (Role.IN_FLIGHT, Role.ARRIVED):
        raise UsageError(f"{where}, {name}, needs the other processes of its group: it cannot be re-executed")
    return func, plan


# --- its memory ---------------------------------------------------------------------------------------------------


def _memory(process: ProcessTrace, stream: StreamTrace, rows: Rows) -> Memory:
    """The tensor arguments and their filled storages."""
    memory = lay_out(layouts_of(process, rows), process.values.placements(stream.index, rows.first))
    for place, value in enumerate(_values(process, stream, rows, memory.tensors)):
        if value is not None:
            fill(memory, place, value.data)
    return memory


def alignments_of(process: ProcessTrace, stream: StreamTrace, row: int) -> tuple[int, ...] | None:
    """Address of each storage of a row's inputs modulo 64; None: not recorded."""
    placements = process.values.placements(stream.index, row)
    if not placements and not process.values.inputs(stream.index, row):
        return None
    try:
        return tuple(lay_out(layouts_of(process, stream.read(row, row + 1)), placements).alignments)
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
    """The inputs of the op; None for those it only overwrites. Raises MissingValuesError, HoleError."""
    links = list(rows.inputs(0))
    recorded = process.values.inputs(stream.index, rows.first)
    digests = [_digest(place, link, recorded) for place, link in enumerate(links)]
    values = [None if digest is None else process.values.get(digest) for digest in digests]
    missing = [
        place
        for place, (link, value, spec) in enumerate(zip(links, values, specs, strict=True))
        if value is None and link.distance != Origin.OVERWRITTEN and spec.span
    ]
    if missing:
        raise MissingValuesError(_missing_text(process, stream, rows.first, missing, len(links)))
    return values


def _digest(place: int, link: Link, recorded: Any) -> int | None:
    """Digest of the bytes that the op read. The producer's digest would be that of another view."""
    if link.distance == Origin.OVERWRITTEN:
        return None
    digest: int | None = recorded.get(place, link.digest)
    return digest


def _missing_text(process: ProcessTrace, stream: StreamTrace, row: int, missing: Sequence[int], count: int) -> str:
    inputs = f"input{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
    why = process.values.why_missing(stream.index, row)
    if why is None and not process.values:
        why = "no values were recorded"
    elif why is None and process.value_request is not None and not process.value_request.inputs:
        why = "it was recorded without --values-inputs"
    elif why is None:
        why = "no selector of the recording found this op"
    return f"the trace lacks the bytes of {inputs} of {count} of this op: {why}"


# --- its generator ------------------------------------------------------------------------------------------------


def generator_of(process: ProcessTrace, rows: Rows, arguments: Arguments, device: str) -> RngState | None:
    """The generator that the op draws from; ``device``: of its tensors. Raises MissingValuesError, HoleError."""
    digest = rows.rng(0)
    if digest is None:
        return None
    device = str(getattr(arguments.named.get("device"), "text", device))
    state = process.values.get(digest) if digest else None
    if state is None:
        why = "its state cannot be queried" if not digest else "its state was not recorded"
        raise MissingValuesError(f"the op draws from a generator, and {why}")
    return RngState(device, np.array(state.raw), arguments.takes_generator)


def _placeholders(count: int) -> list[torch.Tensor]:
    """Meta tensors that replace the tensor arguments."""
    return [torch.empty(0, device="meta")] * count


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register operators. Raises UsageError."""
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            raise UsageError(f"--import {name}: {type(error).__name__}: {error}") from None
