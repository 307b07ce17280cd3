"""How the rows of a tensor lie on the tokens of a forward pass, where its shape alone tells: the same for both sides.

Owns along which axes rows are counted. No torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rltrace.parity.rows.layouts import Layout, lie
from rltrace.parity.rows.layouts import layouts as readings_of
from rltrace.row_keys import Numbers
from rltrace.trace.keptrecords import axes_of

BY_ELEMENT = frozenset((Layout.PLAIN, Layout.FLAT))
"""Each row of the tensor is a token's, in order."""


@dataclass(frozen=True)
class Reading:
    """One way to read a tensor's rows."""

    axes: tuple[int, ...]
    layout: Layout


def readings(shape: tuple[int, ...], grid: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[Reading, ...]:
    """The ways in which a tensor of this shape may be read on a forward pass over ``grid`` tokens.

    ``axes``: along which rows were asked to be counted; None: along all but the last. Where that fits nothing, but each
    element is a token's (an index, a value), these are the rows. Fewer rows than tokens are nobody's, by shape alone.
    """
    own = axes_of(axes, len(shape))
    layouts = readings_of(tuple(shape[axis] for axis in own), grid)
    found = tuple(Reading(own, layout) for layout in layouts if layout is not Layout.TAIL)
    if not found and axes is None:
        every = tuple(range(len(shape)))
        found = tuple(Reading(every, layout) for layout in readings_of(shape, grid) if layout in BY_ELEMENT)
    return found


def chosen(possible: tuple[Reading, ...], usual: Collection[Layout]) -> Reading | None:
    """The one that is meant; None: there is none, or several are. ``usual``: layouts that the other calls allow."""
    if len(possible) > 1 or any(one.layout is Layout.SHARED and len(one.axes) == 1 for one in possible):
        possible = tuple(reading for reading in possible if reading.layout in usual)
    return possible[0] if len(possible) == 1 else None


def places(shape: tuple[int, ...], grid: tuple[int, ...], reading: Reading) -> tuple[Numbers, Numbers]:
    """(parts [n, k], rows [n]): the rows of the tensor that make up each of these rows of the grid."""
    lying = lie(tuple(shape[axis] for axis in reading.axes), grid, reading.layout)
    return lying.parts, lying.rows
