"""What truly happened on both sides of two runs, and so what a comparison of them has to say.

Read off the machines and the origins of their instructions alone; uses nothing of what was recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from programs import Do, Done, Machine

from rltrace.diff.base.model import Cause
from rltrace.diff.causes.untracked import EXACT
from scripts import Item


@dataclass(frozen=True)
class Truth:
    """What a comparison of two runs has to say."""

    rows: tuple[list[object], list[object]]
    """What ought to be recorded of each row: rows that are equal here cannot be distinguished."""
    only: tuple[int, int]
    """Ops that one side alone ran, up to the first difference in values."""
    moved: int
    """The fewest rows that have to be moved to bring one order into the other."""
    one_sided: tuple[int | None, int | None]
    """The first row that one side alone has, on each."""
    harmful: bool
    """A one-sided op drew, or a matched op used what it wrote."""
    value: tuple[int, int] | None
    """Rows of the first matched ops, in A's order, whose values differ."""
    cause: Cause | None

    @property
    def identical(self) -> bool:
        return self.rows[0] == self.rows[1] and self.value is None


def readings(a: Machine, items_a: Sequence[Item], b: Machine, items_b: Sequence[Item]) -> Iterator[Truth]:
    """What truly happened, and what cannot be distinguished from it.

    An op of an edited line that computes with what others wrote, or with other data from outside, and that no op
    computes with, may as well be another op than before: a log line that prints something else is just that.
    """
    apart: frozenset[int] = frozenset()
    yield truth(a, items_a, b, items_b)
    for origin in _doubtful(a, items_a, b, items_b):
        apart |= {origin}
        yield truth(a, items_a, b, items_b, apart)


def truth(
    a: Machine, items_a: Sequence[Item], b: Machine, items_b: Sequence[Item], apart: frozenset[int] = frozenset()
) -> Truth:
    """``items``: the instructions that the machines ran; ``apart``: by origin, those that are taken for two ops."""
    items_a, items_b = (
        [replace(i, origin=None) if i.origin in apart else i for i in items] for items in (items_a, items_b)
    )
    rows_a = {item.origin: a.rows[k] for k, item in enumerate(items_a) if item.do.is_op and item.origin is not None}
    rows_b = {item.origin: b.rows[k] for k, item in enumerate(items_b) if item.do.is_op and item.origin is not None}
    pairs = sorted((rows_a[o], rows_b[o]) for o in rows_a.keys() & rows_b.keys())
    partner = dict(pairs)
    alone = [sorted(set(range(len(m.done))) - set(own)) for m, own in ((a, partner), (b, partner.values()))]
    value = next(((i, j) for i, j in pairs if _differs(a.done[i], b.done[j])), None)
    before = [[r for r in rows if value is None or r < value[k]] for k, rows in enumerate(alone)]
    pairs_before = [(i, j) for i, j in pairs if value is None or i < value[0]]
    return Truth(
        rows=([_recorded(d) for d in a.done], [_recorded(d) for d in b.done]),
        only=(len(before[0]), len(before[1])),
        moved=len(pairs_before) - _longest_increasing([j for _, j in pairs_before]),
        one_sided=(alone[0][0] if alone[0] else None, alone[1][0] if alone[1] else None),
        harmful=any(m.done[r].state for m, rows in ((a, before[0]), (b, before[1])) for r in rows)
        or (value is not None and _uses(a.done[value[0]], b.done[value[1]], before)),
        value=value,
        cause=None if value is None else _cause(a.done[value[0]], b.done[value[1]], partner),
    )


def _doubtful(a: Machine, items_a: Sequence[Item], b: Machine, items_b: Sequence[Item]) -> Iterator[int]:
    """Origins of the ops that differ, in order, as far as each of them may as well be two ops."""
    rows_a = {item.origin: a.rows[k] for k, item in enumerate(items_a) if item.do.is_op and item.origin is not None}
    rows_b = {item.origin: b.rows[k] for k, item in enumerate(items_b) if item.do.is_op and item.origin is not None}
    partner = {rows_a[o]: rows_b[o] for o in rows_a.keys() & rows_b.keys()}
    differing = [i for i in sorted(partner) if _differs(a.done[i], b.done[partner[i]])]
    doubtful = {i for i in differing if _is_edited(a.done[i].do, b.done[partner[i]].do)}
    doubtful = {i for i in doubtful if not _same_writers(a.done[i], b.done[partner[i]], partner)}
    while used := {i for k, j in partner.items() if k not in doubtful for i in _common(a.done[k], b.done[j], partner)}:
        if not used & doubtful:
            break
        doubtful -= used
    origins = {row: origin for origin, row in rows_a.items()}
    yield from (origins[i] for i in takewhile(doubtful.__contains__, differing))


def _is_edited(a: Do, b: Do) -> bool:
    """Whether the text of any line on the stack is another one; what functions are called does not matter."""
    texts = [[do.source or f"line {do.line}", *(frame[3] for frame in do.stack)] for do in (a, b)]
    return texts[0] != texts[1]


def _same_writers(a: Done, b: Done, partner: dict[int, int]) -> bool:
    """Whether matching ops, one at least, wrote all that was written of what two ops computed with."""
    writers = [
        (x.writer, y.writer) for x, y in zip(a.reads, b.reads, strict=True) if (x.writer, y.writer) != (None, None)
    ]
    return bool(writers) and all(x is not None and partner.get(x) == y for x, y in writers)


def _common(a: Done, b: Done, partner: dict[int, int]) -> Iterator[int]:
    """Rows of A whose partners wrote for ``b`` what they wrote for ``a``, input by input."""
    for x, y in zip(a.reads, b.reads, strict=True):
        if x.writer is not None and partner.get(x.writer) == y.writer:
            yield x.writer


def _recorded(done: Done) -> tuple[object, ...]:
    do = done.do
    value = "" if do.name == "aten.view.default" else done.value
    outside = tuple(read.value for read in done.reads if read.outside)
    source = do.source or f"line {do.line}"
    return do.name, do.file, do.function, source, do.stack, do.shape, do.floats, outside, value, done.state


def _differs(a: Done, b: Done) -> bool:
    """Whether two matched ops differ in anything that is recorded."""
    if (a.do.name, a.do.shape, a.do.floats, a.state) != (b.do.name, b.do.shape, b.do.floats, b.state):
        return True
    reads = any(x.digested and y.digested and x.value != y.value for x, y in zip(a.reads, b.reads, strict=True))
    return reads or (a.value != b.value and a.do.name != "aten.view.default")


def _uses(a: Done, b: Done, alone: Sequence[Sequence[int]]) -> bool:
    """Whether a matched op, no view, found other bytes in an input because one side alone wrote them."""
    return a.do.name != "aten.view.default" and any(
        x.value != y.value and (x.writer in alone[0] or y.writer in alone[1])
        for x, y in zip(a.reads, b.reads, strict=True)
    )


def _cause(a: Done, b: Done, partner: dict[int, int]) -> Cause:
    """In the order in which causes are named where several meet in one op."""
    if a.state != b.state:
        return Cause.RNG
    unequal = [(x, y) for x, y in zip(a.reads, b.reads, strict=True) if x.value != y.value]
    if any(x.outside and y.outside for x, y in unequal):
        return Cause.OUTSIDE
    unequal.sort(key=lambda pair: not (pair[0].outside or pair[1].outside))
    other = [(x, y) for x, y in unequal if (None if x.writer is None else partner.get(x.writer)) != y.writer]
    if other:
        x, y = other[0]
        ran_on_both = x.writer in {None, *partner} and y.writer in {None, *partner.values()}
        return Cause.ARGUMENTS if ran_on_both else Cause.CONTROL_FLOW
    if unequal:
        return Cause.UNTRACKED_WRITE
    if (a.do.shape, a.do.floats) != (b.do.shape, b.do.floats):
        return Cause.ARGUMENTS
    if a.do.kernel is None or b.do.kernel is None:
        return Cause.COMPUTATION
    if a.do.kernel != b.do.kernel:
        return Cause.KERNEL
    links = [not (x.digested and y.digested) for x, y in zip(a.reads, b.reads, strict=True)]
    exact = a.do.name.rpartition(".")[0] in EXACT
    return Cause.UNKNOWN if exact and any(links) else Cause.SAME_KERNEL


def _longest_increasing(values: Sequence[int]) -> int:
    tails: list[int] = []
    for value in values:
        at = bisect_left(tails, value)
        tails[at : at + 1] = [value]
    return len(tails)
