"""Streams are cut where both sides ended the same attempt of an optimizer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from views import view_of

from rltrace.diff.align import blocks as blocks_module
from rltrace.diff.align.blocks import (
    Block,
    batches,
    blocks,
    first_block,
    first_unequal_step,
    match_steps,
    recorded_at,
    same_in_any_order,
    step_after,
)
from rltrace.diff.base.view import StreamView
from rltrace.diff.stream.compare import compare_streams
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import within_stream
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

Steps = Sequence[str]
"""Digests that the ops of a step return, as letters; the last one may lack its end."""


@dataclass(frozen=True)
class Attempt:
    """An attempt of an optimizer, and the ops before it."""

    optimizer: int
    ops: str
    recorded: bool = True
    parameters: str | None = None


def written(path: Path, attempts: list[Attempt], left: str) -> StreamView:
    def build(trace: TraceBuilder) -> None:
        for one in attempts:
            for op in one.ops:
                trace.op("aten.mm.default", site=(f"{op}.py", 1, "f", op), outputs=[op])
            state = {"parameters": one.parameters, "gradients": "d", "generators": "g"}
            trace.end_step(ordinal=one.optimizer, recorded=one.recorded, **state)
        for op in left:
            trace.op("aten.mm.default", site=(f"{op}.py", 1, "f", op), outputs=[op])

    return view_of(path, build)


def side(path: Path, steps: Steps, left: str = "", recorded: Sequence[bool] = ()) -> StreamView:
    known = recorded or [True] * len(steps)
    return written(path, [Attempt(0, ops, is_known) for ops, is_known in zip(steps, known, strict=True)], left)


def cut(a: StreamView, b: StreamView) -> list[tuple[int, int, int, int, str]]:
    """Ranges of A and B, and what is known of them."""
    letters = {"ended": "e", "same": "s", "recorded": "r", "reordered": "d"}
    return [
        (one.a0, one.a1, one.b0, one.b1, "".join(letters[name] for name in letters if getattr(one, name)))
        for one in blocks(a, b)
    ]


def test_steps_that_were_not_recorded(tmp_path: Path) -> None:
    """Digests of steps that were not recorded prove nothing."""
    a = side(tmp_path / "a.zarr", ["x", "y", "z"], recorded=[True, False, True])
    b = side(tmp_path / "b.zarr", ["x", "y", "w"])
    assert [(*block[:2], block[4]) for block in cut(a, b)] == [(0, 1, "esr"), (1, 2, "e"), (2, 3, "er"), (3, 3, "r")]
    assert first_unequal_step(a, b) == (2, 2)
    assert first_unequal_step(a, a) is None


def test_optimizers_after_a_warm_up(tmp_path: Path) -> None:
    """Those of a process that begins with new ones are the first ones, in their order."""

    def attempts(name: str, *ordinals: int) -> ProcessTrace:
        return view_of(tmp_path / f"{name}.zarr", lambda t: [t.end_step(ordinal=n) for n in ordinals]).process

    a, b = attempts("a", 0, 1, 2, 1).from_step(1), attempts("b", 0, 1, 0)
    found = match_steps(a, a.steps, b, b.steps)
    assert [at.tolist() for at in found] == [[0, 1, 2]] * 2


def test_the_block_of_the_first_difference(tmp_path: Path) -> None:
    """From a row to the end of its step; to the end where no step follows; none where only one side has a step. Its ops
    count as recorded only where they are on both sides."""
    a, b = side(tmp_path / "a.zarr", ["xy", "zz"], "k"), side(tmp_path / "b.zarr", ["xy", "w"], "kl")
    assert first_block(a, b, 1) == Block(1, 2, 1, 2, True, False, True)
    assert first_block(a, b, 2) == Block(2, 4, 2, 3, True, False, True)
    assert first_block(a, b, 4) == Block(4, 5, 4, 5, False, False, True)
    assert first_block(a, b, 3) is None
    partly = side(tmp_path / "partly.zarr", ["xy", "w"], recorded=[False, True])
    assert [first_block(*sides, 1) for sides in ((a, partly), (partly, a))] == [
        Block(1, 2, 1, 2, True, False, False)
    ] * 2


def test_the_end_of_a_step_in_another_order(tmp_path: Path) -> None:
    """Only where the block ends with the step on both sides and has as many rows, all of them recorded."""
    a, b = side(tmp_path / "a.zarr", ["xyz", "pq"]), side(tmp_path / "b.zarr", ["xzy", "pr"])
    assert same_in_any_order(a, b, Block(1, 3, 1, 3, True, False, True))
    assert not same_in_any_order(a, b, Block(1, 3, 1, 3, False, False, True))
    assert not same_in_any_order(a, b, Block(1, 3, 1, 3, True, False, False))
    assert not same_in_any_order(a, b, Block(1, 3, 0, 3, True, False, True))
    assert not same_in_any_order(a, b, Block(1, 2, 1, 2, True, False, True))
    assert not same_in_any_order(a, b, Block(3, 5, 3, 5, True, False, True))


# --- slow, obvious references -----------------------------------------------------------------------------------------


def random_attempts(random: Random) -> list[Attempt]:
    """Optimizer 0's are matched with those of the other side."""
    return [
        Attempt(0, random.choice(("", "x", "xy", "yx", "xyz")), random.random() < 0.9, random.choice((None, None, "p")))
        for _ in range(random.randint(0, 7))
    ]


def with_others(random: Random, attempts: list[Attempt], optimizer: int) -> list[Attempt]:
    """With attempts that the other side has none of."""
    found = [*attempts]
    for _ in range(random.choice((0, 0, 1, 2))):
        found.insert(random.randint(0, len(found)), Attempt(optimizer, random.choice(("", "x", "zz"))))
    return found


def edited(random: Random, attempts: list[Attempt]) -> list[Attempt]:
    """Some of them with other ops, another order or other parameters, and perhaps one more or fewer."""
    found = []
    for one in attempts:
        ops = random.choice((one.ops, one.ops, one.ops, one.ops[::-1], one.ops + "w"))
        found.append(replace(one, ops=ops, parameters=random.choice((one.parameters, one.parameters, "q"))))
    return found[: random.choice((7, 7, 7, 3))]


def ends_of(attempts: list[Attempt]) -> list[int]:
    return np.cumsum([len(one.ops) for one in attempts]).astype(int).tolist()


def blocks_slowly(a: list[Attempt], b: list[Attempt], rows: tuple[int, int]) -> list[Block]:
    """Step by step."""
    matched = list(zip(*([k for k, one in enumerate(side) if one.optimizer == 0] for side in (a, b)), strict=False))
    ends_a, ends_b = ends_of(a), ends_of(b)
    found: list[Block] = []
    last = (-1, -1)
    for i, j in matched:
        a0, b0 = (ends_a[last[0]], ends_b[last[1]]) if last[0] >= 0 else (0, 0)
        between = [*a[last[0] + 1 : i + 1], *b[last[1] + 1 : j + 1]]
        recorded, single = all(one.recorded for one in between), len(between) == 2
        x, y = a[i], b[j]
        same = recorded and single and x.ops == y.ops
        state = x.parameters is None or y.parameters is None or x.parameters == y.parameters
        reordered = recorded and single and not same and sorted(x.ops) == sorted(y.ops) and state
        one = Block(a0, ends_a[i], b0, ends_b[j], True, same, recorded, reordered)
        if found and found[-1].same and same:
            one = replace(one, a0=found[-1].a0, b0=found[-1].b0)
            found.pop()
        found.append(one)
        last = i, j
    a0, b0 = (found[-1].a1, found[-1].b1) if found else (0, 0)
    more_a, more_b = a[last[0] + 1 :], b[last[1] + 1 :]
    a1, b1 = rows
    rest_a, rest_b, most = a1 - a0, b1 - b0, blocks_module.WINDOW_ROWS
    if more_a and not more_b and rest_a > most and rest_b < ends_a[last[0] + 1] - a0:
        a1 = ends_a[last[0] + 1]
    if more_b and not more_a and rest_b > most and rest_a < ends_b[last[1] + 1] - b0:
        b1 = ends_b[last[1] + 1]
    return [*found, Block(a0, a1, b0, b1, False, False, True)]


def random_sides(
    folder: Path, random: Random, count: int
) -> Iterator[tuple[list[Attempt], StreamView, list[Attempt], StreamView]]:
    for case in range(count):
        shared = random_attempts(random)
        a, b = with_others(random, shared, 1), with_others(random, edited(random, shared), 2)
        left = random.choice(("", "k")), random.choice(("", "kl"))
        yield a, written(folder / f"{case}a.zarr", a, left[0]), b, written(folder / f"{case}b.zarr", b, left[1])


def test_random_steps(tmp_path: Path) -> None:
    """Blocks are those of a walk step by step."""
    for attempts_a, a, attempts_b, b in random_sides(tmp_path, Random(3), 20):
        assert list(blocks(a, b)) == blocks_slowly(attempts_a, attempts_b, (a.rows, b.rows))


def ranges(found: Iterable[Block]) -> list[tuple[int, int, int, int]]:
    """Those that hold any row."""
    return [(x.a0, x.a1, x.b0, x.b1) for x in found if x.a1 > x.a0 or x.b1 > x.b0]


def test_random_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks from a row on, in order; of those that only rows can decide as many together as fit."""
    most = 6
    monkeypatch.setattr(blocks_module, "WINDOW_ROWS", most)
    random, together = Random(4), 0
    for attempts_a, a, attempts_b, b in random_sides(tmp_path, random, 20):
        whole = blocks_slowly(attempts_a, attempts_b, (a.rows, b.rows))
        for start in (0, random.randint(0, min(a.rows, b.rows))):
            cut = [
                replace(one, a0=max(one.a0, start), b0=max(one.b0, start))
                for one in whole
                if one.a1 > start or one.b1 > start
            ]
            found = list(batches(a, b, start, is_aligned=False))
            if not any(one.a1 < one.a0 or one.b1 < one.b0 or (one.a0 == one.a1) != (one.b0 == one.b1) for one in cut):
                assert ranges(one for batch in found for one in batch) == ranges(cut)
            for number, batch in enumerate(found):
                following = [*batch, *(found[number + 1][:1] if number + 1 < len(found) else ())]
                plain = [one.ended and one.recorded and not one.decided_by_digests for one in following]
                rows = [max(one.a1 - batch[0].a0, one.b1 - batch[0].b0) for one in following]
                assert len(batch) == 1 or (all(plain[: len(batch)]) and rows[len(batch) - 1] <= most)
                assert len(following) == len(batch) or not all(plain) or rows[-1] > most
                together += len(batch) > 1
    assert together > 3


def test_the_first_block_is_a_batch(tmp_path: Path) -> None:
    """Where rows before the base match, its step comes first, found without the others; then the rest."""
    a, b = (
        side(tmp_path / "a.zarr", ["xy", "pq", "z", "u"], "k"),
        side(tmp_path / "b.zarr", ["xy", "pr", "z", "v"], "k"),
    )
    found = list(batches(a, b, 3, is_aligned=True))
    assert found[0] == [Block(3, 4, 3, 4, True, False, True)] and len(found) == 4
    assert ranges(one for batch in found[1:] for one in batch) == [(4, 5, 4, 5), (5, 6, 5, 6), (6, 7, 6, 7)]
    assert found[1][0].same and not found[2][0].same
    last = list(batches(a, b, 6, is_aligned=True))
    assert last == [[Block(6, 7, 6, 7, False, False, True)]]


@pytest.mark.parametrize(
    ("a", "b", "start", "expected"),
    [
        (["xy", "z"], ["xyw", "z"], 2, [(2, 3, 2, 4)]),
        (["xy"], ["xyw"], 2, [(2, 2, 2, 3)]),
        (["x", "y", "z"], ["xw", "v", "z"], 2, [(2, 3, 2, 4)]),
        (["x", "", "z"], ["x", "w", "z"], 0, [(0, 1, 0, 1), (1, 1, 1, 2), (1, 2, 2, 3)]),
        (["x", "", "z"], ["x", "w", "z"], 1, [(1, 1, 1, 2), (1, 2, 2, 3)]),
    ],
)
def test_a_block_cut_down_to_rows_of_one_side(
    tmp_path: Path, a: Steps, b: Steps, start: int, expected: list[tuple[int, int, int, int]]
) -> None:
    """It is aligned with the next one, as its rows may be those of it; not where it has unmatched rows already."""
    views = side(tmp_path / "a.zarr", a), side(tmp_path / "b.zarr", b)
    for pair, columns in ((views, (0, 1, 2, 3)), (views[::-1], (2, 3, 0, 1))):
        found = ranges(one for batch in batches(*pair, start, is_aligned=False) for one in batch)
        assert [tuple(block[k] for k in columns) for block in found] == expected


def test_rows_after_the_last_step_in_a_window(tmp_path: Path) -> None:
    """They are of the step after it: recorded where a window includes it, on both sides."""

    def ending(name: str, *windows: tuple[int, int | None]) -> StreamView:
        def build(trace: TraceBuilder) -> None:
            for step in range(4):
                for first, end in windows:
                    if first == step:
                        trace.window(first, end)
                trace.op("aten.mm.default", outputs=[str(step)])
                if step < 3:
                    trace.end_step()

        return view_of(tmp_path / f"{name}.zarr", build)

    whole, late, early = ending("whole"), ending("late", (0, 1), (3, 4)), ending("early", (0, 3))
    assert [recorded_at(late, step) for step in range(5)] == [True, False, False, True, False]
    assert [recorded_at(early, step) for step in range(4)] == [True, True, True, False]
    assert all(recorded_at(whole, step) for step in range(4))
    assert [step_after(whole, place) for place in range(5)] == [0, 1, 2, 3, 3]
    assert [[*blocks(*views)][-1].recorded for views in ((whole, late), (whole, early), (early, late))] == [
        True,
        False,
        False,
    ]


def within(path: Path, first: int, end: int | None, steps: int = 5) -> StreamView:
    """What is within the calls of a JAX program: two rows a step, and one after the last."""
    trace = TraceBuilder(path, first_step=first)
    stream = trace.stream(within_stream("rank0/main", "jit.update", "0" * 16))
    for step in range(steps + 1):
        if step == first:
            trace.window(first, end)
            stream.window(first, end)
        recorded = first <= step and (end is None or step < end)
        for number in range(2 if step < steps else 1) if recorded else ():
            stream.op("tanh", outputs=[f"{step} {number}"])
        stream.commit()
        if step < steps:
            trace.end_step(recorded=recorded)
    process = open_trace(trace.finish()).processes[0]
    return StreamView(process, next(each for each in process.streams if each.rows))


def test_what_is_within_calls_is_cut_where_the_windows_are(tmp_path: Path) -> None:
    """By the steps of its rows, as no attempt ends there: adjacent steps that both sides recorded are one block."""
    windows: list[tuple[int, int | None]] = [(0, None), (1, 3), (2, 5), (3, None)]
    whole, early, late, open_ = (within(tmp_path / f"{n}.zarr", *each) for n, each in enumerate(windows))
    assert cut(whole, whole) == [(0, 11, 0, 11, "r")]
    assert cut(whole, early) == [(0, 2, 0, 0, "e"), (2, 6, 0, 4, "er"), (6, 10, 4, 4, "e"), (10, 11, 4, 4, "")]
    assert cut(early, late) == [(0, 2, 0, 0, "e"), (2, 4, 0, 2, "er"), (4, 4, 2, 6, "e"), (4, 4, 6, 6, "")]
    assert cut(open_, whole) == [(0, 0, 0, 6, "e"), (0, 4, 6, 10, "er"), (4, 5, 10, 11, "r")]


def test_what_is_within_calls_and_cannot_be_read(tmp_path: Path) -> None:
    """Where rows that decide where a window begins cannot be read, the comparison ends at them, undecided."""
    whole, window = within(tmp_path / "whole.zarr", 0, None), within(tmp_path / "window.zarr", 1, 3)
    whole.stream.holes.append((4, 2, "lost"))
    whole.stream.segments = [each for each in whole.stream.segments if each.first != 4]
    whole = StreamView(whole.process, whole.stream)
    assert cut(whole, window)[-1] == (4, 11, 0, 4, "r")
    assert compare_streams(whole, window, ()).undecided == "rows 4 to 5 of A cannot be read"
