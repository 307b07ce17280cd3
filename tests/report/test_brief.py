"""A result in brief: never over 2 kB, with commands as argument lists, and what SKILL.md says of it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from suggested import parse

import rltrace
from rltrace.command_lines import NextCommand, in_folder, line, parse_line
from rltrace.commands.main import VERBS
from rltrace.diff.base.model import Cause, Comparison
from rltrace.diff.compare import compare
from rltrace.experiment.outcome import ExperimentResult, Outcome
from rltrace.extensions.repro.explain import Tried
from rltrace.extensions.repro.kernel_settings import KernelSetting
from rltrace.extensions.repro.report import brief_explanation, explanation
from rltrace.json import keys_of, to_json
from rltrace.report.brief import MAX_BYTES, Brief, BriefFinding, brief_comparison, brief_outcome
from rltrace.testing.builder import In, TraceBuilder

SKILL = (Path(rltrace.__file__).parent / "SKILL.md").read_text()


def test_words_of_a_line_come_back() -> None:
    """Folder, variables and arguments, whatever is quoted in them."""
    argv = ("rltrace", "record", "-o", "a b.zarr", "--", "python", "-c", "print('a && b', X=1)")
    text = in_folder("/tmp/a folder", {"B": "2 '", "A": ""}, line(argv[1], *argv[2:]))
    assert parse_line(text) == NextCommand(argv, "/tmp/a folder", {"A": "", "B": "2 '"})
    assert parse_line(line("diff", "a", "#b") + "  # on A's machine") == NextCommand(("rltrace", "diff", "a", "#b"))


def pair(folder: Path, op: str) -> Comparison:
    """Two traces with one finding."""
    for name, digest in (("a", "x"), ("b", "y")):
        trace = TraceBuilder(folder / f"{name}.zarr")
        trace.op(op, inputs=[In(digest="same")], outputs=[digest])
        trace.finish()
    return compare(folder / "a.zarr", folder / "b.zarr")


@pytest.mark.parametrize("text", ["", "x" * 900, "é" * 5_000])
def test_a_finding_fits(tmp_path: Path, text: str) -> None:
    """Names and commands of any length: the longest are cut or counted, and a cause is always there."""
    found = pair(tmp_path, f"aten.mm{text}.default")
    brief = brief_comparison(replace(found, advice=(*found.advice, line("diff", text, text))), 1)
    assert len(json.dumps(to_json(brief), indent=2).encode()) <= MAX_BYTES
    assert brief.finding is not None
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
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    for path in paths:
        trace = TraceBuilder(path)
        trace.op("aten.mm.default")
        trace.finish()
    brief = brief_comparison(compare(*paths), 0)
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
