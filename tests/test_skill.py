"""SKILL.md is held to its word: for a verdict the exit status and the next commands that it promises."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from suggested import parse

import rltrace
from rltrace.commands.confirm import status_of
from rltrace.commands.console import ExitCode
from rltrace.commands.main import main
from rltrace.experiment.outcome import ExperimentResult, Outcome
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Kind

SKILL = " ".join((Path(rltrace.__file__).parent / "SKILL.md").read_text().split())

Program = Callable[[TraceBuilder, bool], None]
"""Writes the rows of run A, or of run B."""


def statuses_of(verbs: str) -> dict[str, int]:
    """What SKILL.md says of the exit statuses of verbs: the number by its first word."""
    found = re.search(rf"{re.escape(verbs)}: (0 .*?)\.(?: |$)", SKILL)
    text = re.sub(r"\([^)]*\)", "", found[1])
    return {word: int(number) for number, word in re.findall(r"(\d+) (?:the )?(\w+)", text)}


DIFF = statuses_of("`diff` and `check`")


@dataclass(frozen=True)
class Case:
    """Two runs, and what an agent is to be shown of them."""

    program: Program
    verdict: str
    status: int
    cause: str | None = None
    next: tuple[str, ...] = ()
    """Verbs of the next commands."""


def diverged(program: Program, cause: str, following: tuple[str, ...] = ("confirm", "ops")) -> Case:
    return Case(program, "diverged", DIFF["diverged"], cause, following)


def op(trace: TraceBuilder, is_b: bool, *, isa: str = "AVX2", rng: str | None = None, **given: Any) -> None:
    """One op that gives another result in B."""
    result = "y" if is_b else "x"
    trace.op("aten.mm.default", outputs=[result], kernel={"library": "ATen", "isa": isa}, rng=rng, **given)


def two_ops(trace: TraceBuilder, is_b: bool) -> None:
    """That do not depend on each other, in B in the other order."""
    for name in "ba" if is_b else "ab":
        trace.op(f"aten.{name}.default", outputs=[name])


def observed(trace: TraceBuilder, is_b: bool) -> None:
    seen = "y" if is_b else "x"
    evidence = {"own generator": "o", "Python state": "p", "NumPy state": "n"}
    digests = {"action": "a", "observation": seen}
    trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": 3}, evidence=evidence, digests=digests)
    op(trace, is_b, inputs=[("outside", seen)])


def step(trace: TraceBuilder, is_b: bool) -> None:
    trace.main.stream().end_step(parameters="y" if is_b else "x", gradients="g", generators="r", recorded=False)


CASES = {
    "equal": Case(lambda trace, _: op(trace, False), "identical", DIFF["same"]),
    "reordered": Case(two_ops, "same-values", DIFF["same"]),
    "kernel": diverged(lambda trace, is_b: op(trace, is_b, isa="DEFAULT" if is_b else "AVX2"), "kernel"),
    "rng": diverged(lambda trace, is_b: op(trace, is_b, rng="s" if is_b else "r"), "rng"),
    "outside": diverged(observed, "outside"),
    "steps": diverged(step, "unknown", ("record", "record", "diff")),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", CASES)
def test_a_verdict_leads_to_these_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is the one that SKILL.md gives, and each next command is one that its verb takes."""
    case = CASES[name]
    for is_b in (False, True):
        trace = TraceBuilder("b.zarr" if is_b else "a.zarr", level="step" if name == "steps" else "op")
        case.program(trace, is_b)
        trace.finish()
    assert main(["diff", "a.zarr", "b.zarr", "--brief"]) == case.status
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["status"]) == (case.verdict, case.status)
    assert (found["finding"] and found["finding"]["cause"]) == case.cause
    assert tuple(command["argv"][1] for command in found["next"]) == case.next
    for command in found["next"]:
        parse(tuple(command["argv"]))
        assert sorted(command) == ["argv", "folder", "variables"]


@pytest.mark.usefixtures("here")
def test_trouble_and_what_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that does not exist, a wrong option, and a run that has not ended."""
    for name in ("a.zarr", "b.zarr"):
        trace = TraceBuilder(name)
        op(trace, False)
        trace.finish("complete" if name == "a.zarr" else "killed")
    assert main(["diff", "a.zarr", "b.zarr", "--brief"]) == DIFF["undecided"]
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"
    for words in (["diff", "a.zarr", "none.zarr"], ["diff", "--none"], ["check", "--none", "--", "true"]):
        assert main(words) == DIFF["trouble"]


def test_statuses_of_the_other_verbs() -> None:
    """Of ``confirm`` by its outcome; of ``record`` where rltrace itself fails."""
    said = statuses_of("`confirm`")
    like = {Outcome.PARTIAL: "refuted", Outcome.UNRESOLVED: "repaired"}
    for outcome in Outcome:
        status = status_of(ExperimentResult(outcome, "", "a", "b", 0, 1, (), ()))
        assert status == said[like.get(outcome, outcome.name.lower())]
    assert f"{ExitCode.RLTRACE_FAILED:d} where rltrace failed" in SKILL
