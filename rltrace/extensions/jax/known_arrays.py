"""What is known of the arrays of a process: their digests, and the rows that wrote them.

Owns when an array is digested: one that a call takes at once, as it may be donated, and the results of a call that
JAX's cache has served later, when one of them is taken, or many are held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Final
from weakref import getweakrefcount, ref

import jax
import numpy as np
from jax._src.array import ArrayImpl

from rltrace.digest import digest_page
from rltrace.extensions.jax import programs
from rltrace.extensions.jax.cached_calls import CachedCall, is_forming
from rltrace.extensions.jax.rows import SEVERAL, UNKNOWN, Cell, NewRow, Operand, Producer, cell_of, operand_of

MAX_UNREAD: Final = 1 << 20
"""Bytes of results that are kept until they are digested (``CachedCall.weight``)."""

UNUSED: Final = 3
"""References to a result that only the recorder holds: a list, a local variable, and the argument that is counted."""


class KnownArrays:
    """The arrays of one process, which JAX never writes twice. Random keys are known by their data."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        """``failed``: called with why a result of the program was not computed."""
        self.cells: dict[int, Cell] = {}
        """By the id of an array, which ``_keep`` has, or someone holds until it is removed."""
        self._failed = failed
        self._references: dict[int, ref[Any]] = {}
        self._reads: deque[NewRow] = deque()
        """The rows whose results are not digested yet."""
        self._unread_bytes = 0
        self._reading = threading.RLock()

    def __setitem__(self, array: Any, operand: Operand) -> None:
        array = programs.data_of(array)
        self.cells[id(array)] = cell_of(operand)
        self._keep(array)

    def get(self, array: Any) -> Operand | None:
        cell = self._cell(array)
        return None if cell is None else operand_of(cell)

    def _cell(self, array: Any) -> Cell | None:
        return self.cells.get(id(programs.data_of(array)))

    def _keep(self, array: Any) -> None:
        """Keep its cell until it dies."""
        number, cells, references = id(array), self.cells, self._references

        def forget(dead: ref[Any]) -> None:
            if references.get(number) is dead:
                del references[number]
                cells.pop(number, None)

        references[number] = ref(array, forget)

    # --- what calls take and write ------------------------------------------------------------------------------------

    def operands(self, arrays: Sequence[Any]) -> list[Operand]:
        """Arrays that a call takes, with their digests."""
        self._read_among(arrays)
        return [self.operand(array) for array in arrays]

    def operand(self, array: Any) -> Operand:
        """An array that a call takes; JAX never writes one again."""
        known = self.get(array)
        if known is None:
            known = Operand(*programs.digest(array), UNKNOWN if is_forming() else None)
            if type(programs.data_of(array)) is ArrayImpl:
                self[array] = known
        return known

    def argument(self, call: CachedCall, place: int, array: Any) -> Cell:
        """What is known of random keys, or of an argument of a call that nothing was known of."""
        array = programs.data_of(array)
        if type(array) is ArrayImpl:
            return self._cell(array) or cell_of(self.operand(array))
        dtype = call.avals[place].dtype
        if type(array) is not np.ndarray or array.dtype != dtype:
            array = np.asarray(array, dtype=dtype)
        layout = call.arguments[place]
        return cell_of(Operand(layout, programs.digest_as(array, layout)))

    def link_references(self, args: Sequence[Any], inputs: list[Operand]) -> None:
        """Of arguments that are references, correct the operands: the row that wrote them last, or others as well."""
        for i, arg in enumerate(args):
            if programs.is_reference(arg):
                known, read = self.get(arg), inputs[i]
                is_last = known is not None and known.digest == read.digest
                inputs[i] = known if known is not None and is_last else read._replace(producer=Producer(0, SEVERAL, 0))

    def add(self, arrays: Sequence[Any], operands: Sequence[Operand]) -> None:
        """The digests and producers of arrays."""
        for array, operand in zip(arrays, operands, strict=True):
            self[array] = operand

    def add_copies(self, arrays: Sequence[Any], copies: Sequence[Any]) -> None:
        """Arrays that are others of this process on other devices."""
        self._read_among(arrays)
        for array, copy in zip(arrays, copies, strict=True):
            known = self.get(array)
            if known is not None:
                self[copy] = known._replace(layout=programs.layout_here(copy))

    def add_mixed(self, array: Any) -> Operand:
        """An array that several iterations have written."""
        operand = self[array] = Operand(*programs.digest(array), Producer(0, SEVERAL, 0))
        return operand

    # --- what is digested later ---------------------------------------------------------------------------------------

    def read_later(self, row: NewRow, weight: int) -> bool:
        """Digest the results of a row later; whether so many are held by now that they have all been digested."""
        self._reads.append(row)
        self._unread_bytes += weight
        if self._unread_bytes < MAX_UNREAD:
            return False
        self.read_results()
        return True

    def digest_donated(self, given: Sequence[Any], *, sees: bool) -> None:
        """Digest the arrays of trees that a call is about to delete; ``sees``: also those of which nothing is known."""
        known = self.cells
        cells = list(map(known.get, map(id, given)))
        if not all(cells):
            given = list(map(programs.data_of, jax.tree.leaves(given)))
            cells = list(map(known.get, map(id, given)))
        with self._reading:
            for array, cell in zip(given, cells, strict=True):
                try:
                    if cell is None:
                        if sees and type(array) is ArrayImpl:
                            self.operand(array)
                    elif cell[0] is None:
                        cell[0] = programs.digest_as(array, cell[3])
                except RuntimeError:  # the program's error: it was deleted before
                    pass

    def _read_among(self, arrays: Sequence[Any]) -> None:
        """Digest all results where one of these, or the data of random keys, is not digested yet."""
        if self._reads and any((cell := self._cell(array)) and cell[0] is None for array in arrays):
            self.read_results()

    def read_results(self) -> None:
        """Digest the results that are not digested yet; waits for them.

        Never called with the lock of the rows: a callback of the program that computes one may wait for that lock.
        """
        reads, arrays = self._reads, []
        with self._reading:
            self._unread_bytes = 0
            while reads:
                new = reads[0]
                if new[-1] is not None:
                    results, seeds = new[-1]
                    self._digest_results(new[4], results, seeds)
                    arrays += results
                    new[-1] = None
                if reads and reads[0] is new:  # the program's code may run meanwhile, and come here
                    reads.popleft()
            for array in arrays:
                if getrefcount(array) > UNUSED or getweakrefcount(array):
                    self._keep(array)
                else:
                    self.cells.pop(id(array), None)

    def _digest_results(self, cells: Sequence[Cell], results: Sequence[Any], seeds: Sequence[int]) -> None:
        """Put the digests of results in their cells, but those that are there; 0 of what was not computed."""
        try:
            for cell, array, seed in zip(cells, results, seeds, strict=True):
                if cell[0] is None:
                    cell[0] = digest_page(array, seed)
            return
        except (BufferError, RuntimeError, ValueError):  # a dtype is no buffer's, one was not computed, or is large
            pass
        for cell, array in zip(cells, results, strict=True):
            try:
                if cell[0] is None:
                    cell[0] = programs.digest_as(array, cell[3])
            except RuntimeError as error:  # the program's error, where it looks at it
                self._failed(f"a result: {str(error).partition(chr(10))[0]}")
                cell[0] = 0
