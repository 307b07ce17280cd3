"""Edited source files: which lines differ, what of their text is shown, which comes first. Files of two real runs."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Comparison
from rltrace.diff.edits import nearest_edit
from rltrace.report.diff import verdict_document
from rltrace.report.redaction import redacted_comparison
from rltrace.report.text import document_text

PROGRAM = """import torch
import helper
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(3):
    optimizer.zero_grad()
    model(torch.tensor(helper.data(update))).sum().backward()
    optimizer.step()
"""
HELPER = """SCALE = 2.0

def scaled(x):
    y = x * SCALE
    return y

def data(update):
    return [scaled(float(k + update)) for k in range(4)]
"""

Both = Callable[..., Comparison]


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    """``both(files of A, files of B)``: record ``train.py`` of two folders and compare them."""

    def record(side: str, files: dict[str, str], **options: bool) -> Path:
        folder, libraries = tmp_path / side, tmp_path / f"libraries of {side}"
        for name, text in files.items():
            file = (libraries if "/" in name else folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.syspath_prepend(libraries)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("helper", "extra", "library")]:
            del sys.modules[name]
        with rltrace.record(tmp_path / f"{side}.zarr", **options):
            runpy.run_path(str(folder / "train.py"), run_name="__main__")
        return tmp_path / f"{side}.zarr"

    def run(a: dict[str, str], b: dict[str, str], **options: bool) -> Comparison:
        return compare(record("a", a, **options), record("b", b, **options))

    return run


def files(helper: str = HELPER, program: str = PROGRAM) -> dict[str, str]:
    return {"train.py": program, "helper.py": helper}


def test_an_edited_line_that_ran_no_op(both: Both) -> None:
    """Its file, number and text, of both sides, and beside the cause."""
    comparison = both(files(), files(HELPER.replace("x * SCALE", "x * SCALE + 1.0")))
    (edit,) = comparison.edits
    assert [(e.file, e.line, e.source) for e in edit.only_a] == [("helper.py", 4, "y = x * SCALE")]
    assert [(e.file, e.line, e.source) for e in edit.only_b] == [("helper.py", 4, "y = x * SCALE + 1.0")]
    text = " ".join(document_text(verdict_document(comparison)).split())
    assert "edited helper.py:4 y = x * SCALE + 1.0" in text
    assert comparison.decisive is not None and "became a tensor at train.py:8" in comparison.decisive.explanation


def test_what_became_a_tensor_and_was_expanded(both: Both) -> None:
    """A list of two numbers that are each repeated is as many elements as the list has."""
    program = (
        "import torch\nx = torch.ones(2, 6)\nrewards = torch.tensor({})\ny = rewards[:, None].expand(2, 6).clone()\n"
    )
    comparison = both({"train.py": program.format([1.0, 2.0])}, {"train.py": program.format([1.0, 3.0])})
    assert comparison.decisive is not None
    assert "became a tensor at train.py:3" in comparison.decisive.explanation


def test_moved_lines_are_no_edits(both: Both) -> None:
    """Two functions that changed places, a blank line more; one line in them is new."""
    head, scaled, data = HELPER.split("\n\n")
    moved = "\n\n\n".join([head, data.strip() + "\n", scaled.replace("x *", "3.0 *")])
    (edit,) = both(files(), files(moved)).edits
    assert [e.source for e in edit.only_a] == ["y = x * SCALE"]
    assert [e.source for e in edit.only_b] == ["y = 3.0 * SCALE"]


def test_text_that_is_gone(both: Both, tmp_path: Path) -> None:
    """A file that was edited again has other lines: of the line the number is known, and no text."""
    edited = files(HELPER.replace("x * SCALE", "x + SCALE"))
    both(files(), edited)
    (tmp_path / "a" / "helper.py").write_text("SCALE = 3.0\n")
    (edit,) = compare(tmp_path / "a.zarr", tmp_path / "b.zarr").edits
    assert [(e.line, e.source) for e in (*edit.only_a, *edit.only_b)] == [(4, ""), (4, "y = x + SCALE")]


def test_text_in_the_trace(both: Both, tmp_path: Path) -> None:
    """``sources`` records it, masked; a report for strangers leaves it out."""
    comparison = both(files(), files(HELPER.replace("= 2.0", "= 2.5") + "# https://me:hunter22@host\n"), sources=True)
    for side in "ab":
        (tmp_path / side / "helper.py").unlink()
    (edit,) = compare(tmp_path / "a.zarr", tmp_path / "b.zarr").edits
    assert [e.source for e in edit.only_a] == ["SCALE = 2.0"]
    assert edit.only_b[0].source == "SCALE = 2.5" and "hunter22" not in str(edit)
    (redacted,) = redacted_comparison(comparison).edits
    assert [(e.line, e.source) for e in redacted.only_a] == [(1, "")]


def test_the_nearest_line_is_first(both: Both) -> None:
    """An edit in the frames of the finding comes before one of another file."""
    program = PROGRAM.replace("range(4)", "range(4)").replace(".sum().backward()", ".mean().backward()")
    comparison = both(files(), files(HELPER + "# a note\n", program))
    assert [edit.file for edit in comparison.edits] == ["train.py", "helper.py"]
    found = comparison.shown
    assert found is not None
    line = nearest_edit(comparison.edits, found)
    assert line is not None and (line.file, line.line) == ("train.py", 8)


def test_a_file_that_one_side_loads(both: Both) -> None:
    """It is named, and that it is of one run."""
    b = files(program=PROGRAM.replace("import helper", "import helper, extra")) | {"extra.py": "torch = None\n"}
    comparison = both(files(), b)
    assert [(edit.file, edit.loaded_by) for edit in comparison.edits] == [("train.py", ""), ("extra.py", "b")]
    assert "extra.py was loaded by B only" in document_text(verdict_document(comparison))


def test_a_library_outside_of_package_folders(both: Both) -> None:
    """An editable install lies elsewhere than the program: its lines are compared under the package's name."""
    program = PROGRAM.replace("import helper", "from library import helper")
    first = {"train.py": program, "library/__init__.py": "", "library/helper.py": HELPER}
    comparison = both(first, first | {"library/helper.py": HELPER.replace("2.0", "2.5")})
    assert [(edit.file, edit.only_b[0].source) for edit in comparison.edits] == [("library/helper.py", "SCALE = 2.5")]


def test_a_file_that_changed_while_it_ran(both: Both) -> None:
    """What the program loaded is not known: no line of that file is said to be edited."""
    rewrites = "import pathlib; pathlib.Path(helper.__file__).write_text('SCALE = 9.0\\n')\n"
    comparison = both(files(), files(program=PROGRAM.replace("torch.manual_seed", rewrites + "torch.manual_seed")))
    assert [edit.file for edit in comparison.edits if edit.only_a or edit.only_b] == ["train.py"]
