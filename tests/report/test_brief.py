"""A result in brief: never over 2 kB, with commands as argument lists, and what SKILL.md says of it."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from suggested import parse
from views import both, compare_in

import rltrace
from rltrace.command_lines import NextCommand, in_folder, line, parse_line
from rltrace.commands.main import VERBS
from rltrace.diff.base.model import Cause, Comparison, Pair
from rltrace.experiment.outcome import ExperimentResult, Outcome
from rltrace.extensions.repro.explain import Tried
from rltrace.extensions.repro.kernel_settings import KernelSetting
from rltrace.extensions.repro.report import brief_explanation, explanation
from rltrace.json import keys_of, to_json
from rltrace.report.brief import MAX_BYTES, Brief, BriefFinding, annotation, brief_comparison, brief_outcome
from rltrace.testing.builder import In
from rltrace.trace.read.names import Site

SKILL = (Path(rltrace.__file__).parent / "SKILL.md").read_text()


def test_words_of_a_line_come_back() -> None:
    """Folder, variables and arguments, whatever is quoted in them."""
    argv = ("rltrace", "record", "-o", "a b.zarr", "--", "python", "-c", "print('a && b', X=1)")
    text = in_folder("/tmp/a folder", {"B": "2 '", "A": ""}, line(argv[1], *argv[2:]))
    assert parse_line(text) == NextCommand(argv, "/tmp/a folder", {"A": "", "B": "2 '"})
    assert parse_line(line("diff", "a", "#b") + "  # on A's machine") == NextCommand(("rltrace", "diff", "a", "#b"))


def pair(folder: Path, op: str) -> Comparison:
    """Two traces with one finding."""
    for trace, digest in both(folder):
        trace.op(op, inputs=[In(digest="same")], outputs=[digest])
    return compare_in(folder)


@pytest.mark.parametrize("text", ["", "x" * 900, "é" * 5_000, "\0" * 900])
def test_a_finding_fits(tmp_path: Path, text: str) -> None:
    """Names and commands of any length: the longest are cut or counted, and a cause is always there."""
    found = pair(tmp_path, f"aten.mm{text}.default")
    if text:
        kernel, site = Pair(text, text), Site(text, text, 1, text, text)
        first = replace(found.shown, kernel=kernel, site=site, module=text, explanation=text)
        found = replace(found, first=first, why=text)
    brief = brief_comparison(replace(found, advice=(*found.advice, line("diff", text, text))), 1)
    assert len(json.dumps(to_json(brief), indent=2).encode()) <= MAX_BYTES
    assert brief.finding.cause in {*Cause}
    assert brief.finding.at == "rank0/main:0"
    assert brief.next
    assert len(brief.next) + brief.left_out == len(found.advice) + 1
    assert bool(brief.left_out) is bool(text)


def test_every_command_is_one_that_its_verb_takes(tmp_path: Path) -> None:
    """As an argument list, without a shell."""
    brief = brief_comparison(pair(tmp_path, "aten.mm.default"), 1)
    for command in brief.next:
        assert command.argv[0] == "rltrace"
        parse(command.argv)


def test_equal_traces_have_no_finding(tmp_path: Path) -> None:
    """The verdict alone."""
    for trace, _ in both(tmp_path):
        trace.op("aten.mm.default")
    brief = brief_comparison(compare_in(tmp_path), 0)
    assert (brief.verdict, brief.status, brief.finding) == ("identical", 0, None)


def test_an_outcome_and_an_explanation() -> None:
    """Their words, sentences and commands."""
    outcome = ExperimentResult(Outcome.CONFIRMED, "because", "a", "b", 0, 1, (), (), advice=(line("diff", "a", "b"),))
    brief = brief_outcome(outcome, 0)
    assert (brief.verdict, brief.why, brief.next[0].argv[1]) == ("confirmed", "because", "diff")
    failed = Tried(KernelSetting(), 1, (), trouble="no such op")
    assert brief_explanation(explanation("op", {"a": "x:1"}, [failed]), 2).verdict == "failed"


def test_the_skill_names_every_key_and_cause() -> None:
    """SKILL.md names all of a result, and nothing that is not there."""
    for key in (*keys_of(BriefFinding), *keys_of(Brief)):
        assert f"`{key}`" in SKILL, key
    causes = re.findall(r"^\| `([a-z-]+)`", SKILL.partition("From the cause")[2], re.MULTILINE)
    assert sorted(causes) == sorted(["cause", *Cause])


def test_commands_of_the_skill_are_taken() -> None:
    """Each one is parsed by its verb."""
    found = re.findall(r"`(rltrace [^`]+)`", SKILL)
    assert len(found) > 5
    for text in found:
        words = shlex.split(text)
        assert words[1] in VERBS
        if len(words) > 2:
            parse(tuple(words))


# --- annotations ------------------------------------------------------------------------------------------------------


SOURCE = "loss = f(x)"


def found(*stack: Site, explanation: str = "Why.") -> Brief:
    at = ("aten.mm.default", "rank0/main:3", 0, "other", None, None, Pair(None, None))
    return Brief("diff", "diverged", 1, "", BriefFinding("kernel", *at, explanation, stack))


def frame(path: str, line: int = 2, source: str = SOURCE) -> Site:
    return Site(Path(path).name, line, "update", source, path)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two programs of one name, a library beside them, and a file outside."""
    checkout = tmp_path / "checkout"
    for name in ("checkout/train.py", "checkout/agents/train.py", "checkout/venv/site-packages/train.py", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"import torch\n    {SOURCE}\n")
    return checkout


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ([frame("CHECKOUT/agents/train.py")], "file=agents/train.py,line=2,"),
        ([frame("CHECKOUT/train.py")], "file=train.py,line=2,"),
        ([frame("/tmp/traces/folders/1/train.py")], "file=agents/train.py,line=2,"),
        ([frame("~/_work/repository/agents/train.py")], "file=agents/train.py,line=2,"),
        ([frame("CHECKOUT/venv/site-packages/train.py")], ""),
        ([frame("CHECKOUT/../other.py")], ""),
        ([frame("CHECKOUT/train.py", line=1)], ""),
        ([frame("CHECKOUT/train.py", line=0)], ""),
        ([frame("CHECKOUT/train.py", line=9)], ""),
        ([frame("CHECKOUT/train.py", line=3, source="")], ""),
        ([frame("<string>"), frame("")], ""),
        ([frame("CHECKOUT/venv/site-packages/train.py"), frame("CHECKOUT/train.py")], "file=train.py,line=2,"),
        ([], ""),
    ],
)
def test_the_line(checkout: Path, stack: list[Site], place: str) -> None:
    """The innermost call site in the checkout, wherever its run worked; none where the text of the line is another."""
    sites = [frame(site.path.replace("CHECKOUT", str(checkout)), site.line, site.source) for site in stack]
    text = annotation(found(*sites), checkout / "agents", checkout)
    assert text == f"::error {place}title=rltrace%3A diverged%2C cause kernel::Why."


def test_escapes(tmp_path: Path) -> None:
    """As GitHub's toolkit has them: a message may have colons and commas, a property may not."""
    name = "a,b:c%.py"
    (tmp_path / name).write_text(SOURCE)
    text = annotation(found(frame(name, 1), explanation="100 %:\r\n::error::a, b"), tmp_path, tmp_path)
    assert text == (
        "::error file=a%2Cb%3Ac%25.py,line=1,title=rltrace%3A diverged%2C cause kernel::100 %25:%0D%0A::error::a, b"
    )


@pytest.mark.parametrize(("status", "level"), [(0, "notice"), (1, "error"), (3, "warning")])
def test_the_level_is_that_of_the_exit_status(tmp_path: Path, status: int, level: str) -> None:
    """Without a finding the verdict and its reason are all there is."""
    text = annotation(Brief("diff", "unknown", status, "b.zarr is unfinished"), tmp_path)
    assert text == f"::{level} title=rltrace%3A unknown::b.zarr is unfinished"
