"""What differs at the first op that a running program computes otherwise than A, said while it runs.

Owns the order of the causes, which is that of a comparison (``diff.causes.classify``): numbers, generators, data
from outside, who wrote the inputs, and only then the computation itself. Every matched op before is taken to be equal;
that is what makes the inputs A's inputs without a value of A being there. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rltrace.diff.base.model import Cause, InputsMatch
from rltrace.live_diff.reference_trace import Content, MatchedRow
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import SLOT_UNKNOWN, VALUE_FLAGS, Origin, RowFlag

Number = bool | int | float | complex | None


@dataclass(frozen=True)
class LiveRow:
    """The row that the program has just made."""

    row: int
    content: Content
    digests: Sequence[int]
    links: Sequence[int]
    flags: int
    number: Number
    """The Python number that the op returned; None: none."""

    @property
    def has_rng(self) -> bool:
        return bool(self.flags & RowFlag.RNG)

    @property
    def outputs(self) -> Sequence[int]:
        return self.digests[sum(link & 1 for link in self.links) + self.has_rng :]

    @property
    def rng(self) -> int | None:
        return self.digests[sum(link & 1 for link in self.links)] if self.has_rng else None

    def inputs(self) -> list[Link]:
        found, at = [], 0
        for cell in self.links:
            slot = (cell >> 2) & SLOT_UNKNOWN
            digest = self.digests[at] if cell & 1 else None
            at += cell & 1
            found.append(Link(cell >> 12, None if slot == SLOT_UNKNOWN else slot, bool(cell & 2), digest))
        return found


@dataclass(frozen=True)
class LiveClassification:
    """What differs, and why as far as that can be said here."""

    cause: Cause
    inputs: InputsMatch
    explanation: str


@dataclass(frozen=True)
class UninitialisedDifference:
    """Only what may be memory that nobody wrote differs: no verdict, but maybe the origin of one."""


@dataclass(frozen=True)
class RowContext:
    """What the judge asks of the rows before."""

    partner: Callable[[int], int | None]
    """A's row of an earlier row of the program."""
    is_marked: Callable[[int], bool]
    """Whether an earlier row of the program differs in memory that nobody may have written."""
    read_here: Callable[[int, int], int | None]
    """Digest of an input, by row and place, that an earlier op which A does not run read; None: not known."""
    row_of_a: Callable[[int], Rows | None]
    """One row of A's stream; None where it cannot be read."""


def judge(found: MatchedRow, here: LiveRow, around: RowContext) -> LiveClassification | UninitialisedDifference | None:
    """A row of A against the program's. None: what is compared is equal."""
    rows, i = found.rows, found.i
    if found.called != here.content.called:
        return LiveClassification(
            Cause.ARGUMENTS, InputsMatch.UNKNOWN, "it was called with different tensors or arguments than in A"
        )
    if _numbers(rows, i) != _numbers_here(here):
        return LiveClassification(
            Cause.ARGUMENTS, InputsMatch.UNKNOWN, "it was called with different numbers than in A"
        )
    marked = bool((int(rows.flags(i)) | here.flags) & RowFlag.MARKED)
    if rows.rng(i) != here.rng:
        return LiveClassification(
            Cause.RNG,
            InputsMatch.UNKNOWN,
            "the RNG state already differed before the op drew: another seed, or an earlier extra draw",
        )
    inputs_a, inputs_b = list(rows.inputs(i)), here.inputs()
    if not marked:
        for place, (a, b) in enumerate(zip(inputs_a, inputs_b, strict=False)):
            if None not in (a.digest, b.digest) and a.digest != b.digest:
                return _other_bytes(place, a, b)
    same_number = repr(rows.value(i)) == repr(here.number)
    if marked:
        alike = rows.outputs(i) == list(here.outputs) and same_number and _reads_alike(inputs_a, inputs_b)
        return None if alike else UninitialisedDifference()
    if rows.outputs(i) == list(here.outputs) and same_number:
        return None
    return _other_results(_Pair(rows, i, here, around), inputs_a, inputs_b)


def _other_bytes(place: int, a: Link, b: Link) -> LiveClassification:
    if Origin.OUTSIDE in (a.distance, b.distance):
        why = f"input {place} came from outside (no recorded op wrote it) and differs"
        return LiveClassification(Cause.OUTSIDE, InputsMatch.DIFFER, why)
    why = f"input {place} differs here, though the ops before are equal"
    return LiveClassification(Cause.UNKNOWN, InputsMatch.DIFFER, why)


def _reads_alike(inputs_a: list[Link], inputs_b: list[Link]) -> bool:
    return [link.digest for link in inputs_a] == [link.digest for link in inputs_b]


@dataclass(frozen=True)
class _Pair:
    """The two rows."""

    rows: Rows
    i: int
    here: LiveRow
    around: RowContext

    def digest_a(self, link: Link) -> int | None:
        """What A's op read there, by itself or by the op that read the very same view before it."""
        if link.digest is not None or not link.known:
            return link.digest
        return self._digest_in_a(self.rows.first + self.i - link.distance, link.slot)

    def digest_b(self, link: Link) -> int | None:
        """The same of the program's op. What a matched op read, A's read as well."""
        if link.digest is not None or not link.known or link.slot is None:
            return link.digest
        row = self.here.row - link.distance
        partner = self.around.partner(row)
        return self.around.read_here(row, link.slot) if partner is None else self._digest_in_a(partner, link.slot)

    def _digest_in_a(self, row: int, slot: int | None) -> int | None:
        """What a row of A read."""
        rows = None if slot is None else self.around.row_of_a(row)
        links = [] if rows is None else list(rows.inputs(0))
        return links[slot].digest if slot is not None and slot < len(links) else None


def _other_results(pair: _Pair, inputs_a: list[Link], inputs_b: list[Link]) -> LiveClassification:
    """The results differ and nothing that was digested before them does."""
    known = InputsMatch.READ
    for place, (a, b) in enumerate(zip(inputs_a, inputs_b, strict=False)):
        if Origin.OVERWRITTEN in (a.distance, b.distance) or None not in (a.digest, b.digest):
            continue
        told = _linked(pair, place, a, b)
        if isinstance(told, LiveClassification):
            return told
        known = InputsMatch.UNKNOWN if InputsMatch.UNKNOWN in (known, told) else told
    if known is InputsMatch.UNKNOWN:
        why = "its results differ, and not all of its inputs could be compared"
        return LiveClassification(Cause.UNKNOWN, known, why)
    why = "its inputs match, since every op before it gave the same as in A, and its results differ"
    return LiveClassification(Cause.COMPUTATION, known, why)


def _linked(pair: _Pair, place: int, a: Link, b: Link) -> LiveClassification | InputsMatch:
    """Whether an input matches that was not read on both sides, by who wrote it or read it before."""
    read_a, read_b = pair.digest_a(a), pair.digest_b(b)
    if read_a is not None and read_b is not None:
        return InputsMatch.INFERRED if read_a == read_b else _other_bytes(place, a, b)
    if a.distance <= 0 or b.distance <= 0 or a.known or b.known:
        return InputsMatch.UNKNOWN
    row_a, row_b = pair.rows.first + pair.i - a.distance, pair.here.row - b.distance
    if pair.around.is_marked(row_b):
        why = f"input {place} was written by row {row_b:,}, which may have read uninitialised memory"
        return LiveClassification(Cause.UNINITIALISED, InputsMatch.DIFFER, why)
    if pair.around.partner(row_b) != row_a:
        why = f"input {place} was last written by another op than in A (row {row_b:,} here, {row_a:,} in A)"
        return LiveClassification(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
    return InputsMatch.INFERRED


def _numbers(rows: Rows, i: int) -> tuple[bytes, bytes]:
    """The numbers among A's arguments, without the one that the op returned."""
    integers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tobytes()
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tobytes()
    return _without_result(integers, floats, int(rows.flags(i)))


def _numbers_here(here: LiveRow) -> tuple[bytes, bytes]:
    return _without_result(here.content.integers, here.content.floats, here.flags)


def _without_result(integers: bytes, floats: bytes, flags: int) -> tuple[bytes, bytes]:
    if not flags & VALUE_FLAGS:
        return integers, floats
    if flags & (RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER):
        return integers[:-8], floats
    return integers, floats[: -8 if flags & RowFlag.VALUE_FLOAT else -16]
