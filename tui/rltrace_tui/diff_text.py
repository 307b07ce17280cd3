"""The document of a verdict, and folds of ops, as lines of text.

Owns glyphs and layout within a width. Pure functions: no widget, no reading.
"""

from collections.abc import Iterable
from dataclasses import replace

from textual.content import Content

from rltrace.diff.base.model import Pair, Verdict
from rltrace.diff.display.browser import Browser, BrowserLine
from rltrace.diff.display.row_pairs import Relation
from rltrace.report.document import ALL, Document, Fact, Section
from rltrace.report.text import LABEL, TextLayout

COLORS = {
    Verdict.IDENTICAL: "$text-success",
    Verdict.SAME_VALUES: "$text-success",
    Verdict.DIVERGED: "$text-error",
    Verdict.UNKNOWN: "$text-warning",
}

GLYPHS = {
    Relation.EQUAL: "=",
    Relation.DIFFERS: "≠",
    Relation.RECEIVES: "~",
    Relation.UNSURE: "?",
    Relation.ONLY_A: "<",
    Relation.ONLY_B: ">",
    Relation.UNPAIRED: "?",
}

Lines = list[Content]


def plain(text: str, style: str = "") -> Content:
    return Content.styled(text, style) if style else Content(text)


def labelled(label: str, text: str, width: int, style: str = "") -> Lines:
    """``label`` in the first column, ``text`` wrapped in the second."""
    lines = TextLayout(width, "", breaks=True).lines(f"{label:<{LABEL + 1}}", text, style)
    return [Content.assemble((line.head, "$text-muted"), (line.body, line.look)) for line in lines]


def fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns, with ``…`` if it is cut."""
    return f"{text:<{width}}" if len(text) <= width else f"{text[: max(0, width - 1)]}…"[:width]


def fold_text(browser: Browser, line: BrowserLine) -> str:
    """The text of a fold."""
    piece = line.piece
    assert piece is not None
    if piece.trouble:
        return f"⋯ rows {piece.a0:,} to {piece.a1 - 1:,} of A cannot be shown: {piece.trouble}"
    count = f"{piece.rows:,} op" + ("" if piece.rows == 1 else "s")
    if piece.equal and not browser.is_single:
        return f"⋯ {count.replace(' op', ' identical op')} ⋯"
    step = browser.step_of(piece)
    where = "" if step is None else f"step {step:,}: "
    if piece.equal:
        return f"⋯ {where}{count} ⋯"
    a, b = piece.a1 - piece.a0, piece.b1 - piece.b0
    if not a or not b:
        return f"⋯ {where}{count} only in {'A' if a else 'B'} ⋯"
    if piece.is_computed_alike:
        return f"⋯ {count}, all computed the same; events may differ ⋯"
    sizes = count if a == b else f"{a:,} ops of A, {b:,} of B"
    return f"⋯ {where}{sizes}, not loaded ⋯"


# --- verdict --------------------------------------------------------------------------------------------------------

LOOKS = {"title": "bold", "name": "bold", "source": "$text-muted", "command": "$text-accent"}


def headline(document: Document) -> tuple[str, str]:
    """The verdict, and its style."""
    return document.headline, f"bold {COLORS[document.verdict]}" if document.verdict else "bold"


def verdict_lines(document: Document, width: int) -> Lines:
    """The verdict, its findings and the commands to run next, then all other sections except those that have a pane."""
    where = document.place or document.scope
    lines = [Content.assemble(headline(document), f"  {where}" if where else "")]
    lead = document.answer if document.place else (*document.answer, *document.lead)
    lines += section_lines(Section("", "", lead), width)
    first = (*document.findings[:1], *document.named("next"), *document.findings[1:])
    others = (section for section in document.rest if section.name not in ("next", "system", "modules"))
    for section in (*first, *others, Section("runs", "The two runs", facts=document.facts, limit=ALL)):
        lines += section_lines(section, width)
    return lines


def environment_lines(document: Document, width: int) -> Lines:
    """The section of the system; its pane has the title."""
    (section,) = document.named("system") or (Section("system", "", ("No recorded fact differs.",)),)
    return section_lines(replace(section, title=""), width)


def section_lines(section: Section, width: int) -> Lines:
    """A section of the document."""
    lines = TextLayout(width, "", breaks=True).section(section)
    return [Content.assemble((line.head, "$text-muted"), (line.body, LOOKS.get(line.look, ""))) for line in lines]


def sections_lines(sections: Iterable[Section], width: int) -> Lines:
    """Sections with an empty line between them."""
    lines: Lines = []
    for section in sections:
        lines += [*([plain("")] if lines else []), *section_lines(section, width)]
    return lines


def pair_lines(label: str, pair: Pair[str], width: int) -> Lines:
    """A fact of both sides, on one line if it is equal."""
    if pair.a is None and pair.b is None:
        return []
    return section_lines(Section("", "", facts=(Fact(label, pair),)), width)
