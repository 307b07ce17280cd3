"""A finding on a page: what ran, where, why it differs, and the op in full: inputs, numbers, stack.

Owns what is told of one op. Decides nothing, reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.diff.base.model import Cause, Comparison, Finding, Pair, Verdict
from rltrace.diff.metrics.distances import Bin, Distances, ElementPair
from rltrace.query.op_pair import OpPair, PairedInput
from rltrace.query.ops import OpInput, OpLine
from rltrace.query.values import OpValues, ValuePair
from rltrace.report.html.charts import bar
from rltrace.report.html.elements import (
    IN_TERMINAL,
    Content,
    Element,
    both,
    code,
    commands,
    el,
    facts,
    frames,
    more,
    muted,
    number_cell,
    place,
    row,
    section,
    table,
)
from rltrace.report.page_data import InputSource, PageData, shown_inputs
from rltrace.report.phrases import INPUTS, apart, before_it, noun, rows, sentence, shown_finding, titled_findings, when

# --- values -----------------------------------------------------------------------------------------------------------
#
# The recorded values of the finding's op: how far the two sides lie apart, and where the most.
#
# Owns that part of the page. Measures nothing: the distances are given.


MOST_WORST, MOST_PAIRS = 12, 16


def values_part(values: OpValues | None, to_record: tuple[str, ...]) -> Content:
    """Each tensor of which something was kept; where nothing was, how to record it."""
    if values is None or not values.pairs:
        return None
    if not values.any_kept and not values.asked:
        return el(
            "details",
            el("summary", "Values were not recorded; these commands record those of this op"),
            commands(to_record),
        )
    return [el("h3", "Recorded values"), [_pair(pair) for pair in values.pairs[:MOST_PAIRS]]]


def _pair(pair: ValuePair) -> Content:
    layout = pair.layout.a or pair.layout.b
    name: list[Content] = [el("strong", pair.what), " ", code(layout) if layout else None, ": "]
    if pair.distances is None:
        return el("p", name, "equal on both sides" if pair.equal else pair.why or "not recorded")
    found = pair.distances
    return [
        el("p", name, _value_facts(found), "."),
        _histogram(pair.what, found) if found.histogram else None,
        _worst(pair.what, found) if found.worst else None,
    ]


def _value_facts(found: Distances) -> str:
    told = [f"{found.differing:,} of {found.elements:,} elements differ"]
    if found.largest is not None:
        told.append(f"by at most {found.largest:,} {found.unit}".rstrip())
    if found.largest_absolute is not None:
        told.append(f"|A - B| up to {found.largest_absolute:.3g}")
    if found.largest_relative is not None:
        told.append(f"relatively {found.largest_relative:.3g}")
    counts = (
        (found.zeros, "only in the sign of zero"),
        (found.nans, "NaN on one side"),
        (found.payloads, "NaN of other bits"),
        (found.infinities, "infinite on a side"),
    )
    return ", ".join([*told, *(f"{count:,} {words}" for count, words in counts if count)])


def _histogram(what: str, found: Distances) -> Content:
    most = max(each.count for each in found.histogram)
    head = ((f"distance, {found.unit}" if found.unit else "distance", None), ("elements", "number"), ("", "bar-cell"))
    rows = [
        row(code(_span(each)), number_cell(each.count), el("td", bar(each.count, most), class_="bar-cell"))
        for each in found.histogram
    ]
    return table(head, rows, f"Distances of the elements of {what}", "histogram")


def _span(each: Bin) -> str:
    return f"{each.low:,}" if each.low == each.high else f"{each.low:,} – {each.high:,}"


def _worst(what: str, found: Distances) -> Content:
    head = (("element", None), ("A", None), ("B", None), ("A, bits", None), ("B, bits", None), ("apart", "number"))
    shown = found.worst[:MOST_WORST]
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


MOST_OTHERS, MOST_STACKS, MOST_OUTPUTS, MOST_CELLS = 20, 3, 4, 8


def finding_sections(material: PageData) -> Iterator[Element]:
    """The finding that the verdict rests on, then the others."""
    comparison = material.comparison
    shown = shown_finding(comparison)
    findings = list(titled_findings(comparison))
    for number, (title, finding) in enumerate(findings[:MOST_OTHERS]):
        full = material.op if finding == shown else None
        name = "finding" if number == 0 else f"finding-{number}"
        content: list[Content] = [
            _facts(comparison, finding, is_main=finding == shown),
            _code(finding, with_stack=number < MOST_STACKS),
        ]
        if full is not None:
            is_op = finding.boundary is None
            content += (
                [_op(full, material.sources), values_part(material.values, material.to_record)]
                if is_op
                else [_event(full)]
            )
        if number == MOST_OTHERS - 1:
            content.append(more(len(findings) - MOST_OTHERS, "findings"))
        yield section(name, title, content, class_="long")


def _facts(comparison: Comparison, finding: Finding, is_main: bool) -> Content:
    paired = finding.a_index is not None and finding.b_index is not None
    evidence = list(_evidence(finding, paired))
    before = before_it(finding) if is_main and comparison.verdict is Verdict.DIVERGED else None
    return facts(
        (noun(finding), el("strong", code(finding.op)) if finding.op else None),
        ("row", [rows(finding), muted(" of "), code(finding.stream)] if finding.op else None),
        ("when", when(finding)),
        ("module", code(finding.module) if finding.module else None),
        ("site", place(finding.site) if finding.site else None),
        ("cause", [el("strong", finding.cause.value), None if before else f". {sentence(finding.explanation)}"]),
        ("repeats", _repeats(finding)),
        ("inputs", INPUTS[finding.inputs_match] if finding.op and paired and finding.boundary is None else None),
        *evidence,
        ("before", before),
    )


def _repeats(finding: Finding) -> str | None:
    if finding.cause is not Cause.SAME_KERNEL or finding.repeats is None:
        return None
    return "the op gave the same bits when run again" if finding.repeats else "the op gave other bits when run again"


def _evidence(finding: Finding, paired: bool) -> Iterator[tuple[str, Content]]:
    """What ran, and digests of what it returned; without an op, what differs at the end of the step."""
    is_op = finding.op is not None and finding.boundary is None
    kernel = finding.kernel if paired else Pair(one := finding.kernel.a or finding.kernel.b, one)
    yield "kernel", both(kernel) if paired else (code(kernel.a) if kernel.a else None)
    differing = apart(finding)
    for name, pair in differing[: MOST_OUTPUTS if is_op else MOST_CELLS]:
        yield name, both(pair)
    if is_op and len(finding.outputs) > 1 and differing:
        yield "outputs", f"{len(differing):,} of {len(finding.outputs):,} differ"


def _code(finding: Finding, with_stack: bool) -> Content:
    source = finding.site.source if finding.site else ""
    return [
        el("pre", el("code", source)) if source else None,
        frames(finding.stack) if with_stack and len(finding.stack) > 1 else None,
    ]


def _event(pair: OpPair) -> Content:
    """All that an event tells on both sides, what is evidence alone in brackets."""
    a, b = (() if line is None or line.event is None else line.event.cells for line in (pair.a, pair.b))
    cells = [{cell.name: cell for cell in side} for side in (a, b)]
    listed = [
        row(
            f"[{name}]" if cell.is_evidence else name,
            *(code(side[name].text) if name in side else "–" for side in cells),
        )
        for name, cell in {**cells[1], **cells[0]}.items()
    ]
    head = (("field", None), ("A", None), ("B", None))
    return table(head, listed, "Fields of the event; those in brackets are evidence only") if listed else None


# --- the op in full -------------------------------------------------------------------------------------------------


COLUMNS = (("input", None), ("tensor", None), ("match", None), ("written by", None), ("digest here", None))


def _op(pair: OpPair, sources: tuple[InputSource, ...]) -> Content:
    made = {source.place: source for source in sources}
    are_read = any(side is not None and side.digest for given in pair.inputs for side in (given.a, given.b))
    head = COLUMNS if are_read else COLUMNS[:-1]
    chosen = shown_inputs(pair)
    inputs = [row(*_input(pair, given, made.get(given.place))[: len(head)]) for given in chosen]
    call = _told(pair, pair.skeleton)
    state = facts(
        ("scalars", _told(pair, pair.numbers)),
        ("args", [call, muted(" (T a tensor, i and f a number)")] if call else None),
        ("rng", _told(pair, _texts(pair, "rng"))),
        ("logged", _told(pair, _texts(pair, "value"))),
        ("output", _digests(pair)),
        ("flags", ", ".join(pair.shown.flags)),
    )
    return [
        el("h3", "Inputs"),
        table(head, inputs, "Tensors that the op read, and the op that wrote each") if inputs else el("p", "None."),
        more(len(pair.inputs) - len(chosen), "inputs", IN_TERMINAL),
        [el("h3", "Arguments and state"), state] if state else None,
    ]


def _told(pair: OpPair, fact: Pair[str]) -> Content:
    """A fact of both sides; of the one that is there, where one side alone ran the op. None: there is none."""
    if not fact.a and not fact.b:
        return None
    return both(fact) if pair.a is not None and pair.b is not None else code(fact.a or fact.b or "")


def _texts(pair: OpPair, field: str) -> Pair[str]:
    found = [None if line is None else getattr(line, field) for line in (pair.a, pair.b)]
    return Pair(*(None if value is None else str(value) for value in found))


def _digests(pair: OpPair) -> Content:
    """All of them, where the finding does not tell them."""
    lines = [line for line in (pair.a, pair.b) if line is not None]
    if len(lines) == 2 and lines[0].outputs != lines[1].outputs:
        return None
    return [el("div", code(digest)) for digest in lines[0].outputs[:MOST_OUTPUTS]] or None


def _input(pair: OpPair, given: PairedInput, source: InputSource | None) -> tuple[Content, ...]:
    return (
        f"{given.place}",
        _told(pair, Pair(*(None if side is None else side.layout or "?" for side in (given.a, given.b)))),
        _match(given.match),
        _source(given, source),
        _told(pair, Pair(*(None if side is None else side.digest for side in (given.a, given.b)))),
    )


def _match(match: str) -> Content:
    return el(
        "span",
        match or "–",
        class_="badge differ" if match == "differ" else "badge",
    )


def _source(given: PairedInput, source: InputSource | None) -> Content:
    if source is not None:
        way = f" through {source.passed:,} views or copies" if source.passed else ""
        return [f"row {source.op.row:,} ", code(source.op.op), way, _at(source.op)]
    known: OpInput | None = given.a or given.b
    return (
        ""
        if known is None
        else {"row": "", "outside": "outside: no recorded op wrote it"}.get(known.origin, known.origin)
    )


def _at(line: OpLine) -> Content:
    return el("div", code(f"{line.site.file}:{line.site.line}", "muted")) if line.site else None
