"""One document, four drawings: every fact is drawn by each of them, under the same label."""

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
    Verdict,
)
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.extensions.page.data import gather
from rltrace.extensions.page.page import html_page
from rltrace.report.diff import streams_text, verdict_document, when
from rltrace.report.document import Form, Section, Stack, inline_text
from rltrace.report.markdown import comparison_markdown
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder
from rltrace.trace.read.names import Site
from rltrace_tui.diff_text import environment_lines, verdict_lines


@pytest.fixture
def rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """A comparison with a fact of every kind: an op, an event and a step that differ, and something of all else."""
    monkeypatch.chdir(tmp_path)
    found = kernel()
    first = found.first_value
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
    A B level process compared op event row module site cause inputs kernel repeats outputs field gradient when
    before from < losses.append(loss.item()) cpu.capability
"""


def test_an_uncaught_exception_is_named(rich: Comparison) -> None:
    """That of each process which ended with one, though its recording is complete."""
    ended = [ProcessSummary(name, "complete", 3, None, (), exit) for name, exit in
             (("rank0/main", "exception ValueError"), ("rank1/main", None))]  # fmt: skip
    text = document_text(verdict_document(replace(rich, a=replace(rich.a, processes=tuple(ended)))))
    assert "process  A's rank0/main: ended with an uncaught ValueError\n" in text
    assert "rank1/main" not in text


def test_the_learning_rate_is_shown_where_its_optimizer_differs(rich: Comparison) -> None:
    """With both values, at the first attempt with another one; not at another attempt, nor in another phase."""
    point = DriftPoint(5, 0.00025, 0.00026)
    name = "optimizer:1/group:0/lr"
    drift = Drift("learning-rate", name, "rank0/main", "Agent's Adam", 1, 1, 1, point, point, 1e-7, (), 1e-5, True)
    found = replace(rich.first_value, phase="optimizer", step=5, optimizer=OptimizerCount(1, "Adam", 2, "Agent"))

    def shown(finding: Finding) -> str:
        comparison = replace(rich, decisive=finding, first=finding, first_value=finding, unordered=(), drift=(drift,))
        return document_text(verdict_document(comparison))

    rate = "  rate     learning rate of Agent's Adam\n           A  0.00025\n           B  0.00026\n"
    assert rate in shown(found)
    others = replace(found, step=6), replace(found, phase="backward"), replace(found, optimizer=None)
    assert not any("  rate  " in shown(other) for other in others)
    assert "  learning rate of Agent's Adam\n           differs from step 5 (0.00025 | 0.00026); the" in shown(found)


def test_an_edited_line_is_shown_from_its_change_on(rich: Comparison) -> None:
    """Next to its counterpart, with some of what is before the change: a long line does not hide it."""
    start = "loss = policy_loss - entropy_coefficient * entropy.mean() + "
    a, b = (Site("ppo.py", 43, "update", f"    {start}{number} * value_loss") for number in (0.5, 0.6))
    text = document_text(verdict_document(replace(rich, edits=(SourceEdit("ppo.py", (a,), (b,)),))))
    shown = [line.strip() for line in text.splitlines() if line.endswith("* value_loss")]
    assert shown == [f"…nt * entropy.mean() + 0.{digit} * value_loss" for digit in (5, 6)]


def test_each_fact_has_one_label(rich: Comparison) -> None:
    """What text, Markdown, HTML and the terminal interface draw stands under the label of the document in each."""
    document = verdict_document(rich)
    sections = (Section("runs", "", facts=document.facts), *document.sections)
    facts = [(section, fact, inline_text(fact.label)) for section in sections for fact in section.facts]
    assert {label for _, _, label in facts} >= set(LABELS.split())
    text = document_text(verdict_document(rich)).splitlines()
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
        assert any(text.startswith("Call stack") for text in stacks) if is_stack else label in terms, label


def test_curves_of_several_ranks_are_named_with_their_process(rich: Comparison) -> None:
    """One that differs on a rank alone is named with it, and with one process none is."""
    [curve, *_] = rich.drift
    curve = replace(curve, name="loss", place="", kind="watch", stream="rank1/main")
    shown = document_text(verdict_document(replace(rich, drift=(curve,))))
    assert "in rank1/main: differs" not in shown
    side = replace(rich.a, processes=(*rich.a.processes, replace(rich.a.processes[0], name="rank1/main")))
    shown = document_text(verdict_document(replace(rich, a=side, drift=(curve,))))
    assert "in rank1/main: differs" in shown
    drifts = (curve, replace(curve, stream="rank0/main"))
    assert "in rank0/main: differs" in document_text(verdict_document(replace(rich, drift=drifts)))


def test_a_name_does_not_become_a_word_of_the_sentence(rich: Comparison) -> None:
    [curve, *_] = rich.drift
    curve = replace(curve, name="self._id", place="", kind="watch", exceeds=curve.exceeds or curve.first)
    found = replace(rich, drift=(curve,), decisive=None, first=None, first_value=None)
    assert "The curve of self._id exceeds the threshold from step" in document_text(verdict_document(found))


def test_each_section_has_one_title(rich: Comparison) -> None:
    """Sections have the title of the document in each form; what is said in them is said in each."""
    document = verdict_document(rich)
    assert len(document.rest) == 8  # all that there are
    forms = {
        "text": document_text(verdict_document(rich)),
        "terminal": "\n".join(line.plain for line in verdict_lines(document, 400)),
        "markdown": comparison_markdown(rich).replace("`", ""),
        "page": parse(html_page(replace(gather("a.zarr", "b.zarr"), comparison=rich))).text,
    }
    for form, text in forms.items():
        words = " ".join(text.split())
        for section in document.sections:
            if (form, section.name) != ("terminal", "system"):  # it has a pane
                assert section.title in words, (form, section.title)
                assert all(lead in words for lead in section.lead), (form, section.lead)


@pytest.mark.parametrize(("count", "words"), [(1, "1 environment step"), (12100, "12,100 environment steps")])
def test_environment_steps_are_those_before_the_attempt(tmp_path: Path, count: int, words: str) -> None:
    """The count is that at the end of the step: it is left out of a rollout, which lies before the attempt."""
    program = training()
    for name, noise in (("a", ""), ("b", "x")):
        recorded(tmp_path / name, [replace(do, noise=noise) if k == 2 else do for k, do in enumerate(program)])
    finding = compare(tmp_path / "a", tmp_path / "b").first_value
    text = when(replace(finding, environment_step=count))
    assert text == f"optimizer step 0 (Adam's 1st step, after {words})"
    for phase in ("init", "rollout", "evaluation"):
        before = replace(finding, environment_step=count, phase=phase)
        assert when(before) == f"before the first optimizer step (Adam), phase {phase}"
        later = replace(before, step=37, optimizer=OptimizerCount(0, "Adam", 36, "critic"))
        assert when(later) == f"before optimizer step 37 (critic's Adam, its 37th step), phase {phase}"
        assert when(replace(before, optimizer=None)) == f"before the first optimizer step, phase {phase}"
    of_step = replace(later, op=None, phase="optimizer")
    assert when(of_step) == f"optimizer step 37 (critic's Adam, its 37th step, after {words})"


def ranks(path: Path, diverging: dict[int, int], count: int = 12) -> Path:
    """A run of many ranks; each of ``diverging`` computes something else from that op on."""
    trace = TraceBuilder(path)
    for rank in range(count):
        stream = trace.process(f"rank{rank}/main").stream()
        for op in range(4):
            value = "y" if op >= diverging.get(rank, 4) else "x"
            stream.op(f"aten.op{op}.default", outputs=[f"{value}{op}"])
        stream.end_step(parameters="p", gradients="g", generators="r")
    return trace.finish()


def test_many_ranks_are_grouped_by_their_first_difference(tmp_path: Path) -> None:
    """Ranks that agree are one line, and so are those that diverge at one op; the evidence is that of the first rank of
    each group, and every form of report has the same.
    """
    a = ranks(tmp_path / "a.zarr", {})
    b = ranks(tmp_path / "b.zarr", {2: 2, **dict.fromkeys(range(4, 9), 1)})
    found = compare(a, b)
    assert [(len(group.streams), group.finding and group.finding.op) for group in found.groups] == [
        (1, "aten.op2.default"),
        (5, "aten.op1.default"),
        (6, None),
    ]
    document = verdict_document(found)
    assert [section.title for section in document.findings] == [
        "First difference in values",
        "In rank4/main, order to the above unknown",
    ]
    text = " ".join(document_text(verdict_document(found)).split())
    assert "compared 12 streams, 2 to 4 ops each" in text
    assert "diverge 1 stream, the first at op 2, step 0, cause: computation (aten.op2.default, " in text
    alike = "rank0/main to rank1/main, rank3/main, rank9/main to rank11/main"
    assert f": rank4/main to rank8/main agree 6 streams: {alike}" in text
    same = compare(a, ranks(tmp_path / "c.zarr", {}))
    assert [len(group.streams) for group in same.groups] == [12]
    assert not verdict_document(same).named("streams")


def test_streams_in_a_row_are_named_by_the_first_and_the_last() -> None:
    """Those of one kind; after four runs the rest is counted."""
    names = [f"rank{rank}/main" for rank in (0, 1, 2, 4, 6, 8, 10, 11)]
    assert streams_text(names) == "rank0/main to rank2/main, rank4/main, rank6/main, rank8/main and 2 more"
    assert streams_text(["rank0/main", "rank1/worker:1"]) == "rank0/main, rank1/worker:1"


@pytest.mark.parametrize(
    ("op", "step", "text"),
    [
        ("jit.stage", 0, "before the first iteration (jit.train)"),
        ("jit.train.before", 0, "before the first iteration (jit.train)"),
        ("jit.trainer", 2, "before iteration 2 (jit.train's 3rd iteration)"),
        ("jit.train.iteration", 0, "iteration 0 (jit.train's 1st iteration)"),
        ("jit.train.iteration", 2, "iteration 2 (jit.train's 3rd iteration)"),
    ],
)
def test_calls_of_jax_precede_the_iteration_of_their_step(rich: Comparison, op: str, step: int, text: str) -> None:
    """Other functions, and what the one with the loop computes before it."""
    count = OptimizerCount(0, "jit.train", step, None)
    finding = replace(rich.decisive or rich.first, op=op, step=step, phase="other", optimizer=count)
    assert when(finding, JAX_ENGINE) == text


def test_a_variable_that_is_empty_is_not_one_that_is_not_set(rich: Comparison) -> None:
    """Each has its word."""
    text = document_text(verdict_document(replace(rich, system=(NamedDifference("env.XLA_FLAGS", "", None),))))
    assert "  env.XLA_FLAGS  (empty) | (unset)" in text


def test_the_answer_ties_what_was_changed_to_the_first_difference(rich: Comparison) -> None:
    """The command, else the files, else a variable; with the stream where there are several; none without a change."""
    plain = replace(rich, commands="", edits=(), system=())
    assert verdict_document(plain).answer == ()
    first = "first difference: aten.mm.default at train.py:20, "
    (both,) = verdict_document(replace(rich, commands="B adds --seed 5")).answer
    assert both.startswith("The command: B adds --seed 5; between the runs train.py was edited; " + first)
    variable = NamedDifference("env.OMP_NUM_THREADS", None, "2")
    changed = replace(plain, system=(variable,), compared={"x": 1, "y": 2})
    (text,) = verdict_document(changed).answer
    assert text.startswith("OMP_NUM_THREADS: not set in A, 2 in B; " + first) and text.endswith(" (rank0/main).")
    assert text in document_text(verdict_document(changed)).replace("\n  ", " ")


def test_workers_of_one_side_are_one_line(rich: Comparison) -> None:
    """Numbers apart; the finding that is shown, and streams that both sides have, are not among them."""
    workers = [replace(rich.first_value, a_index=None, b_index=0, stream=f"rank0/worker:{n}") for n in range(3)]
    document = verdict_document(replace(rich, unordered=tuple(workers)))
    assert len(document.findings) == 1
    (section,) = document.named("one-sided")
    (fact,) = section.facts
    assert fact.label == "B only"
    assert inline_text(fact.value) == (
        "rank0/worker:0 to rank0/worker:2: 3 streams, the first op aten.mm.default at train.py:20"
    )


def test_one_difference_of_several_workers_is_one_finding(rich: Comparison) -> None:
    """With the other streams named; what a collective brought, and another place, are findings of their own."""
    others = [replace(rich.decisive, stream=f"rank{n}/main") for n in (1, 2)]
    elsewhere = replace(rich.decisive, stream="rank3/main", op="aten.add.Tensor")
    document = verdict_document(replace(rich, unordered=(*others, elsewhere)))
    assert [inline_text(fact.value) for fact in document.findings[0].facts if fact.label == "also in"] == [
        "rank1/main to rank2/main, at the same place"
    ]
    assert [section.title for section in document.findings[1:]] == ["In rank3/main, order to the above unknown"]


def test_findings_of_one_stream_have_an_order_where_none_decides(rich: Comparison) -> None:
    earlier = replace(rich.first_value, cause=Cause.CONTROL_FLOW, a_index=0, b_index=None)
    found = replace(rich, verdict=Verdict.SAME_VALUES, decisive=None, first=None, unordered=(earlier,), later=())
    titles = [section.title for section in verdict_document(found).findings]
    assert titles == ["First difference in values", "Before it, the first difference in structure"]

    other = replace(earlier, stream="rank1/main", op="aten.add.Tensor", b_index=0)
    found = replace(found, verdict=Verdict.UNKNOWN, first_value=None, unordered=(earlier, other))
    titles = [section.title for section in verdict_document(found).findings]
    assert titles == [f"First difference of {earlier.stream}", "In rank1/main, order to the above unknown"]


def test_the_frame_of_the_program_leads_and_those_of_libraries_are_folded(rich: Comparison) -> None:
    library = Site("torch_rl/env.py", 3, "step", "self.step()", "/opt/lib/python3.11/site-packages/torch_rl/env.py")
    own = Site("train.py", 9, "main", "env.step(1)", "src/train.py")
    finding = replace(rich.decisive, site=library, stack=(library, *[replace(library, line=n) for n in (4, 5, 6)], own))
    text = document_text(verdict_document(replace(rich, decisive=finding, first=finding, unordered=())))
    assert text.index("  program  train.py:9 in main\n") < text.index("  site     torch_rl/env.py:3 in step\n")
    assert "torch_rl/env.py:4 in step\n" in text and "torch_rl/env.py:5" not in text
    assert "  from     … 2 more frames of libraries\n  from     train.py:9 in main\n" in text
    assert "first difference: aten.mm.default at train.py:9, " in text.replace("\n  ", " ")
