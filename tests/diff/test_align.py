"""The aligner, on stretches whose true alignment is known because the edits that made them are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.diff.align.rows import (
    ANCHOR_ROWS,
    Alignment,
    align,
    before,
    equal_runs,
    insertion_places,
    minimize_moves,
    safe_cut,
)
from rltrace.diff.align.window import without_differences
from rltrace.diff.base.tokens import RowTokens


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


rows = st.builds(Row, st.integers(0, 5), st.integers(0, 3), st.integers(0, 1), st.integers(0, 6), st.booleans())


@settings(deadline=None)
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


@settings(deadline=None)
@given(st.lists(rows, max_size=30))
def test_equal_stretches_match_row_by_row(word: list[Row]) -> None:
    """Nothing is moved, added or removed between a stretch and itself."""
    found = align(tokens(word), tokens(word))
    assert pairs(found) == [(i, i) for i in range(len(word))] and not found.moved.any()


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


@settings(deadline=None)
@given(edited())
def test_known_edits_are_found_exactly(case: tuple[list[Row], list[Row], list[tuple[int, int]]]) -> None:
    """Ops of one side only come out as what they are, not one more, whether or not values differ from some row on."""
    a, b, meant = case
    found = align(tokens(a), tokens(b))
    assert pairs(found) == meant and not found.moved.any()


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=30), st.integers(0, 30), st.integers(1, 3))
def test_an_insertion_at_a_new_site_never_shifts_values(word: list[Row], at: int, count: int) -> None:
    """All values after an insertion differ as well: the rows around it still match one by one."""
    at = min(at, len(word))
    later = [Row(r.site, r.op, r.shape, r.value + 100, r.digested) for r in word[at:]]
    found = align(tokens(word), tokens([*word[:at], *[Row(77, 3, 0, 1)] * count, *later]))
    assert found.only_a.tolist() == []
    assert found.only_b.tolist() == list(range(at, at + count))


def test_a_moved_row_is_matched_with_itself() -> None:
    """One op that changed places with its neighbours is moved, not removed and added."""
    a = [Row(k, 0, 0, k) for k in range(10)]
    b = [*a[:2], *a[3:7], a[2], *a[7:]]
    found = align(tokens(a), tokens(b))
    assert len(found.only_a) == len(found.only_b) == 0
    assert found.moved.sum() == 1 and (2, 6) in pairs(found)


def test_another_shape_is_the_same_op() -> None:
    """Structure may differ within an execution index: the op is matched, the difference is its arguments."""
    a = [Row(1, 0, 0, 1), Row(2, 1, 0, 2), Row(3, 2, 0, 3)]
    found = align(tokens(a), tokens([a[0], Row(2, 1, 1, 9), a[2]]))
    assert pairs(found) == [(0, 0), (1, 1), (2, 2)]


def test_a_retried_op_at_its_own_site() -> None:
    """One op of a loop body is run twice in one round: that one is extra, later rounds stay in step."""
    body = [Row(1, 0, 0, 0), Row(2, 1, 0, 0), Row(3, 2, 0, 0)]
    a = [Row(r.site, r.op, 0, 10 * k + r.site) for k in range(10) for r in body]
    b = [*a[:17], Row(2, 1, 0, 999), *a[17:]]
    found = align(tokens(a), tokens(b))
    assert found.only_b.tolist() == [17] and len(found.only_a) == 0


def test_other_sites_but_the_same_ops() -> None:
    """A renamed function changes every site: equal sequences of ops are matched in order all the same."""
    a = [Row(1, k % 3, 0, k) for k in range(20)]
    b = [Row(2, k % 3, 0, k + 50) for k in range(20)]
    assert pairs(align(tokens(a), tokens(b))) == [(k, k) for k in range(20)]


def test_too_different_is_unsure() -> None:
    """Past the budget nothing is guessed."""
    rng = np.random.default_rng(0)
    sites = rng.integers(0, 40, 3_000)
    a = [Row(int(s), 0, 0, int(s)) for s in sites]
    b = [Row(int(s), 0, 0, int(s)) for s in rng.permutation([*sites, *range(40)])]  # no site has as many on both sides
    found = align(tokens(a), tokens(b))
    assert not found.sure and found.unsure is not None


def test_a_long_first_stretch() -> None:
    """100,000 rows before the first step, with edits all over, within the budget."""
    rng = np.random.default_rng(1)
    a = [Row(k % 140, k % 60, 0, k) for k in range(100_000)]
    drop = set(rng.integers(0, 100_000, 50).tolist())
    b = [row for k, row in enumerate(a) if k not in drop]
    found = align(tokens(a), tokens(b))
    assert found.sure and found.only_a.tolist() == sorted(drop) and len(found.only_b) == 0


def test_loops_that_were_cut_off_do_not_slide() -> None:
    """Two windows into a long loop, one with more log rows in it: rounds are not shifted to make the ends meet."""
    a = [Row(k % 20, k % 7, 0, k) for k in range(2_000)]
    b = [r for k, row in enumerate(a) for r in ([row, Row(90, 1, 0, -k)] if k % 40 == 5 else [row])][:2_000]
    b = [replace(row, value=row.value + 10_000) if row.value > 700 else row for row in b]
    found = align(tokens(a), tokens(b), open_end=True)
    matched = [(i, j) for i, j in pairs(found) if i < 1_900]
    assert all(b[j].value in (a[i].value, a[i].value + 10_000) for i, j in matched)
    assert found.only_a.min() >= len(a) - 60


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


def test_runs_that_are_certain() -> None:
    """Long runs of equal rows that occur once; not where values come from a draw and not from outside."""
    word = [Row(k, k % 3, 0, k) for k in range(40)]
    whole = 0, 40, 0, 42
    longer = tokens([Row(90, 0, 0, 90), Row(91, 0, 0, 91), *word])
    at_a, at_b = equal_runs(tokens(word), longer, whole)
    assert at_a.tolist() == list(range(40)) and at_b.tolist() == list(range(2, 42))
    drawn = [replace(word[0], draws=True), *(replace(row, reads=(1,)) for row in word[1:])]
    assert len(equal_runs(tokens(drawn), longer, whole)[0]) == 0
    fed = [drawn[0], replace(word[1], reads=(1, 0)), *drawn[2:]]
    assert equal_runs(tokens(fed), longer, whole)[0].tolist() == list(range(1, 40))
    assert len(equal_runs(tokens([replace(row, digested=False) for row in word]), longer, whole)[0]) == 0
    part_a, part_b = equal_runs(tokens(word), longer, (4, 39, 5, 42))
    assert part_a.tolist() == list(range(4, 39)) and part_b.tolist() == list(range(6, 41))
    by_reading = tokens(fed)
    by_reading = replace(by_reading, links=np.where(by_reading.links > 0, by_reading.links | 2, 0))
    assert len(equal_runs(by_reading, longer, whole)[0]) == 0  # that a row read outside data says nothing of the next


def test_extra_and_moved_rows_alone() -> None:
    """Where every row of one side equals one of the other, that explains it; otherwise something differs."""
    a = [Row(k, k % 3, 0, k) for k in range(12)]
    b = [*a[:2], *a[3:6], a[2], *a[6:9], *a[6:9], *a[9:]]
    found = without_differences(tokens(a), tokens(b))
    assert found is not None
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
    """Of a pair that moved, B's end is behind the last row in order before it."""
    found = alignment([0, 1, 3, 4], [0, 5, 2, 3], moved=(1,))
    whole = np.ones(4, bool)
    assert [before(found, whole, k) for k in range(4)] == [(0, 0), (1, 1), (3, 2), (4, 3)]
    assert before(alignment([0], [3], moved=(0,)), np.ones(1, bool), 0) == (0, 0)


def test_where_a_range_may_be_cut() -> None:
    """After the last long run of adjacent pairs, and where no moved pair lies across."""
    n = ANCHOR_ROWS
    assert safe_cut(alignment(list(range(n)), list(range(3, n + 3)))) == (n, n + 3)
    assert safe_cut(alignment(list(range(n - 1)), list(range(n - 1)))) == (0, 0)
    gap = [*range(n), *range(n + 2, n + 4)]
    assert safe_cut(alignment(gap, [*range(n + 2)])) == (n, n)
    assert safe_cut(alignment([*range(2 * n)], [*range(2 * n)]), n + 3) == (n + 3, n + 3)
    assert safe_cut(alignment([*range(2 * n)], [*range(2 * n)]), n - 1) == (0, 0)
    across = alignment([*range(n + 1)], [*range(1, n + 1), 0], moved=(n,))
    assert safe_cut(across) == (0, 0)
    behind = alignment([*range(n + 2)], [*range(n), n + 1, n], moved=(n, n + 1))
    assert safe_cut(behind) == (n, n)
