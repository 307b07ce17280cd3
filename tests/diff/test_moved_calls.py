"""A pair of rows with different call sites is one op where what it reads, or who reads it, says so."""

from pathlib import Path
from random import Random

import numpy as np
from views import context_of, lose_rows, random_sides, view_of

from rltrace.diff.align.moved_calls import drop_false_matches, same_writers, with_matching_users
from rltrace.diff.align.rows import Alignment
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import row_at, writer_of
from rltrace.diff.base.row_diff import difference
from rltrace.diff.base.view import RowRange
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Generator, Origin, RowFlag


def test_what_follows_may_be_unreadable(tmp_path: Path) -> None:
    """No consumer is known where the rows after the range cannot be read."""

    def build(trace: TraceBuilder) -> None:
        trace.op("aten.mul.Tensor", outputs=["x"])
        trace.commit()
        trace.op("aten.mul.Tensor", inputs=[0], outputs=["y"])

    a, b, _ = (view_of(tmp_path / f"{side}.zarr", build) for side in ("a", "b", "broken"))
    broken = lose_rows(tmp_path / "broken.zarr", 1)
    found = Alignment(1, 1, np.array([0]), np.array([0]), np.zeros(1, bool), None)
    for other, used in ((b, [True]), (broken, [False])):
        assert (
            with_matching_users(a.read(0, 1), other.read(0, 1), found, ~np.ones(1, bool), ahead=True).tolist() == used
        )


# --- slow, obvious references -----------------------------------------------------------------------------------------


Use = tuple[int, int, int]
"""Places of a producer and of a consumer in a range, and which input of the consumer it is."""


def uses(side: RowRange, of: RowRange) -> set[Use]:
    """What rows of ``of`` read that an earlier row wrote; places count from the start of ``side``."""
    shift = of.first - side.first
    return {
        (shift + user - link.distance, shift + user, place)
        for user in range(len(of))
        for place, link in enumerate(of.rows.inputs(user))
        if link.distance > 0 and not link.known
    }


def users_after(side: RowRange, writer: int) -> set[tuple[int, int]]:
    after = side.view.read(side.end, side.end + 6)
    found = [(user, place) for wrote, user, place in uses(side, after) if wrote == writer]
    return {(int(after.tokens.identity[user - len(side)]), place) for user, place in found}


def used_slowly(a: RowRange, b: RowRange, found: Alignment, sure: list[bool], *, ahead: bool) -> list[bool]:
    """Pairs whose users are sure, or used by pairs that are, to the end; ``ahead``: or matched after the ranges."""
    partner = dict(zip(found.a.tolist(), found.b.tolist(), strict=True))
    in_a, in_b = uses(a, a), uses(b, b)
    shared = {
        (writer, user)
        for writer, user, place in in_a
        if {writer, user} <= partner.keys() and (partner[writer], partner[user], place) in in_b
    }
    used = set()
    for k, (i, j) in enumerate(partner.items()):
        idle = not any(i == wrote for wrote, *_ in in_a) and not any(j == wrote for wrote, *_ in in_b)
        if ahead and idle and not sure[k] and a.rows.value(i) is None and users_after(a, i) & users_after(b, j):
            used.add(i)
    for _ in partner:
        used |= {writer for writer, user in shared if user in used or sure[list(partner).index(user)]}
    return [i in used for i in partner]


def same_writers_slowly(
    context: DiffContext, a: RowRange, i: int, b: RowRange, j: int, partner: dict[int, int]
) -> bool | None:
    """All known producers are matched: those in the ranges with each other, those before by the rows before."""
    rows = row_at(a.view, a.first + i), row_at(b.view, b.first + j)
    answers = []
    for x, y in zip(a.rows.inputs(i), b.rows.inputs(j), strict=False):
        if "overwritten" in (Origin(o.distance).name.lower() if o.distance <= 0 else "" for o in (x, y)):
            continue
        wrote = writer_of(rows[0], x), writer_of(rows[1], y)
        if wrote == (None, None):
            continue
        if wrote[0] is None or wrote[1] is None:
            answers.append(False)
        elif wrote[0].index < a.first or wrote[1].index < b.first:
            before = wrote[0].index < a.first and wrote[1].index < b.first
            answers.append(before and context.matching.partner(wrote[0].index) == wrote[1].index)
        else:
            answers.append(partner.get(wrote[0].index - a.first) == wrote[1].index - b.first)
    return all(answers) if answers else None


def put_back_slowly(a: RowRange, b: RowRange, pairs: list[tuple[int, int]], k: int) -> bool:
    """The next pair that draws from the same generators as this one is one op, whose states are compared and equal."""

    def generators(i: int, j: int) -> tuple[int, int]:
        return int(a.rows.generators[i]), int(b.rows.generators[j])

    own = generators(*pairs[k])
    for i, j in pairs[k + 1 :]:
        states = a.rows.rng(i), b.rows.rng(j)
        if None not in states and generators(i, j) == own and Generator.UNKNOWN not in own:
            marked = (a.rows.flags(i) | b.rows.flags(j)) & RowFlag.MARKED
            return bool(not marked and a.tokens.identity[i] == b.tokens.identity[j] and states[0] == states[1])
    return False


def kept_slowly(context: DiffContext, a: RowRange, b: RowRange, found: Alignment) -> list[tuple[int, int]]:
    """The pairs without those at other sites that differ and are two ops, up to the first that differs and is one."""
    pairs = list(zip(found.a.tolist(), found.b.tolist(), strict=True))
    other = [a.tokens.identity[i] != b.tokens.identity[j] for i, j in pairs]
    equal = [bool(a.hashes.values[i] == b.hashes.values[j] and a.computation[i] == b.computation[j]) for i, j in pairs]
    used = used_slowly(a, b, found, [not o or e for o, e in zip(other, equal, strict=True)], ahead=True)
    partner, dropped = dict(pairs), set()
    for k, (i, j) in enumerate(pairs):
        if not other[k] or equal[k] or not difference(a, i, b, j).found:
            continue
        near = [n for n in (k - 1, k + 1) if 0 <= n < len(pairs) and pairs[n] == (i + n - k, j + n - k) and equal[n]]
        edge = (i, j) in ((0, 0), (len(a) - 1, len(b) - 1)) and a.first > 0 and b.first > 0
        draws = a.rows.rng(i) is not None and b.rows.rng(j) is not None
        if draws and (near or edge) and not put_back_slowly(a, b, pairs, k):
            break
        same = same_writers_slowly(context, a, i, b, j, partner)
        moved = k > 0 and other[k - 1] and pairs[k - 1] not in dropped and pairs[k - 1] == (i - 1, j - 1)
        read = any(
            x.digest is not None and x.digest == y.digest
            for x, y in zip(a.rows.inputs(i), b.rows.inputs(j), strict=False)
        )
        if used[k] or (moved or read if same is None else same):
            break
        dropped.add((i, j))
        del partner[i]
    return [pair for pair in pairs if pair not in dropped]


def test_random_ranges(tmp_path: Path) -> None:
    """Ranges of ten rows come out as by a reading of each row, whatever was matched."""
    random = Random(19)
    whole = random_sides(tmp_path, random, 800, 10)
    dropped = 0
    for start in range(0, 780, 10):
        stops = [start + random.randint(8, 10) for _ in whole]
        a, b = (view.read(start, stop) for view, stop in zip(whole, stops, strict=True))
        context = context_of(*whole, [(row, row) for row in range(start)])
        at_a = [i for i in range(min(len(a), len(b))) if random.random() < 0.9]
        at_b = [*at_a]
        if random.random() < 0.3:
            random.shuffle(at_b)
        moved = np.array([i != j for i, j in zip(at_a, at_b, strict=True)], bool)
        found = Alignment(len(a), len(b), np.array(at_a), np.array(at_b), moved, None)
        sure = np.array([random.random() < 0.4 for _ in at_a], bool)
        for ahead in (False, True):
            wanted = used_slowly(a, b, found, sure.tolist(), ahead=ahead)
            assert with_matching_users(a, b, found, sure, ahead=ahead).tolist() == wanted
        partner = np.full(len(a), -1)
        partner[at_a] = at_b
        of = dict(zip(at_a, at_b, strict=True))
        for i, j in of.items():
            assert same_writers(context, (a, i), (b, j), partner) == same_writers_slowly(context, a, i, b, j, of)
        kept = drop_false_matches(context, a, b, found)
        assert list(zip(kept.a.tolist(), kept.b.tolist(), strict=True)) == kept_slowly(context, a, b, found)
        dropped += len(found.a) - len(kept.a)
    assert dropped > 20
