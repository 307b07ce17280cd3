"""Both runs op by op around the finding: identical ops folded, origins and propagated differences marked.

Owns the layout of that table. Decides nothing, reads nothing.
"""

from __future__ import annotations

from rltrace.diff.display.row_pairs import Relation
from rltrace.extensions.page.data import ExcerptLine, PageData
from rltrace.extensions.page.elements import (
    Content,
    Element,
    aria_text,
    code,
    el,
    muted,
    number_cell,
    row,
    section,
    table,
)
from rltrace.query.ops import OpLine
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
