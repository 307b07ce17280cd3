"""The outcome of an experiment on the two runs as a section of the page: verdict, arms, kinds of op.

Owns their layout. The outcome is already redacted.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.experiment.outcome import ArmState, ExperimentResult, OriginClass
from rltrace.report.confirm import COLORS, RELEVANCE, STATES, arm_name, outcome_headline, outcome_section
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

MAX_KINDS = 40
"""Kinds of op on the page."""
IN_OUTCOME = "the outcome of rltrace confirm has all of them"


def experiment_section(outcome: ExperimentResult) -> Element:
    """``outcome``: the result of ``rltrace confirm``, finished or not."""
    look = "unknown" if outcome.word is None else COLORS[outcome.word].value
    return section(
        "experiment",
        "Experiment",
        el("p", el("span", outcome_headline(outcome), class_=f"verdict is-{look}")),
        blocks(outcome_section(outcome)),
        table(
            [("Arm", None), ("Run", None), ("Result", None), ("Meaning", None)],
            (row(arm_name(arm), arm.what, STATES[arm.state], _result(arm.state, arm.result)) for arm in outcome.arms),
            "Each program run again, unchanged and with the other run's values",
        ),
        _kinds(outcome) if outcome.classes else None,
        more(len(outcome.classes) - MAX_KINDS, "kinds", IN_OUTCOME),
    )


def _result(state: ArmState, result: str) -> Content:
    return result if result else muted("–") if state is ArmState.NOT_RUN else ""


def _kinds(outcome: ExperimentResult) -> Element:
    return table(
        [("Op", None), ("Where", None), ("Ops", "number"), ("Largest ULP", "number"), ("Kernel", None), ("", None)],
        (row(*_kind(kind)) for kind in outcome.classes[:MAX_KINDS]),
        "Kinds of op that give different results",
    )


def _kind(kind: OriginClass) -> Iterator[Content]:
    yield code(kind.op)
    yield place(kind.site) if kind.site is not None else muted("–")
    yield number_cell(kind.count)
    yield number_cell(kind.max_ulp)
    kernels = dict.fromkeys(kernel for kernel in (kind.kernel.a, kind.kernel.b) if kernel)
    yield " / ".join(kernels)
    yield RELEVANCE[kind.matters]
