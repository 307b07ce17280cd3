"""A block, window by window: what is read of both sides, how it is aligned, up to where that holds, and why it ends.

Owns how much is looked at a time, and the sentences that say why a walk ends before its streams do.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.aligning.align import Alignment
from rltrace.diff.aligning.blocks import Block
from rltrace.diff.aligning.cuts import in_step_and_equal
from rltrace.diff.aligning.sequel import Sequel, settle
from rltrace.diff.aligning.window import aligned, cut_of
from rltrace.diff.judging.scene import Scene
from rltrace.diff.route import WINDOW_ROWS
from rltrace.diff.search import Unreadable
from rltrace.diff.tail import still_open
from rltrace.diff.view import Stretch

Place = tuple[int, int]
"""A row of A and one of B, or places in two stretches."""


@dataclass(frozen=True)
class Passage:
    """One window of a block."""

    a: Stretch
    b: Stretch
    found: Alignment
    cut: Place
    """The alignment holds before these places."""
    final: bool = False
    """Both streams end with it."""
    stop: str | None = None
    """Why nothing can be told of what follows; None: it can."""
    hole: Unreadable | None = None
    """The same, where it is for rows that cannot be read."""


def goes_on(scene: Scene, block: Block) -> bool:
    """Whether a side may have run more than it has rows for."""
    return not block.ended and not (scene.a.process.told_its_end and scene.b.process.told_its_end)


def passage(scene: Scene, block: Block, at: Place) -> Passage:
    """The window of ``block`` that begins at row ``at`` of both sides."""
    stop = min(block.a1, at[0] + WINDOW_ROWS), min(block.b1, at[1] + WINDOW_ROWS)
    end = scene.a.readable(at[0], stop[0]), scene.b.readable(at[1], stop[1])
    a, b = scene.a.read(at[0], end[0]), scene.b.read(at[1], end[1])
    if end != stop:
        return _before_hole(scene, block, (a, b), (end, stop))
    ends = stop[0] == block.a1, stop[1] == block.b1
    if all(ends) and not goes_on(scene, block):
        return _as_far_as_sure(Passage(a, b, aligned(scene, a, b, open_end=False), (len(a), len(b)), not block.ended))
    if any(ends):
        return _as_far_as_sure(_at_an_end(scene, block, (a, b), ends))
    found = aligned(scene, a, b, open_end=True)
    cut = (len(a), len(b)) if in_step_and_equal(a, b) else cut_of(a, b, found)
    return _as_far_as_sure(Passage(a, b, found, cut, stop=_unsure(at) if cut == (0, 0) else None))


def _sequel(scene: Scene, block: Block, a: Stretch, b: Stretch) -> Sequel:
    return Sequel(None if goes_on(scene, block) else (block.a1 - a.end, block.b1 - b.end))


def _before_hole(scene: Scene, block: Block, sides: tuple[Stretch, Stretch], to: tuple[Place, Place]) -> Passage:
    """``to``: up to which rows both sides could be read, and were to be."""
    a, b = sides
    found, cut = settle(scene, a, b, _sequel(scene, block, a, b))
    stop = hole = None
    if cut == (0, 0) or cut[0] == len(a) or cut[1] == len(b):
        hole = _first_hole(scene, *to)
        stop = f"rows {hole.first:,} to {hole.first + hole.rows - 1:,} of {hole.side.upper()} cannot be read"
    return _as_far_as_sure(Passage(a, b, found, cut, stop=stop, hole=hole))


def _first_hole(scene: Scene, end: Place, stop: Place) -> Unreadable:
    found = [
        Unreadable(side, *hole)
        for side, view, k in (("a", scene.a, 0), ("b", scene.b, 1))
        if end[k] < stop[k] and (hole := view.hole(end[k], stop[k])) is not None
    ]
    return found[0]


def _at_an_end(scene: Scene, block: Block, sides: tuple[Stretch, Stretch], ends: tuple[bool, bool]) -> Passage:
    """One side ends and the other goes on, or nobody knows whether it would; ``ends``: which end here."""
    a, b = sides
    found, cut = settle(scene, a, b, _sequel(scene, block, a, b))
    used_up = (ends[0] and cut[0] == len(a)) or (ends[1] and cut[1] == len(b))
    if all(ends) and used_up:
        return Passage(a, b, found, (len(a), len(b)), final=not block.ended)
    if cut != (0, 0) or used_up:
        return Passage(a, b, found, cut)
    return Passage(a, b, found, cut, stop=_unfinished(scene) if goes_on(scene, block) else _unsure((a.first, b.first)))


def _as_far_as_sure(passage: Passage) -> Passage:
    unsure = passage.found.unsure
    if unsure is None or not unsure < passage.cut:
        return passage
    at = passage.a.first + unsure[0], passage.b.first + unsure[1]
    return Passage(passage.a, passage.b, passage.found, unsure, stop=_unsure(at))


def _unsure(at: Place) -> str:
    return f"alignment unsure from row {at[0]:,} of A and row {at[1]:,} of B on"


def _unfinished(scene: Scene) -> str:
    side, view = ("B", scene.b) if scene.a.process.told_its_end else ("A", scene.a)
    return still_open(side, view.process)
