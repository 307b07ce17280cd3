"""HTML and SVG elements as objects, and their rendering as text.

Owns escaping: content of a trace is always text. Refuses what could load or run anything: ``style`` and ``on…``
attributes, links that leave the page. Knows no page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rltrace.diff.base.model import Pair
from rltrace.report.document import Code, Fact, Form, Inline, Number, Section, Stack
from rltrace.trace.read.names import Site
from rltrace.wording import cut

VOID = frozenset({"br", "hr", "input", "meta"})
"""HTML elements that have no end tag."""

SHAPES = frozenset({"circle", "line", "path", "polyline", "rect"})
"""SVG elements that are self-closing where they are empty."""


@dataclass(frozen=True)
class Element:
    """One element; ``children`` in order."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Content, ...]


@dataclass(frozen=True)
class StyleSheet:
    """The project's CSS, not escaped."""

    css: str


Content = Element | StyleSheet | str | Iterable["Content"] | None
"""The content of an element; None and empty sequences add nothing."""


def el(tag: str, *children: Content, **attributes: str | int | float | bool | None) -> Element:
    """``el("a", "text", class_="x", aria_label="y")``; True: attribute without value; None, False: no attribute."""
    return Element(tag, tuple(_attributes(attributes)), children)


def _attributes(attributes: dict[str, str | int | float | bool | None]) -> Iterator[tuple[str, str]]:
    for key, value in attributes.items():
        name = CAMEL.get(key) or key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        text = "" if value is True else str(value)
        is_external = name in ("src", "action", "srcdoc") or (name == "href" and not text.startswith("#"))
        if name == "style" or name.startswith("on") or is_external:
            raise ValueError(f"a report has no {name}={text!r}")
        yield name, text


CAMEL = {"view_box": "viewBox", "preserve_aspect_ratio": "preserveAspectRatio"}
"""SVG attributes in camel case."""


def render(content: Content) -> str:
    """``content`` as HTML."""
    return "".join(_pieces(content))


def _pieces(content: Content) -> Iterator[str]:
    match content:
        case None:
            return
        case str():
            yield escape(printable(content), quote=False)
        case Element():
            yield from _element(content)
        case StyleSheet():
            yield f"<style>{content.css}</style>"
        case _:
            for item in content:
                yield from _pieces(item)


def _element(element: Element) -> Iterator[str]:
    attributes = "".join(f' {name}="{escape(printable(value))}"' for name, value in element.attributes)
    inside = render(element.children)
    if element.tag in SHAPES and not inside:
        yield f"<{element.tag}{attributes}/>"
        return
    yield f"<{element.tag}{attributes}>"
    if element.tag not in VOID:
        yield from (inside, f"</{element.tag}>")


def printable(text: str) -> str:
    """``text`` with U+FFFD for control characters and changes of writing direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


# --- components -------------------------------------------------------------------------------------------------------

MAX_TEXT, MAX_COMMAND = 600, 4000
"""Characters of a recorded text, and of a command, which cannot be run if it is cut."""

MAX_FRAMES = 40
"""Frames of a call stack, which recursion can make a thousand deep."""


def code(text: str, class_: str | None = None) -> Element:
    return el("code", cut(text, MAX_TEXT), class_=class_)


def muted(*content: Content) -> Element:
    return el("span", content, class_="muted")


def aria_text(text: str) -> Element:
    """Text for screen readers only."""
    return el("span", text, class_="hidden")


def section(name: str, title: str, *content: Content, class_: str | None = None) -> Element:
    """A section of the page with a heading; ``name``: the target of links."""
    return el(
        "section",
        el("h2", title, id=f"{name}-heading"),
        content,
        id=name,
        class_=class_,
        aria_labelledby=f"{name}-heading",
    )


def facts(*pairs: tuple[Content, Content]) -> Element | None:
    """A list of terms and their values, without terms that have none; None if the list is empty."""
    shown = [(term, value) for term, value in pairs if value is not None and value != ""]
    if not shown:
        return None
    return el("dl", [(el("dt", term), el("dd", value)) for term, value in shown])


def side(name: str) -> Element:
    """The letter of a side in its colour."""
    return el("span", name, class_=f"tag-{name.lower()}")


def both(pair: Pair[str]) -> Content:
    """A fact on both sides: once if equal, otherwise one below the other; None if neither side has it."""
    if pair.a is None and pair.b is None:
        return None
    if pair.a == pair.b:
        return [code(pair.a or ""), muted(" on both sides")]
    return [
        el("div", side(name), " ", code(value) if value is not None else muted("–"))
        for name, value in (("A", pair.a), ("B", pair.b))
    ]


def place(site: Site) -> Content:
    """``train.py:12`` in ``train``; without a function that is not known."""
    where = code(f"{site.file}:{site.line}")
    return [where, muted(" in "), code(site.function)] if site.function else [where]


def frames(stack: Sequence[Site]) -> Element:
    """A folded call stack; a deep one shows both ends."""
    inner, outer = stack[: MAX_FRAMES // 2], stack[-MAX_FRAMES // 2 :]
    shown = [*inner, None, *outer] if len(stack) > MAX_FRAMES else stack
    omitted = f"… {len(stack) - MAX_FRAMES:,} more …"
    listed = [
        el("li", omitted, class_="muted")
        if site is None
        else el("li", place(site), code(site.source, "source") if site.source else None)
        for site in shown
    ]
    title = f"Call stack, innermost first ({len(stack):,} frames)"
    return el("details", el("summary", title), el("ul", listed, class_="frames"))


def table(
    head: Iterable[tuple[str, str | None]], rows: Iterable[Content], caption: str, class_: str | None = None
) -> Element:
    """``head``: heading and class of each column."""
    columns = [el("th", text, scope="col", class_=look) for text, look in head]
    body = el("table", el("caption", caption), el("thead", el("tr", columns)), el("tbody", rows), class_=class_)
    return el("div", body, class_="scroll")


def row(*cells: Content, class_: str | None = None, header: bool = True) -> Element:
    """A row of cells (``td`` or ``th``) or of their contents; ``header``: whether the first cell is a heading."""
    elements = [
        cell
        if isinstance(cell, Element) and cell.tag in ("td", "th")
        else el("th", cell, scope="row")
        if header and number == 0
        else el("td", cell)
        for number, cell in enumerate(cells)
    ]
    return el("tr", elements, class_=class_)


def number_cell(value: int | None) -> Element:
    """A right-aligned cell with a number."""
    return el("td", "" if value is None else f"{value:,}", class_="number")


def commands(lines: Iterable[str]) -> Element:
    """Commands, one below the other; continuation lines are indented."""
    return el("pre", [el("code", f"{cut(line, MAX_COMMAND)}\n", class_="command") for line in lines])


IN_JSON, IN_TERMINAL = "rltrace diff --format json has all of them", "rltrace diff shows them in a terminal"


def more(count: int, what: str, where: str = IN_JSON) -> Element | None:
    """``… and 12 more facts (where they are)``; None if ``count`` is not positive."""
    return el("p", f"… and {count:,} more {what} ({where})", class_="muted") if count > 0 else None


# --- the document -----------------------------------------------------------------------------------------------------

MAX_FACTS = 100
"""Facts of a section; the JSON report has all of them."""


def document_section(shown: Section, *content: Content, with_stack: bool = True) -> Element:
    """A section of the document, followed by ``content``."""
    return section(shown.name, shown.title, blocks(shown, with_stack), content, class_="long")


def blocks(shown: Section, with_stack: bool = True) -> Content:
    """The sentences, facts, source lines, stacks, table, commands and parts of a section."""
    values = [fact.value for fact in shown.facts]
    return [
        [el("p", text) for text in shown.lead],
        _facts(shown),
        [el("pre", el("code", site.source)) for site in values if isinstance(site, Site) and site.source],
        [frames(stack.frames) for stack in values if isinstance(stack, Stack) and with_stack],
        _table(shown, shown.rows) if shown.rows else None,
        commands(shown.commands) if shown.commands else None,
        more(max(len(shown.facts), len(shown.rows), len(shown.parts)) - MAX_FACTS, "facts"),
        el("ul", [el("li", el("strong", part.title), blocks(part)) for part in shown.parts[:MAX_FACTS]], class_="plain")
        if shown.parts
        else None,
    ]


def _facts(shown: Section) -> Content:
    listed = [fact for fact in shown.facts[:MAX_FACTS] if not isinstance(fact.value, Stack)]
    if not listed:
        return None
    if shown.form is Form.TABLE:
        return _table(shown, [(fact.label, *_sides(fact)) for fact in listed])
    if shown.form is Form.LIST:
        signs = (side(str(f.label)) if f.label in ("A", "B") else el("code", f.label, class_="key") for f in listed)
        return el("ul", [el("li", sign, " ", _value(f)) for sign, f in zip(signs, listed, strict=True)], class_="plain")
    return facts(*((_inline(fact.label), _value(fact)) for fact in listed))


def _table(shown: Section, rows: Sequence[Sequence[Inline]]) -> Element:
    numbers = {n for cells in rows for n, cell in enumerate(cells) if isinstance(cell, Number)}
    head = [(title, "number" if n in numbers else None) for n, title in enumerate(shown.columns)]
    return table(head, (row(*map(_cell, cells)) for cells in rows[:MAX_FACTS]), shown.title)


def _cell(cell: Inline) -> Content:
    return el("td", cell, class_="number") if isinstance(cell, Number) else _inline(cell)


def _sides(fact: Fact) -> Iterator[Inline]:
    assert isinstance(fact.value, Pair)
    yield from (Code(value) if value else "(unset)" for value in (fact.value.a, fact.value.b))


def _value(fact: Fact) -> Content:
    match fact.value:
        case Pair():
            return [el("div", code(fact.of)) if fact.of else None, both(fact.value)]
        case Site():
            return place(fact.value)
        case Stack():
            return frames(fact.value.frames)
    text = _inline(fact.value)
    return el("strong", text) if fact.label in ("op", "event") else text


def _inline(words: Inline) -> Content:
    pieces = (words,) if isinstance(words, str) else words
    return [code(piece) if isinstance(piece, Code) else piece for piece in pieces]
