"""What is kept beside the rows of a stream that is being built: values, rows of tensors, calls of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, seed_of
from rltrace.digest.rows import row_digests
from rltrace.testing.processes import Process
from rltrace.trace.keptpack import Block, NewCall, NewKept, NewOp, NewTensor
from rltrace.trace.keptrecords import axes_of
from rltrace.trace.schema import CallFlag, Phase, ValueKind
from rltrace.trace.tensor_rows import Part
from rltrace.trace.valuepack import NewValue, NewValues
from rltrace.trace.valuerecords import LeftOut

Tensor = NDArray[Any] | tuple[NDArray[Any], str]
"""An array, and torch's name of its dtype where NumPy has none for it."""


class Keeping:
    """Values and rows of tensors of one stream, held until its next commit."""

    def __init__(self, process: Process, index: int) -> None:
        self.process = process
        self.index = index
        self.rows = 0
        """Rows so far, committed or not."""
        self._values: list[NewValue] = []
        self._left_out: list[LeftOut] = []
        self._kept: list[NewCall | NewOp] = []
        self._kept_left_out: list[LeftOut] = []
        self._calls = 0
        self._open_calls: list[int] = []

    def value(self, array: NDArray[Any], dtype: str = "", *, kind: ValueKind = ValueKind.OUTPUT, place: int = 0) -> int:
        """Keep a value of the next row; returns its digest. ``dtype``: torch's name, where NumPy has none for it.

        A generator's state is an array of bytes of kind GENERATOR.
        """
        self.process.keeps()
        data, dtype = np.ascontiguousarray(array).tobytes(), dtype or str(array.dtype)
        if kind is ValueKind.GENERATOR:
            layout, seed = 0, 0
        else:
            layout = self.process.tables.plain("layouts", [dtype, list(array.shape), [], "cpu"])
            seed = seed_of(dtype, array.shape)
        made = NewValue(kind, digest_buffer(data, seed), self.index, self.rows, place, layout, data)
        self._values.append(made)
        return made.digest

    def left_out(self, why: str, values: int = 1, size: int = 0) -> None:
        """Values of the next row were asked for and not kept."""
        self.process.keeps()
        self._left_out.append(LeftOut(why, self.index, self.rows, self.rows, values, size))

    @contextmanager
    def call(
        self,
        module: str,
        inputs: Mapping[str, Tensor] | None = None,
        kind: str = "Module",
        phase: Phase | str = Phase.OTHER,
        *,
        grad: bool = False,
        values: bool = False,
    ) -> Iterator[dict[str, Tensor]]:
        """A call of a module around the ops of the block; what is put into the mapping are its outputs.

        A tensor is an array, or a pair of one and torch's name of its dtype. Their rows are kept; their values where
        ``values`` says so, and those of whole numbers and booleans.
        """
        number, parent, first = self._calls, self._open_calls[-1] if self._open_calls else None, self.rows
        step = self.process.step
        self._calls += 1
        self._open_calls.append(number)
        given = [self._tensor(Part.INPUT, name, tensor, values) for name, tensor in (inputs or {}).items()]
        outputs: dict[str, Tensor] = {}
        yield outputs
        given += [self._tensor(Part.OUTPUT, name, tensor, values) for name, tensor in outputs.items()]
        self._open_calls.pop()
        intern = self.process.tables.plain
        phase = Phase[phase.upper()] if isinstance(phase, str) else phase
        flags = CallFlag.CALL | (CallFlag.GRAD if grad else 0)
        ids = intern("modules", module), intern("names", kind)
        self._kept.append(NewCall(self.index, number, parent, *ids, step, phase, flags, first, self.rows, given))

    def op_rows(
        self,
        row: int,
        inputs: Mapping[str, Tensor] | None = None,
        outputs: Mapping[str, Tensor] | None = None,
        *,
        values: bool = False,
    ) -> None:
        """Rows of the tensors of an op; called before the commit of its row, or of a later one."""
        parts = ((Part.INPUT, inputs or {}), (Part.OUTPUT, outputs or {}))
        tensors = [self._tensor(part, *named, values, told_by=False) for part, of in parts for named in of.items()]
        self._kept.append(NewOp(self.index, row, tensors))

    def rows_left_out(self, why: str, rows: int = 1) -> None:
        """Rows of a tensor were asked for at the next row of the stream and not kept."""
        self.process.keeps_rows()
        self._kept_left_out.append(LeftOut(why, self.index, self.rows, self.rows, 1, 8 * rows))

    def _tensor(self, part: Part, name: str, tensor: Tensor, values: bool, *, told_by: bool = True) -> NewTensor:
        self.process.keeps_rows()
        array, dtype = tensor if isinstance(tensor, tuple) else (tensor, str(tensor.dtype))
        data, shape = np.ascontiguousarray(array).tobytes(), array.shape
        axes = axes_of(self.process.row_axes, array.ndim)
        layout = self.process.tables.plain("layouts", [dtype, list(shape), [], "cpu"])
        whole = digest_buffer(data, seed_of(dtype, shape))
        if values or (told_by and array.dtype.kind in "iub"):
            self.process.keeps(only_with_rows=True)
            self._values.append(NewValue(ValueKind.WITH_ROWS, whole, self.index, self.rows, 0, layout, data))
        block = Block(row_digests(data, dtype, shape, array.itemsize, axes))
        return NewTensor(part, self.process.tables.plain("names", name), layout, axes, whole, block)

    def _take_kept(self) -> tuple[NewValues, NewKept]:
        """What is held, for a commit; nothing is held any more."""
        values, self._values, self._left_out = NewValues(self._values, self._left_out), [], []
        kept, self._kept, self._kept_left_out = NewKept(self._kept, self._kept_left_out), [], []
        return values, kept
