"""What happens to call sites between two runs: none of it is a difference, and none of it hides one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import Do, Record, training

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict

PROGRAM = """\
import torch


def deeper(t, depth):
    return t * 2 if depth == 0 else deeper(t + 1, depth - 1)


def rounds(n):
    for i in range(n):
        yield torch.full((3,), float(i)).sin()


for update in range(3):
    xs = [x * 2 for x in rounds(3)]
    total = sum(x.mean() for x in {k: x.cos() for k, x in enumerate(xs)}.values())
    ys = list(map(lambda t: (t - total).exp(), xs))
    nested = [[(y * x).sum() for y in ys] for x in xs]
    exec("made = deeper(torch.stack(ys), 2).mean()")
    print(eval("(lambda t: t.sqrt())")(made.abs()).item())
"""
LOG = "    for y in ys: float(y.mean())\n"


def run(folder: Path, text: str, source: bool = True) -> Path:
    """Record a program that stands in ``folder``; without ``source`` its file is gone before it runs."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    if source:
        script.write_text(text)
    code = compile(text, str(script), "exec")
    with rltrace.record(folder / "trace.zarr"):
        exec(code, {"__name__": "__main__"})
    return folder / "trace.zarr"


def both(folder: Path, *texts: str, source: bool = True) -> list[Path]:
    """Record programs, called from one line: the frames of the tests are part of every call site."""
    return [run(folder / f"checkout {k}" / "src", text, source) for k, text in enumerate(texts)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("reference") / "one", PROGRAM)


def test_another_folder_and_shifted_lines(tmp_path: Path) -> None:
    """Comments, blank lines and another checkout change nothing, with recursion, generators, lambdas and exec."""
    shifted = "# a comment\n\n\n" + PROGRAM.replace("\n\nfor update", "\n\n\n# more\nfor update")
    comparison = compare(*both(tmp_path, PROGRAM, shifted))
    assert comparison.verdict is Verdict.IDENTICAL, comparison.why


def test_a_log_line_in_a_shifted_file(tmp_path: Path) -> None:
    """Exactly the logging is extra: a mean and a read for each tensor, in every round."""
    text = "import sys\n" + PROGRAM.replace("    nested", LOG + "    nested")
    comparison = compare(*both(tmp_path, PROGRAM, text))
    assert comparison.verdict is Verdict.SAME_VALUES
    structure = comparison.structure
    assert (structure.only_a, structure.reordered) == (0, 0)
    assert [h.b_count for h in structure.hunks] == [6, 6, 6]
    assert all("mean" in hunk.first for hunk in structure.hunks)


def test_a_renamed_function_and_an_edited_line(reference: Path, tmp_path: Path) -> None:
    """Other names and other spelling of the same computation: same values, nothing extra, nothing moved."""
    text = PROGRAM.replace("deeper", "recurse").replace("(t - total).exp()", "torch.exp(t - total)")
    comparison = compare(reference, run(tmp_path / "renamed", text))
    assert comparison.verdict is Verdict.SAME_VALUES, comparison.why
    assert not comparison.structure.hunks


def test_code_without_source(reference: Path, tmp_path: Path) -> None:
    """The file is gone: its lines cannot be distinguished by their text, but what they compute can."""
    comparison = compare(reference, run(tmp_path / "gone", PROGRAM, source=False))
    assert comparison.verdict is Verdict.SAME_VALUES, comparison.why
    assert not comparison.structure.hunks


def test_two_runs_without_source_and_one_more_line(tmp_path: Path) -> None:
    """Every line of a function looks the same then: the extra ops are still the only ones."""
    text = PROGRAM.replace("    nested", LOG + "    nested")
    comparison = compare(*both(tmp_path, PROGRAM, text, source=False))
    assert comparison.verdict is Verdict.SAME_VALUES, comparison.why
    assert comparison.structure.only_a == 0 and comparison.structure.only_b == 3 * 6


def comprehensions(inlined: bool) -> list[Do]:
    """Python 3.12 runs a list comprehension in the frame around it; before, it had a frame of its own."""
    around = ("train.py", 10, "train", "h = [policy(o) for o in observations]")
    return [
        replace(do, function="train", source=around[3])
        if inlined and do.line == 10
        else replace(do, function="train.<locals>.<listcomp>", source=around[3], stack=(around,))
        if do.line == 10
        else do
        for do in training()
    ]


def test_a_comprehension_under_another_python(record: Record) -> None:
    """One frame less is no difference; a kernel that differs within it is found there, after an extra log as well."""
    old, new = comprehensions(False), comprehensions(True)
    same = compare(record(old).path, record(new).path)
    assert same.verdict is Verdict.SAME_VALUES and not same.structure.hunks
    place = [p for p, do in enumerate(new) if do.line == 10 and "view" not in do.name][3]
    new[place] = replace(new[place], noise="x")
    new.insert(6, Do("aten.norm.default", ("w1",), "log", 99))
    a, b = record(old), record(new)
    value = compare(a.path, b.path).first_value
    assert (value.cause, value.a_index) == (Cause.SAME_KERNEL, a.rows[place])


def test_a_rewritten_file(record: Record) -> None:
    """Every line of the program and its file's name are others: matched by what it computes, and no more is claimed."""

    def rewritten(noise: str) -> list[Do]:
        done = [replace(do, file="new.py", source=f"new {do.line}", line=do.line + 300) for do in training()]
        place = [p for p, do in enumerate(done) if do.name == "aten.mm.default"][2]
        done[place] = replace(done[place], noise=noise)
        return done

    a, same, other = record(training()), record(rewritten("")), record(rewritten("x"))
    comparison = compare(a.path, same.path)
    assert comparison.verdict is Verdict.SAME_VALUES and not comparison.structure.hunks
    value = compare(a.path, other.path).first_value
    place = [p for p, do in enumerate(training()) if do.name == "aten.mm.default"][2]
    assert (value.cause, value.a_index) == (Cause.SAME_KERNEL, a.rows[place])


# --- renamed functions, moved files and edited lines ------------------------------------------------------------------


def edited(program: Sequence[Do], lines: Sequence[int] = (), **how: Any) -> list[Do]:
    """``program``, everywhere or on these lines, with what ``how`` changes."""
    return [replace(do, **how) if do.is_op and (not lines or do.line in lines) else do for do in program]


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


@pytest.mark.parametrize(
    ("lines", "changed"), [((), {"function": "main"}), ((11,), {"source": "a = sample()"})], ids=["renamed", "edited"]
)
def test_an_extra_draw_before_edited_lines(record: Record, lines: Sequence[int], changed: dict[str, str]) -> None:
    """Every round has what the round before would have had, which is no evidence: the next op that draws is named."""
    program = training()
    place = next(k for k, do in enumerate(program) if do.draws and k > 20)
    draw = Do("aten.rand.default", (), "extra", 98)
    other = edited(program, lines, **changed)
    comparison = found(record, program, [*other[:place], draw, *other[place:]])
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
    reward = {"reads": ("p",), "source": "log(reward)"}
    a, b = ([*program[:first], replace(log, **how), *program[first:]] for how in ({}, reward))
    comparison = found(record, a, b)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (comparison.structure.only_a, comparison.structure.only_b) == (1, 1)
