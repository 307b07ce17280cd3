"""One buffer of words on their way from a device to the host, and the digests that will be made of them.

Owns who waits for which words. What they are, of a tensor, is ``rltrace.record.device``'s. All that is enqueued here
goes to the current stream, behind what wrote the tensor and before what may overwrite it; nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import TensorBase

from rltrace.digest import PAGE_BYTES
from rltrace.record.device import condense, condensed_words, finished
from rltrace.record.layouts import Layout
from rltrace.record.logical import WORDS, as_words, logical_bytes
from rltrace.record.readback.ways import Event

Tensor = torch.Tensor

_array: Any = TensorBase.numpy
"""torch's own method: what stands in for it while ops are recorded follows the program's arrays, not these."""


class Pending:
    """A digest that is not known yet."""

    __slots__ = ("at", "buffer", "digest", "nbytes", "seed", "unread")

    def __init__(self, buffer: Buffer | None, at: int = 0, nbytes: int = 0, seed: int = 0) -> None:
        self.buffer = buffer
        """In which its words are on their way; None: in none (any more)."""
        self.at = at
        self.nbytes = nbytes
        self.seed = seed
        self.digest = 0
        self.unread = buffer is None
        """It will never be known: nothing could be asked of the device, or it failed."""

    @property
    def is_settled(self) -> bool:
        return self.buffer is None

    def settle(self, words: Any) -> None:
        """Its words have arrived; None: they never will."""
        if words is None:
            self.unread = True
        else:
            mine = words[self.at : self.at + condensed_words(self.nbytes)]
            self.digest = finished(mine, self.nbytes, self.seed)
        self.buffer = None


def unread() -> Pending:
    """A digest that nobody will ever know."""
    return Pending(None)


class Buffer:
    """One of a device's. Belongs to one stream from when it is opened until its words have been read."""

    def __init__(self, there: Tensor, here: Tensor) -> None:
        """``there`` on the device, ``here`` on the host: int64, of one size."""
        self.there = there
        self.here = here
        self.stream: int | None = None
        """Whose work goes into it; None: it is free."""
        self.event: Event | None = None
        """After its copy to the host. None while it is open: digests are still added, and nothing has been copied."""
        self.number = 0
        """It was opened as the how manieth of its device."""
        self.filled = 0
        self.waiting: list[Pending] = []
        self._views = {size: there.view(dtype) for size, dtype in WORDS.items()}

    def has_room(self, words: int) -> bool:
        return self.filled + words <= len(self.there)

    def stage(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Pending]:
        """Enqueue what these tensors' digests are made of; there is room for them."""
        staged: list[Pending] = []
        contiguous: list[Tensor] = []
        first = self.filled
        order = sorted(range(len(tensors)), key=lambda i: _is_strided(tensors[i], layouts[i]))
        for i in order:
            words = condensed_words(layouts[i].nbytes)
            at, self.filled = self.filled, self.filled + words
            staged.append(Pending(self, at, layouts[i].nbytes, layouts[i].seed))
            if _is_strided(tensors[i], layouts[i]):
                self._copy_strided(tensors[i], at)
            else:
                contiguous.append(logical_bytes(tensors[i]))
        if contiguous:
            condense(contiguous, [pending.seed for pending in staged[: len(contiguous)]], self.there, first)
        self.waiting += staged
        return [pending for _, pending in sorted(zip(order, staged, strict=True), key=lambda pair: pair[0])]

    def _copy_strided(self, tensor: Tensor, at: int) -> None:
        """Elements of a small tensor in row-major order, in one copy."""
        words = as_words(tensor)
        size = words.element_size()
        view = self._views[size]
        first = view.storage_offset() + at * (8 // size)  # all buffers of a device lie in one storage
        view.as_strided(words.shape, contiguous_strides(words.shape), first).copy_(words)

    def settle(self, *, arrived: bool) -> None:
        """Make the digests, and be free again. ``arrived``: its words are on the host; else they never will be."""
        words = _array(self.here) if arrived else None
        for pending in self.waiting:
            if not pending.is_settled:
                pending.settle(words)
        self.waiting = []
        self.filled = 0
        self.event = None
        self.stream = None


def _is_strided(tensor: Tensor, layout: Layout) -> bool:
    return layout.nbytes < PAGE_BYTES and not (tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Of a tensor of this shape whose elements lie one after the other, in row-major order."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return strides[::-1]
