"""Both runs over time: every optimizer step, and their logged scalars.

Owns the text beside the charts, which says where a chart is a sample. Decides nothing, reads nothing.
"""

from __future__ import annotations

import math
from collections import Counter

from rltrace.diff.base.model import Finding
from rltrace.diff.metrics.timeline import Curve, StepState, Timeline
from rltrace.extensions.page.charts import (
    HEIGHTS,
    MAX_POINTS,
    MAX_RUNS,
    curve_chart,
    state_runs,
    timeline_chart,
)
from rltrace.extensions.page.data import PageData
from rltrace.extensions.page.elements import (
    IN_TERMINAL,
    Content,
    Element,
    blocks,
    code,
    el,
    more,
    muted,
    row,
    section,
    side,
    table,
)
from rltrace.report.diff import step_word
from rltrace.report.document import Document
from rltrace.wording import counted

MAX_CURVES, MAX_PROCESSES = 24, 16
MAX_NUMBERS = 6
"""Steps around the divergence of a curve whose numbers are listed."""

STATES = {
    StepState.SAME: "equal",
    StepState.DIFFERS: "differs",
    StepState.OTHER_OPS: "other ops, or the same in another order; no value known to differ",
    StepState.ONE_SIDED: "on one side only",
    StepState.UNKNOWN: "without digests on one side",
}

COUNTED = {
    StepState.SAME: "equal",
    StepState.DIFFERS: "differing",
    StepState.OTHER_OPS: "other ops or another order",
    StepState.ONE_SIDED: "on one side only",
    StepState.UNKNOWN: "without digests",
}

# --- timeline -------------------------------------------------------------------------------------------------------


def timeline_section(material: PageData) -> Element | None:
    """A timeline for every process that made steps."""
    if not material.timelines:
        return None
    finding = material.comparison.shown
    shown = material.timelines[:MAX_PROCESSES]
    return section(
        "timeline",
        f"Every {step_word(material.comparison.a.engine)}",
        [_timeline(timeline, finding, number, len(shown) > 1) for number, timeline in enumerate(shown)],
        _timeline_legend(shown),
        more(len(material.timelines) - len(shown), "processes", IN_TERMINAL),
    )


def _timeline(timeline: Timeline, finding: Finding | None, place: int, named: bool) -> Content:
    mark = finding.step if finding is not None and finding.stream.startswith(timeline.process) else None
    counts = Counter(timeline.states)
    listed = ", ".join(f"{counts[state]:,} {words}" for state, words in COUNTED.items() if counts[state])
    text = f"{len(timeline.states):,} steps: {listed}."
    drawn = state_runs(timeline.states, MAX_RUNS)
    exact = sum(1 for k in range(1, len(timeline.states)) if timeline.states[k] is not timeline.states[k - 1]) + 1
    sampled = " Neighbouring steps share a place; the worst of them is drawn." if exact > len(drawn) else ""
    return [
        el("h3", code(timeline.process)) if named else None,
        timeline_chart(timeline, mark, f"timeline-{place}", text),
        el("p", text, sampled, class_="small"),
    ]


def _timeline_legend(shown: tuple[Timeline, ...]) -> Element:
    present = {state for timeline in shown for state in timeline.states}
    return el(
        "ul", [el("li", _key(state), words) for state, words in STATES.items() if state in present], class_="legend"
    )


def _key(state: StepState) -> Element:
    """A bar as high as in the chart."""
    high = max(1, HEIGHTS[state] * 16 // 100)
    bar = el("rect", y=16 - high, width=8, height=high, class_=f"is-{state.value}")
    return el("svg", bar, class_="key", width=8, height=16, aria_hidden="true")


# --- curves ---------------------------------------------------------------------------------------------------------


def curves_section(material: PageData, document: Document) -> Element | None:
    """Where logged scalars diverge, and their charts, of which the first is unfolded."""
    facts = [[el("h3", words.title), blocks(words)] for words in document.named("curves", "drift")]
    shown = material.curves[:MAX_CURVES]
    if not shown and not facts:
        return None
    return section(
        "curves",
        "Logged scalars of both runs",
        facts,
        el("div", [_curve(curve, number) for number, curve in enumerate(shown)], class_="curves"),
        more(len(material.curves) - len(shown), "curves", IN_TERMINAL),
        class_="long",
    )


def _curve(curve: Curve, place: int) -> Element:
    name = f"curve-{place}"
    return el(
        "details",
        el("summary", code(curve.name), el("span", _divergence(curve), class_="badge")),
        el(
            "ul",
            el("li", side("A"), " solid"),
            el("li", side("B"), " dashed"),
            el("li", code(curve.place)),
            class_="legend",
        ),
        curve_chart(curve, curve.diverges_at, name, _curve_text(curve)),
        el("p", _curve_text(curve), class_="small"),
        _numbers(curve),
        id=name,
        open=place == 0,
    )


def _divergence(curve: Curve) -> str:
    if curve.diverges_at is None:
        return "equal" if curve.whole else "equal where read"
    return f"diverges at step {curve.diverges_at:,}" if curve.whole else f"differs at step {curve.diverges_at:,}"


def _curve_text(curve: Curve) -> str:
    """The chart in words: how many numbers, their range, and what is left out."""
    finite = [value for _, value in (*curve.a, *curve.b) if math.isfinite(value)]
    clauses = [f"{counted(len(curve.a), 'number')} in A, {len(curve.b):,} in B"]
    if finite:
        clauses.append(f"between {min(finite):.6g} and {max(finite):.6g}")
    not_finite = len(curve.a) + len(curve.b) - len(finite)
    if not_finite:
        clauses.append(f"{not_finite:,} NaN or infinite, not drawn")
    if not curve.whole:
        clauses.append("read at evenly spaced steps, not at all of them")
    if max(len(curve.a), len(curve.b)) > MAX_POINTS:
        clauses.append(f"about {MAX_POINTS} of a side are drawn: of each stretch the first, last, smallest and largest")
    return "; ".join(clauses) + "."


def _numbers(curve: Curve) -> Content:
    """The numbers around the divergence, in full."""
    if curve.diverges_at is None:
        return None
    others = dict(curve.b)
    steps = [(step, value) for step, value in curve.a if step in others]
    at = next((k for k, (step, _) in enumerate(steps) if step >= curve.diverges_at), 0)
    chosen = steps[max(0, at - 2) : at + MAX_NUMBERS - 2]
    rows = [
        row(
            el("th", f"{step:,}", scope="row"),
            el("td", code(repr(value))),
            el("td", code(repr(others[step]))),
            el("td", _difference(value, others[step])),
        )
        for step, value in chosen
    ]
    head = (("step", None), ("A", None), ("B", None), ("A - B", None))
    return el(
        "details",
        el("summary", "Logged scalars around the divergence"),
        table(head, rows, "Logged scalars around the first difference"),
    )


def _difference(a: float, b: float) -> Content:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return muted("equal")
    return code(f"{a - b:.3g}")
