"""Matching of optimizer steps, by optimizer and its attempt count, and the blocks of rows between them.

Step numbers are not compared: one more attempt of another optimizer would shift all later ones. Attempts that one side
alone makes are not counted. Reads the ``steps`` tables, and few rows after such an attempt.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.sequences import Indices, Tokens, common_prefix, longest_increasing
from rltrace.diff.base.tokens import mix
from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.portable_keys import portable_key
from rltrace.trace.format.schema import Column, Phase, Step, StepFlag, is_within
from rltrace.trace.read.process import ProcessTrace

Steps = NDArray[np.uint64]
"""Shape [n, len(Step)]."""


@dataclass(frozen=True)
class Block:
    """Rows of both sides up to the end of a matched step, or after the last one; adjacent equal steps are one block."""

    a0: int
    a1: int
    b0: int
    b1: int
    ended: bool
    """A matched attempt ends the block; False: the programs ended first."""
    same: bool
    """The digests of its steps prove that every row is equal."""
    recorded: bool
    """Its ops were recorded on both sides."""
    reordered: bool = False
    """The order-independent digests of the step prove that both sides hold the same rows, in another order."""

    @property
    def decided_by_digests(self) -> bool:
        """Whether digests decide it without reading rows."""
        return self.same or self.reordered


def match_steps(a: ProcessTrace, a_steps: Steps, b: ProcessTrace, b_steps: Steps) -> tuple[Indices, Indices]:
    """Places of the same attempts in two ``steps`` tables, ascending on both sides."""
    keys_a, keys_b = attempt_keys(a, a_steps, b), attempt_keys(b, b_steps, a)
    _, at_a, at_b = np.intersect1d(keys_a, keys_b, return_indices=True)
    order = np.argsort(at_a)
    at_a, at_b = at_a[order].astype(np.int64), at_b[order].astype(np.int64)
    chosen = longest_increasing(at_b)
    return at_a[chosen], at_b[chosen]


def match_attempts(a: StreamView, b: StreamView) -> tuple[Indices, Indices]:
    """Places of the same attempts of two streams, ascending on both sides; none of those that one side alone makes."""
    kept = [np.setdiff1d(np.arange(len(view.steps)), view.extra_attempts) for view in (a, b)]
    steps = [_counted(view, own) for view, own in zip((a, b), kept, strict=True)]
    at_a, at_b = match_steps(a.process, steps[0], b.process, steps[1])
    return kept[0][at_a], kept[1][at_b]


def _counted(view: StreamView, kept: Indices) -> Steps:
    """The attempts of a stream at these places, counted without the others."""
    if len(kept) == len(view.steps):
        return view.steps
    steps, extra = view.steps[kept], view.extra_attempts
    for number in np.unique(view.steps[extra, Step.OPTIMIZER]):
        own = steps[:, Step.OPTIMIZER] == number
        left_out = extra[view.steps[extra, Step.OPTIMIZER] == number]
        steps[own, Step.COUNT] -= np.searchsorted(left_out, kept[own]).astype(np.uint64)
    return steps


def blocks(a: StreamView, b: StreamView) -> Iterator[Block]:
    """All blocks of two streams, in order."""
    if is_within(a.name) and a.process.windows != b.process.windows:
        yield from _blocks_within(a, b)
        return
    at_a, at_b = match_attempts(a, b)
    if not len(at_a):
        yield _remainder(a, b, (a.start, b.start), (0, 0))
        return
    before_a, before_b = np.concatenate([[-1], at_a[:-1]]), np.concatenate([[-1], at_b[:-1]])
    a1, b1 = (view.steps[at, Step.END_ROW].astype(np.int64) for view, at in ((a, at_a), (b, at_b)))
    a0, b0 = np.concatenate([[a.start], a1[:-1]]), np.concatenate([[b.start], b1[:-1]])
    recorded = _recorded(a.steps, before_a, at_a) & _recorded(b.steps, before_b, at_b)
    single = recorded & (at_a == before_a + 1) & (at_b == before_b + 1)
    own_a, own_b = a.steps[at_a], b.steps[at_b]
    same = single & (own_a[:, ROW_DIGESTS] == own_b[:, ROW_DIGESTS]).all(axis=1)
    reordered = single & ~same & (a1 - a0 == b1 - b0) & _same_in_any_order(own_a, own_b)
    same, reordered = same & a.shortcuts.step_digests, reordered & a.shortcuts.any_order
    follows = np.concatenate([[False], same[1:] & same[:-1]])
    first = np.flatnonzero(~follows)
    last = np.concatenate([first[1:] - 1, [len(at_a) - 1]])
    columns = (a0[first], a1[last], b0[first], b1[last], same[first], recorded[first], reordered[first])
    for x0, x1, y0, y1, is_same, is_recorded, is_reordered in zip(*(c.tolist() for c in columns), strict=True):
        yield Block(x0, x1, y0, y1, True, is_same, is_recorded, is_reordered)
    yield _remainder(a, b, (int(a1[-1]), int(b1[-1])), (int(at_a[-1]) + 1, int(at_b[-1]) + 1))


def first_block(a: StreamView, b: StreamView, base: int) -> Block | None:
    """Rows from ``base`` to the end of their step, found with few step parts; None: all have to be read.

    Rows before ``base`` are equal position by position, so both sides are in the same step there.
    """
    if len(a.extra_attempts) or len(b.extra_attempts):
        return None
    step_a, step_b = a.attempt_after(base), b.attempt_after(base)
    if step_a is None or step_b is None:
        return Block(base, a.rows, base, b.rows, False, False, True) if step_a is step_b else None
    keys = attempt_keys(a.process, step_a[None], b.process), attempt_keys(b.process, step_b[None], a.process)
    if keys[0][0] != keys[1][0]:
        return None
    recorded = bool(step_a[Step.FLAGS] & step_b[Step.FLAGS] & np.uint64(StepFlag.RECORDED))
    return Block(base, int(step_a[Step.END_ROW]), base, int(step_b[Step.END_ROW]), True, False, recorded)


def first_unequal_step(a: StreamView, b: StreamView) -> tuple[int, int] | None:
    """Numbers, in A and B, of the first step that both sides recorded and whose digests differ; None: there is none."""
    at_a, at_b = match_steps(a.process, a.steps, b.process, b.steps)
    columns = [Step.STRUCTURE, Step.VALUES]
    recorded = (a.steps[at_a, Step.FLAGS] & b.steps[at_b, Step.FLAGS] & np.uint64(StepFlag.RECORDED)) != 0
    unequal = (a.steps[at_a][:, columns] != b.steps[at_b][:, columns]).any(axis=1)
    found = np.flatnonzero(recorded & unequal)
    if not len(found):
        return None
    k = int(found[0])
    return int(a.steps[at_a[k], Step.STEP]), int(b.steps[at_b[k], Step.STEP])


def same_in_any_order(a: StreamView, b: StreamView, block: Block) -> bool:
    """Whether digests prove that ``block``, the end of a step, holds the same rows in another order.

    The rows of that step before the block must be equal, position by position.
    """
    if not block.ended or block.a1 - block.a0 != block.b1 - block.b0:
        return False
    step_a, step_b = a.attempt_after(block.a0), b.attempt_after(block.b0)
    if step_a is None or step_b is None or (step_a[Step.END_ROW], step_b[Step.END_ROW]) != (block.a1, block.b1):
        return False
    return block.recorded and bool(_same_in_any_order(step_a[None], step_b[None])[0])


def _remainder(a: StreamView, b: StreamView, start: tuple[int, int], steps: tuple[int, int]) -> Block:
    """The rows after the last matched step; where only one side made more steps, up to the end of its next one, unless
    the other side has more rows than that: then it goes on without steps.

    Missing steps of a side whose steps cannot all be read do not count as that.
    """
    a1, b1 = a.rows, b.rows
    more_a, more_b = len(a.steps) - steps[0], len(b.steps) - steps[1]
    if more_a and not more_b and b.process.has_all_steps:
        a1 = _end_of_more(a, b, start, steps[0])
    if more_b and not more_a and a.process.has_all_steps:
        b1 = _end_of_more(b, a, (start[1], start[0]), steps[1])
    recorded = recorded_at(a, step_after(a, steps[0])) and recorded_at(b, step_after(b, steps[1]))
    return Block(start[0], a1, start[1], b1, False, False, recorded)


def _end_of_more(longer: StreamView, shorter: StreamView, start: tuple[int, int], step: int) -> int:
    """Where rows after the last matched step, at ``start`` of the two, end on the side that made more steps.

    A process that raised an exception, or of which the end is not known, may have broken off within its next step, with
    ops in it that the other side does not run.
    """
    end, rows, rest = int(longer.steps[step, Step.END_ROW]), longer.rows - start[0], shorter.rows - start[1]
    if not shorter.process.has_complete_journal or "exception" in (shorter.process.exit or {}):
        return end if rest < 2 * (end - start[0]) else longer.rows
    return end if rest < end - start[0] and rows > WINDOW_ROWS else longer.rows


def unmatched_attempt(a: StreamView, b: StreamView, ends: tuple[int, int]) -> tuple[bool, int, int] | None:
    """The first attempt before rows ``ends`` that one side alone made, and that changed parameters: whether it is A's,
    and from which row to which its step goes. None: there is none, or no digest shows it."""
    if not all(knows_optimizers(view.process, view.steps) for view in (a, b)):
        return None
    matched = match_attempts(a, b)
    found = []
    for is_a, view, at, end in ((True, a, matched[0], ends[0]), (False, b, matched[1], ends[1])):
        steps = view.steps
        for k in np.setdiff1d(np.flatnonzero(steps[:, Step.END_ROW] <= end), at).tolist():
            if _changed_parameters(view, k):
                before = int(steps[k - 1, Step.END_ROW]) if k else view.start
                found.append((int(np.searchsorted(at, k)), (is_a, before, int(steps[k, Step.END_ROW]))))
                break
    return min(found)[1] if found else None


def knows_optimizers(process: ProcessTrace, steps: Steps) -> bool:
    """Whether it can be read of which optimizers these attempts are."""
    optimizers, numbers = process.tables["optimizers"], steps[:, Step.OPTIMIZER].astype(np.int64)
    return bool(np.all(numbers < len(optimizers)) and np.all(optimizers.present[numbers]))


def _changed_parameters(view: StreamView, k: int) -> bool:
    """Whether digests show that attempt ``k`` of a stream changed the parameters of its optimizer."""
    steps = view.steps
    own = steps[: k + 1][steps[: k + 1, Step.OPTIMIZER] == steps[k, Step.OPTIMIZER]]
    payload = view.process.tables["optimizers"].payloads[int(steps[k, Step.OPTIMIZER])]
    start = view.process.optimizer_starts.get(payload.get("ordinal", -1)) if isinstance(payload, dict) else None
    before = int(own[-2, Step.PARAMETERS]) if len(own) > 1 else 0 if start is None else start.parameters
    return bool(before) and before != int(own[-1, Step.PARAMETERS]) != 0


def step_after(view: StreamView, place: int) -> int:
    """Number of the step that attempt ``place`` of the stream ends, or would end."""
    return _step_of(view, view.steps, place)


def _step_of(view: StreamView, steps: Steps, place: int) -> int:
    """Number of the step that the attempt at a place of these ends, or would end."""
    if place < len(steps):
        return int(steps[place, Step.STEP])
    numbers = view.process.steps[:, Step.STEP]
    return int(numbers.max()) + 1 if len(numbers) else 0


def recorded_at(view: StreamView, step: int) -> bool:
    """Whether the windows of the process include the ops of ``step``."""
    windows = view.process.windows
    if not windows:
        return not view.process.asleep
    return any(first <= step and (end is None or step < end) for first, end in windows)


ROW_DIGESTS = [Step.STRUCTURE, Step.VALUES]
"""Digests of a step's rows, in their order."""

STATE = [Step.PARAMETERS, Step.GRADIENTS]


def _same_in_any_order(a: Steps, b: Steps) -> NDArray[np.bool_]:
    """Which steps hold the same rows in another order and, where digested, end with the same parameters."""
    same = (a[:, Step.ANY_ORDER] == b[:, Step.ANY_ORDER]) & (a[:, Step.ANY_ORDER] != 0)
    digested = (a[:, Step.FLAGS] & b[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    found: NDArray[np.bool_] = same & (~digested | (a[:, STATE] == b[:, STATE]).all(axis=1))
    return found


def _blocks_within(a: StreamView, b: StreamView) -> Iterator[Block]:
    """Blocks of what is within calls of JAX, in two windows: adjacent steps that both sides recorded, or not.

    No attempt ends in such a stream; its rows have the steps of the process.
    """
    own_a, own_b = a.process.steps, b.process.steps
    at_a, at_b = match_steps(a.process, own_a, b.process, own_b)
    before_a, before_b = np.concatenate([[-1], at_a]), np.concatenate([[-1], at_b])
    recorded = _recorded(own_a, before_a[:-1], at_a) & _recorded(own_b, before_b[:-1], at_b)
    changes = np.flatnonzero(np.diff(recorded)).tolist()
    start = a.start, b.start
    try:
        for last in [*changes, len(recorded) - 1] if len(recorded) else []:
            step_a, step_b = int(own_a[at_a[last], Step.STEP]), int(own_b[at_b[last], Step.STEP])
            end = a.row_after_step(step_a), b.row_after_step(step_b)
            yield Block(start[0], end[0], start[1], end[1], True, False, bool(recorded[last]))
            start = end
    except HoleError:  # the walk comes to the hole, and names it
        start = _first_hole(a, start[0]), _first_hole(b, start[1])
        yield Block(start[0], a.rows, start[1], b.rows, False, False, True)
        return
    steps = _step_of(a, own_a, int(before_a[-1]) + 1), _step_of(b, own_b, int(before_b[-1]) + 1)
    yield Block(start[0], a.rows, start[1], b.rows, False, False, recorded_at(a, steps[0]) and recorded_at(b, steps[1]))


def _first_hole(view: StreamView, start: int) -> int:
    """The first row from ``start`` on that cannot be read; ``start`` where all can."""
    hole = view.hole(start, view.rows)
    return start if hole is None else max(start, hole[0])


def _recorded(steps: Steps, before: Indices, at: Indices) -> NDArray[np.bool_]:
    """Whether the ops of every attempt after ``before`` up to ``at`` were recorded."""
    left_out = np.concatenate([[0], np.cumsum((steps[:, Step.FLAGS] & np.uint64(StepFlag.RECORDED)) == 0)])
    recorded: NDArray[np.bool_] = left_out[at + 1] == left_out[before + 1]
    return recorded


def attempt_keys(process: ProcessTrace, steps: Steps, other: ProcessTrace | None = None) -> Tokens:
    """One token per attempt: which optimizer, and how many attempts it had made before, of those in ``process``.

    ``other``: the process that it is compared with. If that has more or fewer optimizers, one that begins with the same
    parameters is the same.
    """
    if not len(steps):
        return np.empty(0, np.uint64)
    optimizers = process.tables["optimizers"]
    numbers = steps[:, Step.OPTIMIZER].astype(np.int64)
    known = numbers < len(optimizers)
    known[known] = optimizers.present[numbers[known]]
    tokens = mix(np.full(len(steps), id(process), np.uint64), np.arange(len(steps), dtype=np.uint64))  # match nothing
    keys, earlier = optimizer_keys(process, other)
    tokens[known] = mix(keys[numbers[known]], steps[known, Step.COUNT] - earlier[numbers[known]])
    return tokens


def optimizer_keys(process: ProcessTrace, other: ProcessTrace | None) -> tuple[Tokens, Tokens]:
    """Keys of the optimizers of a process, and how many attempts each had made before its first one here."""
    optimizers = process.tables["optimizers"]
    if len(process.steps_before):
        return _keys_from_start(process)
    if other is not None and (len(other.tables["optimizers"]) != len(optimizers) or _in_other_order(process, other)):
        return _keys_by_parameters(process, other), np.zeros(len(optimizers), np.uint64)
    return optimizers.keys, np.zeros(len(optimizers), np.uint64)


def _in_other_order(process: ProcessTrace, other: ProcessTrace) -> bool:
    """Whether an optimizer begins with the parameters of another one of ``other``: their first steps are reordered."""
    own, others = process.optimizer_starts, other.optimizer_starts
    begun = {start.parameters for start in others.values()}
    return any(
        0 != start.parameters != others[ordinal].parameters and start.parameters in begun
        for ordinal, start in own.items()
        if ordinal in others
    )


def _keys_by_parameters(process: ProcessTrace, other: ProcessTrace) -> Tokens:
    """Keys of the optimizers of a process; of class and parameters, where one of ``other`` begins with the same."""
    optimizers = process.tables["optimizers"]
    keys, begun = optimizers.keys.copy(), {start.parameters for start in other.optimizer_starts.values()}
    for number, payload in enumerate(optimizers.payloads):
        known = payload if isinstance(payload, dict) else {}
        start = process.optimizer_starts.get(known.get("ordinal", -1))
        if start is not None and start.parameters in begun:
            keys[number] = portable_key("optimizers", {"class": known.get("class"), "parameters": start.parameters})
    return keys


def _keys_from_start(process: ProcessTrace) -> tuple[Tokens, Tokens]:
    """Keys of the optimizers of a process whose steps begin later, and how many attempts each had made before.

    Optimizers that are all new, after a warm-up, have the keys of the first ones.
    """
    optimizers = process.tables["optimizers"]
    before, later = (steps[:, Step.OPTIMIZER].astype(np.int64) for steps in (process.steps_before, process.steps))
    earlier = np.bincount(before[before < len(optimizers)], minlength=len(optimizers)).astype(np.uint64)
    numbers = np.unique(later[later < len(optimizers)]).tolist()
    payloads = [payload if isinstance(payload, dict) else {} for payload in optimizers.payloads]
    ordinals = [int(payloads[number].get("ordinal", 0)) for number in numbers]
    keys = optimizers.keys.copy()
    if numbers and not earlier[numbers].any() and min(ordinals):
        for number, ordinal in zip(numbers, ordinals, strict=True):
            identity = {"ordinal": ordinal - min(ordinals), "class": payloads[number].get("class")}
            keys[number] = portable_key("optimizers", identity)
    return keys, earlier


# --- extra attempts ---------------------------------------------------------------------------------------------------
#
# Attempts that one side alone makes: ``step()`` called twice, another epoch, a condition. Counted with the others, they
# would match each later attempt with the one before it. Such an attempt leaves other gradients or parameters than that
# of the other side, its optimizer makes more attempts on this side, and after it this side goes on as the other does.


AHEAD, GAP = 32, 64
"""Rows that have to go on alike after an extra attempt, and rows after it among which the first of these is."""

MAX_TRIED = 256
"""Attempts that are tried; later ones are counted like others."""


@dataclass
class _Attempts:
    """The attempts of one stream that end after a row."""

    view: StreamView
    row: int
    """Rows before it are matched, or of attempts that are extra."""
    extra: list[int] = field(default_factory=list)
    """Places of these."""

    def __post_init__(self) -> None:
        self.ends: Indices = self.view.steps[:, Step.END_ROW].astype(np.int64)
        self.place = int(np.searchsorted(self.ends, self.row, "right"))

    @property
    def left(self) -> int:
        """Rows up to the end of the next attempt; 0: there is none."""
        return int(self.ends[self.place]) - self.row if self.place < len(self.ends) else 0

    def calls(self, start: int, stop: int) -> Tokens:
        """What rows compute, whatever their call sites."""
        return self.view.read(start, min(stop, self.view.rows)).computation

    def go_on(self, attempts: int) -> None:
        self.place += attempts
        self.row = int(self.ends[self.place - 1])


def find_extra_attempts(a: StreamView, b: StreamView, base: int) -> None:
    """Note in both views the attempts that one side alone makes; rows before ``base`` are equal, row by row."""
    x, y = _Attempts(a, base), _Attempts(b, base)
    surplus = _surplus(a, b)
    with suppress(HoleError):  # the walk comes to the hole
        for _ in range(MAX_TRIED if any(surplus) else 0):
            if not _pass_equal(x, y):
                break
            updates = [side.view.steps[side.place] for side in (x, y)]
            if not updates[0][Step.FLAGS] & updates[1][Step.FLAGS] & np.uint64(StepFlag.DIGESTED):
                break
            if (updates[0][STATE] == updates[1][STATE]).all():  # other rows before one update
                x.go_on(1)
                y.go_on(1)
            elif not _pass_extra(x, y, surplus[0]) and not _pass_extra(y, x, surplus[1]):
                break
    a.extra_attempts, b.extra_attempts = np.array(x.extra, np.int64), np.array(y.extra, np.int64)


def _surplus(a: StreamView, b: StreamView) -> tuple[dict[int, int], dict[int, int]]:
    """How many more attempts an optimizer makes on one side, by its number there; empty where that is not known."""
    views = a, b
    whole = all((view.steps[:, Step.FLAGS] & np.uint64(StepFlag.RECORDED)).all() for view in views)
    if not whole or not all(knows_optimizers(view.process, view.steps) for view in views):
        return {}, {}
    keys = optimizer_keys(a.process, b.process)[0], optimizer_keys(b.process, a.process)[0]
    made = [np.bincount(view.steps[:, Step.OPTIMIZER].astype(np.int64), minlength=1) for view in views]
    more: list[dict[int, int]] = []
    for own in (0, 1):
        others = {int(keys[1 - own][n]): int(made[1 - own][n]) for n in np.flatnonzero(made[1 - own]).tolist()}
        numbers = np.flatnonzero(made[own]).tolist()
        more.append({n: int(made[own][n]) - others.get(int(keys[own][n]), 0) for n in numbers})
    return more[0], more[1]


def _pass_equal(x: _Attempts, y: _Attempts) -> bool:
    """Pass attempts after equally many rows, and what is equal of the next one; False: a side has none."""
    while x.left and y.left:
        if x.left != y.left:
            rows = min(x.left, y.left, WINDOW_ROWS)
            same = common_prefix(x.calls(x.row, x.row + rows), y.calls(y.row, y.row + rows))
            x.row, y.row = x.row + same, y.row + same
            return True
        equal = 1 + common_prefix(np.diff(x.ends[x.place :]), np.diff(y.ends[y.place :]))
        x.go_on(equal)
        y.go_on(equal)
    return False


def _pass_extra(own: _Attempts, other: _Attempts, surplus: dict[int, int]) -> bool:
    """Pass the next attempts of ``own``, if they are extra."""
    if own.left <= 0 or other.left <= 0:
        return False
    ahead = other.calls(other.row, other.row + AHEAD)
    place, row = _last_extra(own, ahead, surplus) or (None, 0)
    if place is None:
        return False
    begun = int(other.ends[other.place - 1]) if other.place else other.view.start
    if (other.calls(max(begun, other.row - WINDOW_ROWS), other.row) == ahead[0]).any():
        phases = own.view.read(own.row, int(own.ends[place])).rows.column(Column.PHASE)
        if not np.isin(phases, (Phase.OPTIMIZER, Phase.OTHER)).all():
            return False  # rather a loop that ends earlier
    extra = range(own.place, place + 1)
    for number in own.view.steps[extra, Step.OPTIMIZER].tolist():
        surplus[number] -= 1
    own.extra += extra
    own.place, own.row = place + 1, row
    return True


def _last_extra(own: _Attempts, ahead: Tokens, surplus: dict[int, int]) -> tuple[int, int] | None:
    """The first attempt after which ``own`` goes on as the other side does now, and the row where; None: there is none
    before one that cannot be extra."""
    left = dict(surplus)
    for place in range(own.place, min(len(own.ends), own.place + MAX_TRIED)):
        number, end = int(own.view.steps[place, Step.OPTIMIZER]), int(own.ends[place])
        left[number] -= 1
        if left[number] < 0:
            return None
        after = own.calls(end, end + GAP + AHEAD)
        gap = min([GAP, *(own.ends[place + 1 : place + 2] - end).tolist()])
        at = next(iter(np.flatnonzero(after[:gap] == ahead[0]).tolist()), None)
        if at is not None and np.array_equal(after[at : at + AHEAD], ahead):
            return place, end + at
    return None


# --- batches ----------------------------------------------------------------------------------------------------------
#
# Batches of blocks that are aligned at once: many small steps, never more rows than a window has. Reads no row.


WINDOW_ROWS = 1 << 16
"""Rows of a side that are aligned at a time; a longer range is cut where both sides agree."""


def batches(a: StreamView, b: StreamView, base: int, *, is_aligned: bool) -> Iterator[list[Block]]:
    """Blocks in order without the rows before ``base``; several in one batch where only their rows can decide.

    ``is_aligned``: rows before ``base`` match position by position. The first block is a batch on its own: usually it
    is the only one that matters, and it is found without reading all steps.
    """
    start = (base, base)
    first = first_block(a, b, base) if is_aligned and a.shortcuts.first_step else None
    most = WINDOW_ROWS if a.shortcuts.batches else 0
    if first is not None:
        yield [first]
        if not first.ended:
            return
        start = (first.a1, first.b1)
    batch: list[Block] = []
    differs_there = start if is_aligned and first is None else None
    for block in _after(a, b, start, differs_there):
        plain = block.ended and block.recorded and not block.decided_by_digests
        if batch and not (plain and max(block.a1 - batch[0].a0, block.b1 - batch[0].b0) <= most):
            yield batch
            batch = []
        batch.append(block)
        if not plain:
            yield batch
            batch = []
    if batch:
        yield batch


def _after(a: StreamView, b: StreamView, start: tuple[int, int], differs_at: tuple[int, int] | None) -> Iterator[Block]:
    """Blocks without the rows before ``start``; a block left with rows of one side only is joined to the next.

    A block that begins at the rows ``differs_at`` is aligned whatever its digests prove, as that of ``first_block``.
    """
    pending: tuple[int, int] | None = None
    every = list(blocks(a, b))
    for number, block in enumerate(every):
        a0, b0 = pending or (max(block.a0, start[0]), max(block.b0, start[1]))
        a1, b1 = max(block.a1, a0), max(block.b1, b0)
        pending = None
        if (a0 == a1) != (b0 == b1) and number + 1 < len(every) and (block.a0 < start[0] or block.b0 < start[1]):
            pending = (a0, b0)
        elif a0 < a1 or b0 < b1:
            same = block.same and a0 - block.a0 == b0 - block.b0
            reordered = block.reordered and (a0, b0) == (block.a0, block.b0) != differs_at
            yield replace(block, a0=a0, a1=a1, b0=b0, b1=b1, same=same, reordered=reordered)
