"""Walks two streams from their first difference, block by block, skipping steps that digests prove equal.

Stops at the first difference of values, since later ones follow from it. Reads a bounded number of rows at a time, so
memory does not grow with the streams.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import Block, batches, same_in_any_order, unmatched_attempt
from rltrace.diff.align.reorder import partners_of, reordered_rows
from rltrace.diff.align.rows import Alignment, before, insertion_places, one_sided
from rltrace.diff.align.window import context_before, first_unequal, has_more, read_window
from rltrace.diff.base.bisect import Unreadable
from rltrace.diff.base.context import DiffContext, Matching
from rltrace.diff.base.findings import PROFILER, Judgement, RowAt, attempt_of, make_finding, one_sided_finding, row_at
from rltrace.diff.base.model import Cause, Finding, NamedDifference, OptimizerCount
from rltrace.diff.base.row_diff import difference
from rltrace.diff.base.sequences import Indices, Tokens
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.carried_state import carried_generator
from rltrace.diff.causes.classify import judge
from rltrace.diff.causes.extra_ops import (
    COMPILED,
    control_flow,
    first_of_chain,
    first_of_line,
    first_read_of,
    one_sided_writers,
    without_results,
)
from rltrace.diff.causes.outside_data import OutsideData
from rltrace.diff.causes.rng import Draws
from rltrace.diff.causes.uninitialised import MarkedRows, harmless_rows
from rltrace.diff.stream.hunks import HunkCounter
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Phase
from rltrace.wording import ordinal

# --- batches ----------------------------------------------------------------------------------------------------------
#
# Many steps aligned at once: a log line in the training loop adds rows to every step, and to align each step alone
# would take a millisecond. This covers one case: without the rows whose structure the other side lacks, both sides are
# equal step by step. Everything else goes to the aligner.


BUCKETS = 1 << 20
"""Hash buckets for tokens: the other side lacks a token whose bucket is empty; few distinct tokens rarely collide."""


def without_extra_rows(a: RowRange, b: RowRange, ends_a: Indices, ends_b: Indices) -> Alignment | None:
    """The rows of both sides matched in order, without those that one side lacks; None where that is not enough.

    ``ends_a``, ``ends_b``: ends of the steps within the ranges. No step may have extra rows on both sides: they could
    be one op with two call sites.
    """
    structure_a, structure_b = a.hashes.structure, b.hashes.structure
    at_a, at_b = np.flatnonzero(_present(structure_a, structure_b)), np.flatnonzero(_present(structure_b, structure_a))
    if len(at_a) != len(at_b) or not np.array_equal(structure_a[at_a], structure_b[at_b]):
        return None
    matched_a, matched_b = np.searchsorted(at_a, ends_a), np.searchsorted(at_b, ends_b)
    if not np.array_equal(matched_a, matched_b):
        return None
    extra_a, extra_b = _per_step(ends_a) - _per_step(matched_a), _per_step(ends_b) - _per_step(matched_b)
    if (extra_a.astype(bool) & extra_b.astype(bool)).any():
        return None
    return Alignment(len(a), len(b), at_a, at_b, np.zeros(len(at_a), dtype=bool), None)


def crosses_steps(stretch: RowRange, rows: Indices, ends: Indices) -> bool:
    """Whether a row reads what one of ``rows`` wrote in an earlier step, so that steps are not independent."""
    links = stretch.rows.links
    if not len(rows) or not len(links):
        return False
    owner = np.repeat(np.arange(len(stretch)), np.diff(stretch.rows.link_offsets))
    target = owner - (links >> 12)
    found = np.flatnonzero((links >> 12 > 0) & (target >= 0))
    selected = np.zeros(len(stretch), dtype=bool)
    selected[rows] = True
    found = found[selected[target[found]]]
    steps = np.searchsorted(ends, target[found], side="right"), np.searchsorted(ends, owner[found], side="right")
    return bool((steps[0] != steps[1]).any())


def _present(tokens: Tokens, others: Tokens) -> NDArray[np.bool_]:
    """Which tokens the other side may have, by their buckets."""
    buckets = np.zeros(BUCKETS, dtype=bool)
    buckets[others & np.uint64(BUCKETS - 1)] = True
    there: NDArray[np.bool_] = buckets[tokens & np.uint64(BUCKETS - 1)]
    return there


def _per_step(ends: Indices) -> Indices:
    return np.diff(np.concatenate([[0], ends]))


# --- walk -------------------------------------------------------------------------------------------------------------


CHUNKS_FOR_ORDER = 24
"""Chunks that are read at most to show which ops were reordered, where digests prove that nothing else differs."""

BACKWARD, OPTIMIZER = (phase.name.lower() for phase in (Phase.BACKWARD, Phase.OPTIMIZER))

Progress = Callable[[str, int, int], None]
"""(stream, rows done, rows in all)."""


@dataclass
class StreamWalk:
    """The walk along one pair of streams, and what it found."""

    a: StreamView
    b: StreamView
    base: int
    """Rows before it are equal, position by position."""
    settings: tuple[NamedDifference, ...]
    is_aligned: bool = False
    """Rows before ``base`` match position by position; False: the sides were recorded in different windows."""
    progress: Progress | None = None
    outside: OutsideData | None = None
    """Continue past ops that compute with data from outside; None: the first of them is a difference as any other."""
    first: Finding | None = None
    """The earliest finding of any cause."""
    harmful: Finding | None = None
    """The earliest one-sided op that the rest depends on."""
    value: Finding | None = None
    """The earliest matched op whose values differ. The walk ends there."""
    undecided: str | None = None
    """Why the walk ended before the streams did; None: it did not."""
    hole: Unreadable | None = None
    done: tuple[int, int] = (0, 0)
    """Rows of A and B that were compared or proven equal."""
    opening: tuple[int, int] = (0, 0)
    """Unmatched rows among these that a window began with: no ops of the program."""
    skipped: bool = False
    """Steps were skipped, as a side has no rows for them."""
    matched: int = 0
    equal: int = 0
    moved_calls: int = 0
    """Matched rows with another call site or module."""
    marked: MarkedRows = field(default_factory=MarkedRows)
    """Marked rows among the matched rows that were read."""
    trailing: tuple[int, int] = (0, 0)
    """Rows at the very end of one side only; 0 where neither or both have some."""

    def __post_init__(self) -> None:
        if self.is_aligned:
            self.base -= context_before(self.a, self.b, self.base)
        self.hunks = HunkCounter(self.a, self.b)
        self.matching = Matching(self.base, lambda a, b, count: partners_of(self.a, self.b, (a, b, count)))
        self.context = DiffContext(self.a, self.b, self.matching, self.settings)
        self.matched = self.equal = self.base
        self.done = (self.base, self.base)
        self.draws = Draws(self.a, self.b, self._one_sided_draw)
        self._all_one_sided: tuple[list[Indices], list[Indices]] = ([], [])
        self._sent: tuple[RowAt, RowAt] | None = None
        self._chunks_spent = 0

    def run(self) -> StreamWalk:
        """Walk to the end, or to the first difference of values."""
        self._run()
        if self.undecided is None:
            whole = self.a.rows - self.trailing[0], self.b.rows - self.trailing[1]
            ends = whole if self.value is None else self._compared
            self._is_harmful(self.draws.unsettled(ends))
            if self.value is None:
                self._is_harmful(self._one_sided_attempt())
        return self

    def _run(self) -> None:
        for batch in batches(self.a, self.b, self.base, is_aligned=self.is_aligned):
            if not self._add_batch(batch):
                for block in batch:
                    self._walk_block(block)
                    if self.value is not None or self.undecided is not None:
                        return
            if self.progress:
                self.progress(self.a.name, batch[-1].a1, self.a.rows)

    def _walk_block(self, block: Block) -> None:
        if not block.recorded:
            self.skipped = True
        elif block.same:
            self.matching.add_run(block.a0, block.b0, block.a1 - block.a0)
            self._is_equal(block)
        elif block.reordered:
            self._reordered(block)
        else:
            self._walk_windows(block)

    def _is_equal(self, block: Block) -> None:
        """Count a block whose digests prove that it has the same rows on both sides."""
        count = block.a1 - block.a0
        self._look(count, count)
        self.matched += count
        self.equal += count

    def _reordered(self, block: Block) -> None:
        """Add a reordered block. Rows of the first such blocks are read to list what moved; the others are counted."""
        count, chunks = block.a1 - block.a0, self._chunks()
        found = None
        if not self.hunks.is_full and self._chunks_spent < CHUNKS_FOR_ORDER:
            found = reordered_rows(self.a, self.b, (block.a0, block.b0, count))
            self._chunks_spent += self._chunks() - chunks
        if found is None:
            self.matching.add_reordered(block.a0, block.b0, count)
            self.hunks.reordered_steps += 1
        else:
            rows_a, rows_b = block.a0 + found.a, block.b0 + found.b
            self.matching.add(rows_a, rows_b)
            self.hunks.moved(rows_a[found.moved], rows_b[found.moved])
        self._is_equal(block)

    def _chunks(self) -> int:
        return self.a.stream.counter.chunks + self.b.stream.counter.chunks

    def _add_batch(self, batch: list[Block]) -> bool:
        """Align several steps at once; False where they differ in more than rows that one side lacks throughout."""
        first, last = batch[0], batch[-1]
        if len(batch) == 1:
            return False
        try:
            self.a.stream.read_rows_ahead(first.a0, last.a1)
            self.b.stream.read_rows_ahead(first.b0, last.b1)
            a, b = self.a.read(first.a0, last.a1), self.b.read(first.b0, last.b1)
        except HoleError:
            return False
        ends_a, ends_b = np.array([p.a1 for p in batch]) - a.first, np.array([p.b1 for p in batch]) - b.first
        found = without_extra_rows(a, b, ends_a, ends_b)
        crosses = found and (crosses_steps(a, found.only_a, ends_a) or crosses_steps(b, found.only_b, ends_b))
        if found is None or crosses or first_unequal(a, found.a, b, found.b) is not None:
            self.a.cache(a)
            self.b.cache(b)
            return False
        self._add_window(a, b, found, (len(a), len(b)), final=False)
        return True

    # --- one block --------------------------------------------------------------------------------------------

    def _walk_windows(self, block: Block) -> None:
        at = block.a0, block.b0
        while at != (block.a1, block.b1) and self.value is None and self.undecided is None:
            if not block.ended and (at[0] == self.a.rows) != (at[1] == self.b.rows):  # one side has no rows left
                self.trailing = self.a.rows - at[0], self.b.rows - at[1]
                if not has_more(self.context, block):
                    self._look(*self.trailing)
                return
            part = read_window(self.context, block, at)
            if part.hole is not None and at == (block.a0, block.b0) and same_in_any_order(self.a, self.b, block):
                self.matching.add_reordered(*at, block.a1 - block.a0)
                self.hunks.reordered_steps += 1
                self._is_equal(block)
                return
            step_ends = block.ended and (part.a.first + part.cut[0], part.b.first + part.cut[1]) == (block.a1, block.b1)
            self._add_window(part.a, part.b, part.found, part.cut, part.final, step_ends=step_ends)
            if part.stop is not None:
                self._stop(part.stop, part.hole)
            at = at[0] + part.cut[0], at[1] + part.cut[1]

    def _add_window(
        self, a: RowRange, b: RowRange, found: Alignment, cut: tuple[int, int], final: bool, step_ends: bool = False
    ) -> None:
        """Process the matched and one-sided rows of a window before ``cut``, in order; ``step_ends``: a matched
        attempt of an optimizer is the last of them."""
        inside = (found.a < cut[0]) & (found.b < cut[1])
        at_a, at_b, moved = found.a[inside], found.b[inside], found.moved[inside]
        self.matching.add(a.first + at_a, b.first + at_b)
        unequal = first_unequal(a, at_a, b, at_b)
        if unequal is not None and self.outside is not None:
            passed = self.outside.passed
            unequal = self.outside.first_other(self.context, a, at_a, b, at_b, step_ends)
            self.equal -= self.outside.passed - passed
            if self.outside.stop is not None:
                self._stop(self.outside.stop, None)
        elif unequal is not None:
            harmless = harmless_rows(self.context, a, at_a, b, at_b)
            if harmless.other is not None or step_ends or not harmless.unused:
                self.context.unused.update(harmless.unused)
                self.marked.unused += len(harmless.unused)
                self.context.exchanged.update(harmless.exchanged)
                unequal = harmless.other
        if unequal is not None:
            at_a, at_b, moved = at_a[:unequal], at_b[:unequal], moved[:unequal]
        ends = cut if unequal is None else before(found, inside, unequal)
        self._look(*ends)
        only_a = one_sided(a, found.only_a, ends[0])
        only_b = one_sided(b, found.only_b, ends[1])
        opened = [
            int(np.sum(only < end)) - len(own)
            for only, end, own in ((found.only_a, ends[0], only_a), (found.only_b, ends[1], only_b))
        ]
        self.opening = self.opening[0] + opened[0], self.opening[1] + opened[1]
        if final and unequal is None:
            only_a, only_b = self._without_trailing(a, b, (at_a, at_b, moved), (only_a, only_b))
        self._structure(a, b, (at_a, at_b, moved), (only_a, only_b))
        self._count(a, at_a, b, at_b)
        self._count_permuted(a, at_a, b, at_b)
        self._check_sent(a, at_a, b, at_b)
        if unequal is not None:
            pair = found.a[inside][unequal], found.b[inside][unequal]
            self._found_value(a, int(pair[0]), b, int(pair[1]))

    def _look(self, rows_a: int, rows_b: int) -> None:
        self.done = (self.done[0] + rows_a, self.done[1] + rows_b)

    def _found_value(self, a: RowRange, i: int, b: RowRange, j: int) -> None:
        row_a, row_b = RowAt(self.a, a.rows, i), RowAt(self.b, b.rows, j)
        self._is_harmful(self._one_sided_attempt())
        origin = judge(self.context, row_a, row_b, difference(a, i, b, j))
        judgement = origin.judgement
        if judgement.cause is Cause.RNG:
            draw = self.draws.causing_draw(row_a, row_b, self._compared)
            if draw is not None:
                because = f"{judgement.explanation}; {draw.op} before it ran on one side only"
                judgement = Judgement(judgement.cause, judgement.inputs_match, because)
                self._is_harmful(draw)
            else:
                judgement = carried_generator(self.context, row_a, row_b, judgement)
        elif judgement.cause in (Cause.OUTSIDE, Cause.ARGUMENTS) and judgement.received is None:
            why = judgement.explanation + self._earlier_text(row_a, judgement.cause)
            judgement = replace(judgement, explanation=why)
        before = self.equal
        if origin.a.index < row_a.index:  # an earlier marked op is the origin
            before = min(before, origin.a.index)
        if judgement.cause is Cause.CONTROL_FLOW:
            self._check_use(row_a, row_b)
        elif judgement.cause is Cause.ARGUMENTS:
            self._check_more_tensors(row_a, row_b)
        elif judgement.received is not None and self._sent is not None:
            self._check_use(*self._sent)
        self.value = make_finding(origin.a, origin.b, judgement, before)
        self.first = self.first or self.value

    def _earlier_text(self, row: RowAt, cause: Cause) -> str:
        """``; before it, only A runs aten.copy_.default at train.py:36 (row 25)``: what a side brings in may depend on
        the way that it took before, and what it reads on that of this step; "" where both took the same."""
        first = self.first
        if first is None or first.cause is not Cause.CONTROL_FLOW:
            return ""
        if cause is Cause.ARGUMENTS and first.step not in (None, row.step):
            return ""
        side, view, index = ("B", self.b, first.b_index) if first.a_index is None else ("A", self.a, first.a_index)
        return "" if index is None else f"; before it, only {side} runs {row_at(view, index)} (row {index:,})"

    # --- rows of one side -------------------------------------------------------------------------------------

    def _structure(
        self, a: RowRange, b: RowRange, pairs: tuple[Indices, Indices, np.ndarray], only: tuple[Indices, Indices]
    ) -> None:
        at_a, at_b, moved = pairs
        only_a, only_b = only
        opposite_a = b.first + insertion_places(only_a, at_a[~moved], at_b[~moved])
        opposite_b = a.first + insertion_places(only_b, at_b[~moved], at_a[~moved])
        self.hunks.one_sided("only-a", a.first + only_a, opposite_a)
        self.hunks.one_sided("only-b", b.first + only_b, opposite_b)
        self.hunks.moved(a.first + at_a[moved], b.first + at_b[moved])
        self._all_one_sided[0].append(a.first + only_a)
        self._all_one_sided[1].append(b.first + only_b)
        if self.first is None and (len(only_a) or len(only_b)):
            a_is_first = len(only_a) and (not len(only_b) or a.first + int(only_a[0]) <= int(opposite_b[0]))
            row = RowAt(self.a, a.rows, int(only_a[0])) if a_is_first else RowAt(self.b, b.rows, int(only_b[0]))
            self.first = self._one_sided_at(row, lambda _: "", self._equal_before(row))
        self.draws.add((a, at_a, only_a), (b, at_b, only_b))

    @property
    def _compared(self) -> tuple[int, int]:
        """Rows of A and B before which each was compared, or is of one side."""
        return self.a.start + self.done[0], self.b.start + self.done[1]

    @property
    def _one_sided(self) -> tuple[Indices, Indices]:
        return self.one_sided_rows(True), self.one_sided_rows(False)

    def one_sided_rows(self, of_a: bool) -> Indices:
        """Numbers of the one-sided rows of this side so far."""
        return np.concatenate([np.empty(0, np.int64), *self._all_one_sided[0 if of_a else 1]])

    def _is_harmful(self, finding: Finding | None) -> None:
        """Note a one-sided op that the rest depends on; the earliest one counts."""
        if finding is not None and (self.harmful is None or finding.identical_before < self.harmful.identical_before):
            self.harmful = finding
            self._share_harm()

    def _share_harm(self) -> None:
        """Use the harmful finding as the first one, where both are of the same op."""
        first, harmful = self.first, self.harmful
        if first and harmful and (first.a_index, first.b_index) == (harmful.a_index, harmful.b_index):
            self.first = harmful

    def _check_sent(self, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> None:
        """Note the first matched op without results, as one is that sends, that reads what a one-sided op wrote."""
        sending = np.flatnonzero(without_results(a)[at_a]).tolist() if self._sent is None else []
        if not sending:
            return
        alone = self._one_sided
        for k in sending if any(map(len, alone)) else ():
            pair = RowAt(self.a, a.rows, int(at_a[k])), RowAt(self.b, b.rows, int(at_b[k]))
            if any(True for _ in one_sided_writers(self.context, *pair, alone)):
                self._sent = pair
                return

    def _one_sided_attempt(self) -> Finding | None:
        """The finding at the first of the one-sided rows that lead to an attempt that one side alone made; None: there
        is none."""
        found = unmatched_attempt(self.a, self.b, self._compared) if any(map(len, self._one_sided)) else None
        if found is None:
            return None
        is_a, start, end = found
        view, rows = self.a if is_a else self.b, self.one_sided_rows(is_a)
        inside = [row_at(view, number) for number in rows[(rows >= start) & (rows < end)].tolist()]
        update = next((k for k, row in enumerate(inside) if row.phase == OPTIMIZER), None)
        if update is None:
            return None
        first = last = inside[update]
        for row in inside[update - 1 :: -1] if update else ():
            if row.index + 1 != last.index:
                break
            first, last = first if row.op.startswith(PROFILER) else row, row
        attempt, other = attempt_of(inside[update]), "B" if is_a else "A"
        step = "an optimizer step" if attempt is None else f"a step of {attempt[0].name}"
        harm = f"{step}, which {other} does not make"
        theirs = self._opposite_attempt(inside[update])
        if attempt and theirs and theirs.name == attempt[0].name and theirs.ordinal != attempt[0].ordinal:
            step = f"the {ordinal(attempt[0].count + 1)} step of another {theirs.name}"
            harm = f"{step}, where {other} makes the {ordinal(theirs.count + 1)} of its own"
        harm += ", follows" * (first.phase != OPTIMIZER)
        before = min(self.equal, self.first.identical_before) if self.first else self.equal
        return self._one_sided_at(first, lambda _: harm, before)

    def _one_sided_draw(self, of_a: bool, index: int) -> Finding:
        """The finding at a draw on one side only."""
        row = row_at(self.a if of_a else self.b, index)
        before, first = self._equal_before(row), self._first_of_chain(row)
        if first.index == row.index:
            return self._one_sided_at(row, "{} draws from a generator".format, before)
        draw = f"{row.op} (row {index:,})"
        return self._one_sided_at(first, lambda it: f"{draw}, which depends on {it}, draws from a generator", before)

    def _equal_before(self, row: RowAt) -> int:
        """How many matched rows are before a row on its side."""
        of_a = row.view is self.a
        own = np.searchsorted(self.one_sided_rows(of_a), row.index)
        return row.index - row.view.start - self.opening[0 if of_a else 1] - int(own)

    def _opposite(self, row: RowAt) -> RowAt | None:
        """The row with which the other side continues where this side runs one-sided rows."""
        of_a = row.view is self.a
        place, other = self.hunks.opposite(of_a, row.index), self.b if of_a else self.a
        if place is not None and place < other.rows:
            with suppress(HoleError):
                return row_at(other, place)
        return None

    def _opposite_attempt(self, row: RowAt) -> OptimizerCount | None:
        """The attempt that the other side is making where this side runs a one-sided row."""
        opposite = self._opposite(row)
        attempt = None if opposite is None or opposite.phase != OPTIMIZER else attempt_of(opposite)
        return None if attempt is None else attempt[0]

    def _check_use(self, a: RowAt, b: RowAt) -> None:
        """Note the one-sided op that wrote what a matched op reads: the first that differs, or one that sends."""
        writers = () if self.harmful is not None else one_sided_writers(self.context, a, b, self._one_sided)
        chains = [(self._first_of_chain(writer), writer) for writer in writers]
        if chains:
            # a compiled region says more than the ops that it replaces
            first, writer = min(chains, key=lambda chain: (not chain[0].op.startswith(COMPILED), self._place(chain[0])))
            user = a if writer.view is self.a else b
            self._note_use(first, writer, f"{user} (row {user.index:,}), which both sides run,")

    def _first_of_chain(self, row: RowAt) -> RowAt:
        return first_of_chain(row, self.one_sided_rows(row.view is self.a))

    def _place(self, row: RowAt) -> int:
        """The place of a one-sided row in A."""
        place = row.index if row.view is self.a else self.hunks.opposite(False, row.index)
        return self.a.rows if place is None else place

    def _check_more_tensors(self, a: RowAt, b: RowAt) -> None:
        """Note the one-sided op that wrote what an optimizer has more of on one side."""
        counts = [len(list(row.rows.inputs(row.place))) for row in (a, b)]
        row = a if counts[0] > counts[1] else b
        if self.harmful is not None or counts[0] == counts[1] or row.phase != OPTIMIZER:
            return
        with suppress(HoleError):  # of rows that were not compared
            found = first_read_of(row, self.one_sided_rows(row.view is self.a))
            if found is not None:
                writer, user = found
                self._note_use(self._first_of_chain(writer), writer, f"{user} (row {user.index:,})")

    def _note_use(self, first: RowAt, writer: RowAt, user: str) -> None:
        """Note ``first``, the first one-sided op of those that made what ``writer`` wrote."""
        forward = self._forward_of(first)
        more = ""
        if forward is not None:
            more = f"; before it, only {self._side(forward)} runs {forward} (row {forward.index:,})"

        def harm(it: str) -> str:
            made = f"{it} wrote" if first.index == writer.index else f"{writer} (row {writer.index:,}) made of {it}"
            return f"{user} computes with what {made}{more}"

        before = min(self.equal, self.first.identical_before) if self.first else self.equal
        self.harmful = self._one_sided_at(first, harm, before)
        self._share_harm()

    def _one_sided_at(self, row: RowAt, harm: Callable[[str], str], before: int) -> Finding:
        """The finding at a one-sided row, or at the first such row of its line, with what the other side does there.

        ``harm``: why ``row`` matters, given words for it.
        """
        first = first_of_line(row, self.one_sided_rows(row.view is self.a))
        why = harm("it" if first.index == row.index else f"{row.op} (row {row.index:,}) of the same line")
        side = self._side(row)
        judgement = control_flow(side, first, "B" if side == "A" else "A", self._opposite(first), why)
        return one_sided_finding(first, side == "A", judgement, before)

    def _side(self, row: RowAt) -> str:
        return "A" if row.view is self.a else "B"

    def _forward_of(self, writer: RowAt) -> RowAt | None:
        """The first one-sided row that led to a one-sided backward op: autograd runs what a forward recorded."""
        if writer.phase != BACKWARD:
            return None
        on_a = writer.view is self.a
        kind = "only-a" if on_a else "only-b"
        starts = [hunk.a_start if on_a else hunk.b_start for hunk in self.hunks.hunks if hunk.kind == kind]
        rows = (row_at(writer.view, start) for start in reversed(starts) if start < writer.index)
        forward = next((row for row in rows if row.phase != BACKWARD), None)
        return None if forward is None else self._first_of_chain(forward)

    def _without_trailing(
        self, a: RowRange, b: RowRange, pairs: tuple[Indices, Indices, np.ndarray], only: tuple[Indices, Indices]
    ) -> tuple[Indices, Indices]:
        """Remove the rows after the last pair, where only one side has such: they are ``trailing``."""
        after_a = int(pairs[0].max()) + 1 if len(pairs[0]) else 0
        after_b = int(pairs[1].max()) + 1 if len(pairs[1]) else 0
        rest_a, rest_b = only[0][only[0] >= after_a], only[1][only[1] >= after_b]
        beyond_a, beyond_b = self.a.rows - a.end, self.b.rows - b.end
        more_a, more_b = len(rest_a) + beyond_a, len(rest_b) + beyond_b
        if (more_a > 0) == (more_b > 0):
            return only
        self.trailing = (more_a, more_b)
        if not (self.a.process.has_complete_journal and self.b.process.has_complete_journal):
            self._look(-len(rest_a), -len(rest_b))  # what a side might still have run is not compared
        return only[0][only[0] < after_a], only[1][only[1] < after_b]

    # --- counting and stopping --------------------------------------------------------------------------------

    def _count(self, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> None:
        self.matched += len(at_a)
        self.equal += len(at_a)
        self.moved_calls += int(np.sum(a.hashes.structure[at_a] != b.hashes.structure[at_b]))
        self.marked.add(a, at_a, b, at_b)

    def _count_permuted(self, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> None:
        """Note the calls that got their tensors in another order."""
        named = np.isin(a.rows.column(Column.OP)[at_a], a.view.list_ops)
        unequal = named & (a.hashes.values[at_a] != b.hashes.values[at_b])
        places = [k for k in np.flatnonzero(unequal).tolist() if difference(a, int(at_a[k]), b, int(at_b[k])).permuted]
        self.context.permuted.update((a.first + at_a[places]).tolist())
        self.hunks.moved(a.first + at_a[places], b.first + at_b[places])

    def _stop(self, why: str, hole: Unreadable | None) -> None:
        if self.value is None:
            self.undecided, self.hole = why, hole
