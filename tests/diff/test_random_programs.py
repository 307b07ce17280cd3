"""Random scripts (loops, calls, recursion, optimizers out of step), random edits: the answer is what truly happened."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from edits import Editor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Do, recorded
from truths import Truth, readings

from rltrace.diff import compare
from rltrace.diff.align import window
from rltrace.diff.base.model import Cause, Comparison, Verdict
from scripts import Item, Writer

HARMLESS = (("log", "again"), ("log", "reorder"), ("log", "rename"))
HARMFUL = (
    ("value", "argument", "shape", "outside", "seed", "alias", "draw", "live"),
    ("value", "argument", "shape", "again", "log"),
    ("value", "outside", "alias", "log", "rename"),
    ("draw", "rename", "seed", "outside"),
    ("argument", "shape", "rename", "log"),
    ("rename", "draw", "live", "log"),
    ("overflow", "value", "outside", "log"),
    ("overflow", "draw", "rename", "alias"),
)
"""Kinds of edits that are made together. Others may hide each other: which of two equal ops moved cannot be known.
For the same reason the examples are always the same ones: of ten thousand others, a few are open to interpretation."""


def compared(random: Random, kinds: tuple[str, ...], most: int = 4) -> tuple[Comparison, list[Truth], list[str]]:
    """Record a script and its edited twin, in either order, and compare them."""
    ran = Writer(random).script().run()
    editor = Editor(random, ran)
    for _ in range(random.randint(0, most)):
        editor.edit(kinds)
    sides = [[Item(do, place) for place, do in enumerate(ran)], editor.items]
    if random.random() < 0.5:
        sides.reverse()
    with tempfile.TemporaryDirectory() as folder:
        a, b = (recorded(Path(folder) / f"{n}.zarr", [i.do for i in side]) for n, side in zip("ab", sides, strict=True))
        return compare(a.path, b.path), list(readings(a, sides[0], b, sides[1])), editor.made


def is_ambiguous(comparison: Comparison) -> bool:
    """More was added than there was; or rows at the very end, which may as well be a run that went on."""
    ended = any(f is not None and f.cause is Cause.ENDED for f in (comparison.first, comparison.decisive))
    return ended or "different programs" in comparison.why


def fewest(a: list[object], b: list[object]) -> tuple[int, int, int]:
    """Rows that one side alone has, on each, and the fewest of the others that have to be moved."""
    common = sum((Counter(a) & Counter(b)).values())
    table = [0] * (len(b) + 1)
    for x in a:
        corner = 0
        for j, y in enumerate(b):
            above = table[j + 1]
            table[j + 1] = corner + 1 if x == y else max(above, table[j])
            corner = above
    return len(a) - common, len(b) - common, common - table[-1]


def holds(comparison: Comparison, truths: list[Truth], made: list[str]) -> None:
    """The comparison says what is true, in one of the readings that nothing distinguishes."""
    if is_ambiguous(comparison):
        return
    for expected in truths[1:]:
        with suppress(AssertionError):
            holds_as_read(comparison, expected, made)
            return
    holds_as_read(comparison, truths[0], made)


def holds_as_read(comparison: Comparison, expected: Truth, made: list[str]) -> None:
    """Verdict, first difference, cause, and what was added or moved."""
    different = expected.value is not None or expected.harmful
    wanted = Verdict.IDENTICAL if expected.identical else Verdict.DIVERGED if different else Verdict.SAME_VALUES
    assert comparison.verdict is wanted, comparison.why
    value = comparison.first_value
    assert (value and (value.a_index, value.b_index)) == expected.value
    assert value is None or value.cause is expected.cause, value.explanation
    structure = comparison.structure
    if value is None and "rename" not in made:
        assert (structure.only_a, structure.only_b, structure.reordered) == fewest(*expected.rows)
    elif value is None and set(made) == {"rename"}:
        assert ((structure.only_a, structure.only_b), structure.reordered) == (expected.only, expected.moved)
    if expected.identical or expected.only == (0, 0):
        assert comparison.first == value
    else:
        first = comparison.first
        assert first.cause is Cause.CONTROL_FLOW
        if "again" not in made:  # which of two equal ops is the extra one cannot be known
            on_a = first.a_index is not None
            assert (first.a_index if on_a else first.b_index) == expected.one_sided[0 if on_a else 1]


examples = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@examples
@given(st.randoms(use_true_random=False), st.sampled_from(HARMLESS))
def test_what_changes_no_value_is_no_difference(random: Random, kinds: tuple[str, ...]) -> None:
    """Log lines, parts that run once more, moved ops, renamed functions: same values, and exactly those as hunks."""
    comparison, expected, made = compared(random, kinds)
    assert expected[0].value is None and not expected[0].harmful
    holds(comparison, expected, made)


@examples
@given(st.randoms(use_true_random=False), st.sampled_from(HARMFUL))
def test_the_first_of_several_edits_is_reported(random: Random, kinds: tuple[str, ...]) -> None:
    """Values, arguments, shapes, observations, seeds, unseen writes, extra draws and live ops: the first, its cause."""
    holds(*compared(random, kinds))


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False), st.sampled_from((*HARMLESS, *HARMFUL)))
def test_a_window_never_invents_a_difference(
    monkeypatch: pytest.MonkeyPatch, random: Random, kinds: tuple[str, ...]
) -> None:
    """The same where a stretch is aligned a few rows at a time: right, or said to be unsure."""
    monkeypatch.setattr(window, "WINDOW_ROWS", 96)
    comparison, truths, _ = compared(random, kinds)
    if comparison.verdict is not Verdict.UNKNOWN and not is_ambiguous(comparison):
        assert any(is_not_invented(comparison, expected) for expected in truths), comparison.why


def is_not_invented(comparison: Comparison, expected: Truth) -> bool:
    """Whether the verdict is right, and a difference in values, where one is named, the true one."""
    different = expected.value is not None or expected.harmful
    value = comparison.first_value
    named = value and (value.a_index, value.b_index, value.cause)
    true = expected.value and (*expected.value, expected.cause)
    return (comparison.verdict is Verdict.DIVERGED) == different and named in (None, true)


# --- a loop over a set ------------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Do], list[tuple[Do, bool]]]] = {
    "none": lambda do: [(do, True)],
    "value": lambda do: [(replace(do, noise="x"), True)],
    "argument": lambda do: [(replace(do, floats=(9.0,)), True)],
    "shape": lambda do: [(replace(do, shape=(5,)), True)],
    "extra": lambda do: [(Do("aten.add.Tensor", ("h",), "h", 150), False), (do, True)],
    "other work": lambda do: [(replace(do, reads=(*do.reads[:-1], "other")), True)],
    "left out": lambda do: [],
}
"""What takes the place of an op, and whether it is the same op."""


def loops_over_a_set(
    orders: Sequence[Sequence[str]], change: str = "none", at: tuple[int, str, int] = (0, "", 0)
) -> list[Item]:
    """Steps of training in which a loop takes its items in these orders; ``at``: step, item and op that are changed."""
    names, items = (
        sorted(orders[0]),
        [Item(Do("aten.randn.default", (), name, 90 + k), 90 + k) for k, name in enumerate(("other", "h"))],
    )
    for k, name in enumerate(names):
        items.append(Item(Do("aten.randn.default", (), f"w{name}", k), k))
        items.append(Item(Do("aten.zeros.default", (), f"out{name}", 50 + k), 50 + k))
    for step, order in enumerate(orders):
        first = 1_000 * (step + 1)
        items.append(Item(Do("outside", (), "x", noise=f"batch {step}"), first))
        for name in order:
            body = [
                Do("aten.mm.default", ("x", f"w{name}"), "h", 100),
                Do("aten.tanh.default", ("h",), "h", 101),
                Do("aten.mul.Tensor", ("h",), "h", 102, floats=(1.0,)),
                Do("aten.mean.default", ("h",), f"out{name}", 103),
            ]
            for k, do in enumerate(body):
                changed = (step, name) == at[:2] and (k == at[2] or change == "left out")
                own = first + 10 * (names.index(name) + 1) + k
                made = CHANGES[change](do) if changed else [(do, True)]
                items += [Item(one, own if is_same else None) for one, is_same in made]
        after = [Do("aten.zeros.default", (), "g0", 104)]
        after += [Do("aten.add_.Tensor", ("g0", f"out{name}"), "g0", 105) for name in names]
        after += [Do("aten.add_.Tensor", (f"w{name}", "g0"), f"w{name}", 106, floats=(0.1,)) for name in names]
        items += [Item(do, first + 500 + k) for k, do in enumerate([*after, Do("step")])]
    return items


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.sampled_from(list(CHANGES)))
def test_a_change_in_a_loop_over_a_set(random: Random, change: str) -> None:
    """Whatever the orders, the op that changed is named, with its cause; other work in it, as ops of one side alone."""
    names = "abcdef"[: random.randint(3, 6)]
    orders = [[random.sample(names, len(names)) for _ in range(2)] for _ in range(2)]
    at = random.randrange(2), random.choice(names), random.randrange(4)
    sides = [loops_over_a_set(orders[0]), loops_over_a_set(orders[1], change, at)]
    if random.random() < 0.5:
        sides.reverse()
    with tempfile.TemporaryDirectory() as folder:
        a, b = (recorded(Path(folder) / f"{n}.zarr", [i.do for i in side]) for n, side in zip("ab", sides, strict=True))
        comparison, expected = compare(a.path, b.path), next(readings(a, sides[0], b, sides[1]))
    if expected.value is None and not expected.harmful:
        wanted = Verdict.IDENTICAL if expected.identical else Verdict.SAME_VALUES
        assert (comparison.verdict, comparison.structure.reordered) == (wanted, expected.moved)
        return
    value = comparison.first_value
    assert comparison.verdict is Verdict.DIVERGED and value is not None
    assert value.cause is expected.cause, value.explanation
    if change != "other work":  # it cannot be known whether it is that op, or another one and one less
        assert (value.a_index, value.b_index) == expected.value
