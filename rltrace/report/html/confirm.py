"""What an experiment on the two runs came to, as a section of the page: its word, its arms, the kinds of op.

Owns their layout; the outcome comes cleaned of what must not leave the house.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.experiment.outcome import ArmState, ExperimentResult, OriginClass, Outcome
from rltrace.report.confirm import STATES, steps_text, word_of
from rltrace.report.html.elements import (
    Content,
    Element,
    code,
    el,
    facts,
    more,
    muted,
    number_cell,
    place,
    row,
    section,
    table,
)
from rltrace.report.phrases import sentence

MOST = 40
"""Kinds of op on the page."""
LOOKS = {
    Outcome.CONFIRMED: "identical",
    Outcome.REPAIRED: "identical",
    Outcome.PARTIAL: "unknown",
    Outcome.REFUTED: "diverged",
    Outcome.UNRESOLVED: "unknown",
}
MATTERS = {True: "needed", False: "makes no difference", None: "not tried"}
WHERE = "the outcome of rltrace confirm has all of them"


def experiment_section(outcome: ExperimentResult) -> Element:
    """``outcome``: of ``rltrace confirm``, finished or not."""
    look = "unknown" if outcome.word is None else LOOKS[outcome.word]
    return section(
        "experiment",
        "Experiment",
        el("p", el("span", word_of(outcome), class_=f"verdict is-{look}")),
        el("p", sentence(outcome.explanation), class_="lead") if outcome.explanation else None,
        facts(("over", steps_text(outcome)), ("search", _search(outcome))),
        table(
            [("Arm", None), ("Run", None), ("Result", None), ("Meaning", None)],
            (
                row(arm.name.value.replace("<-", "←"), arm.what, STATES[arm.state], _result(arm.state, arm.result))
                for arm in outcome.arms
            ),
            "Each program run again, unchanged and with the other run's values",
        ),
        _kinds(outcome) if outcome.classes else None,
        more(len(outcome.classes) - MOST, "kinds", WHERE),
    )


def _result(state: ArmState, result: str) -> Content:
    return result if result else muted("–") if state is ArmState.NOT_RUN else ""


def _search(outcome: ExperimentResult) -> str:
    if not outcome.trials:
        return ""
    runs = "one run" if outcome.trials == 1 else f"{outcome.trials:,} runs"
    return f"{runs}, {outcome.flaky:,} of them not the same each time" if outcome.flaky else runs


def _kinds(outcome: ExperimentResult) -> Element:
    return table(
        [("Op", None), ("Where", None), ("Ops", "number"), ("Largest ULP", "number"), ("Kernel", None), ("", None)],
        (row(*_kind(kind)) for kind in outcome.classes[:MOST]),
        "Kinds of op that give different results",
    )


def _kind(kind: OriginClass) -> Iterator[Content]:
    yield code(kind.op)
    yield place(kind.site) if kind.site is not None else muted("–")
    yield number_cell(kind.count)
    yield number_cell(kind.max_ulp)
    kernels = dict.fromkeys(kernel for kernel in (kind.kernel.a, kind.kernel.b) if kernel)
    yield " / ".join(kernels)
    yield MATTERS[kind.matters]
