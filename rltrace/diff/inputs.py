"""Whether the inputs of a matched pair of rows were equal, and how that is known.

Owns the reading of links: through rows that read the same view before, to the row that wrote the bytes. The whole
verdict rests on this, so nothing is taken for equal that no fact of both sides says is.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.findings import RowAt, row_at
from rltrace.diff.model import InputsMatch
from rltrace.diff.scene import Scene
from rltrace.errors import HoleError
from rltrace.trace.rows import Link
from rltrace.trace.schema import Origin


@dataclass(frozen=True)
class Input:
    """One tensor input of a pair."""

    place: int
    a: Link
    b: Link
    match: InputsMatch


def match_inputs(scene: Scene, a: RowAt, b: RowAt) -> list[Input]:
    """Every tensor input that both rows have, and how it is known whether it matched."""
    links_a, links_b = list(a.rows.inputs(a.place)), list(b.rows.inputs(b.place))
    return [
        Input(place, x, y, _match(scene, a, x, b, y))
        for place, (x, y) in enumerate(zip(links_a, links_b, strict=False))
        if Origin.OVERWRITTEN not in (x.distance, y.distance)
    ]


def combined(inputs: list[Input]) -> InputsMatch:
    """What is known of all inputs together: as much as of the least known one."""
    found = {entered.match for entered in inputs}
    for weakest in (InputsMatch.DIFFER, InputsMatch.UNKNOWN, InputsMatch.LINKED):
        if weakest in found:
            return weakest
    return InputsMatch.READ


def _match(scene: Scene, a: RowAt, x: Link, b: RowAt, y: Link) -> InputsMatch:
    read_a, read_b = _digest(a, x), _digest(b, y)
    if read_a is not None and read_b is not None:
        if read_a != read_b:
            return InputsMatch.DIFFER
        return InputsMatch.READ if x.digest is not None and y.digest is not None else InputsMatch.LINKED
    if x.distance <= 0 or y.distance <= 0 or x.known or y.known:
        return InputsMatch.UNKNOWN
    matched = scene.matching.partner(a.index - x.distance) == b.index - y.distance
    target_a, target_b = reach(a, x.distance), reach(b, y.distance)
    if target_a is None or target_b is None:
        return InputsMatch.UNKNOWN
    if not same_bytes(target_a, x.slot, target_b, y.slot):
        return InputsMatch.DIFFER
    same_step = target_a.step == a.step and target_b.step == b.step
    proven = matched or bool(
        target_a.rows.outputs(target_a.place)
    )  # equal bytes, whichever of two equal ops wrote them
    return InputsMatch.LINKED if proven and same_step else InputsMatch.UNKNOWN


def input_is_equal(scene: Scene, a: RowAt, b: RowAt, place: int) -> bool:
    """Whether input ``place`` of a matched pair is proven to hold the same bytes on both sides, whoever wrote them."""
    inputs = [entered for entered in match_inputs(scene, a, b) if entered.place == place]
    if not inputs:
        return True
    entered = inputs[0]
    if entered.match in (InputsMatch.READ, InputsMatch.LINKED):
        return True
    target_a, target_b = reach(a, entered.a.distance), reach(b, entered.b.distance)
    if entered.match is InputsMatch.DIFFER or target_a is None or target_b is None:
        return False
    outputs = target_a.rows.outputs(target_a.place)
    return bool(outputs) and same_bytes(target_a, entered.a.slot, target_b, entered.b.slot)


def reach(row: RowAt, distance: int) -> RowAt | None:
    """The row that many rows back; None where it cannot be read."""
    if not 0 < distance <= row.index:
        return None
    try:
        return row_at(row.view, row.index - distance)
    except HoleError:
        return None


def _digest(row: RowAt, link: Link) -> int | None:
    """Digest of an input's bytes: read by the row, or by an earlier one that read the very same view."""
    for _ in range(8):
        if link.digest is not None or not link.known or link.slot is None:
            return link.digest
        target = reach(row, link.distance)
        links = list(target.rows.inputs(target.place)) if target else []
        if target is None or link.slot >= len(links):
            return None
        row, link = target, links[link.slot]
    return None


def same_bytes(a: RowAt, slot_a: int | None, b: RowAt, slot_b: int | None) -> bool:
    """Whether what two rows wrote is equal, in the output that is asked for."""
    outputs_a, outputs_b = a.rows.outputs(a.place), b.rows.outputs(b.place)
    if outputs_a == outputs_b:
        return True
    if slot_a is None or slot_b is None or slot_a >= len(outputs_a) or slot_b >= len(outputs_b):
        return False
    return outputs_a[slot_a] == outputs_b[slot_b]


def writer_of(row: RowAt, link: Link) -> RowAt | None:
    """The row that a link leads to, through rows that only read the same view; None where none is named."""
    for _ in range(8):
        target = reach(row, link.distance)
        if target is None or not link.known or link.slot is None:
            return target
        links = list(target.rows.inputs(target.place))
        if link.slot >= len(links):
            return None
        row, link = target, links[link.slot]
    return None
