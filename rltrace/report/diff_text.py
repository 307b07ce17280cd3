"""The document of a verdict as lines of text, 80 columns wide by default, readable without colour.

Owns layout within a width: columns, wrapping, what is cut. Chooses no fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from rltrace.diff.base.model import Comparison, Pair
from rltrace.report.document import Fact, Form, Inline, Section, Stack, Value, verdict_document
from rltrace.report.phrases import HEADLINES
from rltrace.report.style import Style
from rltrace.trace.read.names import Site
from rltrace.wording import cut

WIDTH, LABEL = 80, 8
MAX_FACTS, MAX_TABLE_ROWS = 20, 60
"""Facts of a section; the JSON report has all of them."""


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

    def section(self, section: Section) -> Iterator[TextLine]:
        """Lines of a section's title, sentences, facts and commands."""
        if section.title:
            yield TextLine("", section.title, "title")
        for text in section.lead:
            yield from self.lines(self.indent, text)
        limit = MAX_TABLE_ROWS if section.form is Form.TABLE else MAX_FACTS
        for fact in section.facts[:limit]:
            yield from self._row(fact) if section.form is Form.TABLE else self._fact(fact, section.form)
        if len(section.facts) > limit:
            yield TextLine(self.indent, f"… and {len(section.facts) - limit:,} more (--format json has them all)")
        for command in section.commands:
            yield from self.lines(self.indent, command, "command")

    def lines(self, head: str, text: str, look: str = "") -> Iterator[TextLine]:
        """``text`` after ``head``, wrapped."""
        whole = look == "command" and not self.breaks
        width = max(10, self.width - len(head))
        pieces = [text] if whole else wrap(text, width, break_long_words=self.breaks, break_on_hyphens=False) or [""]
        for number, piece in enumerate(pieces):
            yield TextLine(" " * len(head) if number else head, piece, look)

    def _fact(self, fact: Fact, form: Form) -> Iterator[TextLine]:
        label = inline_text(fact.label)
        column = 3 if form is Form.LIST else LABEL + 1
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

    def _row(self, fact: Fact) -> Iterator[TextLine]:
        assert isinstance(fact.value, Pair)
        label, a, b = inline_text(fact.label), fact.value.a or "(unset)", fact.value.b or "(unset)"
        if len(line := f"{self.indent}{label}  {a} | {b}") <= self.width:
            yield TextLine("", line)
            return
        for piece in split_at_dots(label, self.width - len(self.indent)):
            yield TextLine(self.indent, piece, "name")
        for side, value in (("A", a), ("B", b)):
            yield from self.lines(f"{self.indent}  {side}  ", value)


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
            yield "", f"{value.file}:{value.line} in {value.function}", ""
            if value.source:
                yield "", " ".join(value.source.split()), "source"
        case Stack():
            for frame in value.frames[1:]:  # the first one is the site
                yield from _rows(frame)
        case _:
            yield "", inline_text(value), ""


def inline_text(words: Inline) -> str:
    return words if isinstance(words, str) else "".join(words)


def split_at_dots(name: str, width: int) -> list[str]:
    """A dotted name on lines of at most ``width``, broken after dots, within words only where necessary."""
    if len(name) <= width or " " in name:  # a source line, not a name
        return wrap(name, width)
    return [line.replace(". ", ".") for line in wrap(name.replace(".", ". "), width)]


def wrapped(text: str, indent: str = "  ", first: str | None = None) -> Iterator[str]:
    """Lines of at most WIDTH columns; ``first``: the indent of the first line, by default ``indent``."""
    yield from wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render_comparison(comparison: Comparison, *, color: bool) -> str:
    """The report, without a newline at the end."""
    style, layout, document = Style(color), TextLayout(), verdict_document(comparison)
    headline = style.verdict(HEADLINES[document.verdict], document.verdict)
    where = document.place or document.scope
    first = f"{headline}  {where}" if where else headline
    head = first if document.place else "\n".join([first, *wrapped(document.lead)])
    runs = "\n".join(line.head + line.body for line in layout.section(document.runs) if line.look != "title")
    sections = ["\n".join(styled_lines(layout.section(section), style)) for section in document.sections]
    return "\n\n".join([head, runs, *sections])


def styled_lines(lines: Iterator[TextLine], style: Style) -> Iterator[str]:
    """Lines for a terminal, titles and names in bold."""
    for line in lines:
        yield line.head + (style.bold(line.body) if line.look in ("title", "name") else line.body)
