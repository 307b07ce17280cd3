"""What an experiment on the two runs came to, as a section of the page: its word, its arms, the kinds of op.

Owns their layout; the outcome comes cleaned of what must not leave the house.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.experiment.outcome import ArmState, ExperimentResult, OriginClass
from rltrace.report.confirm import COLORS, MATTERS, STATES, arm_name, outcome_section, word_of
from rltrace.report.html.elements import (
    Content,
    Element,
    blocks,
    code,
    el,
    more,
    muted,
    number_cell,
    place,
    row,
    section,
    table,
)

MOST = 40
"""Kinds of op on the page."""
WHERE = "the outcome of rltrace confirm has all of them"


def experiment_section(outcome: ExperimentResult) -> Element:
    """``outcome``: of ``rltrace confirm``, finished or not."""
    look = "unknown" if outcome.word is None else COLORS[outcome.word].value
    return section(
        "experiment",
        "Experiment",
        el("p", el("span", word_of(outcome), class_=f"verdict is-{look}")),
        blocks(outcome_section(outcome)),
        table(
            [("Arm", None), ("Run", None), ("Result", None), ("Meaning", None)],
            (row(arm_name(arm), arm.what, STATES[arm.state], _result(arm.state, arm.result)) for arm in outcome.arms),
            "Each program run again, unchanged and with the other run's values",
        ),
        _kinds(outcome) if outcome.classes else None,
        more(len(outcome.classes) - MOST, "kinds", WHERE),
    )


def _result(state: ArmState, result: str) -> Content:
    return result if result else muted("–") if state is ArmState.NOT_RUN else ""


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
