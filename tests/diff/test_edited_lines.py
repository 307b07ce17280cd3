"""Renamed functions, moved files and edited lines: the op is the same one, and a difference is reported there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from programs import Do, Machine, training

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict

Record = Callable[..., Machine]


def edited(program: Sequence[Do], lines: Sequence[int] = (), **how: Any) -> list[Do]:
    """``program``, everywhere or on these lines, with what ``how`` changes."""
    return [replace(do, **how) if do.is_op and (not lines or do.line in lines) else do for do in program]


def drawing_late(program: list[Do], place: int) -> list[Do]:
    """``program`` with one more draw, on a line of its own."""
    return [*program[:place], Do("aten.rand.default", (), "extra", 98), *program[place:]]


def found(record: Record, a: list[Do], b: list[Do]) -> Comparison:
    there, back = compare(record(a).path, record(b).path), compare(record(b).path, record(a).path)
    assert there.verdict is back.verdict
    assert (there.first_value is None) == (back.first_value is None)
    return there


def test_a_moved_file_and_a_renamed_function_change_nothing(record: Record) -> None:
    """Every line says the same in ``train_v2.py``: the ops are those of ``train.py``, in order."""
    for how in ({"file": "train_v2.py"}, {"function": "main"}, {"file": "train_v2.py", "function": "main"}):
        comparison = found(record, training(), edited(training(), **how))
        assert comparison.verdict is Verdict.SAME_VALUES
        assert (comparison.structure.only_a, comparison.structure.only_b, comparison.structure.reordered) == (0, 0, 0)


def test_a_renamed_function_after_an_extra_draw(record: Record) -> None:
    """Every round has what the round before would have had; the next op that draws is named, not a later one."""
    program = training()
    place = next(k for k, do in enumerate(program) if do.draws and k > 20)
    comparison = found(record, program, drawing_late(edited(program, function="main"), place))
    assert (comparison.first_value.cause, comparison.first_value.a_index) == (Cause.RNG, record(program).rows[place])


def test_an_edited_line_that_draws_after_an_extra_draw(record: Record) -> None:
    """The line drew the same before, so it is known; that its states fit the draws of another round is no evidence."""
    program = training()
    place = next(k for k, do in enumerate(program) if do.draws and k > 20)
    comparison = found(record, program, drawing_late(edited(program, [11], source="a = sample()"), place))
    assert (comparison.first_value.cause, comparison.first_value.a_index) == (Cause.RNG, record(program).rows[place])


def test_a_wider_layer_is_other_arguments_where_its_line_was_edited(record: Record) -> None:
    """The text of a line is part of its place; the op is still the one that matching ops compute with."""
    program = training()
    comparison = found(record, program, edited(program, [20], shape=(8,), source="p = Linear(8)(x)"))
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first_value.cause is Cause.ARGUMENTS
    assert comparison.first == comparison.first_value


def test_an_edited_line_fed_from_outside_alone(record: Record) -> None:
    """No op wrote what it computes with; what computes with it is the same on both sides, so it is one op."""
    program = [
        Do("outside", (), "o"),
        Do("aten.mul.Tensor", ("o",), "h", 10),
        *training(2),
        Do("aten.add.Tensor", ("h", "w1"), "y", 40),
    ]
    other = [replace(program[0], noise="other"), *edited(program[1:], [10], source="h = o * scale")]
    comparison = found(record, program, other)
    assert (comparison.first_value.cause, comparison.first_value.a_index) == (Cause.OUTSIDE, 0)


def test_a_log_line_that_prints_another_tensor_is_two_ops(record: Record) -> None:
    """The same op at the same place, on what other ops wrote, and unused: one op of either side."""
    program = training(3)
    first = next(k for k, do in enumerate(program) if do.name == "step")
    log = Do("aten.norm.default", ("l",), "log", 90, source="log(loss)")
    a, b = ([*program[:first], replace(log, **how), *program[first:]] for how in ({}, _reward()))
    comparison = found(record, a, b)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (comparison.structure.only_a, comparison.structure.only_b) == (1, 1)


def _reward() -> dict[str, Any]:
    return {"reads": ("p",), "source": "log(reward)"}
