"""A comparison as one self-contained page: the verdict, then its evidence.

Owns the order of sections, the page's head, and the table of ops around the finding. The page has no script: folds are
``details``. A policy in the page forbids everything but its style sheet, which is identified by its digest.
"""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import islice

from rltrace.diff.base.model import Comparison, Pair
from rltrace.diff.display.row_pairs import Relation
from rltrace.distribution import own_version
from rltrace.experiment.outcome import ExperimentResult
from rltrace.extensions.page.data import ExcerptLine, LaunchSummary, PageData, gather
from rltrace.extensions.page.elements import (
    Content,
    Element,
    StyleSheet,
    aria_text,
    blocks,
    code,
    commands,
    document_section,
    el,
    facts,
    more,
    muted,
    number_cell,
    render,
    row,
    section,
    side,
    table,
)
from rltrace.extensions.page.timeline import curves_section, timeline_section
from rltrace.query.ops import OpLine
from rltrace.query.values import ValuePair
from rltrace.report.confirm import outcome_document
from rltrace.report.diff import distances_text, titled_findings, verdict_document
from rltrace.report.document import Document, Section
from rltrace.report.redaction import NO_DISCLOSURE, Disclosure, Redactor, omission_note
from rltrace.trace.format.location import Location
from rltrace.wording import counted

SIGNS = {
    Relation.EQUAL: ("=", "", "equal", "equal, as far as recorded"),
    Relation.DIFFERS: ("≠", "is-differs", "differs", "differs, and no input is known to: a difference may begin here"),
    Relation.RECEIVES: ("~", "is-receives", "receives", "differs, and so does an input: propagated difference"),
    Relation.UNSURE: ("?", "is-unsure", "unsure", "differs; unknown whether an input does"),
    Relation.ONLY_A: ("<", "is-only", "only in A", "only A ran it"),
    Relation.ONLY_B: (">", "is-only", "only in B", "only B ran it"),
    Relation.UNPAIRED: ("?", "is-unsure", "not paired", "too different here to pair"),
}
"""Sign, CSS class, text for screen readers, and meaning. Colour is never the only mark."""

MOVED = ("↕", "moved", "B ran it at another place in the order")

COLUMNS = (("", "sign"), ("A", "number"), ("B", "number"), ("op", None), ("where", None))


def around_section(material: PageData) -> Element | None:
    """The lines around the finding; None if ops were not compared."""
    lines = material.excerpt
    if not lines:
        return section("ops", "Ops around it", el("p", f"Not shown: {material.trouble}")) if material.trouble else None
    stream = next((line.stream for entry in lines for line in (entry.a, entry.b) if line is not None), "")
    caption = f"{stream}, both runs side by side; identical stretches are folded, and so are steps not loaded"
    return section(
        "ops",
        "Ops around it",
        table(COLUMNS, [_row(line) for line in lines], caption, "ops"),
        _legend(lines),
        class_="long",
    )


def _row(line: ExcerptLine) -> Element:
    if line.relation is None:
        return el("tr", el("td", _fold(line), colspan=len(COLUMNS)), class_="fold")
    sign, look, spoken, _ = SIGNS[line.relation]
    shown = line.a or line.b
    assert shown is not None
    if line.moved:
        sign, spoken = sign + MOVED[0], f"{spoken}, {MOVED[1]}"
    found = [el("strong", "▶", aria_hidden="true"), aria_text("the finding, ")] if line.found else None
    return row(
        el("td", found, el("span", sign, aria_hidden="true"), aria_text(spoken), class_="sign"),
        number_cell(line.a.row if line.a else None),
        number_cell(line.b.row if line.b else None),
        el("td", code(shown.op, "op"), _kernels(line), _module(shown)),
        el("td", _where(shown), class_="where"),
        class_=" ".join(filter(None, [look, "is-found" if line.found else ""])) or None,
        header=False,
    )


def _fold(line: ExcerptLine) -> str:
    ops = counted(line.folded, "op") + (f" from step {line.step:,} on" if line.step is not None else "")
    if line.trouble:
        return f"⋯ {ops}: {line.trouble} ⋯"
    return f"⋯ {counted(line.folded, 'identical op')} ⋯" if line.equal else f"⋯ {ops}, not loaded ⋯"


def _module(line: OpLine) -> Content:
    return el("div", code(line.module, "muted")) if line.module else None


def _kernels(line: ExcerptLine) -> Content:
    if line.a is None or line.b is None or line.relation is Relation.EQUAL or line.a.kernel == line.b.kernel:
        return None
    return el("div", muted(line.a.kernel or "–", " | ", line.b.kernel or "–"), class_="small")


def _where(line: OpLine) -> Content:
    if line.site is None:
        return None
    source = " ".join(line.site.source.split())
    return [code(f"{line.site.file}:{line.site.line}"), el("div", code(source, "source")) if source else None]


def _legend(lines: tuple[ExcerptLine, ...]) -> Element:
    present = {line.relation for line in lines}
    entries = [(sign, meaning) for relation, (sign, _, _, meaning) in SIGNS.items() if relation in present]
    entries += [(MOVED[0], MOVED[2])] if any(line.moved for line in lines) else []
    return el("ul", [el("li", el("code", sign, class_="key"), meaning) for sign, meaning in entries], class_="legend")


# --- page -------------------------------------------------------------------------------------------------------------


def html_page(
    material: PageData,
    disclosure: Disclosure = NO_DISCLOSURE,
    *,
    version: str = "",
    outcome: ExperimentResult | None = None,
) -> str:
    """The page, with the ``outcome`` of an experiment if there is one; hides what ``disclosure`` does not show."""
    redactor = Redactor(disclosure, material.comparison.a.path, material.comparison.b.path)
    shown = replace(redactor.redact(material), to_record=tuple(redactor.command(line) for line in material.to_record))
    runs = Pair(*(_launch(run, redactor, disclosure) for run in (material.runs.a, material.runs.b)))
    experiment = None if outcome is None else _experiment(redactor.redact(outcome))
    document = verdict_document(shown.comparison)
    sections = [one for one in _sections(shown, document, runs, experiment) if one is not None]
    body = el("body", _header(document), _contents(sections), el("main", sections), _footer(disclosure, version))
    a, b = shown.comparison.a.path, shown.comparison.b.path
    title = f"rltrace: {document.headline}, {a} against {b}"
    return "<!DOCTYPE html>\n" + render(el("html", _head(title), body, lang="en")) + "\n"


@cache
def style_sheet() -> str:
    return files("rltrace.extensions.page").joinpath("style.css").read_text(encoding="utf-8")


def policy() -> str:
    """Content security policy: nothing may be loaded, sent or run except the one style sheet."""
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
    yield from _findings(material, document)
    yield experiment
    yield from map(document_section, document.named("next"))
    yield timeline_section(material)
    yield curves_section(material, document)
    yield around_section(material)
    yield from map(document_section, document.named("streams", "structure", "edits", "system"))
    yield _runs(material.comparison, runs)
    yield from map(document_section, document.named("notes", "events", "marked", "holes"))


# --- findings -------------------------------------------------------------------------------------------------------


MAX_FINDINGS, MAX_STACKS, MAX_PAIRS = 20, 3, 16


def _findings(material: PageData, document: Document) -> Iterator[Element]:
    """The finding that the verdict rests on, with the recorded values of its op, then the others."""
    shown = material.comparison.shown
    findings = zip(document.findings, titled_findings(material.comparison), strict=True)
    for number, (words, (_, finding)) in enumerate(islice(findings, MAX_FINDINGS)):
        values = _values(material) if finding == shown else None
        left = more(len(document.findings) - MAX_FINDINGS, "findings") if number == MAX_FINDINGS - 1 else None
        yield document_section(words, values, left, with_stack=number < MAX_STACKS)


def _values(material: PageData) -> Content:
    """The recorded tensors; without any, the commands that record them, if there are such."""
    values = material.values
    if values is None or not values.pairs:
        return None
    if not values.any_recorded and not values.requested:
        summary = el("summary", "Values were not recorded; these commands record those of this op")
        return el("details", summary, commands(material.to_record)) if material.to_record else None
    return [el("h3", "Recorded values"), [_pair(pair) for pair in values.pairs[:MAX_PAIRS]]]


def _pair(pair: ValuePair) -> Element:
    layout = pair.layout.a or pair.layout.b
    name: list[Content] = [el("strong", pair.what), " ", code(layout) if layout else None, ": "]
    if pair.distances is None:
        return el("p", name, "equal on both sides" if pair.equal else pair.why or "not recorded")
    return el("p", name, distances_text(pair.distances), ".")


# --- head and foot --------------------------------------------------------------------------------------------------


def _header(document: Document) -> Element:
    verdict = _headline(document, name="verdict")
    return el(
        "header",
        el("p", "rltrace", class_="brand"),
        el("h1", verdict, " ", document.place or document.scope),
        [el("p", text, class_="lead") for text in (*document.answer, *document.lead)],
        blocks(Section("", "", facts=document.facts)),
    )


def _headline(document: Document, name: str | None = None) -> Element:
    look = "unknown" if document.verdict is None else document.verdict.value
    return el("span", document.headline, id=name, class_=f"verdict is-{look}")


def _experiment(outcome: ExperimentResult) -> Element:
    """An experiment on the two runs, finished or not."""
    document = outcome_document(outcome)
    shown = [one for one in document.sections if one.name not in ("notes", "next")]
    return section(
        "experiment",
        "Experiment",
        el("p", _headline(document)),
        blocks(Section("", "", document.lead, document.facts)),
        [[el("h3", one.title), blocks(one)] for one in shown],
    )


def _contents(sections: list[Element]) -> Element:
    links = [(dict(one.attributes)["id"], _title(one)) for one in sections]
    return el(
        "nav", el("ul", [el("li", el("a", text, href=f"#{name}")) for name, text in links]), aria_label="Contents"
    )


def _title(section: Element) -> Content:
    heading = section.children[0]
    assert isinstance(heading, Element)
    return heading.children


def _footer(disclosure: Disclosure, version: str) -> Element:
    note = omission_note(disclosure)
    origin = f"Made by rltrace {version}".strip() + ". This page holds no script and loads nothing."
    return el("footer", el("p", note) if note else None, el("p", origin))


# --- runs -----------------------------------------------------------------------------------------------------------


def _launch(run: LaunchSummary | None, redactor: Redactor, disclosure: Disclosure) -> list[tuple[str, Content]]:
    """Facts of a launch that may be shown."""
    if run is None:
        return []
    return [
        ("command", code(redactor.program(list(run.command))) if run.command else None),
        ("folder", code(redactor.text(run.folder)) if disclosure.host and run.folder else None),
        ("machine", code(redactor.text(run.host)) if disclosure.host and run.host else None),
        ("date", run.created or None),
    ]


def _runs(comparison: Comparison, runs: Pair[list[tuple[str, Content]]]) -> Element:
    sides = (("A", comparison.a, runs.a), ("B", comparison.b, runs.b))
    shown = [[el("h3", side(name), " ", code(one.path)), facts(*(launch or ()))] for name, one, launch in sides]
    return section("runs", "The two runs", shown)


def page_of(a: Location, b: Location, advice: tuple[str, ...]) -> str:
    """The page of two traces, with these commands to run next."""
    found = gather(a, b)
    shown = replace(found, comparison=replace(found.comparison, advice=advice), to_record=())
    return html_page(shown, version=own_version())
