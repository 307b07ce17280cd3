"""From one tensor to the digests of its rows.

Owns the moment at which a tensor's bytes are copied, which tensors have none, and which equal ones share their digests.
Runs outside of any mode, subclass and autograd of the program's; keeps no tensor.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Final

import torch

from rltrace.digest import digest_buffer
from rltrace.digest.rows import row_digests
from rltrace.record.layouts import Layout, dtype_name
from rltrace.record.logical import is_compound
from rltrace.record.process import ProcessState
from rltrace.record.readback.gate import is_captured
from rltrace.record.rows.keeper import RowKeeper
from rltrace.record.series import unseen
from rltrace.record.values.copies import CAPTURED, COMPOUND, NO_MEMORY, NoBytesError, bytes_of, read_in_place
from rltrace.record.values.keeper import Keeper
from rltrace.trace.keptpack import Block, NewTensor
from rltrace.trace.keptrecords import axes_of
from rltrace.trace.schema import LIMIT, ValueKind
from rltrace.trace.tensor_rows import Part
from rltrace.trace.valuepack import NewValue

KNOWN: Final = 1 << 16
"""Tensors whose rows' digests are known to have been taken: at least so many, at most twice."""

SMALL: Final = 1 << 20
"""Bytes up to which values of whole numbers and booleans are kept though nobody asked: rows are told by them."""

COPIED: Final = 1 << 22
"""Bytes up to which a tensor is copied before it is read; a larger one is read twice."""

CHANGED: Final = "something wrote to the tensor while its rows were being kept"
WRAPPED: Final = "a tensor within a transform of functorch (vmap, grad) has no bytes of its own"
TRACED: Final = "the program was being traced"

Tensor = torch.Tensor
PLAIN = (Tensor, torch.nn.Parameter)


class RowDigests:
    """Takes the rows of tensors of one stream."""

    def __init__(self, process: ProcessState, stream: int, keeper: RowKeeper, values: Keeper) -> None:
        self._process = process
        self._stream = stream
        self._keeper = keeper
        self._values = values
        self._names: dict[str, int] = {}
        self._blocks: dict[tuple[int, tuple[int, ...]], Block] = {}
        self._older: dict[tuple[int, tuple[int, ...]], Block] = {}

    def name(self, text: str) -> int:
        """Id in table "names"."""
        found = self._names.get(text)
        if found is None:
            if len(self._names) >= KNOWN:
                self._names.clear()
            found = self._names[text] = self._process.tables.intern_payload("names", text)
        return found

    def take(
        self,
        part: Part,
        name: str,
        tensor: Tensor,
        row: int,
        *,
        digest: int | None = None,
        within_op: bool = False,
        keep_value: bool = False,
        told_by: bool = False,
    ) -> NewTensor | None:
        """The rows of one tensor, as it is now; None where they cannot be had, which is told.

        ``digest``: of the tensor, where it has just been taken. ``row``: rows that the stream has now. ``keep_value``:
        its value is wanted, too; ``told_by``: it is where rows may be told by it. ``within_op``: torch is inside of
        the recorder, no mode of the program's is on.
        """
        around: AbstractContextManager[None] = nullcontext() if within_op else unseen()
        with around:
            try:
                if type(tensor) not in PLAIN and is_compound(tensor):  # whose shape may be made of symbols
                    raise NoBytesError(COMPOUND)
                layout = self._process.layouts.of(tensor)
                axes = axes_of(self._keeper.asked.axes, tensor.dim())
                wants = keep_value or (told_by and _tells(tensor, layout))
                return self._take(part, name, tensor, row, layout, axes, digest, wants)
            except NoBytesError as error:
                why = str(error)
            except RuntimeError:
                why = NO_MEMORY
            except Exception as error:  # of a tensor that is like no other: the rest of the recording goes on
                why = f"it cannot be read: {type(error).__name__}"
            self._keeper.leave(why, self._stream, row, 0)
            return None

    def _take(
        self,
        part: Part,
        name: str,
        tensor: Tensor,
        row: int,
        layout: Layout,
        axes: tuple[int, ...],
        digest: int | None,
        wants: bool,
    ) -> NewTensor | None:
        keeper, shape = self._keeper, tuple(tensor.shape)
        count = prod(shape[axis] for axis in axes)
        if not keeper.has_room(0):
            self._leave(row, count)
            return None
        block = self._known(digest, axes) if digest is not None else None
        new = 0
        if block is None or (wants and not self._values.knows(digest or 0)):
            with _bytes(tensor, layout) as data:
                whole = digest_buffer(data, layout.seed)
                if digest is not None and whole != digest:
                    raise NoBytesError(CHANGED)
                digest = whole
                block = self._known(whole, axes)
                if block is None:
                    if not keeper.has_room(count):
                        self._leave(row, count)
                        return None
                    digests = row_digests(data, dtype_name(tensor.dtype), shape, tensor.element_size(), axes)
                    if type(data) is memoryview and digest_buffer(data, layout.seed) != whole:
                        raise NoBytesError(CHANGED)
                    block, new = self._remember(whole, axes, Block(digests)), count
                if wants and not self._values.knows(whole):
                    self._keep_value(whole, layout, data, row)
        assert digest is not None
        keeper.use(new)
        return NewTensor(part, self.name(name), layout.id, axes, digest, block)

    def _leave(self, row: int, count: int) -> None:
        self._keeper.leave(LIMIT, self._stream, row, count)

    def _keep_value(self, digest: int, layout: Layout, data: bytes | memoryview, row: int) -> None:
        if self._values.has_room(len(data)):
            self._values.keep(NewValue(ValueKind.WITH_ROWS, digest, self._stream, row, 0, layout.id, bytes(data)))
        else:
            self._values.leave(LIMIT, self._stream, row, len(data))

    def _known(self, digest: int, axes: tuple[int, ...]) -> Block | None:
        return self._blocks.get((digest, axes)) or self._older.get((digest, axes))

    def _remember(self, digest: int, axes: tuple[int, ...], block: Block) -> Block:
        self._blocks[digest, axes] = block
        if len(self._blocks) >= KNOWN:
            self._older, self._blocks = self._blocks, {}
        return block


def _tells(tensor: Tensor, layout: Layout) -> bool:
    """Whether what rows are told by may stand in it: ids, positions, masks."""
    return layout.nbytes <= SMALL and not tensor.is_floating_point() and not tensor.is_complex()


def _bytes(tensor: Tensor, layout: Layout) -> AbstractContextManager[bytes | memoryview]:
    """The logical bytes: copied where they are few, so that nobody writes to them meanwhile."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise NoBytesError(WRAPPED)
    if not layout.dense:
        if torch._C._get_tracing_state() is not None:
            raise NoBytesError(TRACED)
        if is_captured(tensor.device):
            raise NoBytesError(CAPTURED)
    return nullcontext(bytes_of(tensor, layout)) if layout.nbytes <= COPIED else read_in_place(tensor, layout)
