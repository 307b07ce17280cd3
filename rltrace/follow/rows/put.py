"""A's rows written over those of a tensor of the running program.

Owns what is checked before anything is overwritten, and how it is: below autograd, unknown to a tensor's version, so
that a backward pass takes the tensor as one that nobody has touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rltrace.errors import HoleError
from rltrace.follow.inject import NotInjectedError
from rltrace.follow.rows.lying import chosen, places, readings
from rltrace.follow.rows.table import NONE, Found, RowTable, Spot, row_shape
from rltrace.follow.rows.tally import Done
from rltrace.follow.rows.walks import OpenCall, Pass
from rltrace.record.layouts import dtype_name
from rltrace.record.logical import WORDS, is_compound
from rltrace.row_keys import NO_KEY, Numbers
from rltrace.trace.keptrecords import axes_of

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a tensor that A has as well, and where both stand."""

    axes: tuple[int, ...]
    parts: Numbers
    """[n, k]: rows of the tensor."""
    found: Found
    alone: Numbers


def rows_of(table: RowTable, spot: Spot, tensor: Tensor, call: OpenCall, over: Pass, step: int) -> Rows:
    """Which rows of a tensor of ``call`` A has. Raises NotInjectedError where it cannot be told which rows they are."""
    if not is_plain(tensor):
        raise NotInjectedError("the tensor is made of others here (sparse, nested, a subclass, within a transform)")
    shape = tuple(map(int, tensor.shape))
    usual = table.layouts.get((spot.module, spot.op, spot.name), ())
    reading = chosen(readings(shape, over.grid.shape, table.axes), usual)
    if reading is not None:
        axes = reading.axes
        parts, rows = places(shape, over.grid.shape, reading)
    else:
        axes = axes_of(table.axes, len(shape))
        given = next((g for g in call.given if g.fits(tuple(shape[axis] for axis in axes))), None)
        if given is None:
            tokens = list(over.grid.shape)
            raise NotInjectedError(f"unknown which rows of {list(shape)} belong to which of {tokens} tokens")
        parts, rows = np.arange(len(given.rows))[:, None], given.rows
        parts, rows = parts[rows != NONE], rows[rows != NONE]
    known = over.grid.keys[rows] != NO_KEY
    parts, rows = parts[known], rows[known]
    found = table.find(spot, over.grid.keys[rows], over.alike[rows], step)
    there = found.source != NONE
    own = Found(found.source[there], found.row[there], found.several[there])
    return Rows(axes, parts[there], own, rows[~there])


def put_in(table: RowTable, tensor: Tensor, rows: Rows, but: str = "") -> Done:
    """Write A's rows over the tensor's. ``but``: why none may be overwritten that is not A's already.

    Raises NotInjectedError before anything is written, unless the memory refuses.
    """
    if not len(rows.parts):
        return Done(0, 0, 0, rows.alone)
    _check(table, tensor, rows)
    if not tensor.numel():
        return Done(len(rows.parts), 0, 0, rows.alone)
    flat = _Flat(tensor, rows.axes)
    wanted = torch.from_numpy(_values(table, rows)).to(tensor.device)
    index = torch.from_numpy(rows.parts).to(tensor.device)
    differ = (flat.rows[index] != wanted).flatten(1).any(dim=1)
    count = int(differ.sum())
    if count and but:
        raise NotInjectedError(but)
    if count:
        flat.write(index[differ], wanted[differ])
    return Done(len(rows.parts), count, int(rows.found.several.sum()), rows.alone)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has rows and bytes of its own."""
    return not (is_compound(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def most_in(table: RowTable, rows: Rows) -> int:
    """The largest number among A's rows, which are of whole numbers."""
    values = [table.rows(number, own).max(initial=0) for number, own in _by_source(rows)]
    return int(max(values, default=0))


def _by_source(rows: Rows) -> list[tuple[int, Numbers]]:
    return [(int(n), rows.found.row[rows.found.source == n]) for n in np.unique(rows.found.source)]


def _check(table: RowTable, tensor: Tensor, rows: Rows) -> None:
    if tensor.is_conj() or tensor.is_neg():
        raise NotInjectedError("the tensor is a conjugate or negative that is not resolved here")
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise NotInjectedError("several elements of the tensor share one place in memory")
    shape = tuple(map(int, tensor.shape))
    here = dtype_name(tensor.dtype), row_shape(shape, rows.axes), rows.parts.shape[1]
    for number in np.unique(rows.found.source).tolist():
        form = table.sources[number].form
        if form != here:
            raise NotInjectedError(f"a row is {_form(here)} here and {_form(form)} in A")


def _form(form: tuple[str, tuple[int, ...], int]) -> str:
    dtype, shape, parts = form
    return f"{dtype}{list(shape if parts == 1 else (parts, *shape))}"


def _values(table: RowTable, rows: Rows) -> np.ndarray:
    """A's rows as integers of their size, [n, k, words]."""
    made: np.ndarray | None = None
    for number in np.unique(rows.found.source).tolist():
        own = rows.found.source == number
        try:
            values = table.rows(number, rows.found.row[own])
        except HoleError as error:
            raise NotInjectedError(str(error)) from None
        words = np.ascontiguousarray(values)
        words = words.view(_NUMPY_WORDS[min(8, words.dtype.itemsize)])
        if made is None:
            made = np.empty((len(own), *words.shape[1:]), words.dtype)
        made[own] = words
    assert made is not None  # ``put_in``: there are rows
    return made


_NUMPY_WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


class _Flat:
    """The rows of a tensor as integers of their size, [rows, words]."""

    def __init__(self, tensor: Tensor, axes: tuple[int, ...]) -> None:
        data = tensor.data  # the same memory under a version of its own
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
