"""Which process of B is which of A: by name, unless timing decided who got the name."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from views import both, compare_in

from rltrace.diff import compare
from rltrace.diff.base.model import FindingEvent, Pair, Sender, Verdict
from rltrace.diff.finding_order import _sent
from rltrace.json import to_json
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.process_start import note_failure, note_left_out, write_start
from rltrace.trace.read.reader import open_trace

Child = tuple[str, Sequence[str]]
"""Its argument, and what it computed."""

FIRST, SECOND, THIRD = NAMES = ("rank0/child:evaluate.py", "rank0/child:evaluate.py#2", "rank0/child:evaluate.py#3")


def trace(path: Path, *children: Child) -> Path:
    """A main process and children that all asked for one name, which they get in this order."""
    builder = TraceBuilder(path)
    builder.op("aten.ones.default", outputs=["ones"])
    for name, (argument, results) in zip(NAMES, children, strict=False):
        process = builder.create_process(FIRST, ["evaluate.py", argument])
        assert process.name == name
        stream = process.stream()
        for result in results:
            stream.op("aten.mul.Tensor", inputs=[("outside", "x")], outputs=[result])
    return builder.finish()


@pytest.mark.parametrize(
    ("a", "b", "differing"),
    [
        # who came first is no difference
        ([("1", "pq"), ("2", "rst"), ("3", "u")], [("3", "u"), ("1", "pq"), ("2", "rst")], set()),
        # of those started alike, the ones that computed alike are partners, and the one that is left differs
        ([("", "pq"), ("", "rst"), ("", "u")], [("", "u"), ("", "rsx"), ("", "pq")], {(SECOND, 2)}),
        # of those that all differ, the ones that began alike, as actors do that received other weights later
        ([("1", "pqr"), ("2", "stu")], [("3", "stx"), ("4", "pqy")], {(FIRST, 2), (SECOND, 2)}),
        ([("1", "pqr"), ("2", "stu")], [("2", "stx"), ("1", "pqy")], {(FIRST, 2), (SECOND, 2)}),
        # where nothing computed the same, the arguments decide
        ([("1", "pq"), ("2", "rst")], [("2", "rsx"), ("1", "py")], {(FIRST, 1), (SECOND, 2)}),
    ],
)
def test_partners(tmp_path: Path, a: list[Child], b: list[Child], differing: set[tuple[str, int]]) -> None:
    """Processes of one name are the same one by what they computed and were started with, whatever numbers they got."""
    found = compare(trace(tmp_path / "a", *a), trace(tmp_path / "b", *b))
    assert found.verdict is (Verdict.DIVERGED if differing else Verdict.IDENTICAL)
    assert {(f.stream, f.a_index) for f in (found.first, *found.unordered) if f is not None} == differing


def test_what_a_process_of_another_name_sent_is_found(tmp_path: Path) -> None:
    """The bytes that the main process read are what the child that was the second in A and the first in B wrote."""
    a, b = [("seed=1", "pq"), ("seed=2", "r")], [("seed=2", "x"), ("seed=1", "pq")]
    for builder, (own, sent) in both(tmp_path, (a, "r"), (b, "x")):
        for argument, results in own:
            stream = builder.create_process(FIRST, ["evaluate.py", argument]).stream()
            for result in results:
                stream.op("aten.mul.Tensor", inputs=[("outside", "x")], outputs=[result])
        builder.op("aten.sin.default", inputs=[("outside", sent)], outputs=[f"sine of {sent}"])
    found = compare_in(tmp_path)
    received = next(finding for finding in found.later if finding.stream == "rank0/main")
    assert (found.decisive.stream, found.unordered) == (SECOND, ())
    assert received.explanation.endswith(f"; it is what aten.mul.Tensor (row 0) of {SECOND} wrote")


def test_names_that_were_given_in_order_decide(tmp_path: Path) -> None:
    """Workers that their parent numbered are who they are called, even where another one computed the same."""
    names = ("rank0/worker:1", "rank0/worker:2")
    for builder, results in both(tmp_path, "pq", "qp"):
        for name, result in zip(names, results, strict=True):
            builder.process(name).stream().op("aten.mul.Tensor", outputs=[result])
    assert compare_in(tmp_path).verdict is Verdict.DIVERGED


POOL = ("rank0/pool:1", "rank0/pool:2", "rank0/pool:3")


def pool(path: Path, *tasks: str) -> Path:
    builder = TraceBuilder(path)
    builder.op("aten.ones.default", outputs=["ones"])
    for name, taken in zip(POOL, tasks, strict=False):
        stream = builder.process(name).stream()
        for task in taken:
            loaded = stream.op("aten.to.dtype", inputs=[("outside", task)], outputs=[f"{task} loaded"])
            stream.op("aten.mul.Tensor", inputs=[loaded], outputs=[f"{task} scaled"])
    return builder.finish()


@pytest.mark.parametrize("tasks", [("ab", "cd"), ("dcba", ""), ("c", "a", "bd")])
def test_a_pools_processes_take_tasks_as_timing_has_it(tmp_path: Path, tasks: tuple[str, ...]) -> None:
    """Runs with other tasks, another order, more workers or fewer are identical, and said to be without order."""
    found = compare(pool(tmp_path / "a", "ac", "bd"), pool(tmp_path / "b", *tasks))
    assert found.verdict is Verdict.IDENTICAL
    assert found.compared["rank0/pool"] == 8
    assert any("processes of rank0/pool runs a task depends on timing" in note for note in found.notes)


@pytest.mark.parametrize(
    ("tasks", "verdict"), [(("abcd",), Verdict.IDENTICAL), (("abc",), Verdict.UNKNOWN), ((), Verdict.UNKNOWN)]
)
def test_a_pools_process_that_left_nothing_but_its_start_record(
    tmp_path: Path, tasks: tuple[str, ...], verdict: Verdict
) -> None:
    """It was terminated while it still imported torch: not missed where the others took every task."""
    b = pool(tmp_path / "b", *tasks)
    write_start(b, {"pid": 0, "argv": ["python", "train.py"]})
    assert compare(pool(tmp_path / "a", "ab", "cd"), b).verdict is verdict


def test_another_task_of_a_pools_process_leaves_it_open(tmp_path: Path) -> None:
    """Whose task it is cannot be known; the first op without an equal one is named, on each side."""
    found = compare(pool(tmp_path / "a", "ac", "bd"), pool(tmp_path / "b", "ab", "cx"))
    assert found.verdict is Verdict.UNKNOWN
    assert "of the ops of rank0/pool, 2 of A and 2 of B" in found.why
    named = "aten.to.dtype at train.py:12 (train) (row 2 of rank0/pool:2)"
    assert found.why.endswith(f"; the first are {named} in A, {named} in B")


def test_other_arguments_in_a_pool_are_shown(tmp_path: Path) -> None:
    """Where the first ops without an equal one are calls of one line."""
    for builder, factor in both(tmp_path, 2.0, 3.0):
        stream = builder.process(POOL[0]).stream()
        stream.op("aten.mul.Tensor", inputs=[("outside", "x")], floats=[factor], outputs=[f"x{factor}"])
    assert any("called with different numbers: 2.0 in A, 3.0 in B" in note for note in compare_in(tmp_path).notes)


def test_what_could_not_be_recorded_is_named(tmp_path: Path) -> None:
    """In the text and in JSON, though all that was recorded is equal; what never imported torch is not."""
    sides = [trace(tmp_path / name) for name in "ab"]
    for path in sides:
        write_start(path, {"pid": 0, "argv": ["python", "-c"]})
        note_failure(path, write_start(path, {"pid": 0, "argv": ["python", "/x/eval.py"]}), "ImportError: no rltrace")
    found = compare(*sides)
    assert found.verdict is Verdict.IDENTICAL
    why = "the recorder could not start: ImportError: no rltrace"
    for side in ("a", "b"):
        _, missing = to_json(found)[side]["processes"]
        assert (missing["name"], missing["state"], missing["why"]) == ("python eval.py", "never-recorded", why)
    assert " ".join(document_text(verdict_document(found)).split()).count(f"python eval.py: never-recorded, {why}") == 2


def test_processes_that_were_left_out_by_choice(tmp_path: Path) -> None:
    """Left out on both sides, nothing is missing, whatever else started there; on one side, the verdict is open."""
    sides = [trace(tmp_path / name) for name in "ab"]
    for path in sides:
        note_left_out(path, write_start(path, {"argv": ["python", "train.py"]}), FIRST, ["*/main"])
    write_start(sides[1], {"pid": 0, "argv": ["ls"]})
    found = compare(*sides)
    assert found.verdict is Verdict.IDENTICAL
    note = f"{FIRST} and their forks are not recorded: not among --processes */main"
    assert sum(note in text for text in map(str, found.notes)) >= 1
    assert [(one.name, one.state) for one in open_trace(sides[0]).unrecorded] == [(FIRST, "left-out")]
    whole = trace(tmp_path / "whole", ("--seed=1", "x"))
    assert compare(whole, sides[0]).verdict is Verdict.UNKNOWN


def test_who_received_the_same_and_copied_it_has_not_sent_it(tmp_path: Path) -> None:
    """Two workers that a third, unrecorded process sent the same weights, each of which copies them once more."""
    for builder, sent in both(tmp_path, "r", "x"):
        for name in ("rank0/worker:1", "rank0/worker:2"):
            stream = builder.process(name).stream()
            stream.op("aten.copy_.default", inputs=[("outside", sent)], outputs=[sent])
            stream.op("aten._foreach_copy_.default", inputs=[In(0, sent)], outputs=[sent])
    found = compare_in(tmp_path)
    assert (found.decisive.sender, [other.sender for other in found.unordered]) == (None, [None] * 2)


def test_what_an_op_received_says_nothing_of_the_event_that_is_named(tmp_path: Path) -> None:
    """The event came first; what was sent came before the first op that differs."""
    for builder, seen in both(tmp_path, "p", "q"):
        builder.op("aten.sin.default", inputs=[("outside", seen)], outputs=[seen])
    first = replace(compare_in(tmp_path).decisive, a_index=9, b_index=8)
    event = FindingEvent("environment 0", None, Pair(1, 1), (), first)
    sender = Sender("rank0/worker:1", 5, 6, "aten.mul.Tensor", None)
    named = replace(first, a_index=2, b_index=3, event=event, sender=sender)
    assert [(edge[0].row, edge[1].row) for edge in map(partial(_sent, named), (0, 1)) if edge] == [(5, 9), (6, 8)]
