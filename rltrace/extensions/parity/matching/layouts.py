"""Layouts of a tensor's activation rows on the token grid of a forward pass: which row belongs to which token.

Owns what follows from shapes alone, including where they allow several layouts. Pure functions of shapes.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import prod

import numpy as np

from rltrace.extensions.parity.token_keys import Numbers
from rltrace.trace.format.records import axes_of

Shape = tuple[int, ...]


class RowLayout(StrEnum):
    """The axes of a tensor's rows, on a grid of [sequences, tokens]."""

    PLAIN = "plain"
    """[sequences, tokens]."""
    FLAT = "flat"
    """[sequences x tokens]."""
    GROUPED = "grouped"
    """[sequences, tokens, …]: several rows a token, one for each head."""
    FLAT_GROUPED = "flat-grouped"
    """[sequences x tokens, …]."""
    HEADS_FIRST = "heads-first"
    """[sequences, …, tokens]."""
    SHARED = "shared"
    """[1, tokens] or [tokens]: the same for all sequences."""
    SHARED_GROUPED = "shared-grouped"
    """[1, tokens, …]."""
    HEADS_FLAT = "heads-flat"
    """[sequences x heads, tokens]: of ops within a module."""


BY_ELEMENT = frozenset((RowLayout.PLAIN, RowLayout.FLAT))
"""One row for each token, in order."""


@dataclass(frozen=True, eq=False)
class RowPlacement:
    """Which rows of a tensor belong to which tokens of a grid."""

    tensor_rows: Numbers
    """[n, k]: for each of n tokens, its k rows of the tensor, in the order of the tensor's digests."""
    tokens: Numbers
    """[n]: the tokens, as indices into the flat grid."""


def layouts(shape: Shape, grid: Shape) -> tuple[RowLayout, ...]:
    """The layouts on ``grid`` that the lengths of the axes of rows allow."""
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
    return tuple(found)


def _of_sequences(shape: Shape, grid: Shape) -> list[RowLayout]:
    batch, tokens = grid
    found = []
    is_grouped = shape[:2] == grid and tokens == 1  # then both layouts are the same
    if len(shape) == 3 and (shape[0], shape[2]) == grid and not is_grouped:
        found.append(RowLayout.HEADS_FIRST)
    if batch > 1 and (shape == (1, tokens) or (shape == (tokens,) and tokens != batch)):
        found.append(RowLayout.SHARED)
    if batch > 1 and len(shape) > 2 and shape[:2] == (1, tokens):
        found.append(RowLayout.SHARED_GROUPED)
    return found


def op_layouts(shape: Shape, grid: Shape) -> tuple[RowLayout, ...]:
    """The same for a tensor of an op: heads may share an axis with the sequences."""
    found = layouts(shape, grid)
    if found or len(grid) != 2 or len(shape) != 2 or shape[1] != grid[1] or shape[0] % grid[0]:
        return found
    return (RowLayout.HEADS_FLAT,)


def layouts_along(shape: Shape, grid: Shape, axes: Shape | None) -> tuple[Shape, tuple[RowLayout, ...]]:
    """(axes, layouts) of a whole tensor of this shape, for activation patching.

    ``axes``: requested axes of rows; None: all but the last, or, where no layout fits these and each element is one
    token's (an index, a value), all.
    """
    own = axes_of(axes, len(shape))
    found = layouts(_lengths(shape, own), grid)
    if not found and axes is None:
        return tuple(range(len(shape))), tuple(one for one in layouts(shape, grid) if one in BY_ELEMENT)
    return own, found


def place_rows(shape: Shape, grid: Shape, axes: Shape | None) -> tuple[Shape, RowPlacement] | None:
    """(axes, placement) of a whole tensor, as of ``layouts_along``; None: no layout fits, or several may."""
    own, found = layouts_along(shape, grid, axes)
    return (own, placement(_lengths(shape, own), grid, found[0])) if is_certain(found, len(own)) else None


def is_certain(found: tuple[RowLayout, ...], ndim: int) -> bool:
    """Whether the layouts that the lengths of ``ndim`` axes allow leave no doubt: one axis as long as the sequences are
    may be another."""
    return len(found) == 1 and (found[0] is not RowLayout.SHARED or ndim > 1)


def _lengths(shape: Shape, axes: Shape) -> Shape:
    return tuple(shape[axis] for axis in axes)


@lru_cache(maxsize=4_096)
def placement(shape: Shape, grid: Shape, layout: RowLayout) -> RowPlacement:
    """The placement of rows in this layout; one object for all tensors of these shapes."""
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
            return placement((grid[0], size // total, grid[1]), grid, RowLayout.HEADS_FIRST)
        case RowLayout.SHARED | RowLayout.SHARED_GROUPED:
            return RowPlacement(np.tile(each.reshape(grid[1], -1), (grid[0], 1)), rows)
