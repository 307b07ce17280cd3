"""In which portions two streams are walked from the row on where they part.

Owns which blocks are taken together: many small steps at once, never more rows than a window has. Reads no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rltrace.diff.aligning.blocks import Block, blocks, first_block
from rltrace.diff.view import StreamView

WINDOW_ROWS = 1 << 16
"""Rows of a side that are aligned at a time; a longer stretch is cut where both sides agree."""


def portions(a: StreamView, b: StreamView, base: int, *, in_step: bool) -> Iterator[list[Block]]:
    """Blocks in order, without the rows before ``base``; several where nothing but their rows tells about them.

    ``in_step``: the rows of both sides stand at the same places up to ``base``. The first block comes by itself: more
    often than not it is the only one that matters, and found without reading all steps.
    """
    start = (base, base)
    first = first_block(a, b, base) if in_step else None
    if first is not None:
        yield [first]
        if not first.ended:
            return
        start = (first.a1, first.b1)
    portion: list[Block] = []
    for block in _after(a, b, start):
        plain = block.ended and block.recorded and not block.told
        if portion and not (plain and _rows(portion[0], block) <= WINDOW_ROWS):
            yield portion
            portion = []
        portion.append(block)
        if not plain:
            yield portion
            portion = []
    if portion:
        yield portion


def _rows(first: Block, last: Block) -> int:
    return max(last.a1 - first.a0, last.b1 - first.b0)


def _after(a: StreamView, b: StreamView, start: tuple[int, int]) -> Iterator[Block]:
    """Blocks without the rows before ``start``; one that this leaves with one side only is joined to the next."""
    held: tuple[int, int] | None = None
    every = list(blocks(a, b))
    for number, block in enumerate(every):
        a0, b0 = held or (max(block.a0, start[0]), max(block.b0, start[1]))
        a1, b1 = max(block.a1, a0), max(block.b1, b0)
        held = None
        if (a0 == a1) != (b0 == b1) and number + 1 < len(every) and (block.a0 < start[0] or block.b0 < start[1]):
            held = (a0, b0)
        elif a0 < a1 or b0 < b1:
            same = block.same and a0 - block.a0 == b0 - block.b0
            reordered = block.reordered and (a0, b0) == (block.a0, block.b0)
            yield replace(block, a0=a0, a1=a1, b0=b0, b1=b1, same=same, reordered=reordered)
