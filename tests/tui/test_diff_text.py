"""Words within a width."""

from pathlib import Path

import pytest
from views import both, compare_in, views_in

from rltrace.query.op_pair import OpPairs, PairedInput
from rltrace.query.ops import OpInput
from rltrace.report.diff import verdict_document
from rltrace.report.document import Section
from rltrace.report.text import split_at_dots
from rltrace.trace.format.schema import WRITES, Kind
from rltrace_tui import diff_text
from rltrace_tui.op_text import input_text, op_lines


def test_labels_are_a_column() -> None:
    """Text is wrapped beside its label, never under it."""
    lines = [line.plain for line in diff_text.labelled("cause", "one two three four", 20)]
    assert lines == ["cause    one two", "         three four"]


def test_a_table_in_a_narrow_pane() -> None:
    """A name that is too long has its own line, and a value is wrapped beside the names, never under them."""
    rows = (("name", "a value of words"), ("a.name.that.is.longer.than.others", "b"))
    section = Section("", "Facts", columns=("fact", "value"), rows=rows)
    assert [line.plain for line in diff_text.section_lines(section, 34)] == [
        "Facts",
        "fact                  value",
        "name                  a value of",
        "                      words",
        "a.name.that.is.longer.than.others",
        "                      b",
    ]


def test_a_dotted_name_is_split_after_dots() -> None:
    """Within a word only where that is longer than a line; nothing of it is lost."""
    assert split_at_dots("flag.cuda.matmul.bf16_reduced", 22) == ["flag.cuda.matmul.", "bf16_reduced"]
    assert split_at_dots("flag.precision", 14) == ["flag.precision"]
    long = split_at_dots("env.OPENBLAS_NUM_THREADS", 8)
    assert "".join(long) == "env.OPENBLAS_NUM_THREADS" and all(len(line) <= 8 for line in long)


def test_an_event_is_shown_as_one(tmp_path: Path) -> None:
    """What an environment returned stands by its name; of inputs and kernels, which it has none of, nothing is said."""
    for trace, name in both(tmp_path):
        trace.event(Kind.ENVIRONMENT_STEP, "environment 0", owner="Walk", digests={"observation": name})
        trace.op("aten.add.Tensor", inputs=[("outside", name)], outputs=[name])
    comparison = compare_in(tmp_path)
    lines = [line.plain.split() for line in diff_text.section_lines(verdict_document(comparison).findings[0], 76)]
    assert ["event", "environment-step"] in lines and ["module", "Walk"] in lines
    assert [line for line in lines if line[0] in ("field", "A", "B")] == [
        ["field", "observation"],
        ["A", comparison.first_value.outputs[0].a],
        ["B", comparison.first_value.outputs[0].b],
    ]
    assert not any(line[0] in ("inputs", "kernel", "output") for line in lines)


def test_outputs_have_their_names(tmp_path: Path) -> None:
    """Each above its digests, in the verdict and in the screen of the op, where of many the equal ones are counted."""
    names = [f"state['w{k}']" for k in range(10)]
    for trace, side in both(tmp_path):
        outputs = [f"{side}{k}" if k == 7 else str(k) for k in range(10)]
        trace.op("jit.train.iteration", outputs=outputs, scalars=[{WRITES: names}])
    found = compare_in(tmp_path)
    digests = found.first_value.outputs[7]
    wanted = [["output", "state['w7']"], ["A", digests.a], ["B", digests.b]]
    lines = [line.plain.split() for line in diff_text.section_lines(verdict_document(found).findings[0], 76)]
    assert lines[(at := lines.index(wanted[0])) : at + 3] == wanted

    lines = [line.plain.split() for line in op_lines(OpPairs(*views_in(tmp_path), None).pair(0, 0), 76)]
    assert lines[:3] == wanted
    assert " ".join(lines[3]) == "outputs 9 of 10 are equal on both sides"


# --- ops --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "match", "text"),
    [
        ((6, 0, 0), (6, 0, 0), "read", "op 6  read: hashed here on both sides, equal"),
        ((6, 0, 0), (6, 0, 2), "differ", "op 6 from element 0 | op 6 from element 2  differs"),
        ((6, 0, 0), (6, 1, 0), "differ", "op 6 result 0 | op 6 result 1  differs"),
        ((6, 1, 3), (7, 1, 3), "", "op 6 result 1 from element 3 | op 7 result 1 from element 3"),
        ((None, None, 4), (None, None, 4), "", "outside from element 4"),
    ],
)
def test_where_an_input_comes_from(
    a: tuple[int | None, int | None, int], b: tuple[int | None, int | None, int], match: str, text: str
) -> None:
    """The op that wrote it; its result and the first element, where they are not the first ones or differ."""
    sides = [OpInput("float32[4]", row, "outside" if row is None else "row", None, *part) for row, *part in (a, b)]
    sign = {"read": "=", "differ": "≠", "": " "}[match]
    assert input_text(PairedInput(0, sides[0], sides[1], match)) == f"{sign} input 0  float32[4]  from {text}"
