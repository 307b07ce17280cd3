"""One document, four drawings: every fact is drawn by each of them, under the same label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import kernel
from pages import parse
from programs import recorded, training

from rltrace.diff import compare
from rltrace.diff.base.model import (
    Cause,
    Comparison,
    Drift,
    DriftPoint,
    EventSummary,
    Finding,
    FindingEvent,
    Hole,
    Hunk,
    NamedDifference,
    OptimizerCount,
    Pair,
    ProcessSummary,
    SourceEdit,
    Structure,
    UninitialisedCount,
)
from rltrace.report.diff_markdown import comparison_markdown
from rltrace.report.diff_text import inline_text, render_comparison
from rltrace.report.document import Form, Stack, verdict_document, when
from rltrace.report.html.page import html_page
from rltrace.report.page_data import gather
from rltrace.trace.read.names import Site
from rltrace_tui.diff_text import environment_lines, verdict_lines


@pytest.fixture
def rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """A comparison with a fact of every kind: an op, an event and a step that differ, and something of all else."""
    monkeypatch.chdir(tmp_path)
    found = kernel()
    first = found.first_value
    assert first is not None
    outputs = (*first.outputs, *(Pair("1" * 16, "2" * 16) for _ in range(3)))
    op = replace(first, cause=Cause.SAME_KERNEL, repeats=True, outputs=outputs)
    cells = (NamedDifference("reward", "1", "2"),)
    event = replace(first, event=FindingEvent("environment 3", None, Pair(1, 1), cells, first))
    step = replace(first, op=None, a_index=None, b_index=None, event=None)
    killed = ProcessSummary("rank0/main", "killed", 3, "it ended", (), None)
    unordered: tuple[Finding, ...] = (event, step)
    return replace(
        found,
        a=replace(found.a, processes=(killed,)),
        decisive=op,
        first=op,
        first_value=op,
        unordered=unordered,
        structure=Structure(1, 0, 0, (Hunk("only-a", "rank0/main", 1, 2, 1, 2, 0, "aten.add"),)),
        holes=(Hole("a", "rank0/main", "rank0/main", 0, 3, "a chunk is missing"),),
        marked=UninitialisedCount(3, 2, "op 3"),
        events=EventSummary(1, "reset of environment 0"),
        notes=("see to it",),
    )


LABELS = """
    A B level process compared op event row module site cause inputs kernel repeats output outputs field gradient when
    before from < losses.append(loss.item()) cpu.capability
"""


def test_the_learning_rate_is_shown_where_its_optimizer_differs(rich: Comparison) -> None:
    """With both values, at the first attempt with another one; not at another attempt, nor in another phase."""
    point = DriftPoint(5, 0.00025, 0.00026)
    name = "optimizer:1/group:0/lr"
    drift = Drift("learning-rate", name, "rank0/main", "Agent's Adam", 1, 1, 1, point, point, 1e-7, (), 1e-5, True)
    assert rich.first_value is not None
    found = replace(rich.first_value, phase="optimizer", step=5, optimizer=OptimizerCount(1, "Adam", 2, "Agent"))

    def shown(finding: Finding) -> str:
        comparison = replace(rich, decisive=finding, first=finding, first_value=finding, unordered=(), drift=(drift,))
        return render_comparison(comparison, color=False)

    rate = "  rate     learning rate of Agent's Adam\n           A  0.00025\n           B  0.00026\n"
    assert rate in shown(found)
    others = replace(found, step=6), replace(found, phase="backward"), replace(found, optimizer=None)
    assert not any("  rate  " in shown(other) for other in others)
    assert "  learning rate of Agent's Adam\n           differs from step 5 (0.00025 | 0.00026); the" in shown(found)


def test_an_edited_line_is_shown_from_its_change_on(rich: Comparison) -> None:
    """Next to its counterpart, with some of what is before the change: a long line does not hide it."""
    start = "loss = policy_loss - entropy_coefficient * entropy.mean() + "
    a, b = (Site("ppo.py", 43, "update", f"    {start}{number} * value_loss") for number in (0.5, 0.6))
    text = render_comparison(replace(rich, edits=(SourceEdit("ppo.py", (a,), (b,)),)), color=False)
    shown = [line.strip() for line in text.splitlines() if line.endswith("* value_loss")]
    assert shown == [f"…nt * entropy.mean() + 0.{digit} * value_loss" for digit in (5, 6)]


def test_each_fact_has_one_label(rich: Comparison) -> None:
    """What text, Markdown, HTML and the terminal interface draw stands under the label of the document in each."""
    document = verdict_document(rich)
    sections = (document.runs, *document.sections)
    facts = [(section, fact, inline_text(fact.label)) for section in sections for fact in section.facts]
    assert {label for _, _, label in facts} >= set(LABELS.split())
    text = render_comparison(rich, color=False).splitlines()
    terminal = [line.plain for line in (*verdict_lines(document, 100), *environment_lines(document, 100))]
    markdown = comparison_markdown(rich).replace("`", "").replace(r"\|", "|").splitlines()
    page = parse(html_page(replace(gather("a.zarr", "b.zarr"), comparison=rich)))
    terms = {node.text for tag in ("dt", "th", "code", "span") for node in page.all(tag)}
    stacks = {node.text for node in page.all("summary")}
    for section, fact, label in facts:
        is_stack = isinstance(fact.value, Stack)
        assert any(line.strip().startswith(label) for line in text), label
        assert any(line.strip().startswith(label) for line in terminal), label
        start = "<details><summary>Call stack" if is_stack else f"{'| ' if section.form is Form.TABLE else '- '}{label}"
        assert any(line.startswith(start) for line in markdown), label
        assert any(told.startswith("Call stack") for told in stacks) if is_stack else label in terms, label


def test_each_section_has_one_title(rich: Comparison) -> None:
    """Sections have the title of the document in each form; what is said in them is said in each."""
    document = verdict_document(rich)
    assert len(document.rest) == 9  # all that there are
    forms = {
        "text": render_comparison(rich, color=False),
        "terminal": "\n".join(line.plain for line in verdict_lines(document, 400)),
        "markdown": comparison_markdown(rich).replace("`", ""),
        "page": parse(html_page(replace(gather("a.zarr", "b.zarr"), comparison=rich))).text,
    }
    for form, told in forms.items():
        words = " ".join(told.split())
        for section in document.sections:
            if (form, section.name) != ("terminal", "system"):  # it has a pane
                assert section.title in words, (form, section.title)
                assert all(lead in words for lead in section.lead), (form, section.lead)


@pytest.mark.parametrize(("count", "words"), [(1, "1 environment step"), (12100, "12,100 environment steps")])
def test_environment_steps_are_those_before_the_attempt(tmp_path: Path, count: int, words: str) -> None:
    """An op of a rollout lies before them: the number belongs to the attempt that ends the step, and is told of it."""
    program = training()
    for name, noise in (("a", ""), ("b", "x")):
        recorded(tmp_path / name, [replace(do, noise=noise) if k == 2 else do for k, do in enumerate(program)])
    finding = compare(tmp_path / "a", tmp_path / "b").first_value
    assert finding is not None
    told = when(replace(finding, environment_step=count))
    assert told == f"optimizer step 0 (Adam's 1st attempt, after {words})"
    of_init = when(replace(finding, environment_step=count, phase="init"))
    assert of_init == "optimizer step 0 (Adam's 1st attempt), phase init"  # before there was any
