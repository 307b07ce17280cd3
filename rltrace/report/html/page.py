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

from rltrace.diff.base.model import Comparison, Pair
from rltrace.experiment.outcome import ExperimentResult
from rltrace.report.document import Document, verdict_document
from rltrace.report.html.confirm import experiment_section
from rltrace.report.html.elements import (
    Content,
    Element,
    StyleSheet,
    blocks,
    code,
    drawn,
    el,
    facts,
    render,
    section,
    side,
)
from rltrace.report.html.finding import finding_sections
from rltrace.report.html.ops import around_section
from rltrace.report.html.timeline import curves_section, search_section, timeline_section
from rltrace.report.page_data import LaunchSummary, PageData
from rltrace.report.phrases import HEADLINES
from rltrace.report.redaction import NOTHING, Disclosure, Redactor, left_out


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
    document = verdict_document(shown.comparison)
    parts = [part for part in _sections(shown, document, runs, experiment) if part is not None]
    body = el("body", _header(document), _contents(parts), el("main", parts), _footer(asked, version))
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
    material: PageData, document: Document, runs: Pair[list[tuple[str, Content]]], experiment: Element | None
) -> Iterator[Element | None]:
    yield from finding_sections(material, document)
    yield experiment
    yield from map(drawn, document.named("next"))
    yield timeline_section(material)
    yield curves_section(material, document)
    yield around_section(material)
    yield from map(drawn, document.named("structure", "system"))
    yield _runs(material.comparison, runs)
    yield from map(drawn, document.named("notes", "events", "marked", "holes"))
    yield search_section(material)


# --- head and foot --------------------------------------------------------------------------------------------------


def _header(document: Document) -> Element:
    verdict = el("span", HEADLINES[document.verdict], id="verdict", class_=f"verdict is-{document.verdict.value}")
    return el(
        "header",
        el("div", el("p", "rltrace", class_="brand"), _theme(), class_="bar-top"),
        el("h1", verdict, " ", document.place),
        el("p", document.lead, class_="lead"),
        blocks(document.runs),
    )


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


# --- runs -----------------------------------------------------------------------------------------------------------


def _launch(run: LaunchSummary | None, outgoing: Redactor, asked: Disclosure) -> list[tuple[str, Content]]:
    """What may be told of a launch."""
    if run is None:
        return []
    return [
        ("command", code(outgoing.program(list(run.command))) if run.command else None),
        ("folder", code(outgoing.text(run.folder)) if asked.host and run.folder else None),
        ("machine", code(outgoing.text(run.host)) if asked.host and run.host else None),
        ("date", run.created or None),
    ]


def _runs(comparison: Comparison, runs: Pair[list[tuple[str, Content]]]) -> Element:
    sides = (("A", comparison.a, runs.a), ("B", comparison.b, runs.b))
    told = [[el("h3", side(name), " ", code(one.path)), facts(*(launch or ()))] for name, one, launch in sides]
    return section("runs", "The two runs", told)
