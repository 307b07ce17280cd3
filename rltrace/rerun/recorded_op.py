"""Recorded ops that can be called again: operator, arguments, settings, generator, and the memory of one that is alone.

Owns what a trace must hold for one (the bytes of all inputs, and the RNG state), the messages on missing data, and the
memory layout of the inputs.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch._ops import OpOverload

from rltrace.errors import UsageError
from rltrace.recorder.core.op_info import OpPlan, Role, make_plan, written_places
from rltrace.rerun.arguments import NAME, Arguments, arguments_of
from rltrace.rerun.runner import OpCall, ResultDigests, RngState, TensorSpec
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


def lay_out(
    layouts: Sequence[Layout], placements: Mapping[int, StoredPlacement]
) -> tuple[tuple[TensorSpec, ...], list[NDArray[np.uint8]]]:
    """Tensors with these layouts, and their zeroed storages; a tensor without a placement gets a separate one."""
    places = [placements.get(place) or StoredPlacement(place, 0, 0, False, False) for place in range(len(layouts))]
    numbers = {first: number for number, first in enumerate(dict.fromkeys(place.with_ for place in places))}
    alignments = {place.with_: place.alignment for place in places}
    tensors = tuple(
        TensorSpec(
            str(dtype),
            tuple(shape),
            tuple(strides),
            numbers[place.with_],
            place.offset,
            alignments[place.with_],
            str(device),
            conjugated=place.conjugated,
            negated=place.negated,
            index=i,
        )
        for i, ((dtype, shape, strides, device), place) in enumerate(zip(layouts, places, strict=True))
    )
    sizes = [max(t.offset + t.span for t in tensors if t.storage == number) for number in range(len(numbers))]
    return tensors, [np.zeros(size, np.uint8) for size in sizes]


def fill(tensor: TensorSpec, storage: NDArray[np.uint8], data: bytes | memoryview) -> None:
    """Write the logical bytes of a tensor to its storage."""
    if not tensor.span:
        return
    raw = dtypes.raw(tensor.dtype, data).reshape(tensor.shape)
    if tensor.conjugated or tensor.negated:
        if tensor.dtype not in dtypes.PLAIN:
            raise UsageError(f"a lazily conjugated or negated {tensor.dtype} tensor cannot be reconstructed")
        raw = np.conj(raw) if tensor.conjugated else raw
        raw = np.negative(raw) if tensor.negated else raw
    strides = [stride * raw.dtype.itemsize for stride in tensor.strides]
    np.ndarray(tensor.shape, raw.dtype, storage.data, tensor.offset, strides)[...] = raw


# --- recorded ops -----------------------------------------------------------------------------------------------------


class MissingValuesError(UsageError):
    """The trace lacks bytes of inputs; the text names them."""


@dataclass(frozen=True)
class RecordedOp:
    """One op of a trace, ready to be run."""

    arguments: Arguments
    call: OpCall
    results: ResultDigests
    """The recorded results, in the form of ``runner.repeat``."""
    unread: tuple[int, ...]
    """Indices of the inputs that it only writes."""

    @property
    def name(self) -> str:
        """``aten.addmm.default``."""
        return self.call.name


def op_of_row(
    process: ProcessTrace, rows: Rows, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec] = ()
) -> RecordedOp:
    """The op of the first of these rows on tensors at these places. Raises UsageError where it cannot be run again,
    MissingValuesError for the state of its generator, HoleError.
    """
    func, plan = operator_of(process, rows)
    arguments = arguments_of(process.words.skeleton(int(rows.columns[0, Column.SCALARS])), rows, 0)
    args, kwargs = arguments.values([torch.empty(0, device="meta")] * len(inputs), None)
    written = written_places(plan, args, kwargs)

    def call(tensors: list[torch.Tensor], generator: torch.Generator | None) -> Any:
        positional, named = arguments.values(tensors, generator)
        return func(*positional, **named)

    op = OpCall(
        plan.name,
        call,
        tuple(inputs),
        tuple(outputs),
        written=written.all,
        returned=returned_places(plan),
        generator=generator_of(process, rows, arguments, inputs[0].device if inputs else "cpu"),
        settings=settings_of(process, rows),
        where=place_of(process, rows),
    )
    return RecordedOp(arguments, op, results_of_row(rows, 0), written.unread)


def recorded_op(process: ProcessTrace, stream: StreamTrace, row: int) -> RecordedOp:
    """The op of a row, on its recorded inputs. Raises as ``op_of_row``, MissingValuesError for inputs as well."""
    rows = stream.read(row, row + 1)
    operator_of(process, rows)  # its errors come first
    tensors, storages = lay_out(layouts_of(process, rows), process.values.placements(stream.index, row))
    for tensor, value in zip(tensors, _values(process, stream, rows, tensors), strict=True):
        if value is not None:
            fill(tensor, storages[tensor.storage], value.data)
    op = op_of_row(process, rows, tensors)
    return replace(op, call=replace(op.call, contents=dict(enumerate(storages))))


def place_of(process: ProcessTrace, rows: Rows) -> str:
    """``step 3, forward, model.layers.0, train.py:12 in forward``."""
    cells, words = rows.columns[0].tolist(), process.words
    stack = words.stack(cells[Column.SITE])
    site = f", {stack[0].file}:{stack[0].line} in {stack[0].function}" if stack else ""
    return f"step {cells[Column.STEP]}, {words.phase(cells[Column.PHASE])}, {words.module(cells[Column.MODULE])}{site}"


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
        with suppress(ImportError):
            import_module(REGISTERED_BY[parts[0]])
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


def alignments_of(process: ProcessTrace, stream: StreamTrace, row: int) -> tuple[int, ...] | None:
    """Address of each storage of a row's inputs modulo 64; None: not recorded."""
    placements = process.values.placements(stream.index, row)
    if not placements and not process.values.inputs(stream.index, row):
        return None
    try:
        tensors, _ = lay_out(layouts_of(process, stream.read(row, row + 1)), placements)
    except UsageError:
        return None
    return tuple({tensor.storage: tensor.alignment for tensor in tensors}.values())


def tensor_of(value: Value) -> torch.Tensor:
    """A new tensor with dtype, shape and bytes of the value, on the CPU."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    if not len(value.data):
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).view(value.shape)


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


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register operators, the program's own among them. Raises UsageError."""
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  as Python does
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            raise UsageError(f"--import {name}: {type(error).__name__}: {error}") from None
