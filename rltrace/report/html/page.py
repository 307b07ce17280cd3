"""A comparison as one self-contained page: verdict first, evidence after it, nothing loaded and nothing run.

Owns the page's order and its head. The page holds no script: what opens, opens by itself, and the theme is a choice
that CSS reads. A policy in the page forbids everything but the one style sheet in it, which is known by its digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import islice

from rltrace.diff.base.model import Comparison, Pair, ProcessSummary, Side, Verdict
from rltrace.experiment.outcome import ExperimentResult
from rltrace.report.html.confirm import experiment_section
from rltrace.report.html.elements import (
    Content,
    Element,
    StyleSheet,
    code,
    commands,
    el,
    facts,
    more,
    muted,
    render,
    row,
    section,
    side,
    table,
)
from rltrace.report.html.finding import finding_sections
from rltrace.report.html.ops import around_section
from rltrace.report.html.timeline import curves_section, search_section, timeline_section
from rltrace.report.page_data import LaunchSummary, PageData
from rltrace.report.phrases import (
    HEADLINES,
    NO_FACT,
    SIGNS,
    alike,
    extent,
    hole_text,
    hunks_text,
    marked_text,
    place,
    sentence,
    shown_finding,
    structure_counts,
    structure_remarks,
    told_text,
)
from rltrace.report.redaction import NOTHING, Disclosure, Redactor, left_out

MOST, MOST_STREAMS = 100, 20


def html_page(
    material: PageData, asked: Disclosure = NOTHING, *, version: str = "", outcome: ExperimentResult | None = None
) -> str:
    """The page, a whole document. Hides folders, the machine and command arguments unless ``asked``. ``outcome``: of an
    experiment on the two, where there was one.
    """
    outgoing = Redactor(asked, material.comparison.a.path, material.comparison.b.path)
    shown = replace(outgoing.of(material), to_record=tuple(outgoing.command(line) for line in material.to_record))
    runs = Pair(*(_launch(run, outgoing, asked) for run in (material.runs.a, material.runs.b)))
    experiment = None if outcome is None else experiment_section(outgoing.of(outcome))
    parts = [part for part in _sections(shown, runs, experiment) if part is not None]
    body = el("body", _header(shown.comparison), _contents(parts), el("main", parts), _footer(asked, version))
    title = (
        f"rltrace: {HEADLINES[shown.comparison.verdict]}, {shown.comparison.a.path} against {shown.comparison.b.path}"
    )
    return "<!DOCTYPE html>\n" + render(el("html", _head(title), body, lang="en")) + "\n"


@cache
def style_sheet() -> str:
    return files("rltrace.report.html").joinpath("style.css").read_text(encoding="utf-8")


def policy() -> str:
    """Nothing may be loaded, sent or run; the one style sheet is known by its digest."""
    digest = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _head(title: str) -> Element:
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy()),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        StyleSheet(style_sheet()),
    )


def _sections(
    material: PageData, runs: Pair[list[tuple[str, Content]]], experiment: Element | None
) -> Iterator[Element | None]:
    comparison = material.comparison
    yield from finding_sections(material)
    yield experiment
    yield _next(comparison)
    yield timeline_section(material)
    yield curves_section(material)
    yield around_section(material)
    yield _structure(comparison)
    yield _environment(comparison)
    yield _runs(comparison, runs)
    yield _remarks(comparison)
    yield search_section(material)


# --- head and foot --------------------------------------------------------------------------------------------------


def _header(comparison: Comparison) -> Element:
    finding = shown_finding(comparison)
    diverged = comparison.verdict is Verdict.DIVERGED and finding is not None
    where = place(finding) if diverged and finding is not None else ""
    lead = finding.explanation if diverged and finding is not None else comparison.why
    verdict = el("span", HEADLINES[comparison.verdict], id="verdict", class_=f"verdict is-{comparison.verdict.value}")
    return el(
        "header",
        el("div", el("p", "rltrace", class_="brand"), _theme(), class_="bar-top"),
        el("h1", verdict, " ", where),
        el("p", sentence(lead), class_="lead"),
        el("p", _against(comparison), class_="muted"),
    )


def _against(comparison: Comparison) -> Content:
    a, b = comparison.a, comparison.b
    compared = list(comparison.compared.items()) if comparison.level == "op" else []
    told = ", ".join(f"{count:,} ops of {stream}" for stream, count in compared[:MOST_STREAMS])
    more_streams = f" and {len(compared) - MOST_STREAMS:,} more streams" if len(compared) > MOST_STREAMS else ""
    return [
        side("A"),
        " ",
        code(a.path),
        " against ",
        side("B"),
        " ",
        code(b.path),
        f"; compared: {told}{more_streams}" if told else "",
        "; step digests only" if comparison.level != "op" else "",
    ]


def _theme() -> Element:
    choices = [
        el("label", el("input", type="radio", name="theme", id=f"theme-{name}", checked=name == "auto"), name)
        for name in ("auto", "light", "dark")
    ]
    return el("fieldset", el("legend", "Theme", class_="hidden"), choices, class_="theme")


def _contents(parts: list[Element]) -> Element:
    links = [(dict(part.attributes)["id"], _title(part)) for part in parts]
    return el(
        "nav", el("ul", [el("li", el("a", text, href=f"#{name}")) for name, text in links]), aria_label="Contents"
    )


def _title(part: Element) -> Content:
    heading = part.children[0]
    assert isinstance(heading, Element)
    return heading.children


def _footer(asked: Disclosure, version: str) -> Element:
    made = f"Made by rltrace {version}".strip() + ". This page holds no script and loads nothing."
    return el("footer", el("p", left_out(asked)) if left_out(asked) else None, el("p", made))


# --- sections of words ----------------------------------------------------------------------------------------------


def _next(comparison: Comparison) -> Element | None:
    return section("next", "Next", commands(comparison.advice)) if comparison.advice else None


def _structure(comparison: Comparison) -> Element | None:
    structure = comparison.structure
    counts = structure_counts(structure)
    if not counts:
        return None
    groups = alike(structure.hunks)
    listed = [
        el("li", el("code", SIGNS.get(group[0].kind, "?"), class_="key"), hunks_text(group)) for group in groups[:MOST]
    ]
    return section(
        "structure",
        "Ops on one side only, or reordered",
        el("p", ", ".join(counts), "".join(f" ({remark})" for remark in structure_remarks(structure))),
        el("ul", listed, class_="plain") if listed else None,
        more(len(groups) - MOST, "runs of ops"),
        class_="long",
    )


def _environment(comparison: Comparison) -> Element | None:
    found = comparison.system
    if not found:
        return (
            section("environment", "System and settings", el("p", NO_FACT))
            if comparison.verdict is Verdict.DIVERGED
            else None
        )
    rows = [
        row(code(fact.name), *(code(v) if v else muted("(unset)") for v in (fact.a, fact.b))) for fact in found[:MOST]
    ]
    return section(
        "environment",
        f"System and settings ({len(found):,} differ)",
        table((("fact", None), ("A", None), ("B", None)), rows, "Ordered by how likely a change of results is"),
        more(len(found) - MOST, "facts"),
        class_="long",
    )


def _launch(run: LaunchSummary | None, outgoing: Redactor, asked: Disclosure) -> list[tuple[str, Content]]:
    """What may be told of a launch."""
    if run is None:
        return []
    return [
        ("command", code(outgoing.program(list(run.command))) if run.command else None),
        ("folder", code(outgoing.text(run.folder)) if asked.host and run.folder else None),
        ("machine", code(outgoing.text(run.host)) if asked.host and run.host else None),
        ("recorded", run.created or None),
    ]


def _runs(comparison: Comparison, runs: Pair[list[tuple[str, Content]]]) -> Element:
    sides = (("A", comparison.a, runs.a), ("B", comparison.b, runs.b))
    return section("runs", "The two runs", [_run(name, told, launch or []) for name, told, launch in sides])


def _run(name: str, told: Side, launch: list[tuple[str, Content]]) -> Content:
    states = ", ".join(sorted({p.state for p in told.processes})) or "nothing recorded"
    unfinished = [p for p in told.processes if p.state != "complete"]
    return [
        el("h3", side(name), " ", code(told.path)),
        facts(
            ("recorded", f"{extent(told)}, {states}"),
            ("level", f"{told.level}, engine {told.engine}"),
            *((label if label != "recorded" else "date", content) for label, content in launch),
            ("processes", [_process(p) for p in islice(unfinished, MOST_STREAMS)] or None),
        ),
    ]


def _process(process: ProcessSummary) -> Element:
    return el("div", code(process.name), f": {process.state}" + (f", {process.why}" if process.why else ""))


def _remarks(comparison: Comparison) -> Element | None:
    """What has to be known to read the verdict right."""
    told, marked = told_text(comparison), marked_text(comparison)
    holes = [el("li", side(hole.side.upper()), " ", hole_text(hole)) for hole in comparison.holes[:MOST]]
    if not (told or marked or holes or comparison.notes):
        return None
    return section(
        "remarks",
        "Notes",
        el("ul", [el("li", sentence(note)) for note in comparison.notes]) if comparison.notes else None,
        [el("h3", "Data from environments and files"), el("p", sentence(told))] if told else None,
        [el("h3", "Uninitialised memory"), el("p", sentence(marked))] if marked else None,
        [el("h3", "Cannot be read"), el("ul", holes)] if holes else None,
        more(len(comparison.holes) - MOST, "parts"),
        class_="long",
    )
