"""What the runs with a module's rows put in may be said to show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spoken import Spoken

from rltrace.parity.call_range import works_itself
from rltrace.parity.impact.attribution import Contributions, PatchTrial, Share, choose_modules, related
from rltrace.trace.format.activation_rows import Part


def made(control: float | None, alone: list[float | None], in_turn: list[float | None]) -> Contributions:
    shares = tuple(
        Share(f"layers.{i}", PatchTrial(x), PatchTrial(y)) for i, (x, y) in enumerate(zip(alone, in_turn, strict=True))
    )
    return Contributions(("python", "train.py"), 1.0, PatchTrial(control), shares, PatchTrial(in_turn[-1]))


def test_parts_that_add_up() -> None:
    """Two modules side by side, each with its own part: alone they take away what they do together."""
    found = made(1.0, [0.7, 0.5], [0.7, 0.2])
    assert (found.repeats, found.add_up) == (True, True)
    assert found.removed_together == pytest.approx(0.8)
    assert [found.own(0), found.own(1)] == pytest.approx([0.3, 0.5])


def test_parts_that_overlap_do_not_add_up() -> None:
    """The second module's rows carry what came in from the first, so alone they take it away once more."""
    found = made(1.0, [0.4, 0.0], [0.4, 0.0])
    assert found.add_up is False
    assert found.removed_single == pytest.approx(1.6)
    assert [found.own(0), found.own(1)] == pytest.approx([0.6, 0.4])


def test_parts_that_only_help_together_do_not_add_up() -> None:
    """Interaction the other way round: alone, rows of one program in the midst of the other's can make it worse."""
    found = made(1.0, [1.25, 0.75], [1.25, 0.0])
    assert found.add_up is False
    assert found.own(0) == pytest.approx(-0.25)


def test_a_run_that_told_nothing_leaves_what_rests_on_it_unknown() -> None:
    """No number is made up for it; the others stand."""
    found = made(1.0, [None, 0.5], [None, 0.25])
    assert (found.add_up, found.removed_single, found.own(0), found.own(1)) == (None, None, None, None)
    assert found.removed_together == pytest.approx(0.75)
    without_control = made(None, [0.5], [0.5])
    assert (without_control.repeats, without_control.removed_together) == (None, None)


def test_a_trainer_that_does_not_repeat_itself_is_told() -> None:
    """The control comes out at another gap than the recorded run: the parts are measured from it, and that is said."""
    assert made(0.9, [0.5], [0.5]).repeats is False
    assert made(0.9, [0.5], [0.5]).removed_together == pytest.approx(0.4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_own_parts_always_add_up_to_the_whole(left: list[float], control: float) -> None:
    """Put in one on top of the other, what each takes away sums to what all do, whatever each run came out at."""
    found = made(control, [*left], [*left])
    own = [found.own(i) for i in range(len(left))]
    assert sum(part for part in own if part is not None) == pytest.approx(found.removed_together)


LAYER = ["norm", "attention.q", "attention", "mlp.up", "mlp.down", "mlp", ""]


def model(layers: int) -> list[str]:
    """Paths in the order in which calls end."""
    inner = [f"M.body.{i}{'.' if name else ''}{name}" for i in range(layers) for name in LAYER]
    return [*inner, "M.body.norm", "M.body", "M.head", "M"]


def test_modules_are_of_the_level_of_what_parts_by_itself() -> None:
    """None lies in another; what ends above that level stands in its own place."""
    found = choose_modules(model(1), "M.body.0.attention", 8)
    assert found == ("M.body.0.norm", "M.body.0.attention", "M.body.0.mlp", "M.body.norm", "M.head")


def test_many_modules_are_taken_a_level_higher() -> None:
    """Whole layers rather than a part of what is in them."""
    assert choose_modules(model(4), "M.body.0.attention", 8) == (
        *(f"M.body.{i}" for i in range(4)),
        "M.body.norm",
        "M.head",
    )


def test_layers_of_which_there_are_too_many_are_spread_evenly() -> None:
    """First and last of the level, and what holds the module that diverges by itself, are among them."""
    found = choose_modules(model(40), "M.body.7.attention", 8)
    assert len(found) == 8
    assert "M.body.7" in found and found[-1] == "M.head"
    assert list(found) == [path for path in model(40) if path in found]


def test_modules_that_work_with_what_theirs_gave_are_tried_too() -> None:
    """A layer that scales what its last module gave is none of these; tried after them, what is left is its own."""
    around = {"M.body.0", "M"}
    assert choose_modules(model(1), "M.body.0.attention", 8, around) == (
        "M.body.0.norm",
        "M.body.0.attention",
        "M.body.0.mlp",
        "M.body.0",
        "M.body.norm",
        "M.head",
        "M",
    )
    assert choose_modules(model(1), "M.body.0.attention", 5, around) == ("M.body.0", "M.body.norm", "M.head", "M")


def test_one_module_is_tried_alone() -> None:
    """A model of one module, or of which one differs."""
    assert choose_modules(["M"], "M", 8) == ("M",)
    assert choose_modules(["M.head", "M"], "M.head", 8) == ("M.head",)
    assert choose_modules(["M.head", "M"], None, 1) == ("M.head",)


@given(st.integers(1, 12), st.integers(1, 10), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_chosen_never_lies_in_another(layers: int, most: int, data: st.DataObject) -> None:
    """Whatever differs and however few may be tried: some, no more, in order; within another only if that works too."""
    paths = data.draw(st.lists(st.sampled_from(model(layers)), unique=True, min_size=1))
    paths.sort(key=model(layers).index)
    working = data.draw(st.sets(st.sampled_from(paths)))
    found = choose_modules(paths, data.draw(st.sampled_from([*paths, None])), most, working)
    assert 0 < len(found) <= most
    assert list(found) == [path for path in paths if path in found]
    assert not any(related(x, y) for i, x in enumerate(found) for y in found[:i] if x not in working)


def test_a_module_that_hands_on_what_another_gave_does_no_work_itself() -> None:
    """Told by what it gave: the very tensor of a module within it, however deep, or another one."""
    side = Spoken("b")
    given, made = np.ones((2, 3), np.float32), np.full((2, 3), 2.0, np.float32)
    for number, (path, parent, array) in enumerate(
        [("M", None, made), ("M.body", 0, given), ("M.body.layer", 1, given), ("M.head", 0, made)]
    ):
        side.call(number, parent, path, "Module", number, 4 if number < 1 else 3, (side.kept(Part.OUTPUT, "", array),))
    assert [works_itself(side.call_range, path) for path in ("M", "M.body", "M.body.layer")] == [False, False, True]
    side.call(4, None, "M", "Module", 4, 5, (side.kept(Part.OUTPUT, "", 2 * made),))
    assert works_itself(side.call_range, "M")
