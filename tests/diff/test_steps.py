"""Traces compared by what was digested at each optimizer attempt."""

from pathlib import Path
from typing import Any

import pytest
from views import both, compare_in

from rltrace.command_lines import parse_line
from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.testing import TraceBuilder


def trace(
    path: Path, steps: int = 6, level: str = "step", state: str = "complete", unseen: int = 0, **changes: Any
) -> Path:
    """A run of ``steps`` attempts; ``parameters=(3, "x")``: another digest from step 3 on.

    ``unseen``: so many steps before NumPy's generator is there.
    """
    builder = TraceBuilder(path, level=level, engine="none" if level == "step" else "testing")
    for step in range(steps):
        taken = {}
        for name in ("parameters", "gradients", "generators", "python", "numpy"):
            first, value = changes.get(name, (steps, ""))
            taken[name] = f"{name} {step} {value if step >= first else ''}"
        if step < unseen:
            taken["numpy"] = 0
        if level == "op":
            builder.op("aten.mm.default", outputs=[taken["parameters"]])
        builder.end_step(**taken, recorded=level == "op")
    return builder.finish(state)


def compared(tmp_path: Path, **changes: tuple[int, str]) -> Comparison:
    return compare(trace(tmp_path / "a.zarr"), trace(tmp_path / "b.zarr", **changes))


def test_equal_steps(tmp_path: Path) -> None:
    """All digests equal: identical, at step level."""
    comparison = compared(tmp_path)
    assert (comparison.verdict, comparison.level, comparison.first) == (Verdict.IDENTICAL, "step", None)
    assert "6 steps" in comparison.why


@pytest.mark.parametrize("what", ["parameters", "gradients", "generators"])
def test_the_first_step_that_differs(tmp_path: Path, what: str) -> None:
    """It is named with the digest that differs, and with commands that record it and the step before op by op."""
    comparison = compared(tmp_path, **{what: (3, "x")})
    found = comparison.first
    assert found is not None and comparison.verdict is Verdict.DIVERGED
    assert (found.step, found.identical_before, found.op, found.cause) == (3, 3, None, Cause.UNKNOWN)
    assert found.explanation.startswith(f"the {what.replace('generators', 'torch generator states')} differ")
    assert [pair.a != pair.b for pair in found.outputs].count(True) == 1
    *records, diff = (parse_line(line).argv for line in comparison.advice)
    recording = ("rltrace", "record", "--steps", "2:4", "--until", "3", "-o")
    for argv, name in zip(records, "ab", strict=True):
        assert argv == (*recording, str(Path(f"{name}-window.zarr").absolute()), "--", "python", "train.py")
    assert diff == ("rltrace", "diff", "a-window.zarr", "b-window.zarr")


def test_unseeded_generators(tmp_path: Path) -> None:
    """Python's and NumPy's are seeded from the clock unless the program does it: named, and no difference."""
    comparison = compared(tmp_path, python=(0, "x"), numpy=(0, "x"))
    assert comparison.verdict is Verdict.IDENTICAL
    (note,) = comparison.notes
    assert note.startswith("the Python and NumPy generator states differ from the first step on")


def test_torch_generators_have_a_seed_of_their_own(tmp_path: Path) -> None:
    """torch seeds its own with a constant: where they differ, from the first step on too, the runs differ."""
    comparison = compared(tmp_path, generators=(0, "x"), numpy=(0, "x"))
    assert comparison.first.step == 0
    assert comparison.first.explanation.startswith("the torch generator states differ")


def test_a_generator_beside_torch_that_leaves_its_path_is_a_lead(tmp_path: Path) -> None:
    """It decides nothing, for no op draws from it; where it began is said, before the step that shows it."""
    comparison = compared(tmp_path, numpy=(3, "x"), parameters=(4, "x"))
    assert comparison.first.step == 4
    assert comparison.notes[0].startswith("the NumPy generator states are equal before step 3 and differ from there on")
    alone = compare(trace(tmp_path / "c.zarr"), trace(tmp_path / "d.zarr", numpy=(3, "x")))
    assert (alone.verdict, len(alone.notes)) == (Verdict.IDENTICAL, 1)


def test_a_generator_that_one_side_imports_later(tmp_path: Path) -> None:
    """Compared from where both have it; unseeded, it differs from there on."""
    a, b = trace(tmp_path / "a.zarr", unseen=2, numpy=(0, "x")), trace(tmp_path / "b.zarr")
    assert "from the first step on" in compare(a, b).notes[0]
    c = trace(tmp_path / "c.zarr", unseen=2)
    assert compare(b, c).notes == ()


def test_parameters_count_though_generators_do_not(tmp_path: Path) -> None:
    """The first step of another parameter is found all the same."""
    comparison = compared(tmp_path, python=(0, "x"), parameters=(4, "x"))
    assert comparison.first.step == 4
    assert "Python" not in comparison.first.explanation


def test_op_level_against_step_level(tmp_path: Path) -> None:
    """A trace with ops carries the step digests too; it is said that only those were compared."""
    a = trace(tmp_path / "a.zarr", level="op")
    comparison = compare(a, trace(tmp_path / "b.zarr", parameters=(2, "x")))
    assert (comparison.level, comparison.verdict) == ("step", Verdict.DIVERGED)
    assert comparison.first.step == 2
    assert "level op" in comparison.notes[0]


def test_fewer_steps(tmp_path: Path) -> None:
    """A complete run with fewer attempts ended earlier; one that was killed is equal so far."""
    longer = trace(tmp_path / "a.zarr", steps=8)
    comparison = compare(longer, trace(tmp_path / "b.zarr"))
    assert (comparison.first.cause, comparison.first.step) == (Cause.ENDED, 6)
    killed = compare(longer, trace(tmp_path / "c.zarr", state="killed"))
    assert (killed.verdict, killed.first) == (Verdict.UNKNOWN, None)


def test_traces_of_one_name(tmp_path: Path) -> None:
    """Two traces called alike in two folders: their windows get names of their own."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    comparison = compare(trace(tmp_path / "one" / "t.zarr"), trace(tmp_path / "two" / "t.zarr", parameters=(1, "x")))
    assert comparison.advice[2] == "rltrace diff one-t-window.zarr two-t-window.zarr"


def test_step_numbers_of_each_side(tmp_path: Path) -> None:
    """One side made an attempt more of another optimizer: each side's command names its own step."""
    for builder, side in both(tmp_path, level="step"):
        if side == "b":
            builder.end_step("SGD", 1, parameters="critic", gradients="g", generators="r")
        for step in range(4):
            builder.end_step("Adam", 0, parameters=f"{step} {side if step >= 2 else ''}", gradients="g", generators="r")
    comparison = compare_in(tmp_path)
    assert "--steps 1:3" in comparison.advice[0] and "--steps 2:4" in comparison.advice[1]
