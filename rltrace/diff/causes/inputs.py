"""Whether the inputs of a matched pair of rows were equal, and how that is known.

Follows links through rows that read the same view, to the row that wrote the bytes: which of its results an input is,
and which part of that. The verdict rests on this, so inputs count as equal only if facts of both sides prove it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt, reach
from rltrace.diff.base.model import InputsMatch
from rltrace.diff.base.view import is_shifted
from rltrace.diff.causes.no_op_writes import (
    Layout,
    is_plain,
    layouts_of,
    scales_by_one,
    writes_in_place,
    written_layout,
)
from rltrace.digest.small_numbers import number_of
from rltrace.errors import HoleError
from rltrace.trace.format.rows import Link
from rltrace.trace.format.schema import Column, Origin, RowFlag
from rltrace.wording import joined

MAX_TRAIL = 64
"""Rows that are followed back from an input, each of which only read it or left it unchanged."""

MAX_SCANNED = 1 << 16
"""Rows between a write and a read that are searched for views, at most."""

SAME_LAYOUT = frozenset({"aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"})
"""Views that look at memory as the tensor does that they are made of."""


@dataclass(frozen=True)
class Input:
    """One tensor input of a pair."""

    place: int
    a: Link
    b: Link
    match: InputsMatch


def match_inputs(context: DiffContext, a: RowAt, b: RowAt) -> list[Input]:
    """Every tensor input that both rows have, with how it is known to match."""
    links_a, links_b = list(a.rows.inputs(a.place)), list(b.rows.inputs(b.place))
    return [
        Input(place, x, y, _match(context, a, x, b, y, place))
        for place, (x, y) in enumerate(zip(links_a, links_b, strict=False))
        if Origin.OVERWRITTEN not in (x.distance, y.distance)
    ]


def combine(inputs: list[Input]) -> InputsMatch:
    """The weakest knowledge of all inputs."""
    found = {operand.match for operand in inputs}
    for weakest in (InputsMatch.DIFFER, InputsMatch.UNKNOWN, InputsMatch.INFERRED):
        if weakest in found:
            return weakest
    return InputsMatch.READ


def _match(context: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link, place: int) -> InputsMatch:
    found = _match_links(context, a, x, b, y, place)
    both_read = _digest(a, x) is not None and _digest(b, y) is not None
    if both_read or found is InputsMatch.INFERRED or not is_shifted(context.a.process, context.b.process):
        return found
    # written before the comparison begins, by other ops on the two sides
    equal = input_is_equal(context, a, b, place) or _equal_at_opening(a, x, b, y)
    return InputsMatch.INFERRED if equal else found


def _equal_at_opening(a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether an opening row of a window describes an input, with the digest that the other side read or wrote."""
    sides = [(row, link, reach(row, link.distance)) for row, link in ((a, x), (b, y))]
    if not any(source is not None and source.is_opening for _, _, source in sides):
        return False
    digests = [_digest_or_opening(row, link, source) for row, link, source in sides]
    return digests[0] is not None and digests[0] == digests[1]


def _digest_or_opening(row: RowAt, link: Link, source: RowAt | None) -> int | None:
    if source is None or not source.is_opening:
        return _digest_of(row, link)
    found = int(source.rows.digests[source.rows.digest_offsets[source.place]])
    read = _digest(row, link)
    return found if read is None else read


def _match_links(context: DiffContext, a: RowAt, x: Link, b: RowAt, y: Link, place: int) -> InputsMatch:
    read_a, read_b = _digest(a, x), _digest(b, y)
    if read_a is not None and read_b is not None:
        if read_a != read_b:
            return InputsMatch.DIFFER
        return InputsMatch.READ if x.digest is not None and y.digest is not None else InputsMatch.INFERRED
    if x.distance <= 0 or y.distance <= 0 or x.known or y.known:
        return _match_bytes(KnownBytes.of(a, x, place), KnownBytes.of(b, y, place))
    matched = context.matching.partner(a.index - x.distance) == b.index - y.distance
    target_a, target_b = reach(a, x.distance), reach(b, y.distance)
    if target_a is None or target_b is None:
        return InputsMatch.UNKNOWN
    if not same_bytes(target_a, x.slot, target_b, y.slot) or not is_same_part(a, x, b, y, place):
        return InputsMatch.DIFFER
    same_step = target_a.step == a.step and target_b.step == b.step
    # equal bytes, whichever of two equal ops wrote them
    proven = matched or bool(target_a.rows.outputs(target_a.place))
    if not proven or not same_step:
        return InputsMatch.UNKNOWN
    # One side alone read it, as code outside torch could write it there: known only if it did not.
    for read, target, link in ((read_a, target_a, x), (read_b, target_b, y)):
        if read is not None and StoredOutput(target, link.slot).bytes.digest != read:
            return InputsMatch.UNKNOWN
    return InputsMatch.INFERRED


def _match_bytes(a: KnownBytes, b: KnownBytes) -> InputsMatch:
    """How the bytes of an input match by digests, of which one or both are of what the input's writer left."""
    if a.digest is None or b.digest is None:
        return InputsMatch.UNKNOWN
    if a.digest == b.digest:
        return InputsMatch.INFERRED
    return InputsMatch.DIFFER if a.is_of_input and b.is_of_input else InputsMatch.UNKNOWN


def input_is_equal(context: DiffContext, a: RowAt, b: RowAt, place: int) -> bool:
    """Whether input ``place`` of a matched pair is proven to hold the same bytes, whatever ops wrote them."""
    x, y = _link(a, place), _link(b, place)
    if x is None or y is None or Origin.OVERWRITTEN in (x.distance, y.distance):
        return True
    read_a, read_b = _digest(a, x), _digest(b, y)
    if read_a is not None and read_b is not None:
        return read_a == read_b
    writers_a, writers_b = _writers(a, x), _writers(b, y)
    if is_same_part(a, x, b, y, place):
        pairs = [(one, other) for one in writers_a for other in writers_b]
        if context.a.shortcuts.links and any(_are_matched(context, *pair) for pair in pairs):
            return True
        if any(_is_same(one.bytes, other.bytes) for one, other in pairs):
            return True
    return any(
        reads_whole(row, link, place) and any(_is_same(read, writer.bytes) for writer in writers)
        for read, row, link, writers in (
            (_as_read(a, place, read_a), b, y, writers_b),
            (_as_read(b, place, read_b), a, x, writers_a),
        )
    )


# --- parts ------------------------------------------------------------------------------------------------------------
#
# A link names the op that wrote a tensor, and which of its results; the storage offset and the layout of the tensor say
# which part of that it is.


@dataclass(frozen=True)
class StoragePart:
    """The elements of a storage that a tensor consists of, in their order."""

    dtype: str
    dimensions: tuple[tuple[int, int], ...]
    """(length, stride) of each dimension longer than 1; adjacent ones that are one run of memory are one."""
    offset: int
    """The first element, counted from the first one that its last writer wrote; where several ops wrote, from the
    start of the storage."""


def part_of(row: RowAt, link: Link, place: int, *, of_storage: bool = False) -> StoragePart | None:
    """The part of what was written last that an input is, or of its storage; None: its layout is not known."""
    layouts = layouts_of(row)
    if place >= len(layouts) or layouts[place][2] is None:
        return None
    dtype, shape, strides = layouts[place]
    producer = None if of_storage or origin_of(row, link) == Origin.MIXED else producer_of(row, link)
    offset = link.offset - (0 if producer is None else producer.offset)
    return StoragePart(dtype, _merged(shape, strides or ()), offset)


def parts_of(a: RowAt, x: Link, b: RowAt, y: Link, place: int) -> tuple[StoragePart | None, StoragePart | None]:
    """``part_of`` both sides: of the storage, where one side reads more than what was written last."""
    of_storage = Origin.MIXED in (origin_of(a, x), origin_of(b, y))
    return part_of(a, x, place, of_storage=of_storage), part_of(b, y, place, of_storage=of_storage)


def is_same_part(a: RowAt, x: Link, b: RowAt, y: Link, place: int) -> bool:
    """Whether an input is the same part of what was written last on both sides."""
    parts = parts_of(a, x, b, y, place)
    return x.offset == y.offset if None in parts else parts[0] == parts[1]


def is_reshaped(a: RowAt, b: RowAt, place: int) -> bool:
    """Whether an input has another shape or dtype in B: then digests, which are of a shape, do not say whether the
    bytes are others, or the same ones in another view."""
    layouts = [[layout[:2] for layout in layouts_of(row)[place : place + 1]] for row in (a, b)]
    return layouts[0] != layouts[1]


def reads_whole(row: RowAt, link: Link, place: int) -> bool:
    """Whether an input begins where its last writer began, with its elements in memory in their order."""
    layouts, part = layouts_of(row), part_of(row, link, place)
    return part is not None and part.offset == 0 and is_plain(layouts[place])


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for length, stride in zip(shape, strides, strict=True):
        if length == 1:
            continue
        if merged and merged[-1][1] == length * stride:
            merged[-1] = merged[-1][0] * length, stride
        else:
            merged.append((length, stride))
    return tuple(merged)


# --- outside data -----------------------------------------------------------------------------------------------------
#
# ``from_numpy``, ``as_tensor`` and ``tensor`` run an op where they make a tensor of memory from outside, as does what
# loads a checkpoint or takes a worker's batch. It is a view, so later ops have no link to it: named are those since the
# op ran last whose tensors the input can be a part of.


ENTRIES = frozenset({"aten.lift_fresh.default", "aten.set_.source_Storage_storage_offset"})
MAX_ENTRY_ROWS = 1 << 14
MAX_ENTRIES = 3
"""Lines that are named."""


def entry_text(row: RowAt, place: int) -> str:
    """``; float32 data became a tensor at train.py:48``: where an outside input of a row may have; "": not known."""
    layouts, start = layouts_of(row), max(row.view.start, row.index - MAX_ENTRY_ROWS)
    if place >= len(layouts) or not row.is_op:
        return ""
    try:
        rows = row.view.read(start, row.index).rows
    except HoleError:
        return ""
    own = row.rows.columns[row.place, [Column.OP, Column.SITE]]
    again = np.flatnonzero((rows.columns[:, [Column.OP, Column.SITE]] == own).all(axis=1))
    names = {number: row.view.words.op(number) in ENTRIES for number in np.unique(rows.column(Column.OP)).tolist()}
    entries = np.flatnonzero([names[number] for number in rows.column(Column.OP).tolist()])
    made = (RowAt(row.view, rows, at) for at in entries[::-1].tolist())
    dtype, shape, strides = layouts[place]
    least = math.prod(size for size, stride in zip(shape, strides or shape, strict=False) if stride)  # not expanded
    found: dict[str, int] = {}
    for entry in made:
        since = not len(again) or entry.place > again[-1]
        if found and not since:
            break
        if entry.stack and _is_entry_of(entry, dtype, least):
            found.setdefault(f"{entry.stack[0].file}:{entry.stack[0].line}", entry.index)
    if not found:
        return ""
    lines = list(found)[:MAX_ENTRIES][::-1]
    return f"; {dtype} data became {'a tensor' if len(lines) == 1 else 'tensors'} at {joined(lines)}"


def _is_entry_of(entry: RowAt, dtype: str, least: int) -> bool:
    """Whether such a row made a tensor of this type, with as many elements, of memory that no op wrote."""
    layouts, link = layouts_of(entry), _link(entry, 0)
    if not layouts or link is None or layouts[0][0] != dtype:
        return False
    return entry.op != "aten.lift_fresh.default" or (
        link.distance == Origin.OUTSIDE and math.prod(layouts[0][1]) >= least
    )


def elsewhere_text(a: RowAt, x: Link, b: RowAt, y: Link, place: int) -> str:
    """``is in B what A reads at row 52``, where one other call of that line read the bytes of the other side; "" where
    none did, or several."""
    for side, reader, other, digest in (("B", "A", a, y.digest), ("A", "B", b, x.digest)):
        rows = [] if digest is None else _calls_that_read(other, place, digest)
        if len(rows) == 1:
            return f"is in {side} what {reader} reads at row {rows[0]:,}"
    return ""


def _calls_that_read(row: RowAt, place: int, digest: int) -> list[int]:
    """The calls of an op from its call site, not far from it, that read these bytes there."""
    view = row.view
    first, stop = max(row.index - MAX_ENTRY_ROWS, view.start), min(row.index + MAX_ENTRY_ROWS, view.rows)
    try:
        rows = view.read(first, stop).rows
    except HoleError:
        return []
    own = row.rows.columns[row.place, [Column.OP, Column.SITE]]
    calls = np.flatnonzero((rows.columns[:, [Column.OP, Column.SITE]] == own).all(axis=1)).tolist()
    links = ((at, _link(RowAt(view, rows, at), place)) for at in calls)
    return [first + at for at, link in links if link is not None and link.digest == digest]


# --- bytes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bytes:
    """What is known of the bytes of a tensor."""

    digest: int | None
    """None: not known."""
    layout: Layout | None
    """Layout in which they were digested; None: that of a new tensor that an op returned."""


@dataclass(frozen=True)
class StoredOutput:
    """An output of a row, as later rows may read it."""

    row: RowAt
    slot: int | None

    @property
    def offset(self) -> int:
        """Storage offset of the tensor that was written; 0 where the op returned a new one."""
        links = list(self.row.rows.inputs(self.row.place))
        if not writes_in_place(self.row):
            # the arguments that an op only writes (``out=``), in the order of its outputs
            links = [link for link in links if link.distance == Origin.OVERWRITTEN]
        slot = self.slot or 0
        return links[slot].offset if slot < len(links) else 0

    @property
    def bytes(self) -> Bytes:
        """Its bytes; a library's workspace has no digest."""
        outputs = self.row.rows.outputs(self.row.place)
        slot = 0 if self.slot is None and len(outputs) == 1 else self.slot
        digest = outputs[slot] or None if slot is not None and slot < len(outputs) else None
        return Bytes(digest, written_layout(self.row, slot or 0))


@dataclass(frozen=True)
class KnownBytes:
    """What the digests of one side say of an input's bytes."""

    digest: int | None
    """None: not known."""
    is_of_input: bool
    """Whether it is of the tensor as the op read it; else of all that its last writer wrote, maybe in another shape."""

    @staticmethod
    def of(row: RowAt, link: Link, place: int) -> KnownBytes:
        """As an op of the same step read it, or else as its last writer left it in the same step."""
        read, producer = _digest(row, link), producer_of(row, link)
        if read is not None:
            return KnownBytes(read, is_of_input=True)
        if producer is None or producer.row.step != row.step or origin_of(row, link) == Origin.MIXED:
            return KnownBytes(None, is_of_input=False)
        as_written = is_viewed_as_written(row, link, place, producer)
        known = as_written or reads_whole(row, link, place)
        return KnownBytes(producer.bytes.digest if known else None, as_written)


def numbers_of_input(a: RowAt, b: RowAt, operand: Input) -> str:
    """``is 0.95 in A, 0.9 in B`` for an input of one element whose numbers are known; otherwise ``differs``."""
    found: list[object] = []
    for row, link in ((a, operand.a), (b, operand.b)):
        layouts, digest = layouts_of(row), KnownBytes.of(row, link, operand.place).digest
        if operand.place < len(layouts) and digest is not None:
            found.append(number_of(digest, *layouts[operand.place][:2]))
    known = len(found) == 2 and None not in found and repr(found[0]) != repr(found[1])
    return f"is {found[0]!r} in A, {found[1]!r} in B" if known else "differs"


def is_viewed_as_written(row: RowAt, link: Link, place: int, producer: StoredOutput) -> bool:
    """Whether an input is all that its last writer wrote, in that layout, so that their digests can be compared."""
    written, layouts = producer.bytes.layout, layouts_of(row)
    if link.offset != producer.offset:
        return False
    return _is_unviewed(row, producer.row) if written is None else place < len(layouts) and layouts[place] == written


def _is_unviewed(row: RowAt, writer: RowAt) -> bool:
    """Whether no view that changes the layout was made of what ``writer`` returned, before ``row`` read it."""

    def views_it(seen: RowAt) -> bool:
        links = seen.rows.inputs(seen.place)
        return any(link.distance > 0 and seen.index - link.distance == writer.index for link in links)

    try:
        return not any(seen.op not in SAME_LAYOUT and views_it(seen) for seen in _views_between(writer, row))
    except HoleError:
        return False


def _views_between(writer: RowAt, row: RowAt) -> Iterator[RowAt]:
    """Views made after ``writer`` and before ``row``. Raises HoleError where the rows between are too many, or cannot
    be read."""
    first = writer.index + 1
    if row.index - first > MAX_SCANNED:
        raise HoleError(f"more than {MAX_SCANNED:,} rows lie between")
    between = row.view.read(first, row.index).rows
    yield from (RowAt(row.view, between, n) for n in range(len(between)) if between.flags(n) & RowFlag.VIEW)


LAZY: Final = ("aten._conj.default", "aten._neg_view.default")
"""Views that change what is read, and no byte in memory."""


def lazy_view_text(context: DiffContext, a: RowAt, b: RowAt) -> str:
    """A clause on a lazy conjugation or negation that one side alone makes of what an input of a pair is a part of; ""
    where there is none."""
    for side, row, partner_of in (("A", a, context.matching.partner), ("B", b, context.matching.partner_in_a)):
        views = (view for writer in _producing_rows(row) for view in _lazy_views(writer, row))
        view = next((view for view in views if partner_of(view.index) is None), None)
        if view is not None:
            return f"it reads what {side} alone conjugates or negates lazily, by {view} (row {view.index:,})"
    return ""


def _lazy_views(writer: RowAt, row: RowAt) -> list[RowAt]:
    """Those of what ``writer`` wrote last, before ``row``; none where they are not known."""
    try:
        views = [view for view in _views_between(writer, row) if view.op in LAZY]
    except HoleError:
        return []
    return [view for view in views if any(read.index == writer.index for read in _producing_rows(view))]


def _producing_rows(row: RowAt) -> Iterator[RowAt]:
    """The rows that wrote last what a row's inputs are parts of, as far as they are known."""
    producers = (producer_of(row, link) for link in row.rows.inputs(row.place))
    yield from (producer.row for producer in producers if producer is not None)


def producer_of(row: RowAt, link: Link) -> StoredOutput | None:
    """What an input is a part of: the last op that wrote in its memory, and which of its outputs; None: not known."""
    found = first_read(row, link)
    if found is None:
        return None
    reader, read = found
    if read.distance == Origin.MIXED:
        writer = reach(reader, read.last_writer)
        return None if writer is None else StoredOutput(writer, None)
    target = reach(reader, read.distance)
    return None if target is None else StoredOutput(target, read.slot)


def _as_read(row: RowAt, place: int, digest: int | None) -> Bytes:
    layouts = layouts_of(row)
    return Bytes(digest if place < len(layouts) else None, layouts[place] if place < len(layouts) else None)


def _link(row: RowAt, place: int) -> Link | None:
    return next(islice(row.rows.inputs(row.place), place, None), None)


def _writers(row: RowAt, link: Link) -> list[StoredOutput]:
    """Outputs with the bytes of an input: of its last writer, and of earlier ones if later writers changed nothing."""
    found: list[StoredOutput] = []
    for _ in range(MAX_TRAIL):
        source = _past_readers(row, link)
        if source is None:
            break
        written = StoredOutput(*source)
        found.append(written)
        before = _link(written.row, written.slot) if written.slot is not None else None
        if before is None or not _left_unchanged(written, before):
            break
        row, link = written.row, before
    return found


def first_read(row: RowAt, link: Link) -> tuple[RowAt, Link] | None:
    """The first row that read the same view as a link, with its own link; None: not known."""
    for _ in range(MAX_TRAIL):
        if not link.known:
            return row, link
        target = reach(row, link.distance)
        earlier = None if target is None or link.slot is None else _link(target, link.slot)
        if target is None or earlier is None:
            return None
        row, link = target, earlier
    return None


def _past_readers(row: RowAt, link: Link) -> tuple[RowAt, int | None] | None:
    """The row that wrote an input, and the number of the output, through rows that only read the same view."""
    found = first_read(row, link)
    target = None if found is None else reach(found[0], found[1].distance)
    return None if found is None or target is None else (target, found[1].slot)


def _left_unchanged(written: StoredOutput, before: Link) -> bool:
    """Whether an op that wrote one of its arguments changed no byte of it; ``before``: the link of that argument."""
    row, slot = written.row, written.slot
    if slot is None or not writes_in_place(row) or before.distance == Origin.OVERWRITTEN:
        return False
    read = _digest(row, before)
    if read is not None:
        return read == written.bytes.digest
    source = _past_readers(row, before)
    if source is not None and _is_same(StoredOutput(*source).bytes, written.bytes):
        return True
    factor = _link(row, len(row.rows.outputs(row.place)))
    return scales_by_one(row, None if factor is None else _digest_of(row, factor))


def _digest_of(row: RowAt, link: Link) -> int | None:
    """Digest of an input, as it was read or as it was written."""
    read = _digest(row, link)
    source = None if read is not None else _past_readers(row, link)
    return read if source is None else StoredOutput(*source).bytes.digest


def _are_matched(context: DiffContext, a: StoredOutput, b: StoredOutput) -> bool:
    """Whether matched ops wrote the bytes, and wrote the same."""
    if context.matching.partner(a.row.index) != b.row.index or a.slot != b.slot:
        return False
    return bool(a.row.rows.outputs(a.row.place)) and same_bytes(a.row, a.slot, b.row, b.slot)


def _is_same(one: Bytes, other: Bytes) -> bool:
    """Whether memory holds the same bytes: equal digests of equal or plain layouts.

    A square matrix and its transpose written through a transposed view have the same digest, but different bytes.
    """
    if one.digest is None or one.digest != other.digest:
        return False
    if one.layout is not None and other.layout is not None:
        return one.layout == other.layout
    return all(layout is None or is_plain(layout) for layout in (one.layout, other.layout))


def origin_of(row: RowAt, link: Link) -> int:
    """Distance or ``Origin`` of an input, through rows that only read the same view."""
    found = first_read(row, link)
    return link.distance if found is None else found[1].distance


def _digest(row: RowAt, link: Link) -> int | None:
    """Digest of an input's bytes, read by the row or by an earlier one that read the same view."""
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
    """Whether two rows wrote the same into these outputs; None: into all of them."""
    outputs_a, outputs_b = a.rows.outputs(a.place), b.rows.outputs(b.place)
    if slot_a is None or slot_b is None or slot_a >= len(outputs_a) or slot_b >= len(outputs_b):
        return slot_a == slot_b and outputs_a == outputs_b
    return outputs_a[slot_a] == outputs_b[slot_b]
