"""Two rows that are the same op differ in what both recorded, and in nothing else."""

from pathlib import Path
from typing import Any

import pytest
from views import both, rows_of, views_in

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.row_diff import (
    Difference,
    arguments_text,
    call_text,
    difference,
    input_text,
    numbers_text,
    written_text,
)
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import LINES, WRITES, Kind, RowFlag

OP = "aten.mm.default"
MARKED = {"flags": RowFlag.MARKED}
OPENING = {"kind": Kind.WINDOW, "scalars": ["w"]}
GENERATOR = {"kind": Kind.WINDOW, "scalars": ["generator"]}


def outside(*texts: str) -> dict[str, Any]:
    return {"inputs": [("outside", text) for text in texts]}


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        ({"outputs": ["y", "z"]}, {"outputs": ["y", "z"]}, set()),
        ({"outputs": ["y", "z"]}, {"outputs": ["z", "y"]}, {"outputs"}),
        ({"outputs": ["y"]}, {"outputs": []}, {"outputs"}),
        ({"rng": "g", "outputs": ["y"]}, {"rng": "h", "outputs": ["y"]}, {"rng"}),
        ({"rng": "g", "outputs": ["y"]}, {"outputs": ["y"]}, set()),
        ({"integers": [1, 2]}, {"integers": [1, 3]}, {"arguments"}),
        ({"floats": [0.0]}, {"floats": [-0.0]}, {"arguments"}),
        ({"floats": [float("nan")]}, {"floats": [float("nan")]}, set()),
        ({"integers": [1], "value": 5}, {"integers": [1], "value": 6}, {"value"}),
        ({"integers": [1], "value": 5}, {"integers": [2], "value": 5}, {"arguments"}),
        ({"value": True}, {"value": False}, {"value"}),
        ({"value": 1}, {"value": True}, {"value"}),
        ({"floats": [0.5], "value": 1.5}, {"floats": [0.5], "value": 2.5}, {"value"}),
        ({"floats": [0.5], "value": 1 + 2j}, {"floats": [0.5], "value": 1 + 3j}, {"value"}),
        ({"floats": [0.5], "value": 1 + 2j}, {"floats": [0.25], "value": 1 + 2j}, {"arguments"}),
        ({"value": 1.5}, {}, {"value"}),
        ({"scalars": ["T"]}, {"scalars": ["i"]}, {"structure"}),
        ({"name": "aten.bmm.default"}, {}, {"structure"}),
        ({"outputs": ["y"], **MARKED}, {"outputs": ["z"]}, {"marked"}),
        ({"outputs": ["y"]}, {"outputs": ["z"], **MARKED}, {"marked"}),
        ({"rng": "g", **MARKED}, {"rng": "h", **MARKED}, {"marked"}),
        ({"integers": [1], **MARKED}, {"integers": [2], **MARKED}, {"arguments"}),
        ({**outside("x"), **MARKED}, {**outside("z"), **MARKED}, {"marked"}),
        ({"value": 5, **MARKED}, {"value": 6, **MARKED}, {"value", "marked"}),
        ({**GENERATOR, "outputs": ["y"]}, {**GENERATOR, "outputs": ["z"]}, set()),
        ({**OPENING, "outputs": ["y"]}, {**OPENING, "outputs": ["z"]}, {"outputs"}),
        ({"kind": Kind.WINDOW, "scalars": []}, {"scalars": []}, {"structure"}),
    ],
)
def test_respects_in_which_rows_differ(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], differs: set[str]) -> None:
    """Each alone; a number that was returned is no argument; what a marked row digested counts for nothing."""
    for trace, fields in both(tmp_path, a, b):
        trace.op(OP, integers=[7], floats=[7.5], outputs=["before"])
        trace.op(**{"name": OP, **fields})
        trace.op(OP, integers=[8], floats=[8.5], outputs=["after"])
    sides = [view.read(0, 3) for view in views_in(tmp_path)]
    found = difference(sides[0], 1, sides[1], 1)
    assert found == Difference(**dict.fromkeys(differs, True))
    assert found.found is bool(differs - {"marked"})
    assert not difference(sides[0], 2, sides[1], 2).found


def test_inputs_that_both_sides_read(tmp_path: Path) -> None:
    """Inputs are compared by their places, unless one side did not read or overwrote one."""
    a = [("outside", "x"), ("outside", "x"), ("outside", "x"), ("overwritten", "x"), ("outside", "x")]
    b = [("outside", "x"), ("outside", "y"), "outside", ("outside", "y"), ("mixed", "z")]
    for trace, inputs in both(tmp_path, a, b):
        trace.op(OP, inputs=inputs)
    sides = [view.read(0, 1) for view in views_in(tmp_path)]
    found = difference(sides[0], 0, sides[1], 0)
    assert (found.reads, found.found, found.structure) == ((1, 4), True, False)


@pytest.mark.parametrize("what", ["counts", "evidence", "digests", "integers", "floats"])
def test_events(tmp_path: Path, what: str) -> None:
    """Evidence of an event is no difference; its digests and numbers are compared, as those of a marked row."""
    for trace, number in both(tmp_path, 1, 2):
        trace.event(Kind.ENVIRONMENT_STEP, "CartPole", **{what: {"x": number}})
    sides = [view.read(0, 1) for view in views_in(tmp_path)]
    found = difference(sides[0], 0, sides[1], 0)
    assert found == Difference(marked=what not in ("counts", "evidence"))


def test_texts(tmp_path: Path) -> None:
    """They show the numbers of one row, the first eight of them, and its arguments in their order."""

    def build(trace: TraceBuilder) -> None:
        trace.op(OP, integers=[90], floats=[90.5])
        trace.op(OP, inputs=["unknown"], integers=[1, 2], floats=[0.5], scalars=["T", "i", ["alpha=", "f"], ["i", "c"]])
        trace.op(OP, integers=range(8))
        trace.op(OP, integers=range(8), floats=[0.5])
        trace.op(OP, integers=[5], scalars=[{"group": "g", "rank": 0}, "i"])

    rows = rows_of(tmp_path / "a.zarr", build)
    assert [numbers_text(row) for row in rows[1:]] == [
        "1, 2, 0.5",
        "0, 1, 2, 3, 4, 5, 6, 7",
        "0, 1, 2, 3, 4, 5, 6, 7 …",
        "5",
    ]
    assert call_text(rows[4]) == "(g, 0, 5)"
    assert call_text(rows[1]) == "(T, 1, alpha=0.5, [2, ?+?j])"
    assert input_text(rows[1], 0).startswith("input 0 (float32[")
    assert input_text(rows[1], 1) == "input 1"


READS = {"inputs": ["unknown"]}
SQUARE = ("float32", (2, 2), (2, 1), "cpu")


def words(count: int, *before: str) -> dict[str, Any]:
    """So many arguments, after others."""
    return {"scalars": [*before, *map(str, range(count))]}


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (READS, {**READS, "layouts": [SQUARE]}, "tensors: float32[4] in A, float32[2,2] in B"),
        (READS, {}, "tensors: float32[4] in A, none in B"),
        ({"integers": [5]}, {"scalars": ["None"]}, "arguments: (5) in A, (None) in B"),
        ({"name": "aten.bmm.default"}, {}, "op: aten.bmm.default in A, aten.mm.default in B"),
        ({}, {}, "arguments"),
        (
            words(32),
            words(31, "x"),
            f"arguments: ({', '.join(map(str, range(32)))}) in A, (x, {', '.join(map(str, range(31)))}) in B",
        ),
        (words(33), words(29, "x"), "arguments: 29, 30, 31, 32 in A, x in B"),
        (words(29), words(34), "arguments: none of these in A, 29, 30, 31, 32 and 1 more in B"),
    ],
)  # fmt: skip
def test_another_call(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], text: str) -> None:
    """What of it is another: tensors, arguments or the operator; of many arguments those that one side alone has."""
    for trace, row in both(tmp_path, a, b):
        trace.op(**{"name": OP, **row})
    rows = [row_at(view, 0) for view in views_in(tmp_path)]
    assert arguments_text(*rows, Difference(structure=True)) == f"it was called with different {text}"


@pytest.mark.parametrize(
    ("differing", "text"),
    [
        ("", ""),
        ("x", ""),
        ("p", "p differs"),
        ("pq", "p, q differ"),
        ("pqr", "p, q and 1 more differ"),
        ("pqrs", "p, q and 2 more differ"),
    ],
)
def test_outputs_with_names(tmp_path: Path, differing: str, text: str) -> None:
    """Those that differ are named, two of them at most; one without a name is not."""
    names = ["p", "", "q", "r", "s"]
    for trace, side in both(tmp_path):
        outputs = [f"{name}{side if (name or 'x') in differing else ''}" for name in names]
        trace.op(OP, outputs=outputs, scalars=[{WRITES: names}])
    rows = [row_at(view, 0) for view in views_in(tmp_path)]
    assert written_text(*rows) == text
    plain = rows_of(tmp_path / "c.zarr", lambda trace: trace.op(OP, outputs=["p"]))[0]
    assert written_text(plain, rows[0]) == ""


def rows_with(folder: Path, *words: list[object], integers: tuple[list[int], ...] = ([], [])) -> list[RowAt]:
    """A row on each side, with these words and numbers."""
    for trace, (scalars, numbers) in both(folder, *zip(words, integers, strict=True)):
        trace.op(OP, integers=numbers, scalars=scalars)
    return [row_at(view, 0) for view in views_in(folder)]


@pytest.mark.parametrize(
    ("differing", "text"),
    [
        (1, "it was called with x, y = f(z=0) #1=0 in A, 1 in B"),
        (7, "called with x, y = f(z=0) #1=0 in A, 1 in B (2 times), and x, y = f(z=1) #1=0 in A, 1 in B"),
        (12, "f(z=3) #1=0 in A, 1 in B (2 times), and 2 numbers more"),
    ],
)
def test_the_name_of_a_number_may_have_any_text(tmp_path: Path, differing: int, text: str) -> None:
    """One that is a line of the source, with an equals sign in it; of many that differ the first four are named."""
    words: list[object] = [[f"x, y = f(z={k}) #{n}=", "i"] for n in (1, 2) for k in range(6)]
    numbers = [0] * 12, [1] * differing + [0] * (12 - differing)
    assert text in arguments_text(*rows_with(tmp_path, words, words, integers=numbers), Difference())


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ("xyz", "xwz", "it is another program: y = 0 in A, w = 0 in B"),
        ("xz", "xyz", "it is another program: y = 0 in B"),
        ("xyz", "xYZ", "it is another program: other operations or shapes come from y = 0, z = 0"),
        ("xyz", "zyx", "it was called with different arguments: (program=xyz) in A, (program=zyx) in B"),
        ("stuvwxyz", "z", "it is another program: s = 0, t = 0, u = 0, v = 0 and 3 more in A"),
    ],
)
def test_lines_of_another_program(tmp_path: Path, a: str, b: str, text: str) -> None:
    """Those that one side alone has, or else those that became other operations: here capitals."""
    words = [[f"program={each}", {LINES: [[f"{c.lower()} = 0", c] for c in each]}] for each in (a, b)]
    assert arguments_text(*rows_with(tmp_path, *words), Difference(structure=True)) == text


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([["training=", False], ["eps=", "f"]], [["training=", True], ["eps=", "f"]], "training=False in A, True in B"),
        ([], [["size=", ["i", "i"]]], "size=its default in A, [3, 3] in B"),
        ([["p=", None], ["q=", True]], [["q=", False]], "p=None in A, its default in B, and q=True in A, False in B"),
        ([False], [True], "different arguments: (False) in A, (True) in B"),
    ],
)
def test_arguments_with_names(tmp_path: Path, a: list[object], b: list[object], text: str) -> None:
    """Those that differ are named, where all of them have a name; torch omits what equals a default."""
    integers = tuple([3] * str(words).count("'i'") for words in (a, b))
    found = arguments_text(*rows_with(tmp_path, a, b, integers=(integers[0], integers[1])), Difference(structure=True))
    assert found == f"it was called with {text}"


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([1, 2], [3, 2], "x=1 in A, 3 in B"),
        ([1, 2], [3, 4], "different numbers: 1, 2 in A, 3, 4 in B"),
        ([1, 2], [1, 4], "different numbers: 1, 2 in A, 1, 4 in B"),
        ([1, 2, 5, 5], [3, 2, 5, 6], "different numbers: 1, 2, 5, 5 in A, 3, 2, 5, 6 in B"),
    ],
)
def test_numbers_with_names(tmp_path: Path, a: list[int], b: list[int], text: str) -> None:
    """Numbers are named where every one that differs has a name."""
    words = [["x=", "i"], "i", *[["i", "i"]] * (len(a) > 2)]
    for trace, numbers in both(tmp_path, a, b):
        trace.op("mine.op.default", integers=numbers, scalars=words)
    rows = [row_at(view, 0) for view in views_in(tmp_path)]
    assert arguments_text(*rows, Difference(arguments=True)) == f"it was called with {text}"
