"""Independent rows of one site in another order are matched by what they compute and read."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from views import both, lose_rows, view_of, views_in

from rltrace.diff.align import reorder
from rltrace.diff.align.reorder import _Partners, match_reordered, partners_of, reordered_rows
from rltrace.diff.align.rows import Alignment
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Kind, RowFlag

Row = tuple[str, str, tuple[Any, ...]]
"""Site (``draw`` draws), what it returns (with a ``?`` it may be unwritten memory; an argument may follow), inputs."""

MAKE = [("make", "x", ()), ("make", "y", ())]
USE = [("use", "u", (0,)), ("use", "v", (1,))]


def ranges_of(folder: Path, a: list[Row], b: list[Row]) -> list[RowRange]:
    """The rows of both sides, which follow an equal one."""
    for trace, (side, rows) in both(folder, ("a", a), ("b", b)):
        trace.op("aten.zeros.default", outputs=["before"])
        for site, output, inputs in rows:
            links = [one + 1 if isinstance(one, int) else one for one in inputs]
            flags = RowFlag.MARKED if "?" in output else 0
            frame, outputs = (f"{site}.py", 1, site, site), [f"{output} of {side}" if flags else output]
            number = [int(digit) for digit in output.partition("?")[2]]
            state = output if site == "draw" else None
            trace.op(f"aten.{site}.default", frame, links, outputs, integers=number, flags=flags, rng=state)
    return [view.read(1, view.rows) for view in views_in(folder)]


def matched(folder: Path, a: list[Row], b: list[Row], before: int = 0) -> tuple[list[int], list[bool]]:
    """The partner of each row of A, and whether it moved, where rows were matched by their places before.

    ``before``: so many rows of B come first that have no partner.
    """
    ranges = ranges_of(folder, a, b)
    at = np.arange(len(a))
    found = match_reordered(*ranges, Alignment(len(a), len(b), at, before + at, np.zeros(len(a), bool), None))
    assert found.a.tolist() == list(range(len(a)))
    return found.b.tolist(), found.moved.tolist()


@pytest.mark.parametrize(
    ("a", "b", "partners"),
    [
        ([*MAKE, *USE], [*MAKE, *USE], [0, 1, 2, 3]),
        ([*MAKE, *USE], [*MAKE[::-1], ("use", "v", (0,)), ("use", "u", (1,))], [1, 0, 3, 2]),
        ([*MAKE, *USE], [*MAKE[::-1], ("use", "u", (1,)), ("use", "v", (0,))], [1, 0, 2, 3]),
        ([*MAKE, *USE], [*MAKE, *USE[::-1]], [0, 1, 3, 2]),
        # the same results from other inputs: not the same rows, whatever holds of another site
        ([*MAKE, *USE], [*MAKE[::-1], ("use", "v", (1,)), ("use", "u", (0,))], [1, 0, 2, 3]),
        ([*MAKE, *USE], [*MAKE, ("use", "v", (0,)), ("use", "u", (1,))], [0, 1, 2, 3]),
        ([*MAKE, *USE], [*MAKE, ("use", "v", (In(1, slot=0),)), ("use", "w", (0,))], [0, 1, 2, 3]),
        ([MAKE[0], ("use", "u", (0,)), MAKE[1], ("use", "v", (2,))],
         [MAKE[0], ("use", "v", (0,)), MAKE[1], ("use", "u", (2,))], [0, 1, 2, 3]),
        # equal results of equal values: by the rows that wrote these
        ([("make", "x", ()), *MAKE, ("use", "u", (0,)), ("use", "u", (1,)), ("use", "v", (2,))],
         [("make", "x", ()), *MAKE, ("use", "v", (2,)), ("use", "u", (0,)), ("use", "u", (1,))], [0, 1, 2, 4, 5, 3]),
        # before one that changed
        ([*MAKE, *USE, ("use", "p", (0,)), ("draw", "r", ())],
         [*MAKE, *USE[::-1], ("use", "q", (0,)), ("draw", "s", ())], [0, 1, 3, 2, 4, 5]),
        ([*MAKE, ("use", "p", (0,)), *USE, ("draw", "r", ())],
         [*MAKE, ("use", "q", (0,)), *USE[::-1], ("draw", "s", ())], [0, 1, 2, 3, 4, 5]),
        # read on both sides: by the bytes, whichever op wrote them
        ([*MAKE, ("use", "u", (("outside", "p"),)), ("use", "v", (("outside", "q"),))],
         [*MAKE, ("use", "v", (("outside", "q"),)), ("use", "u", (("outside", "p"),))], [0, 1, 3, 2]),
        ([*MAKE, ("use", "u", (("outside", "p"),)), ("use", "v", (("outside", "q"),))],
         [*MAKE, ("use", "v", (("outside", "p"),)), ("use", "u", (("outside", "q"),))], [0, 1, 2, 3]),
        # written before the range
        ([*MAKE, ("use", "u", (-1,)), ("use", "v", (0,))], [*MAKE, ("use", "v", (0,)), ("use", "u", (-1,))],
         [0, 1, 3, 2]),
        ([*MAKE, ("use", "u", (-1,)), ("use", "v", (0,))], [*MAKE, ("use", "v", (-1,)), ("use", "u", (0,))],
         [0, 1, 2, 3]),
        # one row of its site, or other results: nothing to permute
        ([("make", "x", ())], [("make", "y", ())], [0]),
        ([*MAKE, ("use", "u", (0,))], [("make", "y", ()), ("make", "z", ()), ("use", "u", (1,))], [0, 1, 2]),
        # one of them computes something else: by what it reads
        ([*MAKE, *USE], [*MAKE[::-1], ("use", "v", (0,)), ("use", "w", (1,))], [1, 0, 3, 2]),
        # one has other data: the others show where it was
        ([("use", f"{data}1", (("outside", data),)) for data in "qpt"],
         [("use", f"{data}1", (("outside", data),)) for data in "twq"], [2, 1, 0]),
        # the data of the next one: not reordered
        ([*MAKE, ("use", "u", (("outside", "p"),)), ("use", "v", (("outside", "q"),))],
         [*MAKE, ("use", "v", (("outside", "q"),)), ("use", "w", (("outside", "r"),))], [0, 1, 2, 3]),
        ([*MAKE, ("use", "u", (("outside", "p"),)), ("use", "v", (("outside", "q"),))],
         [*MAKE[::-1], ("use", "v", (("outside", "q"),)), ("use", "w", (("outside", "r"),))], [1, 0, 2, 3]),
        # rows that may hold unwritten memory are matched by what they read
        ([*MAKE, ("fill", "p?", (0,)), ("fill", "q?", (1,))],
         [*MAKE[::-1], ("fill", "q?", (0,)), ("fill", "p?", (1,))], [1, 0, 3, 2]),
        ([*MAKE, ("fill", "p?", (0,)), ("fill", "q?", (1,))],
         [*MAKE[::-1], ("fill", "q?", (1,)), ("fill", "p?", (0,))], [1, 0, 2, 3]),
        # beside others of their site that are distinguished by what they compute, or read
        (
            [
                *MAKE,
                *(("fill", f"p?{k}", (n,)) for k in (1, 2) for n in (0, 1)),
                ("fill", "u", (0,)),
                ("fill", "v", (1,)),
            ],
            [
                *MAKE[::-1],
                *(("fill", f"p?{k}", (n,)) for k in (2, 1) for n in (0, 1)),
                ("fill", "v", (0,)),
                ("fill", "u", (1,)),
            ],
            [1, 0, 5, 4, 3, 2, 7, 6],
        ),
        ([*MAKE, ("fill", "p?", (0,)), ("fill", "q?", (1,)), ("fill", "u", (0,)), ("fill", "v", (1,))],
         [*MAKE[::-1], ("fill", "q?", (0,)), ("fill", "p?", (1,)), ("fill", "v", (0,)), ("fill", "u", (1,))],
         [1, 0, 3, 2, 5, 4]),
    ],
)  # fmt: skip
def test_rows_of_a_site_change_places(tmp_path: Path, a: list[Row], b: list[Row], partners: list[int]) -> None:
    """Where they read what matched rows wrote, all rows of the site, or all but one that computes something else."""
    found, moved = matched(tmp_path, a, b)
    assert found == partners
    in_order = [partner for partner, own in zip(partners, moved, strict=True) if not own]
    assert in_order == sorted(in_order)


def rows_of_items(order: Sequence[int], pending: int) -> list[Row]:
    """A loop over a set: a value for each item, then chains of ops of which each reads the one before.

    The last two of a chain may hold unwritten memory, so that only what they read shows which is which.
    """
    rows: list[Row] = []
    made = {}
    for item in order:
        made[item] = len(rows)
        rows.append(("make", f"x{item}", ()))
    for site in ("use", "fill", "copy"):
        for item in order:
            last, made[item] = made[item], len(rows)
            rows.append((site, f"{site}{item}" + "?" * (site != "use"), (last, *([-1] if item == pending else []))))
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_a_loop_over_a_set(tmp_path: Path, seed: int) -> None:
    """Every row is matched with that of its item, whatever the order was."""
    random, items = Random(seed), range(5)
    orders = [random.sample(items, 5) for _ in range(2)]
    partners, moved = matched(tmp_path, *(rows_of_items(order, orders[0][0]) for order in orders))
    wanted = [5 * part + orders[1].index(item) for part in range(4) for item in orders[0]]
    assert partners == wanted
    assert all(own or k == partner for k, (own, partner) in enumerate(zip(moved, partners, strict=True)))


@pytest.mark.parametrize("seed", range(6))
def test_loops_before_a_change(tmp_path: Path, seed: int) -> None:
    """Rows of each loop are those of their items, though many compute the same, and other data and draws follow."""
    random, items = Random(seed), range(4)
    sides: list[list[Row]] = [[], []]
    wanted = []
    for _ in range(3):
        orders = [random.sample(items, 4) for _ in sides]
        for rows, order in zip(sides, orders, strict=True):
            first = len(rows)
            rows += [("make", f"x{item}", ()) for item in order]
            rows += [("use", f"u{item // 2}", (first + k,)) for k, item in enumerate(order)]
            rows += [("copy", "zeros", (first + 4 + k,)) for k in range(4)]
        first = len(wanted)
        wanted += [first + 4 * part + orders[1].index(item) for part in range(3) for item in orders[0]]
    for rows, side in zip(sides, "ab", strict=True):
        rows += [("use", f"changed in {side}", (0,)), ("draw", side, ()), ("make", f"other {side}", ())]
    partners, _ = matched(tmp_path, *sides)
    assert partners == [*wanted, *range(36, 39)]


def test_marked_rows_in_a_chain(tmp_path: Path) -> None:
    """A match of rows that may hold unwritten memory decides which of those that read them match, however many."""
    a: list[Row] = [*MAKE]
    b: list[Row] = [MAKE[1], MAKE[0]]
    for part in range(5):
        # sites in the order of their names, against which they read each other
        a += [(f"part{9 - part}", "p?", (2 * part,)), (f"part{9 - part}", "p?", (2 * part + 1,))]
        b += [(f"part{9 - part}", "p?", (2 * part,)), (f"part{9 - part}", "p?", (2 * part + 1,))]
    assert matched(tmp_path, a, b)[0] == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]


def steps(folder: Path, *orders: str) -> list[StreamView]:
    """Sides with a step of one row, and one of independent rows, a letter each, in two segments."""

    def build(trace: TraceBuilder, order: str) -> None:
        trace.op("aten.zeros.default", outputs=["before"])
        trace.end_step()
        for place, letter in enumerate(order):
            trace.op("aten.mm.default", inputs=[("outside", letter)], outputs=[letter.lower()])
            if place == 1:
                trace.commit()
        trace.end_step()

    return [
        view_of(folder / f"{n}.zarr", lambda trace, order=order: build(trace, order)) for n, order in enumerate(orders)
    ]


def test_a_step_in_another_order(tmp_path: Path) -> None:
    """Row by row, equal ones in turn; nothing is known where the rows differ, are too many or cannot be read."""
    a, b, other = steps(tmp_path, "pqrqs", "sqpqr", "sqpqx")
    found = reordered_rows(a, b, (1, 1, 5))
    assert found.b.tolist() == [2, 1, 4, 3, 0] and found.sure and (found.rows_a, found.rows_b) == (5, 5)
    assert (~found.moved).sum() == 2 and (np.diff(found.b[~found.moved]) > 0).all()
    assert partners_of(a, b, (1, 1, 5)).tolist() == [3, 2, 5, 4, 1]
    assert reordered_rows(a, other, (1, 1, 5)) is None
    assert partners_of(a, other, (1, 1, 5)).tolist() == [-1] * 5


def test_a_step_that_is_too_long_or_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No partner is known in a step that is too long or cannot be read."""
    a, b = steps(tmp_path, "pqrqs", "sqpqr")
    monkeypatch.setattr(reorder, "WINDOW_ROWS", 5)
    assert reordered_rows(a, b, (1, 1, 5)) is not None
    monkeypatch.setattr(reorder, "WINDOW_ROWS", 4)
    assert reordered_rows(a, b, (1, 1, 5)) is None
    monkeypatch.undo()
    (tmp_path / "again").mkdir()
    a, b = steps(tmp_path / "again", "pqrqs", "sqpqr")
    lose_rows(tmp_path / "again" / "1.zarr", 1)
    assert reordered_rows(a, b, (1, 1, 5)) is None
    assert partners_of(a, b, (1, 1, 5)).tolist() == [-1] * 5


def test_inputs_without_a_partner(tmp_path: Path) -> None:
    """Where a marked row reads what no row of the other side does, its site stays as it is."""
    a: list[Row] = [*MAKE, ("fill", "p?", (0,)), ("fill", "q?", (1,)), *USE]
    b: list[Row] = [*MAKE[::-1], ("fill", "q?", (0,)), ("fill", "p?", ("unknown",)), *USE[::-1]]
    assert matched(tmp_path, a, b)[0][2:4] == [2, 3]


def test_who_reads_a_tensor_first_moves_no_row(tmp_path: Path) -> None:
    """Rows that compute the same stay where they are, though one side alone digested what they read."""
    a, b = ([(("use", "u", (read,))), ("use", "u", (read,))] for read in (In(0, "weight"), In(0)))
    assert matched(tmp_path, a, b) == ([0, 1], [False, False])


def test_a_row_that_the_other_side_has_less_often_takes_no_partner(tmp_path: Path) -> None:
    """Of three equal calls two have one in B, whose order is mended; the third is A's alone."""
    call: Row = ("use", "zeros", (("outside", "p"),))
    a, b = ranges_of(tmp_path, [call, call, call, ("make", "x", ())], [call, call, ("make", "y", ())])
    pairs = np.array([0, 1, 3]), np.array([1, 0, 2])
    found = match_reordered(a, b, Alignment(4, 3, *pairs, np.zeros(3, bool), None))
    assert (found.a.tolist(), found.b.tolist()) == ([0, 1, 3], [0, 1, 2])


def test_more_of_a_loop_reorders_nothing(tmp_path: Path) -> None:
    """Rows that one side alone has compute the same as later ones: those keep their partners."""
    once: list[Row] = [("use", "zeros", (("outside", "p"),)), ("use", "ones", (("outside", "q"),))]
    assert matched(tmp_path, once, [*once, *once], before=2)[0] == [2, 3]


@pytest.mark.parametrize("longer", [0, 1])
def test_one_more_step_of_an_environment_reorders_nothing(tmp_path: Path, longer: int) -> None:
    """After it, ops of one side read what the other's next ones did, by chance: they stay in the order of the sites."""

    for trace, reads in both(tmp_path, ("p1", "q1"), ("q2", "step", "p1")):
        for read in reads:
            if read == "step":
                trace.event(Kind.ENVIRONMENT_STEP, "environment 0", digests={"observation": read})
            else:
                trace.op("aten.mm.default", inputs=[("outside", read[0])], outputs=[read])
    views = views_in(tmp_path)
    at, among = np.arange(2), np.array([0, 2])
    sides = [(views[0].read(0, 2), at), (views[1].read(0, 3), among)]
    (a, at_a), (b, at_b) = sides if longer else sides[::-1]
    found = match_reordered(a, b, Alignment(len(a), len(b), at_a, at_b, np.zeros(2, bool), None))
    assert (found.a.tolist(), found.b.tolist(), found.moved.any()) == (at_a.tolist(), at_b.tolist(), False)


@pytest.mark.parametrize("between", [reorder.GAP, reorder.GAP + 1])
def test_a_neighbour_behind_other_rows(between: int) -> None:
    """An equal row is matched after a matched one, or before it, with a number of rows of one side between at most."""
    a, b = (np.array(words, np.uint64) for words in ([1, 2], [1, *[0] * between, 2, *[0] * (reorder.GAP + 1)]))
    for known, place, order in ((0, 0, 1), (1, len(b) - 1, -1)):
        partners = _Partners(len(a), len(b))
        partners.add(np.array([known]), np.array([place]))
        partners.add_neighbours(a[::order], b[::order])
        found = -1 if between > reorder.GAP else place + order * (between + 1)
        assert partners.of[[known, 1 - known]].tolist() == [place, found]


def test_a_row_keeps_its_partner() -> None:
    """Of pairs that are matched later, those with a row of either side that has a partner are left out."""
    partners = _Partners(3, 3)
    for at_a, at_b in ((0, 1), (0, 2), (1, 1), (2, 2)):
        partners.add(np.array([at_a]), np.array([at_b]))
    assert partners.of.tolist() == [1, -1, 2]
    assert partners.free.tolist() == [True, False, False]


def test_too_many_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sites that do not fit are found again and again, every row stays where it is."""
    a: list[Row] = [*MAKE, *USE, ("fill", "p", (2,)), ("fill", "q", (-1,))]
    b: list[Row] = [*MAKE[::-1], ("use", "v", (1,)), ("use", "u", (1,)), ("fill", "q", (-1,)), ("fill", "p", (3,))]
    monkeypatch.setattr(reorder, "ROUNDS", 2)
    assert matched(tmp_path, a, b)[0] == [1, 0, 2, 3, 4, 5]
    monkeypatch.setattr(reorder, "ROUNDS", 1)
    assert matched(tmp_path / "again", a, b)[0] == [0, 1, 2, 3, 4, 5]
