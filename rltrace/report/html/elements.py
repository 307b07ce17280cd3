"""HTML and SVG elements as plain objects, and the one place where they become text.

Owns escaping: whatever a trace holds, it comes out as text. Knows no page. What could load or run anything (``style``
and ``on…`` attributes, links other than within the page) cannot be written at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

VOID = frozenset({"br", "hr", "input", "meta"})
"""HTML elements that have no end tag."""

SHAPES = frozenset({"circle", "line", "path", "polyline", "rect"})
"""SVG elements that end themselves where they are empty."""


@dataclass(frozen=True)
class Element:
    """One element; ``children`` in order."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Content, ...]


@dataclass(frozen=True)
class StyleSheet:
    """The project's own CSS, written as it is."""

    css: str


Content = Element | StyleSheet | str | Iterable["Content"] | None
"""What can stand in an element; None and empty sequences are nothing."""


def el(tag: str, *children: Content, **attributes: str | int | float | bool | None) -> Element:
    """``el("a", "text", class_="x", aria_label="y")``; True: an attribute without value, None and False: none."""
    return Element(tag, tuple(_attributes(attributes)), children)


def _attributes(given: dict[str, str | int | float | bool | None]) -> Iterator[tuple[str, str]]:
    for key, value in given.items():
        name = CAMEL.get(key) or key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        text = "" if value is True else str(value)
        outward = name in ("src", "action", "srcdoc") or (name == "href" and not text.startswith("#"))
        if name == "style" or name.startswith("on") or outward:
            raise ValueError(f"a report has no {name}={text!r}")
        yield name, text


CAMEL = {"view_box": "viewBox", "preserve_aspect_ratio": "preserveAspectRatio"}
"""SVG's own spelling, where it is not that of HTML."""


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
            for part in content:
                yield from _pieces(part)


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
    """``text`` without what HTML has no place for and what turns the letters around it: each becomes U+FFFD."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
