"""The aligner, on stretches whose true alignment is known because the edits that made them are."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import view_of

from rltrace.diff.align import rows as rows_module
from rltrace.diff.align.rows import (
    Alignment,
    align,
    before,
    equal_runs,
    execution_indices,
    gaps,
    insertion_places,
    is_aligned,
    is_aligned_and_equal,
    minimize_moves,
    one_sided,
    safe_cut,
)
from rltrace.diff.align.window import without_differences
from rltrace.diff.base import sequences
from rltrace.diff.base.tokens import RowTokens
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Kind


@dataclass(frozen=True)
class Row:
    """A row as the aligner sees it."""

    site: int
    op: int
    shape: int
    value: int
    digested: bool = True
    draws: bool = False
    reads: tuple[int, ...] = ()
    """Distances to the rows that wrote its inputs; 0: outside data."""


def tokens(rows: list[Row]) -> RowTokens:
    def column(key: object) -> np.ndarray:
        return np.array([hash(key(row)) & (2**63 - 1) for row in rows], np.uint64)  # type: ignore[operator]

    return RowTokens(
        identity=column(lambda r: ("identity", r.site, r.op)),
        structure=column(lambda r: ("structure", r.site, r.op, r.shape)),
        values=column(lambda r: ("values", r.value if r.digested else 0)),
        computation=column(lambda r: ("computation", r.op, r.shape)),
        operator=column(lambda r: ("operator", r.op)),
        has_values=np.array([row.digested for row in rows], bool),
        draws=np.array([row.draws for row in rows], bool),
        links=np.array([distance << 12 for row in rows for distance in row.reads], np.int64),
        link_offsets=np.cumsum([0, *(len(row.reads) for row in rows)]),
    )


def pairs(found: Alignment) -> list[tuple[int, int]]:
    return list(zip(found.a.tolist(), found.b.tolist(), strict=True))


def test_many_gaps_do_not_each_look_at_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of whole sides are computed once, however many boxes are left between the rows that match."""
    made = list[int]()
    plain = rows_module.mix
    monkeypatch.setattr(
        rows_module, "mix", lambda *parts: plain(*parts) if made.append(len(parts[0])) is None else None
    )
    a, b = (
        [row for k in range(300) for row in (Row(k, 0, 0, k), Row(1000 + side, 1, side, 1000 * side + k))]
        for side in (0, 1)
    )
    assert len(pairs(align(tokens(a), tokens(b)))) == 600
    assert len(made) <= 8


rows = st.builds(Row, st.integers(0, 5), st.integers(0, 3), st.integers(0, 1), st.integers(0, 6), st.booleans())


@given(st.lists(rows, max_size=30), st.lists(rows, max_size=30))
def test_an_alignment_is_one(a: list[Row], b: list[Row]) -> None:
    """Rows are matched at most once, in order unless moved, and only with rows of the same op."""
    found = align(tokens(a), tokens(b))
    assert found.sure
    assert len(set(found.a.tolist())) == len(found.a) and len(set(found.b.tolist())) == len(found.b)
    in_order = found.b[~found.moved]
    assert np.all(np.diff(found.a) > 0) and np.all(np.diff(in_order) > 0)
    assert all(a[i].op == b[j].op for i, j in pairs(found))
    assert len(found.only_a) + len(found.a) == len(a) and len(found.only_b) + len(found.b) == len(b)


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[Row], list[Row], list[tuple[int, int]]]:
    """Two sides of a stretch, each with ops at sites that the other lacks, and the pairs that are meant."""
    a: list[Row] = []
    b: list[Row] = []
    meant = []
    apart = draw(st.integers(0, 60))
    for k in range(draw(st.integers(1, 60))):
        edit = draw(st.sampled_from(["keep"] * 6 + ["a", "b", "b twice"]))
        site, op = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        if edit == "a":
            a.append(Row(80, 3, 0, 5000 + k))
        elif edit != "keep":
            b += [Row(90, 3, 1, 6000 + k)] * (2 if edit == "b twice" else 1)
        meant.append((len(a), len(b)))
        a.append(Row(site, op, 0, k))
        b.append(Row(site, op, 0, k if k < apart else 1000 + k))
    return a, b, meant


@given(edited())
def test_known_edits_are_found_exactly(case: tuple[list[Row], list[Row], list[tuple[int, int]]]) -> None:
    """Ops of one side only come out as what they are, not one more, whether or not values differ from some row on."""
    a, b, meant = case
    found = align(tokens(a), tokens(b))
    assert pairs(found) == meant and not found.moved.any()


def test_loops_that_were_cut_off_do_not_slide() -> None:
    """Two windows into a long loop, one with more log rows in it: rounds are not shifted to make the ends meet."""
    a = [Row(k % 20, k % 7, 0, k) for k in range(2_000)]
    b = [r for k, row in enumerate(a) for r in ([row, Row(90, 1, 0, -k)] if k % 40 == 5 else [row])][:2_000]
    b = [replace(row, value=row.value + 10_000) if row.value > 700 else row for row in b]
    found = align(tokens(a), tokens(b), open_end=True)
    matched = [(i, j) for i, j in pairs(found) if i < 1_900]
    assert all(b[j].value in (a[i].value, a[i].value + 10_000) for i, j in matched)
    assert found.only_a.min() >= len(a) - 60


def test_another_shape_in_the_last_rows_before_a_cut() -> None:
    """Where no row that is left has the structure of one of the other side, the op is matched all the same."""
    a = [Row(1, 0, 0, 1), Row(2, 1, 0, 2), Row(3, 2, 0, 3)]
    for b in ([a[0], Row(2, 1, 1, 9)], [a[0], Row(2, 1, 1, 9), Row(3, 2, 1, 8)]):
        found = align(tokens(a), tokens(b), open_end=True)
        assert pairs(found) == [(k, k) for k in range(len(b))]
    assert pairs(align(tokens(a), tokens(a[:1]), open_end=True)) == [(0, 0)]


def test_the_last_rows_before_a_cut_need_not_match() -> None:
    """Rounds of a loop that is cut off are matched in turn; where the streams end, the equal last ones are."""
    a = [Row(1, 0, 0, k) for k in range(4)]
    b = [*a[:2], Row(1, 0, 0, 90), Row(1, 0, 0, 91), a[3]]
    assert pairs(align(tokens(a), tokens(b), open_end=True)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert pairs(align(tokens(a), tokens(b))) == [(0, 0), (1, 1), (2, 2), (3, 4)]


def test_other_sites_with_as_many_ops_in_order_as_possible() -> None:
    """Of equally many rows with equal values, the aligner chooses those that leave most others in order."""
    a = [Row(1, 0, 0, 1), Row(1, 0, 0, 2), Row(1, 1, 0, 3, digested=False)]
    b = [Row(2, 0, 0, 2), Row(2, 1, 0, 4, digested=False), Row(2, 0, 0, 1)]
    found = align(tokens(a), tokens(b))
    assert (pairs(found), found.moved.tolist()) == ([(0, 2), (1, 0), (2, 1)], [True, False, False])
    found = align(tokens(b), tokens(a))
    assert (pairs(found), found.moved.tolist()) == ([(0, 1), (1, 2), (2, 0)], [False, False, True])


def test_how_far_the_budget_reaches() -> None:
    """Within it: 8,000 rows whose sites are all others, and 2,000 rows more, at known sites, in 8,000."""
    a = [Row(k % 90, k % 30, 0, k) for k in range(8_000)]
    rewritten = align(tokens(a), tokens([replace(row, site=row.site + 500) for row in a]))
    assert rewritten.sure and not len(rewritten.only_a) and not rewritten.moved.any()
    longer = [r for k, row in enumerate(a) for r in ([row] if k % 4 else [row, replace(row, value=-k)])]
    found = align(tokens(a), tokens(longer))
    assert found.sure and not len(found.only_a) and len(found.only_b) == 2_000
    assert all(longer[j].value == a[i].value for i, j in pairs(found))


def test_a_part_that_runs_once_more_before_values_part() -> None:
    """One round more of a loop, then another value: the round is extra, whatever structure alone would allow."""
    a = [Row(k % 5, k % 5, 0, k) for k in range(100)]
    b = [*a[:20], *[replace(row, value=row.value + 1_000) for row in a[20:25]], *a[20:60]]
    b += [replace(row, value=row.value + 5_000) for row in a[60:]]
    found = align(tokens(a), tokens(b))
    assert found.only_b.tolist() == list(range(20, 25)) and not len(found.only_a)


def test_a_draw_at_another_site_and_place() -> None:
    """It is the same draw where all draws that are left over agree; after one more draw any of them may be another."""
    draw, others = Row(1, 0, 0, 5, draws=True), [Row(2, 1, 0, 7), Row(3, 2, 0, 8)]
    moved = replace(draw, site=9)
    found = align(tokens([draw, *others]), tokens([*others, moved]))
    assert pairs(found) == [(0, 2), (1, 0), (2, 1)] and found.moved.tolist() == [True, False, False]
    found = align(tokens([draw, *others]), tokens([*others, moved, replace(moved, value=6)]))
    assert pairs(found) == [(1, 0), (2, 1)]


def test_extra_and_moved_rows_alone() -> None:
    """Where every row of one side equals one of the other, that explains it; otherwise something differs."""
    a = [Row(k, k % 3, 0, k) for k in range(12)]
    b = [*a[:2], *a[3:6], a[2], *a[6:9], *a[6:9], *a[9:]]
    found = without_differences(tokens(a), tokens(b))
    assert len(found.only_a) == 0 and len(found.only_b) == 3 and found.moved.sum() == 1 and (2, 5) in pairs(found)
    assert all(a[i] == b[j] for i, j in pairs(found)) and (np.diff(found.a) > 0).all()
    swapped = without_differences(tokens(b), tokens(a))
    assert swapped is not None and len(swapped.only_a) == 3 and len(swapped.only_b) == 0
    assert without_differences(tokens(a), tokens([*b[:-1], Row(11, 2, 0, 77)])) is None
    same = without_differences(tokens(a), tokens(a))
    assert same is not None and pairs(same) == [(k, k) for k in range(12)] and not same.moved.any()


@given(st.permutations(range(7)), st.lists(st.integers(0, 6), max_size=3))
def test_as_few_rows_are_moved_as_possible(order: list[int], gone: list[int]) -> None:
    """The others keep their order; no other choice leaves more of them."""
    left = [k for k in range(7) if k not in gone]
    at_b = np.array([order[k] for k in left], np.int64)
    given_ = Alignment(7, 7, np.array(left, np.int64), at_b, np.ones(len(left), bool), None)
    found = minimize_moves(given_)
    stays = at_b[~found.moved]
    assert (np.diff(stays) > 0).all()
    longest = max(
        sum(mask >> k & 1 for k in range(len(left)))
        for mask in range(1 << len(left))
        if (np.diff([at_b[k] for k in range(len(left)) if mask >> k & 1]) > 0).all()
    )
    assert len(stays) == longest


def alignment(a: list[int], b: list[int], moved: tuple[int, ...] = ()) -> Alignment:
    """Pairs of which those with these numbers are moved."""
    flags = np.isin(np.arange(len(a)), moved)
    return Alignment(max(a, default=-1) + 1, max(b, default=-1) + 1, np.array(a), np.array(b), flags, None)


def test_where_rows_of_one_side_stand_on_the_other() -> None:
    """Right after the last match before them; at the start where there is none."""
    places = insertion_places(np.array([0, 3, 4, 9]), np.array([1, 2, 5]), np.array([4, 6, 7]))
    assert places.tolist() == [0, 7, 7, 8]
    assert insertion_places(np.array([3]), np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == [0]


def test_the_rows_before_a_pair() -> None:
    """B's end before a pair that moved is behind the last row in order before it."""
    found = alignment([0, 1, 3, 4], [0, 5, 2, 3], moved=(1,))
    whole = np.ones(4, bool)
    assert [before(found, whole, k) for k in range(4)] == [(0, 0), (1, 1), (3, 2), (4, 3)]
    assert before(alignment([0], [3], moved=(0,)), np.ones(1, bool), 0) == (0, 0)


# --- slow, obvious references -----------------------------------------------------------------------------------------


SMALL = settings(max_examples=40)
linked = st.lists(
    st.builds(
        Row,
        st.integers(0, 5),
        st.just(0),
        st.just(0),
        st.integers(0, 9),
        digested=st.sampled_from((True, True, True, False)),
        draws=st.sampled_from((False, False, False, True)),
        reads=st.lists(st.integers(-3, 4), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=14,
)


def is_evidence(word: list[Row], start: int, row: int) -> bool:
    """Whether no draw from ``start`` on went into a row, or outside data did as well; followed back row by row."""

    def into(row: int) -> tuple[bool, bool]:
        drawn, fresh = word[row].draws, 0 in word[row].reads
        for distance in word[row].reads:
            if 0 < distance <= row - start:
                before = into(row - distance)
                drawn, fresh = drawn or before[0], fresh or before[1]
        return drawn, fresh

    drawn, fresh = into(row)
    return word[row].digested and not word[row].draws and (fresh or not drawn)


@SMALL
@given(linked, st.data())
def test_runs_of_what_occurs_once(word: list[Row], data: st.DataObject) -> None:
    """Of rows that are evidence and occur once on both sides, those in runs: by a reading of each row."""
    cut, gap = data.draw(st.integers(0, len(word))), data.draw(st.integers(0, 3))
    other = [*word[:cut], *[Row(90 + k, 0, 0, 90 + k) for k in range(gap)], *word[cut:]]
    start = data.draw(st.integers(0, len(word) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "MIN_RUN", 2)
        at_a, at_b = equal_runs(tokens(word), tokens(other), (start, len(word), start, len(other)))
    use = [[k for k in range(start, len(side)) if is_evidence(side, start, k)] for side in (word, other)]
    keys = [[replace(side[k], reads=(), draws=False) for k in of] for side, of in zip((word, other), use, strict=True)]
    sure = [
        (i, use[1][keys[1].index(key)])
        for i, key in zip(use[0], keys[0], strict=True)
        if keys[0].count(key) == keys[1].count(key) == 1
    ]
    runs: list[list[tuple[int, int]]] = []
    for i, j in sure:
        if runs and i - runs[-1][-1][0] == j - runs[-1][-1][1] <= 2:
            runs[-1].append((i, j))
        else:
            runs.append([(i, j)])
    ordered = all(x[1] < y[1] for x, y in pairwise(sure))
    if ordered and min(len(word), len(other)) - start >= 2:
        assert list(zip(at_a.tolist(), at_b.tolist(), strict=True)) == [x for run in runs if len(run) >= 2 for x in run]


@SMALL
@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8), st.integers(0, 3))
def test_execution_indices(a: list[int], b: list[int], skipped: int) -> None:
    """The nth of a token with the nth, where both sides have equally many, as many as keep one order."""
    box = skipped, len(a) + skipped, skipped, len(b) + skipped
    before = [Row(9, 0, 0, 0)] * skipped
    word_a, word_b = (tokens([*before, *(Row(site, 0, 0, 0) for site in side)]) for side in (a, b))
    at_a, at_b = (at.tolist() for at in execution_indices(word_a, word_b, box))
    every = {
        (skipped + i, skipped + [j for j, y in enumerate(b) if y == x][a[:i].count(x)])
        for i, x in enumerate(a)
        if a.count(x) == b.count(x)
    }
    assert {*zip(at_a, at_b, strict=True)} <= every
    assert all(x < y for x, y in pairwise(at_a)) and all(x < y for x, y in pairwise(at_b))
    partner = [j for _, j in sorted(every)]
    subsets = [[j for k, j in enumerate(partner) if mask >> k & 1] for mask in range(1 << len(partner))]
    best = max(len(subset) for subset in subsets if all(x < y for x, y in pairwise(subset)))
    assert len(at_a) == best


@SMALL
@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False), st.integers(0, 34))
def test_cuts(kept: list[bool], random: Random, limit: int) -> None:
    """A cut is the last place behind enough adjacent pairs that no moved pair crosses, found by trying every place."""
    at_a = [k for k, keep in enumerate(kept) if keep]
    at_b = [k + sum(random.random() < 0.05 for _ in range(k)) for k in at_a]
    at_b = sorted({*at_b})
    at_a = at_a[: len(at_b)]
    moved = [random.random() < 0.1 for _ in at_a]
    if any(moved):
        some = [k for k, own in enumerate(moved) if own]
        for k, j in zip(some, random.sample([at_b[k] for k in some], len(some)), strict=True):
            at_b[k] = j
    flags = tuple(k for k, own in enumerate(moved) if own)
    every = list(zip(at_a, at_b, moved, strict=True))
    for given_limit in (None, limit):
        usable = [(i, j) for i, j, own in every if not own and (given_limit is None or i < given_limit)]
        wanted = (0, 0)
        for last in range(2, len(usable)):
            (i, j), run = usable[last], usable[last - 2 : last + 1]
            adjacent = run == [(i - 2, j - 2), (i - 1, j - 1), (i, j)]
            if adjacent and not any(own and (x <= i) != (y <= j) for x, y, own in every):
                wanted = i + 1, j + 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows_module, "ANCHOR_ROWS", 3)
            assert safe_cut(alignment(at_a, at_b, flags), given_limit) == wanted


def test_a_cut_far_from_the_end() -> None:
    """One row that moved across the second half of a range leaves the first half to be cut."""
    rows, early = 20_000, 5_000
    at_b = [rows if k == early else k for k in range(rows)]
    assert safe_cut(alignment(list(range(rows)), at_b, (early,))) == (early, early)


@settings(max_examples=25)
@given(edited(), st.integers(5, 60), st.booleans())
def test_a_large_box_is_cut(
    case: tuple[list[Row], list[Row], list[tuple[int, int]]], cells: int, open_end: bool
) -> None:
    """Where no table fits, an alignment is one all the same; equal rows at the ends stay matched."""
    a, b, meant = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "MAX_CELLS", cells)
        found = align(tokens(a), tokens(b), open_end=open_end)
    assert found.sure
    assert len(set(found.a.tolist())) == len(found.a) and len(set(found.b.tolist())) == len(found.b)
    assert all(a[i].op == b[j].op for i, j in pairs(found))
    assert np.all(np.diff(found.a) > 0) and np.all(np.diff(found.b[~found.moved]) > 0)
    head = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert pairs(found)[:head] == [(k, k) for k in range(head)]
    if a == b:
        assert pairs(found) == meant


def test_other_sites_in_a_large_box() -> None:
    """Rows with values by their values; the others between them by what they compute, then by their op."""
    a = [Row(1, k % 3, k % 2, k, digested=k % 3 > 0) for k in range(24)]
    b = [replace(row, site=2) for row in [*a[:9], *a[12:], *(replace(row, value=99) for row in a[:2])]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "MAX_CELLS", 30)
        found = align(tokens(a), tokens(b))
    assert found.sure and found.only_a.tolist() == [9, 10, 11] and found.only_b.tolist() == [21, 22]
    assert all(a[i].value == b[j].value for i, j in pairs(found))


def test_what_a_budget_leaves() -> None:
    """Where a search gives up, the alignment is unsure from the first row on that it was to align."""
    a = [Row(k, 0, 0, k) for k in range(40)]
    b = [a[0], *[replace(row, value=-1) for row in reversed(a[1:39])], a[39]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "MAX_CELLS", 30)
        patch.setattr(rows_module, "execution_indices", lambda a, b, box: (sequences.EMPTY, sequences.EMPTY))
        for open_end in (False, True):
            found = align(tokens(a), tokens(b), budget=10, open_end=open_end)
            assert found.unsure == (1, 1) and (0, 0) in pairs(found)
        assert align(tokens(a), tokens(b)).sure


def test_where_it_is_unsure_first() -> None:
    """Of two parts that are given up, from the first one on, however many rows a side has more before it."""
    a = [Row(k, 0, 0, k) for k in range(112)]
    mess = [[replace(row, value=-1) for row in reversed(a[at : at + 40])] for at in (11, 61)]
    extra = [Row(500 + k, 0, 0, k) for k in range(60)]
    b = [a[0], *extra, *a[1:11], *mess[0], *a[51:61], *mess[1], *a[101:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "MAX_CELLS", 30)
        patch.setattr(rows_module, "execution_indices", lambda a, b, box: (sequences.EMPTY, sequences.EMPTY))
        assert align(tokens(a), tokens(b), budget=10).unsure == (11, 71)
        assert align(tokens(b), tokens(a), budget=10).unsure == (71, 11)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5, unique_by=(lambda p: p[0], lambda p: p[1]))
)
def test_gaps(chosen: list[tuple[int, int]]) -> None:
    """The boxes between pairs in which both sides have rows."""
    ordered = sorted(pair for pair in chosen if all((pair < other) == (pair[1] < other[1]) for other in chosen))
    found = list(gaps((0, 10, 0, 10), (np.array([i for i, _ in ordered], int), np.array([j for _, j in ordered], int))))
    ends = [(-1, -1), *ordered, (10, 10)]
    wanted = [(x0 + 1, x1, y0 + 1, y1) for (x0, y0), (x1, y1) in pairwise(ends)]
    assert found == [box for box in wanted if box[0] < box[1] and box[2] < box[3]]


def test_rows_of_a_range(tmp_path: Path) -> None:
    """One-sided rows are ops of the program; ranges are aligned where all their rows are alike."""

    def build(trace: TraceBuilder) -> None:
        for row in range(6):
            trace.op("aten.mm.default", kind=Kind.WINDOW if row in (0, 3) else Kind.OP, outputs=[row])

    whole, other = (view_of(tmp_path / f"{side}.zarr", build).read(2, 5) for side in "ab")
    assert one_sided(whole, np.array([0, 1, 2]), 2).tolist() == [0]
    assert one_sided(whole, np.array([0, 1, 2]), 3).tolist() == [0, 2]
    assert is_aligned(whole, other) and is_aligned_and_equal(whole, other)
    part = other.view.read(2, 4)
    assert not is_aligned(whole, part) and not is_aligned_and_equal(whole, part)
    changed = view_of(tmp_path / "c.zarr", lambda trace: [trace.op("aten.mm.default", outputs=["z"]) for _ in range(6)])
    assert is_aligned(whole.view.read(4, 5), changed.read(4, 5))
    assert not is_aligned_and_equal(whole.view.read(4, 5), changed.read(4, 5))


def test_too_many_runs_to_minimize_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of too many runs stay flagged as they were."""
    found = alignment([0, 1, 2, 3], [2, 0, 3, 1], (0, 1, 2, 3))
    monkeypatch.setattr(rows_module, "MAX_RUNS", 4)
    assert minimize_moves(found).moved.sum() == 2
    monkeypatch.setattr(rows_module, "MAX_RUNS", 3)
    assert minimize_moves(found) is found
