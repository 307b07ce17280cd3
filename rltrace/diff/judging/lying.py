"""Whether the inputs of an op lay otherwise aligned in memory on the other side: kernels choose their loops by that.

Owns the comparison and its words. It is known of rows whose inputs were kept; a lead, no cause: measured, MKL's dot and
matrix-vector products give other bits where an input begins 4 or 8 bytes past a multiple of 16
(docs/internals/findings.md).
"""

from __future__ import annotations

from rltrace.diff.calls import input_text
from rltrace.diff.findings import RowAt
from rltrace.trace.schema import LYING_ALIGNMENT


def alignments_text(a: RowAt, b: RowAt) -> str:
    """``; input 0 begins at a multiple of 64 bytes in A, of 4 in B, …``; "" where it is the same, or not known."""
    on_a, on_b = _alignments(a), _alignments(b)
    if on_a is None or on_b is None:
        return ""
    places = sorted({*on_a, *on_b})
    found = [place for place in places if on_a.get(place, LYING_ALIGNMENT) != on_b.get(place, LYING_ALIGNMENT)]
    if not found:
        return ""
    x, y = (side.get(found[0], LYING_ALIGNMENT) for side in (on_a, on_b))
    what = f"{input_text(a, found[0])} is aligned to {x} bytes in A, to {y} in B"
    return f"; {what}, and kernels choose their loops by alignment"


def _alignments(at: RowAt) -> dict[int, int] | None:
    """The largest power of two, 64 at most, that each input's address is a multiple of; those of 64 aside."""
    values, stream = at.view.process.values, at.view.stream.index
    lying = values.lying(stream, at.index)
    if not lying and not values.inputs(stream, at.index):
        return None
    addresses = {place: (lies.alignment + lies.offset) % LYING_ALIGNMENT for place, lies in lying.items()}
    return {place: address & -address for place, address in addresses.items() if address}
