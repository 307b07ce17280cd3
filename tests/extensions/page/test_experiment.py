"""The outcome of an experiment where traces are shown: on the page, and after the printed report."""

from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import CASES
from pages import parse

from rltrace.commands.main import main
from rltrace.diff.base.model import Pair
from rltrace.experiment.outcome import (
    Arm,
    ArmName,
    ArmState,
    ExperimentResult,
    OriginClass,
    Outcome,
    identity_of,
    write_outcome,
)
from rltrace.extensions.page.data import gather
from rltrace.extensions.page.page import html_page
from rltrace.trace.read.names import Site
from rltrace.trace.read.reader import open_trace

KERNELS = Pair("MKL AVX512, 1 thread", "MKL AVX2, 1 thread")
SITE = Site("train.py", 12, "train", "loss.backward()")
KIND = OriginClass("aten.mm.default", KERNELS, SITE, 3, 1.0, True, "rank0/main", 7, 0, max_ulp=12)
ARMS = tuple(Arm(name, ArmState.AS_EXPECTED, name.value, "as it should", "/home/someone/a.zarr") for name in ArmName)
OUTCOME = ExperimentResult(
    Outcome.CONFIRMED, "all of it fits", "a.zarr", "b.zarr", 0, 2, ARMS, (KIND,), trials=5, flaky=1
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two traces that diverge at a kernel, in the current folder."""
    monkeypatch.chdir(tmp_path)
    CASES["kernel"]()


def of_these(outcome: ExperimentResult = OUTCOME) -> ExperimentResult:
    return replace(outcome, subject={side: identity_of(open_trace(f"{side}.zarr")) for side in "ab"})


@pytest.mark.parametrize("word", [*Outcome, None])
def test_section(word: Outcome | None) -> None:
    """The word, how far it looked, every arm and kind of op; of one that is not finished, that it runs."""
    changed = replace(OUTCOME, word=word, explanation="" if word is None else OUTCOME.explanation)
    found = parse(html_page(gather("a.zarr", "b.zarr"), outcome=changed)).one("section", id="experiment")
    assert found.one("span", class_="verdict").text == ("RUNNING" if word is None else word.value.upper())
    assert [row.one("th").text for row in found.all("tbody")[0].all("tr")] == ["A0", "B0", "B←A", "A←B"]
    kernels = "A MKL AVX512, 1 thread, B MKL AVX2, 1 thread"
    for words in ("aten.mm.default", "train.py:12", "12 ULP", kernels, "needed"):
        assert words in found.text
    assert "steps 0 to 1" in found.text and "5 runs, 1 of them not the same each time" in found.text


def test_what_stays_in_the_house() -> None:
    """Folders are hidden, and what looks like markup is text."""
    hostile = replace(OUTCOME, explanation="see /home/someone/secret/out.txt <script>alert(1)</script>")
    text = html_page(gather("a.zarr", "b.zarr"), outcome=hostile)
    assert "someone" not in text and "<script" not in text
    assert "…/out.txt <script>" in parse(text).one("section", id="experiment").text


def test_no_experiment_no_section() -> None:
    assert not parse(html_page(gather("a.zarr", "b.zarr"))).all("section", id="experiment")


def test_after_the_printed_report(capsys: pytest.CaptureFixture[str]) -> None:
    """The outcome beside B is shown, as is one that is named; the verdict and its exit status stay what they are."""
    assert main(["diff", "a.zarr", "b.zarr"]) == 1
    plain = capsys.readouterr().out
    assert "Experiment" not in plain
    write_outcome(Path("a-b.confirm.json"), of_these())
    assert main(["diff", "a.zarr", "b.zarr"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(plain)
    added = " ".join(shown.removeprefix(plain).split())
    assert added == "Experiment CONFIRMED All of it fits. (rltrace confirm; all of it is in a-b.confirm.json)"
    Path("a-b.confirm.json").rename("other.json")
    assert main(["diff", "a.zarr", "b.zarr", "--confirm", "other.json"]) == 1
    assert "CONFIRMED" in capsys.readouterr().out


def test_an_outcome_of_other_traces(capsys: pytest.CaptureFixture[str]) -> None:
    """Never shown as one of these: beside B it is named as what it is, one that was asked for is trouble."""
    write_outcome(Path("a-b.confirm.json"), replace(of_these(), subject={"a": "1", "b": "2"}))
    assert main(["diff", "a.zarr", "b.zarr"]) == 1
    out = capsys.readouterr().out
    assert "is the outcome of an experiment on other traces" in " ".join(out.split()) and "CONFIRMED" not in out
    assert main(["diff", "a.zarr", "b.zarr", "--confirm", "a-b.confirm.json"]) == 2
    assert main(["report", "a.zarr", "b.zarr", "-o", "r.html"]) == 0
    assert "experiment" not in Path("r.html").read_text()
    Path("a-b.confirm.json").write_text("{")
    assert main(["diff", "a.zarr", "b.zarr"]) == 1
    assert "is not the outcome of an experiment" in " ".join(capsys.readouterr().out.split())
