"""The course of both runs: every optimizer step at a glance, the numbers that both read out, and how the search went.

Owns the words beside the charts: where a chart is a sample, they say so. Decides nothing, reads nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rltrace.diff.base.model import Comparison, Finding, Probe
from rltrace.diff.metrics.timeline import Curve, StepState, Timeline
from rltrace.report.document import Document
from rltrace.report.html.charts import (
    HEIGHTS,
    MOST_POINTS,
    MOST_RUNS,
    apart_chart,
    curve_chart,
    probes_chart,
    spark,
    state_runs,
    timeline_chart,
)
from rltrace.report.html.elements import (
    IN_TERMINAL,
    Content,
    Element,
    blocks,
    code,
    el,
    more,
    muted,
    number_cell,
    row,
    section,
    side,
    table,
)
from rltrace.report.page_data import PageData, SearchTrack
from rltrace.report.phrases import shown_finding

MOST_CURVES, MOST_PROBES, MOST_PROCESSES, MOST_TRACKS = 24, 64, 16, 12
NUMBERS_SHOWN = 6
"""Steps around the parting of a curve whose numbers are listed."""

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

RESPECTS = {
    "structure": "the same ops",
    "values": "the same values",
    "marked": "the same values, uninitialised memory included",
}


# --- timeline -------------------------------------------------------------------------------------------------------


def timeline_section(material: PageData) -> Element | None:
    """One line for every process that made steps."""
    if not material.timelines:
        return None
    finding = shown_finding(material.comparison)
    shown = material.timelines[:MOST_PROCESSES]
    return section(
        "timeline",
        "Every optimizer step",
        [_timeline(timeline, finding, number, len(shown) > 1) for number, timeline in enumerate(shown)],
        _timeline_legend(shown),
        more(len(material.timelines) - len(shown), "processes", IN_TERMINAL),
    )


def _timeline(timeline: Timeline, finding: Finding | None, place: int, named: bool) -> Content:
    mark = finding.step if finding is not None and finding.stream.startswith(timeline.process) else None
    counts = Counter(timeline.states)
    told = ", ".join(f"{counts[state]:,} {words}" for state, words in COUNTED.items() if counts[state])
    text = f"{len(timeline.states):,} steps: {told}."
    drawn = state_runs(timeline.states, MOST_RUNS)
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
    """Where the numbers that both runs read out diverge, and their charts: the first open, the others a click away."""
    told = [[el("h3", words.title), blocks(words)] for words in document.named("curves", "drift")]
    shown = material.curves[:MOST_CURVES]
    if not shown and not told:
        return None
    return section(
        "curves",
        "Logged scalars of both runs",
        told,
        el("div", [_curve(curve, number) for number, curve in enumerate(shown)], class_="curves"),
        more(len(material.curves) - len(shown), "curves", IN_TERMINAL),
        class_="long",
    )


def _curve(curve: Curve, place: int) -> Element:
    name = f"curve-{place}"
    return el(
        "details",
        el("summary", spark(curve), code(curve.name), el("span", _parting(curve), class_="badge")),
        el(
            "ul",
            el("li", side("A"), " solid"),
            el("li", side("B"), " dashed"),
            el("li", code(curve.place)),
            class_="legend",
        ),
        curve_chart(curve, curve.diverges_at, name, _account(curve)),
        el("p", _account(curve), class_="small"),
        _distance(curve, name),
        _numbers(curve),
        id=name,
        open=place == 0,
    )


def _parting(curve: Curve) -> str:
    if curve.diverges_at is None:
        return "equal" if curve.whole else "equal where read"
    return f"diverges at step {curve.diverges_at:,}" if curve.whole else f"differs at step {curve.diverges_at:,}"


def _account(curve: Curve) -> str:
    """What is drawn, in words: how many numbers, between which, and what is left out."""
    finite = [value for _, value in (*curve.a, *curve.b) if math.isfinite(value)]
    told = [f"{len(curve.a):,} {'number' if len(curve.a) == 1 else 'numbers'} in A, {len(curve.b):,} in B"]
    if finite:
        told.append(f"between {min(finite):.6g} and {max(finite):.6g}")
    odd = len(curve.a) + len(curve.b) - len(finite)
    if odd:
        told.append(f"{odd:,} NaN or infinite, not drawn")
    if not curve.whole:
        told.append("read at evenly spaced steps, not at all of them")
    if max(len(curve.a), len(curve.b)) > MOST_POINTS:
        told.append(f"about {MOST_POINTS} of a side are drawn: of each stretch the first, last, smallest and largest")
    return "; ".join(told) + "."


def _distance(curve: Curve, name: str) -> Content:
    drawn = apart_chart(curve, f"{name}-apart")
    if drawn is None:
        return None
    return [el("h3", "Difference: |A - B|, logarithmic"), drawn]


def _numbers(curve: Curve) -> Content:
    """The numbers where they part, in full."""
    if curve.diverges_at is None:
        return None
    others = dict(curve.b)
    steps = [(step, value) for step, value in curve.a if step in others]
    at = next((k for k, (step, _) in enumerate(steps) if step >= curve.diverges_at), 0)
    chosen = steps[max(0, at - 2) : at + NUMBERS_SHOWN - 2]
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


# --- search ---------------------------------------------------------------------------------------------------------


def search_section(material: PageData) -> Element:
    """How the first difference was found."""
    search, finding = material.comparison.search, shown_finding(material.comparison)
    stream = "" if finding is None else finding.stream
    tracks = sorted(material.tracks, key=lambda track: track.stream != stream)
    read = f"{search.chunks_read:,} chunks were read, {search.bytes_read:,} bytes."
    return section(
        "search",
        "Search",
        el(
            "p",
            (
                "Prefix digests show whether everything before a row is equal: a bisection over them finds where it "
                "ends. "
            ),
            read,
        ),
        [_track(track, number) for number, track in enumerate(tracks[:MOST_TRACKS])],
        more(len(tracks) - MOST_TRACKS, "searches"),
        None if tracks else el("p", _no_probes(material.comparison), class_="muted"),
        class_="long",
    )


def _no_probes(comparison: Comparison) -> str:
    what = "step digests" if comparison.level == "step" else "the ops themselves"
    return f"Nothing was bisected: {what} were compared."


def _track(track: SearchTrack, place: int) -> Content:
    title = f"{RESPECTS.get(track.respect, track.respect)}? {track.stream}"
    count = f"{len(track.probes):,} {'probe' if len(track.probes) == 1 else 'probes'} of {track.rows:,} ops"
    listed = el(
        "details", el("summary", count), table(PROBE_HEAD, _probes(track.probes), f"In the order made; {track.stream}")
    )
    return [
        el("h3", title[0].upper() + title[1:]),
        probes_chart(track.probes, track.rows, title, f"search-{place}", count),
        listed,
        more(len(track.probes) - MOST_PROBES, "probes"),
    ]


PROBE_HEAD = (("probe", None), ("row", "number"), ("everything before it", None))


def _probes(probes: tuple[Probe, ...]) -> Iterator[Element]:
    for place, probe in enumerate(probes[:MOST_PROBES], 1):
        yield row(f"#{place}", number_cell(probe.row), "= equal" if probe.equal else "≠ differs")
