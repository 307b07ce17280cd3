"""The two reports of a comparison, pinned line by line. ``UPDATE_GOLDEN=1 pytest tests/report`` writes them anew."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import CASES, identical, kernel
from golden import pinned

from rltrace.diff import Comparison
from rltrace.diff.base.model import Drift, DriftPoint, Pair
from rltrace.json import to_json
from rltrace.report.diff import verdict_document
from rltrace.report.document import Document, Fact, Number, Section
from rltrace.report.text import WIDTH, document_text

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Comparison]:
    monkeypatch.chdir(tmp_path)
    return request.param, CASES[request.param]()


def test_text(case: tuple[str, Comparison]) -> None:
    """The text report, word for word."""
    name, comparison = case
    text = document_text(verdict_document(comparison)) + "\n"
    assert text == pinned(GOLDEN / f"{name}.txt", text)


def test_json(case: tuple[str, Comparison]) -> None:
    """The JSON report, field for field, and valid JSON for any reader."""
    name, comparison = case
    report = to_json(comparison)
    report["search"].pop("bytes_read")  # how many, the compressor decides
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"
    assert text == pinned(GOLDEN / f"{name}.json", text)


def test_lines_fit_a_terminal(case: tuple[str, Comparison]) -> None:
    """80 columns are enough; only commands, which are there to be copied, may be longer."""
    lines = document_text(verdict_document(case[1])).splitlines()
    assert [line for line in lines if len(line) > WIDTH and "rltrace " not in line] == []


def test_colour_adds_nothing_but_colour(case: tuple[str, Comparison]) -> None:
    """Without its escapes the coloured report is the plain one."""
    colored = document_text(verdict_document(case[1]), color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == document_text(verdict_document(case[1]))


def test_the_document_describes_every_field(case: tuple[str, Comparison]) -> None:
    """docs/reference/json.md names each field that a report can have."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()

    def fields(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {f for item in value.values() for f in fields(item)}
        return {f for item in value for f in fields(item)} if isinstance(value, list) else set()

    report = to_json(case[1])
    report["compared"] = {}  # its keys are names of streams
    assert {field for field in fields(report) if f"`{field}`" not in text} == set()


def test_numbers_that_json_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of NaN or infinity is written as text."""
    monkeypatch.chdir(tmp_path)
    first = DriftPoint(3, float("nan"), float("-inf"))
    drift = Drift("item", "loss.item()", "rank0/main", "train.py:12", 4, 4, 4, first, None, 0.1, (), 0.0, True)
    report = to_json(replace(identical(), drift=(drift,)))
    assert report["drift"][0]["first"] == {"step": 3, "a": "nan", "b": "-inf"}
    json.dumps(report, allow_nan=False)


def test_outputs_of_an_op_that_has_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the outputs those that differ are shown, four of them, and all are counted."""
    monkeypatch.chdir(tmp_path)
    comparison = kernel()
    outputs = (Pair("1" * 16, "1" * 16), *(Pair("2" * 16, f"{k}" * 16) for k in range(3, 9)))

    def text(outputs: tuple[Pair[str], ...]) -> str:
        finding = replace(comparison.first_value, outputs=outputs)
        return document_text(
            verdict_document(replace(comparison, decisive=finding, first=finding, first_value=finding))
        )

    numbers = [line.split()[1] for line in text(outputs).splitlines() if line.endswith(" A  2222222222222222")]
    assert numbers == ["1", "2", "3", "4"]
    assert "  outputs  6 of 7 differ\n" in text(outputs)
    assert "  output   equal on both sides" in text(outputs[:1] * 3)


def test_a_table() -> None:
    """Numbers are aligned right, text left and wrapped in its column; a long name, or a remark, has its own line."""
    rows = (
        ("short", Number("1,200"), "words " * 12),
        ("a.name.which.is.much.longer.than.the.others.are", Number("7"), "as is"),
        ("… and 3 more",),
    )
    section = Section("table", "Title", columns=("name", "count", "why"), rows=rows)
    assert document_text(Document(sections=(section,))).splitlines() == [
        "Title",
        "  name                                     count  why",
        "  short                                    1,200  words words words words words",
        "                                                  words words words words words",
        "                                                  words words",
        "  a.name.which.is.much.longer.than.the.others.are",
        "                                               7  as is",
        "  … and 3 more",
    ]


def test_parts_and_limits() -> None:
    """Parts are indented under their titles; labels of up to twelve characters share a column; the rest is counted."""
    part = Section("", "a part", ("Why.",), (Fact("not finite", "3"), Fact("set", "X=1")))
    whole = Section("whole", "Whole", parts=(part, part, part), limit=2)
    assert document_text(Document("HEAD", scope="of it", lead=("A sentence.",), sections=(whole,))).splitlines() == [
        "HEAD  of it",
        "  A sentence.",
        "",
        "Whole",
        *("  a part", "    Why.", "    not finite 3", "    set        X=1") * 2,
        "  … and 1 more (--format json has them all)",
    ]
