"""The document of a verdict, and folds of ops, as lines of text.

Owns glyphs and layout within a width. Pure functions: no widget, no reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from textwrap import wrap

from textual.content import Content

from rltrace.diff.base.model import Pair, Verdict
from rltrace.diff.display.browser import Browser, BrowserLine
from rltrace.diff.display.row_pairs import Relation
from rltrace.report.diff_text import LABEL, TextLayout
from rltrace.report.document import Document, Fact, Section
from rltrace.report.phrases import HEADLINES

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

SPACES = re.compile(r"(?<=\S)\s{3,}")

LABELLED = re.compile(r"\s*\S+(?: \S+)?\s{2,}")
"""A label of one or two words at the beginning of a line."""

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
    sizes = count if a == b else f"{a:,} ops of A, {b:,} of B"
    return f"⋯ {where}{sizes}, not loaded ⋯"


# --- verdict --------------------------------------------------------------------------------------------------------

LOOKS = {"title": "bold", "name": "bold", "source": "$text-muted", "command": "$text-accent"}


def headline(verdict: Verdict) -> tuple[str, str]:
    """The verdict, and its style."""
    return HEADLINES[verdict], f"bold {COLORS[verdict]}"


def verdict_lines(document: Document, width: int) -> Lines:
    """The verdict, its findings and the commands to run next, then all other sections except the system."""
    where = document.place or document.scope
    lines = [Content.assemble(headline(document.verdict), f"  {where}" if where else "")]
    lines += [] if document.place else [plain(line) for line in wrap(document.lead, width)]
    first = (*document.findings[:1], *document.named("next"), *document.findings[1:])
    others = (section for section in document.rest if section.name not in ("next", "system"))
    for section in (*first, *others, document.runs):
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


def pair_lines(label: str, pair: Pair[str], width: int) -> Lines:
    """A fact of both sides, on one line if it is equal."""
    if pair.a is None and pair.b is None:
        return []
    return section_lines(Section("", "", facts=(Fact(label, pair),)), width)


def text_lines(lines: Iterable[str], width: int) -> Lines:
    """Lines of a report, wrapped below the start of their text; headings without an indent are bold."""
    found: Lines = []
    for line in "\n".join(lines).strip("\n").splitlines():
        if len(line) > width:
            line = SPACES.sub("  ", line)  # keeps more of the value on the line
        indent = len(line) - len(line.lstrip())
        label = LABELLED.match(line)
        more = " " * (label.end() if label and label.end() < width // 2 else indent + 2)
        wrapped = wrap(line, width, subsequent_indent=more, drop_whitespace=True, break_on_hyphens=False) or [""]
        style = "bold" if indent == 0 and label is None else ""
        found += [plain(piece, style) for piece in wrapped]
    return found
