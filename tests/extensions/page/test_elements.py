"""What becomes HTML, and what cannot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import parse

from rltrace.extensions.page.elements import StyleSheet, el, render


def test_an_element() -> None:
    """Children in order, attributes by their HTML names, void and empty elements as HTML and SVG have them."""
    made = el(
        "p", "a ", [el("b", "c"), None, []], el("br"), el("rect", width=1), class_="x", aria_label="y", hidden=True
    )
    assert render(made) == '<p class="x" aria-label="y" hidden="">a <b>c</b><br><rect width="1"/></p>'
    assert render(el("input", checked=False, id=None)) == "<input>"
    assert render(el("svg", view_box="0 0 1 1")) == '<svg viewBox="0 0 1 1"></svg>'
    assert render(StyleSheet("a > b {}")) == "<style>a > b {}</style>"


@settings(max_examples=30)
@given(st.text(), st.text())
def test_any_text_is_text(text: str, value: str) -> None:
    """Whatever it is, it comes out as text and as nothing else."""
    page = render(el("div", el("p", text, title=value), el("q")))
    node = parse(page).one("div")
    assert [child.tag for child in node.children] == ["p", "q"]
    assert list(node.children[0].attributes) == ["title"]
    page.encode("utf-8")


def test_text_is_kept() -> None:
    """Letters of all kinds are kept; what cannot be seen or turns text around is shown to be there."""
    assert render("≠ naïve 日本 <b> & \"q\" 'q'") == "≠ naïve 日本 &lt;b&gt; &amp; \"q\" 'q'"
    assert render("a\u202eb\x00c\ud800d\x1b[1m\ne") == "a\ufffdb\ufffdc\ufffdd\ufffd[1m\ne"
    assert render(el("i", title="\"'<>&")) == '<i title="&quot;&#x27;&lt;&gt;&amp;"></i>'


@pytest.mark.parametrize(
    "attribute",
    [{"onclick": "x()"}, {"style": "color: red"}, {"src": "#x"}, {"href": "https://e.org"}, {"action": "x"}],
)
def test_nothing_that_loads_or_runs(attribute: dict[str, str]) -> None:
    """There is no way to write an attribute that loads, sends or runs anything."""
    with pytest.raises(ValueError, match="a report has no"):
        el("a", **attribute)
    assert render(el("a", href="#ops")) == '<a href="#ops"></a>'
