"""Writes that no recorded op made, of memory that a matched pair of rows reads.

They are known in two ways. ``record --check-links`` names each of them. Without it, a row that digests an input whose
writer is known shows one, where the digest is another than that of what the writer left there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt, row_at, writer_of
from rltrace.diff.base.model import InputsMatch
from rltrace.diff.base.row_diff import input_text
from rltrace.diff.causes.inputs import Input, StoredOutput, is_viewed_as_written
from rltrace.errors import HoleError
from rltrace.trace.format.records import MAX_LINK_FAULTS, FaultKind, LinkFault
from rltrace.trace.format.rows import Link
from rltrace.trace.format.schema import RowFlag

EXACT = frozenset(
    f"aten.{name}{ending}"
    for name in (
        *("add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "sign", "floor", "ceil", "trunc"),
        *("relu", "threshold_backward", "maximum", "minimum", "clamp", "clamp_min", "clamp_max"),
        *("where", "masked_fill"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "fill", "zero"),
        *("copy", "clone", "_to_copy", "cat", "stack", "index_select", "gather"),
    )
    for ending in ("", "_")
)
"""Operators of which each element of the result is a correctly rounded number of few elements, or one of them. On a CPU
no order of threads, loop or library gives it other bits. Not those with tables or series (``exp``): MKL may choose
another by alignment."""


@dataclass(frozen=True)
class Change:
    """Memory that one side read otherwise than its last writer left it."""

    place: int
    side: str
    """``A`` or ``B``."""
    how: str
    """A clause: what is known of the write."""
    content: int
    """A digest of the memory afterwards."""


def untracked_writes(context: DiffContext, a: RowAt, b: RowAt, inputs: Sequence[Input]) -> list[Change]:
    """The changes of memory that explain a difference of a pair: those of one side only, or of both to other bytes."""
    found: list[Change] = []
    for operand in inputs:
        on_a, on_b = (_change(row, link, operand.place) for row, link in ((a, operand.a), (b, operand.b)))
        if operand.match is InputsMatch.READ or (on_a is not None and on_b is not None and on_a[1] == on_b[1]):
            continue
        found += [Change(operand.place, side, *one) for side, one in (("A", on_a), ("B", on_b)) if one is not None]
    return found


NO_RECORDED_OP = "without any recorded op"


def changes_text(a: RowAt, changes: Sequence[Change]) -> str:
    """The sentence that explains a difference by them."""
    place = changes[0].place
    clauses = [f"in {change.side} {change.how}" for change in changes if change.place == place]
    return f"{input_text(a, place)} changed {NO_RECORDED_OP}: {'; '.join(clauses)}"


def is_known_unwritten(a: RowAt, b: RowAt) -> bool:
    """Whether it is certain that memory which no recorded op wrote was not written otherwise: links were checked."""
    processes = a.view.process, b.view.process
    checked = all(process.checks_links and len(process.link_faults) < MAX_LINK_FAULTS for process in processes)
    return checked and _is_on_cpu(a) and _is_on_cpu(b)


def repeats_for_certain(row: RowAt) -> bool:
    """Whether an op gives the same bits from equal inputs under one kernel, whatever the threads do."""
    overlapping = row.rows.flags(row.place) & RowFlag.OVERLAPPING
    return row.op.rpartition(".")[0] in EXACT and not overlapping and _is_on_cpu(row)


def lost_link(a: RowAt, b: RowAt) -> str | None:
    """A sentence on an input that a recorded op wrote, though its link leads nowhere; None: there is none."""
    for side, row in (("A", a), ("B", b)):
        for fault in row.view.process.link_faults:
            if fault.kind is FaultKind.LINK and fault.found == (row.view.stream.index, row.index):
                return (
                    f"in {side} {input_text(row, fault.input or 0)} was written by a recorded op, and its link is lost"
                )
    return None


def _is_on_cpu(row: RowAt) -> bool:
    return all(layout[-1] == "cpu" for layout in row.view.tensors(row.rows, row.place))


def _change(row: RowAt, link: Link, place: int) -> tuple[str, int] | None:
    """How memory changed before a row read it, and a digest of it afterwards; None: it is not known to have."""
    checked = next(_checked(row, link, place), None)
    if checked is not None:
        return _how(row, checked), checked.digest
    if link.digest is None or link.known:
        return None
    writer = writer_of(row, link)
    if writer is None or not _differs_from_written(row, link, place, writer):
        return None
    return f"its bytes are not those that {_words(writer)} left there", link.digest


# --- found by the recorder --------------------------------------------------------------------------------------------


def _checked(row: RowAt, link: Link, place: int) -> Iterator[LinkFault]:
    """Writes that the recorder noticed in the memory of an input, the latest first."""
    own = row.view.stream.index
    writer = writer_of(row, link)
    for write in reversed(row.view.process.link_faults):
        if write.kind is FaultKind.LINK:
            continue
        if write.found == (own, row.index) and write.input == place and write.kind is not FaultKind.OP:
            yield write
        elif writer is not None and write.writer == (own, writer.index):
            since = write.used or write.writer
            if since[0] != own or since[1] < row.index:
                yield write


def _how(row: RowAt, write: LinkFault) -> str:
    own = row.view.stream.index

    def words(place: tuple[int, int] | None) -> str:
        if place is None:
            return "an op before the recording"
        if place[0] != own:
            return f"row {place[1]:,} of another thread"
        try:
            return _words(row_at(row.view, place[1]))
        except (HoleError, ValueError):  # ValueError: the stream has no such row
            return f"row {place[1]:,}"

    if write.kind is FaultKind.OP:
        return f"{words(write.found)} wrote it against its schema"
    written = "" if write.writer == write.used else f"; {words(write.writer)} wrote or allocated it last"
    return f"it changed after {words(write.used)} had used it{written}"


# --- found by digests -------------------------------------------------------------------------------------------------


def _differs_from_written(row: RowAt, link: Link, place: int, writer: RowAt) -> bool:
    """Whether an input's digest proves other bytes than its writer left; both digests have to be of one layout."""
    slot = link.slot
    if slot is None:
        return False
    written = StoredOutput(writer, slot)
    if written.bytes.digest is None or written.bytes.digest == link.digest:
        return False
    return is_viewed_as_written(row, link, place, written)


def _words(row: RowAt) -> str:
    return f"{row} (row {row.index:,})"
