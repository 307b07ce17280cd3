"""What differs at the first op that a running program computes otherwise than A, said while it runs.

Owns the order of the causes, which is that of a comparison (``rltrace.diff.causes``): numbers, generators, data from
outside, who wrote the inputs, and only then the computation itself. Every matched op before is taken to be equal; that
is what makes the inputs A's inputs without a value of A being there. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rltrace.diff.model import Cause, InputsMatch
from rltrace.follow.reference import Content
from rltrace.trace.rows import Link, Rows
from rltrace.trace.schema import SLOT_UNKNOWN, VALUE_FLAGS, Origin, RowFlag

Number = bool | int | float | complex | None


@dataclass(frozen=True)
class Here:
    """The row that the program has just made."""

    row: int
    content: Content
    links: Sequence[int]
    flags: int
    number: Number
    """The Python number that the op returned; None: none."""

    @property
    def has_rng(self) -> bool:
        return bool(self.flags & RowFlag.RNG)

    @property
    def outputs(self) -> Sequence[int]:
        return self.content.digests[sum(link & 1 for link in self.links) + self.has_rng :]

    @property
    def rng(self) -> int | None:
        return self.content.digests[sum(link & 1 for link in self.links)] if self.has_rng else None

    def inputs(self) -> list[Link]:
        found, at = [], 0
        for cell in self.links:
            slot = (cell >> 2) & SLOT_UNKNOWN
            digest = self.content.digests[at] if cell & 1 else None
            at += cell & 1
            found.append(Link(cell >> 12, None if slot == SLOT_UNKNOWN else slot, bool(cell & 2), digest))
        return found


@dataclass(frozen=True)
class Judged:
    """What differs, and why as far as that can be said here."""

    cause: Cause
    inputs: InputsMatch
    because: str


@dataclass(frozen=True)
class Marked:
    """Only what may be memory that nobody wrote differs: no verdict, but maybe the origin of one."""


@dataclass(frozen=True)
class Surroundings:
    """What the judge asks of the rows before."""

    partner: Callable[[int], int | None]
    """A's row of an earlier row of the program."""
    is_marked: Callable[[int], bool]
    """Whether an earlier row of the program differs in memory that nobody may have written."""


def judge(rows: Rows, i: int, called: tuple[int, int], here: Here, around: Surroundings) -> Judged | Marked | None:
    """Row ``i`` of A's ``rows``, called so, against the program's. None: what is compared is equal."""
    if called != here.content.called:
        return Judged(Cause.ARGUMENTS, InputsMatch.UNKNOWN, "it was called with other tensors or arguments than in A")
    if _numbers(rows, i) != _numbers_here(here):
        return Judged(Cause.ARGUMENTS, InputsMatch.UNKNOWN, "it was called with other numbers than in A")
    marked = bool((int(rows.flags(i)) | here.flags) & RowFlag.MARKED)
    if rows.rng(i) != here.rng:
        return Judged(Cause.RNG, InputsMatch.UNKNOWN, "the generator stood in another state before the op drew from it")
    inputs_a, inputs_b = list(rows.inputs(i)), here.inputs()
    if not marked:
        for place, (a, b) in enumerate(zip(inputs_a, inputs_b, strict=False)):
            if None not in (a.digest, b.digest) and a.digest != b.digest:
                return _other_bytes(place, a, b)
    same_number = repr(rows.value(i)) == repr(here.number)
    if rows.outputs(i) == list(here.outputs) and same_number:
        return None
    if marked:
        return Marked()
    return _other_results(rows.first + i, inputs_a, here, inputs_b, around)


def _other_bytes(place: int, a: Link, b: Link) -> Judged:
    if Origin.OUTSIDE in (a.distance, b.distance):
        why = f"input {place} came from outside (no recorded op wrote it) and differs"
        return Judged(Cause.OUTSIDE, InputsMatch.DIFFER, why)
    why = f"input {place} differs here, though the ops before are equal"
    return Judged(Cause.UNKNOWN, InputsMatch.DIFFER, why)


def _other_results(row_a: int, inputs_a: list[Link], here: Here, inputs_b: list[Link], around: Surroundings) -> Judged:
    """The results differ and nothing that was digested before them does."""
    known = InputsMatch.READ
    for place, (a, b) in enumerate(zip(inputs_a, inputs_b, strict=False)):
        if Origin.OVERWRITTEN in (a.distance, b.distance) or None not in (a.digest, b.digest):
            continue
        if a.distance <= 0 or b.distance <= 0 or a.known or b.known:
            known = InputsMatch.UNKNOWN
            continue
        writer = here.row - b.distance
        if around.is_marked(writer):
            why = f"input {place} was written by row {writer:,}, which possibly read memory that no op had written"
            return Judged(Cause.UNINITIALISED, InputsMatch.DIFFER, why)
        if around.partner(writer) != row_a - a.distance:
            rows = f"row {writer:,} here, {row_a - a.distance:,} in A"
            why = f"input {place} was last written by another op than in A ({rows})"
            return Judged(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
        known = InputsMatch.LINKED if known is InputsMatch.READ else known
    if known is InputsMatch.UNKNOWN:
        why = "its results differ, and of some of its inputs only what is known is equal"
        return Judged(Cause.UNKNOWN, known, why)
    why = "its inputs match, since every op before it gave what it gave in A, and its results differ"
    return Judged(Cause.COMPUTATION, known, why)


def _numbers(rows: Rows, i: int) -> tuple[list[int], bytes]:
    """The numbers among A's arguments, without the one that the op returned."""
    integers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tobytes()
    return _without_result(integers, floats, int(rows.flags(i)))


def _numbers_here(here: Here) -> tuple[list[int], bytes]:
    return _without_result(list(here.content.integers), here.content.floats, here.flags)


def _without_result(integers: list[int], floats: bytes, flags: int) -> tuple[list[int], bytes]:
    if not flags & VALUE_FLAGS:
        return integers, floats
    if flags & (RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER):
        return integers[:-1], floats
    return integers, floats[: -8 if flags & RowFlag.VALUE_FLOAT else -16]
