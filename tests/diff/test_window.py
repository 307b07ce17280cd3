"""One window of two streams, against slow and obvious readings of the same rows."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from views import both, context_of, opened, random_sides, view_of, views_in

from rltrace.diff.align import window
from rltrace.diff.align.blocks import Block
from rltrace.diff.align.moved_calls import drop_false_matches
from rltrace.diff.align.reorder import match_reordered
from rltrace.diff.align.rows import Alignment, minimize_moves, safe_cut
from rltrace.diff.align.window import (
    TruncatedRange,
    align_truncated,
    align_window,
    context_before,
    cut_of,
    first_unequal,
    has_more,
    learn_edits,
    read_window,
    unequal_pairs,
)
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.row_diff import difference
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.testing import TraceBuilder

Pairs = list[tuple[int, int]]


def pairs(found: Alignment) -> Pairs:
    return list(zip(found.a.tolist(), found.b.tolist(), strict=True))


def differs(a: RowRange, b: RowRange, matched: Pairs) -> list[int]:
    """Numbers of the pairs that differ, each row read."""
    return [k for k, (i, j) in enumerate(matched) if difference(a, i, b, j).found]


def test_pairs_that_differ(tmp_path: Path) -> None:
    """Those whose hashes differ, as if each were read; the first of them."""
    random, (whole_a, whole_b) = Random(1), random_sides(tmp_path, Random(2), 200, 50)
    for start in range(0, 200, 20):
        a, b = whole_a.read(start, start + 20), whole_b.read(start, start + 20)
        matched = sorted((i, random.choice((i, random.randrange(20)))) for i in random.sample(range(20), 12))
        at_a, at_b = (np.array([pair[k] for pair in matched], np.int64) for k in (0, 1))
        wanted = differs(a, b, matched)
        assert [k for k, _ in unequal_pairs(a, at_a, b, at_b)] == wanted
        assert all(
            found == difference(a, *matched[k][:1], b, matched[k][1]) for k, found in unequal_pairs(a, at_a, b, at_b)
        )
        assert first_unequal(a, at_a, b, at_b) == (wanted[0] if wanted else None)


# --- ranges whose continuation cannot be read -------------------------------------------------------------------------


class Side:
    """A range as plain lists."""

    def __init__(self, range_: RowRange) -> None:
        tokens = range_.tokens
        self.rows = list(zip(tokens.exact.tolist(), tokens.sources.tolist(), strict=True))
        self.exact, self.identity = tokens.exact.tolist(), tokens.identity.tolist()
        self.has_values, self.draws = tokens.has_values.tolist(), tokens.draws.tolist()


def continues_as(longer: list[Any], other: list[Any], limit: int) -> list[int]:
    """After how many more rows, up to ``limit``, one side goes on as the other does."""
    most = min(limit, len(longer) - 1) if other else 0
    return [k for k in range(1, most + 1) if all(x == y for x, y in zip(longer[k:], other, strict=False))]


def equal_rows(side: Side, first: int, longer: list[Any], other: list[Any], extra: int) -> int:
    """How many rows with values are equal, if so many rows are extra."""
    rows = zip(longer[extra:], other, strict=False)
    return sum(side.has_values[first + extra + k] and x == y for k, (x, y) in enumerate(rows))


def recurs(a: Side, b: Side, found: Alignment, pair: int) -> bool:
    """Whether one of the two rows, in the second half, is a later, unmatched row of the other side, and a new one."""
    i, j = pairs(found)[pair]
    if 2 * i < min(len(a.rows), len(b.rows)):
        return False
    left_a = [x for x, y in pairs(found) if a.rows[x] != b.rows[y]] + found.only_a.tolist()
    left_b = [y for x, y in pairs(found) if a.rows[x] != b.rows[y]] + found.only_b.tolist()

    def is_later(side: Side, row: int, other: Side, left: list[int], after: int) -> bool:
        same = sum(other.rows[k] == side.rows[row] for k in left if k > after)
        return side.has_values[row] and not side.draws[row] and side.rows[row] not in side.rows[:row] and same == 1

    return is_later(a, i, b, left_b, j) or is_later(b, j, a, left_a, i)


def is_same_op(a: Side, b: Side, found: Alignment, pair: int, after: tuple[int, int] | None) -> bool:
    """Whether no continuation makes it extra ops of one side, nor another order."""
    i, j = pairs(found)[pair]
    x, y = a.rows[i:], b.rows[j:]
    if after is None:
        equal = equal_rows(a, i, x, y, 0)
        more = [equal_rows(a, i, x, y, k) for k in continues_as(x, y, len(x))]
        more += [equal_rows(b, j, y, x, k) for k in continues_as(y, x, len(y))]
        extra = any(count > equal for count in more)
    else:
        surplus = len(x) + after[0] - len(y) - after[1]
        longer, other = (x, y) if surplus > 0 else (y, x)
        extra = abs(surplus) >= len(longer) or bool(continues_as(longer, other, abs(surplus)))
    return not extra and not recurs(a, b, found, pair)


def certain_cut(a: RowRange, b: RowRange, found: Alignment, unequal: int | None) -> tuple[int, int]:
    """Behind the last pair before that is in a run of equal rows that occur once, and that no moved pair crosses."""
    from rltrace.diff.align.rows import equal_runs

    sure = {*zip(*(at.tolist() for at in equal_runs(a.tokens, b.tokens, (0, len(a), 0, len(b)))), strict=True)}
    every = list(zip(pairs(found), found.moved.tolist(), strict=True))
    for (i, j), _ in reversed(every[:unequal]):
        if (i, j) in sure and not any(moved and (x <= i) != (y <= j) for (x, y), moved in every):
            return i + 1, j + 1
    return 0, 0


def truncated_slowly(
    context: DiffContext, a: RowRange, b: RowRange, after: tuple[int, int] | None
) -> tuple[Pairs, tuple[int, int]]:
    own_a, own_b, rows = Side(a), Side(b), min(len(a), len(b))
    if rows and own_a.identity[:rows] == own_b.identity[:rows]:
        at = np.arange(rows)
        found = Alignment(len(a), len(b), at, at, np.zeros(rows, bool), None)
        found = minimize_moves(drop_false_matches(context, a, b, match_reordered(a, b, found)))
        unequal = next(iter(differs(a, b, pairs(found))), None)
        if unequal is None or is_same_op(own_a, own_b, found, unequal, after):
            return pairs(found), (rows, rows)
    found = align_window(context, a, b, open_end=True)
    unequal = next(iter(differs(a, b, pairs(found))), None)
    if unequal is not None and recurs(own_a, own_b, found, unequal):
        return pairs(found), certain_cut(a, b, found, unequal)
    if pairs(found) and not found.moved[-1] and max(found.b) == found.b[-1] and after is not None and found.sure:
        i, j = pairs(found)[-1]
        if len(a) - i + after[0] == len(b) - j + after[1]:
            return pairs(found), (i + 1, j + 1)
    half = None if unequal is None or 2 * pairs(found)[unequal][0] < len(a) else pairs(found)[unequal][0]
    cut = safe_cut(found, half)
    if cut == (0, 0):
        cut = safe_cut(found)
    return pairs(found), cut if cut != (0, 0) else certain_cut(a, b, found, unequal)


def words(random: Random) -> tuple[list[str], list[str]]:
    """Rows as letters: rounds of a loop; one side with a round or a row more, moved rows or other values."""
    sites = "pqrs"[: random.randint(1, 4)]
    rounds = [[f"{site}{k if random.random() < 0.8 else 0}" for site in sites] for k in range(1, random.randint(3, 7))]
    other = [list(one) for one in rounds]
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        kind, at = random.choice(("round", "round", "row", "value", "swap", "values")), random.randrange(len(other))
        place = random.randrange(len(sites))
        if kind == "round":
            other.insert(at, [f"{site}{random.choice('x12')}" for site in sites])
        elif kind == "row":
            other[at].insert(place, random.choice(("tt", "qy", "q1")))
        elif kind == "swap":
            other[at] = random.sample(other[at], len(other[at]))
        else:
            other[at][place] = other[at][place][0] + "z"
            for one in other[at + 1 :] if kind == "values" else ():
                one[:] = [row[0] + row[1] + "z" for row in one]
    a, b = ([row for one in side for row in one] for side in (rounds, other))
    return (a, b) if random.random() < 0.5 else (b, a)


def written(path: Path, rows: list[str], state: str = "complete") -> StreamView:
    def build(trace: TraceBuilder) -> None:
        for place, row in enumerate(rows):
            reads = [place - 1] if place and row[0] in "rs" else []
            more = {"rng": "g"} if row[0] == "s" else {}
            outputs = [] if row.endswith("0") else [row]
            trace.op("aten.mm.default", (f"{row[0]}.py", 1, "f", row[0]), reads, outputs, **more)

    return view_of(path, build, state=state)


def test_truncated_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds whatever follows, with as many rows of the step after the ranges as there are, or as are unknown."""
    monkeypatch.setattr("rltrace.diff.align.rows.ANCHOR_ROWS", 5)
    monkeypatch.setattr("rltrace.diff.align.rows.MIN_RUN", 3)
    random, cuts = Random(23), set()
    cases = [words(random) for _ in range(100)]
    views = [written(tmp_path / f"{k}.zarr", [row for case in cases for row in case[k]]) for k in (0, 1)]
    context, starts = context_of(*views, []), (0, 0)
    for case in cases:
        ends = starts[0] + len(case[0]), starts[1] + len(case[1])
        for _ in range(2):
            stops = [max(start, end - random.randint(0, 9)) for start, end in zip(starts, ends, strict=True)]
            a, b = (view.read(*bounds) for view, *bounds in zip(views, starts, stops, strict=True))
            for known in (None, (ends[0] - stops[0], ends[1] - stops[1])):
                found, cut = align_truncated(context, a, b, TruncatedRange(known))
                assert (pairs(found), cut) == truncated_slowly(context, a, b, known)
                cuts.add((cut == (0, 0), cut == (len(a), len(b)), known is None))
        starts = ends
    assert len(cuts) == 8


def test_where_a_window_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first pair that differs where it is in the second half, if the rows before are enough."""
    monkeypatch.setattr("rltrace.diff.align.rows.ANCHOR_ROWS", 3)
    letters = [f"p{k}" for k in range(12)]
    a = written(tmp_path / "a.zarr", letters)
    for place, cut in ((2, 12), (5, 12), (6, 6), (9, 9)):
        b = written(tmp_path / f"{place}.zarr", [*letters[:place], "pz", *letters[place + 1 :]])
        ranges = a.read(0, 12), b.read(0, 12)
        at = np.arange(12)
        found = Alignment(12, 12, at, at, np.zeros(12, bool), None)
        assert cut_of(*ranges, found) == (cut, cut)
        moved = Alignment(12, 12, at, at, at < place - 2, None)
        assert cut_of(*ranges, moved) == (12, 12)  # two rows before it are too few
    assert cut_of(a.read(0, 12), a.read(0, 12), found) == (12, 12)


def test_rows_before_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its step on both sides, a number of them at most, as far as they can be read."""

    for trace, second in both(tmp_path, 6, 5):
        for row in range(12):
            trace.op("aten.mm.default", outputs=[row])
            if row in (3, second):
                trace.end_step()
            if row == 7:
                trace.commit()
    a, b = views_in(tmp_path)
    found = [context_before(a, b, base) for base in range(13)]
    assert found == [0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3, 4, 0]
    assert found == [context_before(b, a, base) for base in range(13)]
    monkeypatch.setattr(window, "CONTEXT", 2)
    assert [context_before(a, b, base) for base in range(13)] == [min(2, rows) for rows in found]
    file = b.stream.segments[1].files[0]
    (tmp_path / "b.zarr" / "processes" / "0" / file.key).write_bytes(bytes(file.length))
    b = opened(tmp_path / "b.zarr")
    # known to be damaged from the second on
    assert [context_before(a, b, base) for base in (3, 8, 3, 9)] == [2, 0, 2, 0]
    assert [context_before(b, a, base) for base in (3, 8, 9)] == [2, 0, 0]


def test_no_difference_is_preferred(tmp_path: Path) -> None:
    """Where a part that ran once more explains all, it does; not where a row is left on both sides."""
    once = [f"{site}{k}" for k in range(4) for site in "pq"]
    a = written(tmp_path / "a.zarr", once)
    for number, (more, only) in enumerate((([*once[:4], *once[2:4], *once[4:]], 2), ([*once[2:4], *once], 2))):
        b = written(tmp_path / f"{number}.zarr", more)
        found = align_window(context_of(a, b, []), a.read(0, a.rows), b.read(0, b.rows), open_end=False)
        assert all(once[i] == more[j] for i, j in pairs(found))
        assert (len(found.only_a), len(found.only_b), found.moved.sum()) == (0, only, 0)


def test_another_order_is_preferred_to_a_difference(tmp_path: Path) -> None:
    """Where all rows of the shorter side are on the other one as well, in another order."""
    longer, shorter = ["pz", "p2", "p1", "p3", "p0"], ["p1", "p2", "p3", "p0"]
    a, b = written(tmp_path / "a.zarr", longer), written(tmp_path / "b.zarr", shorter)
    for x, y in ((a, b), (b, a)):
        found = align_window(context_of(x, y, []), x.read(0, x.rows), y.read(0, y.rows), open_end=False)
        matched = pairs(found) if x is a else sorted((j, i) for i, j in pairs(found))
        assert matched == [(1, 1), (2, 0), (3, 2), (4, 3)] and found.moved.sum() == 1


def walked(context: DiffContext, block: Block) -> tuple[Pairs, str | None]:
    """All pairs of a block in the stream's numbers, window by window, and why it ends before its end."""
    at, found = (block.a0, block.b0), []
    while True:
        part = read_window(context, block, at)
        inside = [(i, j) for i, j in pairs(part.found) if i < part.cut[0] and j < part.cut[1]]
        found += [(i + at[0], j + at[1]) for i, j in inside]
        if part.stop is not None:
            return found, part.stop
        before, at = at, (at[0] + part.cut[0], at[1] + part.cut[1])
        assert (at[0] >= before[0] and at[1] >= before[1] and at != before) or at == (block.a1, block.b1)
        if part.final or at == (block.a1, block.b1):
            return found, None


def test_windows_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in windows, a block is aligned as it is whole; where that is not sure, the rest is left out."""
    monkeypatch.setattr("rltrace.diff.align.rows.ANCHOR_ROWS", 4)
    random, sure = Random(29), 0
    for case in range(18):
        rows = [f"{random.choice('pqrs')}{k % 9 + 1}{k}" for k in range(40)]
        place = random.randrange(5, 35)
        other = [*rows[:place], *random.choice(([], ["tt"], ["tt", "tu"], [rows[place] + "z"])), *rows[place + 1 :]]
        ended = random.random() < 0.5
        views = [written(tmp_path / f"{case}{n}.zarr", side) for n, side in enumerate((rows, other))]
        block = Block(0, len(rows), 0, len(other), ended, False, True)
        context = context_of(*views, [])
        assert has_more(context, block) is False
        whole, why = walked(context, block)
        assert why is None
        with monkeypatch.context() as patch:
            patch.setattr(window, "WINDOW_ROWS", 14)
            parts, why = walked(context, block)
        sure += why is None
        assert parts == whole if why is None else {*parts} <= {*whole}
        assert why is None or "alignment unsure from row" in why
    assert sure > 10


def test_a_moved_row_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a moved row is behind the last pair, both sides can only be cut after equal rows before, if any."""
    a, b = written(tmp_path / "a.zarr", ["p1", "q2", "q3"]), written(tmp_path / "b.zarr", ["q2", "q3", "p1"])
    found, cut = align_truncated(context_of(a, b, []), a.read(0, 3), b.read(0, 3), TruncatedRange((0, 0)))
    assert pairs(found) == [(0, 2), (1, 0), (2, 1)] and cut == (0, 0)
    monkeypatch.setattr("rltrace.diff.align.rows.ANCHOR_ROWS", 3)
    before = ["s6", "s7", "s8"]
    a, b = (written(tmp_path / f"{k}.zarr", [*before, *rows]) for k, rows in ((1, ["p1", "q2"]), (2, ["q2", "p1"])))
    found, cut = align_truncated(context_of(a, b, []), a.read(0, 5), b.read(0, 5), TruncatedRange((0, 0)))
    assert found.moved.any() and cut == (3, 3)


@pytest.mark.parametrize("longer", [0, 1])
def test_the_last_row_of_runs_that_were_killed(tmp_path: Path, longer: int) -> None:
    """Where one side has a row more, it belongs to the comparison, which ends there: the other one may have run it."""
    paths = [tmp_path / f"{number}.zarr" for number in (0, 1)]
    views = [written(path, ["p1", "p2", "p3"][: 3 if n == longer else 2], "killed") for n, path in enumerate(paths)]
    rows = views[0].rows, views[1].rows
    context, block = context_of(*views, []), Block(0, rows[0], 0, rows[1], False, False, True)
    found = read_window(context, block, (0, 0))
    assert has_more(context, block) and sorted(rows) == [2, 3]
    assert (found.cut, found.final, found.stop) == (rows, True, None)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_row_more_on_one_side(tmp_path: Path, longer: int) -> None:
    """Where the step has one row more on a side, which continues as the other begins, that row may be extra."""
    rows = ["pz", "p1", "p2"], ["p1", "p2", "p3"]
    sides = rows if not longer else rows[::-1]
    views = [written(tmp_path / f"{number}.zarr", side) for number, side in enumerate(sides)]
    ranges = [view.read(0, 3) for view in views]
    for after, end in (((1, 0), 0), ((0, 0), 3)):
        known = TruncatedRange(after if not longer else after[::-1])
        assert align_truncated(context_of(*views, []), *ranges, known)[1] == (end, end)


@pytest.mark.parametrize(
    ("first", "edited", "user", "learned"),
    [
        # a matched op reads what it wrote, or one that may be another op
        ("x", {"inputs": ["unknown"], "outputs": ["y"]}, "k(y)", True),
        ("x", {"inputs": ["unknown"], "outputs": ["y"]}, "k(y) of ?", False),
        # all rows before its draw are equal, or one is not
        ("x", {"rng": "g", "outputs": ["y"]}, None, True),
        ("x of ?", {"rng": "g", "outputs": ["y"]}, None, False),
        ("x", {"outputs": ["y"]}, None, False),
        # matched ops wrote what it reads; it has no value, or another one
        ("x", {"inputs": [0], "outputs": ["y"]}, None, True),
        ("x", {"inputs": [0]}, None, False),
        ("x", {"inputs": [0], "outputs": ["y of ?"]}, None, False),
    ],
)
def test_which_edited_lines_are_learned(
    tmp_path: Path, first: str, edited: dict[str, Any], user: str | None, learned: bool
) -> None:
    """Those of ops that are equal and that their users, their writers or the draws before prove to be one."""
    for trace, side in both(tmp_path):
        own = {key: [x.replace("?", side) if key == "outputs" else x for x in of] for key, of in edited.items()}
        trace.op("aten.mm.default", outputs=[first.replace("?", side)])
        trace.op("aten.mm.default", ("train.py", 13, "train", f"y = f(x) of {side}"), **own)
        if user is not None:
            line = user.replace("?", side)
            trace.op("aten.mm.default", ("train.py", 14, "train", line), [1], [line])
    a, b = views_in(tmp_path)
    b.use_site_names_of(a)
    at = np.arange(a.rows)
    found = Alignment(len(at), len(at), at, at, np.zeros(len(at), bool), None)
    given = context_of(a, b, []), a.read(0, len(at)), b.read(0, len(at))
    assert not learn_edits(*given, replace(found, moved=~found.moved))
    assert learn_edits(*given, found) is learned


def test_edited_lines_are_learned_once(tmp_path: Path) -> None:
    """From pairs that are equal and read what matched ops wrote: then the window is aligned again."""

    def build(trace: TraceBuilder, line: str) -> None:
        trace.op("aten.mm.default", outputs=["x"])
        trace.op("aten.mm.default", ("train.py", 13, "train", line), [0], ["y"])

    a = view_of(tmp_path / "a.zarr", lambda trace: build(trace, "y = g(x)"))
    at = np.arange(2)
    found = Alignment(2, 2, at, at, np.zeros(2, bool), None)
    for number, (line, is_new) in enumerate((("y = f(x)", True), ("y = g(x)", False))):
        b = view_of(tmp_path / f"{number}.zarr", lambda trace, line=line: build(trace, line))
        b.use_site_names_of(a)
        context, ranges = context_of(a, b, [(0, 0), (1, 1)]), (a.read(0, 2), b.read(0, 2))
        assert [learn_edits(context, *ranges, found) for _ in range(2)] == [is_new, False]
        assert np.array_equal(ranges[0].tokens.identity, ranges[1].tokens.identity)
