"""A document as lines of text, 80 columns wide by default, readable without colour.

Owns layout within a width: columns, wrapping, what is cut. Chooses no fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from textwrap import wrap

from rltrace.diff.base.model import Pair, Verdict
from rltrace.report.document import ALL, Document, Fact, Form, Number, Section, Stack, Value, inline_text
from rltrace.trace.read.names import Site
from rltrace.wording import counted, cut

WIDTH, LABEL, MAX_LABEL = 80, 8, 12
"""Columns of a line, of labels, and of labels if one of the section is that long; a longer one has its own line."""

MIN_NAME, MIN_TEXT = 20, 30
"""Columns of a table's first cells, and of its last ones where they are text, if there is little space."""

COLORS = {Verdict.IDENTICAL: "1;32", Verdict.SAME_VALUES: "1;32", Verdict.DIVERGED: "1;31", Verdict.UNKNOWN: "1;33"}
BOLD = "1"


def document_text(document: Document, *, color: bool = False) -> str:
    """The report, without a newline at the end. Colour is never the only carrier of meaning."""
    layout = TextLayout()
    lead = document.answer if document.place else (*document.answer, *document.lead)
    head = list(layout.section(Section("", "", lead)))
    headline = _escaped(document.headline, COLORS[document.verdict] if document.verdict else BOLD, color)
    about = document.place or document.scope
    blocks = [
        [f"{headline}  {about}" if about else headline] * bool(document.headline) + _shown(head, color),
        _shown(layout.section(Section("", "", facts=document.facts, limit=ALL)), color),
        *(_shown(layout.section(section), color) for section in document.sections),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _shown(lines: Iterator[TextLine] | list[TextLine], color: bool) -> list[str]:
    """Lines for a terminal, titles and names in bold."""
    return [line.head + _escaped(line.body, BOLD, color and line.look in ("title", "name")) for line in lines]


def _escaped(text: str, code: str, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color and text else text


@dataclass(frozen=True)
class TextLine:
    """One line: a label or an indent, and the text after it."""

    head: str
    body: str
    look: str = ""
    """"title", "name", "source", "command" or ""."""


@dataclass(frozen=True)
class TextLayout:
    """The width of lines and their indent."""

    width: int = WIDTH
    indent: str = "  "
    breaks: bool = False
    """Whether words and commands that are too wide are broken; otherwise they can be copied."""

    def section(self, section: Section, depth: int = 0) -> Iterator[TextLine]:
        """Lines of a section's title, sentences, facts, table, commands and parts."""
        if section.title:
            before, look = ("  " * (depth - 1) + self.indent, "") if depth else ("", "title")
            yield from self.lines(before, section.title, look)
        inner, limit = replace(self, indent="  " * depth + self.indent), section.limit
        for text in section.lead[:limit]:
            yield from inner.lines(inner.indent, text)
        yield from inner._facts(section)
        yield from inner._table(section)
        for command in section.commands:
            yield from inner.lines(inner.indent, command, "command")
        for part in section.parts[:limit]:
            yield from self.section(part, depth + 1)
        left = sum(len(entries[limit:]) for entries in (section.lead, section.facts, section.rows, section.parts))
        if left:
            yield TextLine(inner.indent, f"… and {left:,} more (--format json has them all)")

    def lines(self, head: str, text: str, look: str = "") -> Iterator[TextLine]:
        """``text`` after ``head``, wrapped."""
        whole = look == "command" and not self.breaks
        width = max(10, self.width - len(head))
        pieces = [text] if whole else wrap(text, width, break_long_words=self.breaks, break_on_hyphens=False) or [""]
        for number, piece in enumerate(pieces):
            yield TextLine(" " * len(head) if number else head, piece, look)

    def _facts(self, section: Section) -> Iterator[TextLine]:
        shown = section.facts[: section.limit]
        lengths = [len(inline_text(fact.label)) for fact in shown]
        column = 3 if section.form is Form.LIST else 1 + max([LABEL, *(n for n in lengths if n <= MAX_LABEL)])
        for fact in shown:
            yield from self._pair(fact, section.columns) if section.form is Form.TABLE else self._fact(fact, column)

    def _fact(self, fact: Fact, column: int) -> Iterator[TextLine]:
        label = inline_text(fact.label)
        head, blank = f"{self.indent}{label:<{column}}", f"{self.indent}{'':<{column}}"
        if len(label) >= column:
            yield from self.lines(self.indent, label, "name")
            head = blank
        for prefix, text, look in _rows(fact.value, fact.of):
            if look == "source":
                yield TextLine(f"{blank}  ", cut(text, max(10, self.width - len(blank) - 2)), look)
                continue
            yield from self.lines(head + prefix, text, "name" if label in ("op", "event") else look)
            head = head if isinstance(fact.value, Stack) else blank

    def _pair(self, fact: Fact, columns: Sequence[str]) -> Iterator[TextLine]:
        """A name and both sides: on one line, or where that is too long on one each."""
        assert isinstance(fact.value, Pair)
        label, a, b = inline_text(fact.label), fact.value.a or "(unset)", fact.value.b or "(unset)"
        if len(line := f"{self.indent}{label}  {a} | {b}") <= self.width:
            yield TextLine("", line)
            return
        for piece in split_at_dots(label, self.width - len(self.indent)):
            yield TextLine(self.indent, piece, "name")
        for side, value in zip(columns[1:], (a, b), strict=True):
            yield from self.lines(f"{self.indent}  {side:<{len(max(columns[1:], key=len))}}  ", value)

    def _table(self, section: Section) -> Iterator[TextLine]:
        """Rows in columns. A first cell that is too long has its own line; a last one that is text is wrapped."""
        rows = section.rows[: section.limit]
        if not rows:
            return
        texts = [tuple(map(inline_text, row)) for row in rows]
        head = section.columns if any(section.columns) else ()
        whole = [row for row in (head, *texts) if len(row) > 1]
        right = [any(isinstance(row[n], Number) for row in rows if n < len(row)) for n in range(len(section.columns))]
        widths = [max((len(row[n]) for row in whole if n < len(row)), default=0) for n in range(len(section.columns))]
        room = self.width - len(self.indent) - 2 * (len(widths) - 1)
        least = widths[-1] if right[-1] else min(widths[-1], MIN_TEXT)
        widths[0] = min(widths[0], max(MIN_NAME, room - sum(widths[1:-1]) - least))
        for row in (head, *texts) if head else texts:
            name, *cells = row
            if len(name) > widths[0] or not cells:
                pieces = split_at_dots(name, self.width - len(self.indent))
                yield from (TextLine(self.indent, piece) for piece in pieces)
                name = ""
            if cells:
                yield from self._cells((name, *cells), widths, right)

    def _cells(self, cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[TextLine]:
        aligned = [
            f"{cell:>{width}}" if number else f"{cell:<{width}}"
            for cell, width, number in zip(cells, widths, right, strict=False)
        ]
        if right[len(cells) - 1]:
            yield TextLine(self.indent, "  ".join(aligned).rstrip())
            return
        before = "".join(f"{cell}  " for cell in aligned[:-1])
        for number, line in enumerate(self.lines(self.indent + before, cells[-1])):
            yield TextLine(self.indent, ((" " * len(before) if number else before) + line.body).rstrip())


def _rows(value: Value, of: str = "") -> Iterator[tuple[str, str, str]]:
    """(prefix, text, look) of each line of a fact."""
    if of:
        yield "", of, ""
    match value:
        case Pair():
            if value.a == value.b:
                yield "", f"{value.a} on both sides", ""
            else:
                yield "A  ", value.a or "–", ""
                yield "B  ", value.b or "–", ""
        case Site():
            yield "", value.place, ""
            if value.source:
                yield "", " ".join(value.source.split()), "source"
        case Stack():
            for is_library, group in groupby(value.frames[1:], lambda frame: frame.is_library):  # the first is the site
                frames = list(group)
                for frame in frames[:1] if is_library else frames:
                    yield from _rows(frame)
                if is_library and len(frames) > 1:
                    yield "", f"… {counted(len(frames) - 1, 'more frame')} of libraries", ""
        case _:
            yield "", inline_text(value), ""


def split_at_dots(name: str, width: int) -> list[str]:
    """A dotted name on lines of at most ``width``, broken after dots, within words only where necessary."""
    if len(name) <= width or " " in name:  # a source line, not a name
        return wrap(name, width)
    return [line.replace(". ", ".") for line in wrap(name.replace(".", ". "), width)]
