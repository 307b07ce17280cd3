"""Findings on the page: their facts, and the first one's op in full: inputs, arguments, recorded values.

Owns the layout of an op. Decides nothing, reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import Bin, Distances, ElementPair
from rltrace.extensions.page.charts import bar
from rltrace.extensions.page.data import InputSource, PageData, shown_inputs
from rltrace.extensions.page.elements import (
    IN_TERMINAL,
    Content,
    Element,
    both,
    code,
    commands,
    document_section,
    el,
    facts,
    more,
    muted,
    number_cell,
    row,
    table,
)
from rltrace.query.op_pair import OpPair, PairedInput
from rltrace.query.ops import OpInput, OpLine
from rltrace.query.values import OpValues, ValuePair
from rltrace.report.diff import distances_text, titled_findings
from rltrace.report.document import Document

# --- values -----------------------------------------------------------------------------------------------------------

MAX_WORST, MAX_PAIRS = 12, 16


def values_section(values: OpValues | None, to_record: tuple[str, ...]) -> Content:
    """The recorded tensors; without any, the commands that record them, if there are such."""
    if values is None or not values.pairs:
        return None
    if not values.any_recorded and not values.requested:
        summary = el("summary", "Values were not recorded; these commands record those of this op")
        return el("details", summary, commands(to_record)) if to_record else None
    return [el("h3", "Recorded values"), [_pair(pair) for pair in values.pairs[:MAX_PAIRS]]]


def _pair(pair: ValuePair) -> Content:
    layout = pair.layout.a or pair.layout.b
    name: list[Content] = [el("strong", pair.what), " ", code(layout) if layout else None, ": "]
    if pair.distances is None:
        return el("p", name, "equal on both sides" if pair.equal else pair.why or "not recorded")
    found = pair.distances
    return [
        el("p", name, distances_text(found), "."),
        _histogram(pair.what, found) if found.histogram else None,
        _worst(pair.what, found) if found.worst else None,
    ]


def _histogram(what: str, found: Distances) -> Content:
    largest = max(each.count for each in found.histogram)
    head = ((f"distance, {found.unit}" if found.unit else "distance", None), ("elements", "number"), ("", "bar-cell"))
    rows = [
        row(code(_span(each)), number_cell(each.count), el("td", bar(each.count, largest), class_="bar-cell"))
        for each in found.histogram
    ]
    return table(head, rows, f"Distances of the elements of {what}", "histogram")


def _span(each: Bin) -> str:
    return f"{each.low:,}" if each.low == each.high else f"{each.low:,} – {each.high:,}"


def _worst(what: str, found: Distances) -> Content:
    head = (("element", None), ("A", None), ("B", None), ("A, bits", None), ("B, bits", None), ("distance", "number"))
    shown = found.worst[:MAX_WORST]
    listed = table(head, _elements(shown), f"The {len(shown):,} elements of {what} with the largest distances")
    return el("details", el("summary", f"The elements of {what} with the largest distances"), listed)


def _elements(worst: tuple[ElementPair, ...]) -> Iterator[Content]:
    for each in worst:
        distance = muted("none") if each.distance is None else f"{each.distance:,}"
        place = f"[{', '.join(map(str, each.index))}]"
        yield row(
            code(place),
            code(each.a),
            code(each.b),
            code(each.hex_a),
            code(each.hex_b),
            el("td", distance, class_="number"),
        )


# --- finding ----------------------------------------------------------------------------------------------------------


MAX_FINDINGS, MAX_STACKS, MAX_OUTPUTS = 20, 3, 4


def finding_sections(material: PageData, document: Document) -> Iterator[Element]:
    """The finding that the verdict rests on, with its op in full, then the others."""
    shown = material.comparison.shown
    findings = zip(document.findings, titled_findings(material.comparison), strict=True)
    for number, (section, (_, finding)) in enumerate(islice(findings, MAX_FINDINGS)):
        full: Content = None
        if material.op is not None and finding == shown:
            values = values_section(material.values, material.to_record)
            full = _event(material.op) if finding.event else [_op(material.op, material.sources), values]
        left = more(len(document.findings) - MAX_FINDINGS, "findings") if number == MAX_FINDINGS - 1 else None
        yield document_section(section, full, left, with_stack=number < MAX_STACKS)


def _event(pair: OpPair) -> Content:
    """The fields of an event on both sides; those in brackets are evidence only."""
    events = [None if line is None else line.event for line in (pair.a, pair.b)]
    cells = [{} if event is None else {cell.name: (cell, event.text(cell)) for cell in event.cells} for event in events]
    listed = [
        row(
            f"[{name}]" if cell.is_evidence else name,
            *(code(side[name][1]) if name in side else "–" for side in cells),
        )
        for name, (cell, _) in {**cells[1], **cells[0]}.items()
    ]
    head = (("field", None), ("A", None), ("B", None))
    return table(head, listed, "Fields of the event; those in brackets are evidence only") if listed else None


# --- the op in full -------------------------------------------------------------------------------------------------


COLUMNS = (("input", None), ("tensor", None), ("match", None), ("written by", None), ("digest here", None))


def _op(pair: OpPair, sources: tuple[InputSource, ...]) -> Content:
    made = {source.place: source for source in sources}
    are_read = any(side is not None and side.digest for entry in pair.inputs for side in (entry.a, entry.b))
    head = COLUMNS if are_read else COLUMNS[:-1]
    chosen = shown_inputs(pair)
    inputs = [row(*_input(pair, entry, made.get(entry.place))[: len(head)]) for entry in chosen]
    call = {label: _sides(pair, values) for label, values in pair.call.items()}
    if call["args"]:
        call["args"] = [call["args"], muted(" (T a tensor, i and f a number)")]
    state = facts(
        *call.items(),
        ("output", _digests(pair)),
        ("flags", ", ".join(pair.shown.flags)),
    )
    return [
        el("h3", "Inputs"),
        table(head, inputs, "Tensors that the op read, and the op that wrote each") if inputs else el("p", "None."),
        more(len(pair.inputs) - len(chosen), "inputs", IN_TERMINAL),
        [el("h3", "Arguments and state"), state] if state else None,
    ]


def _sides(pair: OpPair, fact: Pair[str]) -> Content:
    """A fact of both sides, or of the only side that has the op; None if there is none."""
    if not fact.a and not fact.b:
        return None
    return both(fact) if pair.a is not None and pair.b is not None else code(fact.a or fact.b or "")


def _digests(pair: OpPair) -> Content:
    """Digests of the outputs, unless they differ: then the facts of the finding have them."""
    lines = [line for line in (pair.a, pair.b) if line is not None]
    if len(lines) == 2 and lines[0].outputs != lines[1].outputs:
        return None
    return [el("div", code(digest)) for digest in lines[0].outputs[:MAX_OUTPUTS]] or None


def _input(pair: OpPair, entry: PairedInput, source: InputSource | None) -> tuple[Content, ...]:
    return (
        f"{entry.place}",
        _sides(pair, Pair(*(None if side is None else side.layout or "?" for side in (entry.a, entry.b)))),
        _match(entry.match),
        _source(entry, source),
        _sides(pair, Pair(*(None if side is None else side.digest for side in (entry.a, entry.b)))),
    )


def _match(match: str) -> Content:
    return el(
        "span",
        match or "–",
        class_="badge differ" if match == "differ" else "badge",
    )


def _source(entry: PairedInput, source: InputSource | None) -> Content:
    if source is not None:
        way = f" through {source.passed:,} views or copies" if source.passed else ""
        return [f"row {source.op.row:,} ", code(source.op.op), way, _at(source.op)]
    known: OpInput | None = entry.a or entry.b
    return (
        ""
        if known is None
        else {"row": "", "outside": "outside: no recorded op wrote it"}.get(known.origin, known.origin)
    )


def _at(line: OpLine) -> Content:
    return el("div", code(f"{line.site.file}:{line.site.line}", "muted")) if line.site else None
