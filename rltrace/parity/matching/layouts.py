"""How a tensor's rows lie on the grid of a forward pass: which of them belong to which token.

Owns what shapes alone can tell, and says so where they allow more than one reading. Pure functions of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import prod

import numpy as np

from rltrace.token_keys import Numbers

Shape = tuple[int, ...]


class RowLayout(StrEnum):
    """A way in which rows may lie on a grid of [sequences, tokens]."""

    PLAIN = "plain"
    """[sequences, tokens]."""
    FLAT = "flat"
    """[sequences x tokens]."""
    GROUPED = "grouped"
    """[sequences, tokens, …]: a token has several rows, one for each head."""
    FLAT_GROUPED = "flat-grouped"
    """[sequences x tokens, …]."""
    HEADS_FIRST = "heads-first"
    """[sequences, …, tokens]."""
    SHARED = "shared"
    """[1, tokens] or [tokens]: all sequences have the same."""
    SHARED_GROUPED = "shared-grouped"
    """[1, tokens, …]."""
    TAIL = "tail"
    """[sequences, the last tokens]."""
    HEADS_FLAT = "heads-flat"
    """[sequences x heads, tokens]: as ops have it, between a module's projections."""


@dataclass(frozen=True, eq=False)
class RowPlacement:
    """Which rows of a tensor belong to which rows of a grid."""

    parts: Numbers
    """[n, k]: for each of n rows of the grid the k rows of the tensor that are its, in the order of its digests."""
    rows: Numbers
    """[n]: the rows of the grid, flat."""


def layouts(shape: Shape, grid: Shape) -> tuple[RowLayout, ...]:
    """The readings that ``shape``, of a tensor's rows, allows on ``grid``; the last tokens only where nothing else."""
    total = prod(grid)
    found = []
    if 0 in shape:
        return ()
    if shape == grid:
        return (RowLayout.PLAIN,)
    if shape == (total,):
        return (RowLayout.FLAT,)
    if len(shape) > len(grid) and shape[: len(grid)] == grid:
        found.append(RowLayout.GROUPED)
    if len(grid) == 2:
        found += _of_sequences(shape, grid)
    if not found and len(shape) > 1 and shape[0] == total:
        found.append(RowLayout.FLAT_GROUPED)
    if not found and len(grid) == 2 and len(shape) == 2 and shape[0] == grid[0] and 0 < shape[1] < grid[1]:
        found.append(RowLayout.TAIL)
    return tuple(found)


def _of_sequences(shape: Shape, grid: Shape) -> list[RowLayout]:
    batch, tokens = grid
    found = []
    one_alone = shape[:2] == grid and tokens == 1  # then both readings say the same
    if len(shape) == 3 and (shape[0], shape[2]) == grid and not one_alone:
        found.append(RowLayout.HEADS_FIRST)
    if batch > 1 and (shape == (1, tokens) or (shape == (tokens,) and tokens != batch)):
        found.append(RowLayout.SHARED)
    if batch > 1 and len(shape) > 2 and shape[:2] == (1, tokens):
        found.append(RowLayout.SHARED_GROUPED)
    return found


def op_layouts(shape: Shape, grid: Shape) -> tuple[RowLayout, ...]:
    """The same of a tensor within a module: heads may stand in one axis with the sequences."""
    found = layouts(shape, grid)
    if found or len(grid) != 2 or len(shape) != 2 or shape[1] != grid[1] or shape[0] % grid[0]:
        return found
    return (RowLayout.HEADS_FLAT,)


@lru_cache(maxsize=4_096)
def lie(shape: Shape, grid: Shape, layout: RowLayout) -> RowPlacement:
    """How the rows lie if they lie as ``layout`` has it; one object for all tensors of these shapes."""
    total, size = prod(grid), prod(shape)
    each = np.arange(size)
    rows = np.arange(total)
    match layout:
        case RowLayout.PLAIN | RowLayout.FLAT:
            return RowPlacement(each[:, None], rows)
        case RowLayout.GROUPED | RowLayout.FLAT_GROUPED:
            return RowPlacement(each.reshape(total, -1), rows)
        case RowLayout.HEADS_FIRST:
            return RowPlacement(each.reshape(shape).transpose(0, 2, 1).reshape(total, -1), rows)
        case RowLayout.HEADS_FLAT:
            return lie((grid[0], size // total, grid[1]), grid, RowLayout.HEADS_FIRST)
        case RowLayout.SHARED | RowLayout.SHARED_GROUPED:
            return RowPlacement(np.tile(each.reshape(grid[1], -1), (grid[0], 1)), rows)
        case RowLayout.TAIL:
            last = rows.reshape(grid)[:, grid[1] - shape[1] :]
            return RowPlacement(each[:, None], last.ravel())
