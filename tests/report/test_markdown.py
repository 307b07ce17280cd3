"""The comparison as Markdown, pinned line by line, and what hostile names can do to it: nothing.

``UPDATE_GOLDEN=1 pytest tests/report`` writes the pinned files anew.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import CASES, kernel
from golden import pinned
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from rltrace.diff.base.model import (
    Comparison,
    Drift,
    DriftPoint,
    Hole,
    Hunk,
    NamedDifference,
    Pair,
    ProcessSummary,
    Structure,
)
from rltrace.report.markdown import code, comparison_markdown, fenced, prose
from rltrace.trace.read.names import Site

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = (
    "`|`` @someone #1 <script>alert(1)</script> [x](javascript:y) ![](z) GH-7 www.e.org "
    "\n# h\n- i\n```\n~~~ \u202e&amp;\ud800"
)
READ = MarkdownIt("commonmark").enable("table")


@pytest.mark.parametrize("name", CASES)
def test_markdown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Markdown report, word for word."""
    monkeypatch.chdir(tmp_path)
    text = comparison_markdown(CASES[name]())
    assert text == pinned(GOLDEN / f"{name}.md", text)


def test_recorded_names_are_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are mentions, links, tags, borders and fences change nothing of the page: they are code."""
    monkeypatch.chdir(tmp_path)
    found = kernel()
    plain_page, hostile_page = (READ.parse(comparison_markdown(full(found, name))) for name in ("name", HOSTILE))
    assert comparison_markdown(full(found, HOSTILE)).encode()
    assert shape(hostile_page) == shape(plain_page)
    for text in words(hostile_page):
        assert not re.search(r"[@#<\[\]|`]|GH-\d|www\.|\w/\w|://", text), text
    tags = {token.content.strip() for token in flat(hostile_page) if token.type in ("html_block", "html_inline")}
    assert all(re.fullmatch(r"</?(details|summary|sub)>|<details><summary>[\w ,()]+</summary>", tag) for tag in tags)


def full(found: Comparison, name: str) -> Comparison:
    """``found`` with every text in it ``name``."""
    site = Site(name, 3, name, name)
    texts = {"op": name, "stream": name, "module": name, "explanation": f"it is {name}"}
    finding = replace(found.first_value, site=site, stack=(site, site), kernel=Pair(name, f"{name}2"), **texts)
    process = ProcessSummary(name, name, 3, name, (), None)
    return replace(
        found,
        a=replace(found.a, path=name, level=name, processes=(process,)),
        first=finding,
        first_value=finding,
        decisive=finding,
        unordered=(replace(finding, stream=f"{name}3"),),
        structure=Structure(1, 0, 0, (Hunk("only-a", name, 1, 2, 1, 2, 0, name),)),
        system=(NamedDifference(name, name, None),),
        holes=(Hole("a", name, name, 0, 3, name),),
        drift=(Drift("item", name, name, name, 9, 9, 9, DriftPoint(4, 1.0, float("nan")), None, 0.5, (), 0.1, True),),
        compared={name: 3},
        notes=(f"see {name}",),
        advice=(f"rltrace ops {name}",),
    )


def flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from flat(token.children or [])


def shape(tokens: list[Token]) -> list[str]:
    """The blocks of a page, what stands in a line left out."""
    return [f"{token.type} {token.tag}" for token in tokens]


def words(tokens: list[Token]) -> list[str]:
    """What a reader's browser would be given as text that is no code."""
    return [token.content for token in flat(tokens) if token.type == "text"]


@given(st.text(max_size=30))
def test_any_text_as_code(text: str) -> None:
    """A code span stays one span, whatever is in it."""
    (paragraph,) = [token for token in READ.parse(f"x {code(text)} y") if token.type == "inline"]
    kinds = [token.type for token in paragraph.children or []]
    assert kinds in (["text", "code_inline", "text"], ["text"])
    if kinds == ["text"]:
        assert paragraph.content == "x (empty) y"


@given(st.lists(st.text(max_size=20), max_size=4))
def test_any_text_in_a_fence(lines: list[str]) -> None:
    """A fence ends where it ends, not where a recorded line says so."""
    tokens = READ.parse("\n".join([*fenced(lines), "", "after"]))
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert len(tokens[0].content.splitlines()) == len(lines)


@given(st.text(max_size=40))
def test_any_text_in_a_sentence(text: str) -> None:
    """Of a sentence, what is not plain words becomes code; nothing pings anybody."""
    tokens = READ.parse(f"It is {prose(text)}")
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    children = tokens[1].children or []
    assert {token.type for token in children} <= {"text", "code_inline"}
    assert not any(set(token.content) & set("@#<[]|`*_~\\") for token in children if token.type == "text")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it is input 1 (float32[64,4])", "it is input 1 (`float32[64,4]`)"),
        ("at train.py:12 (train); the 2,001st", "at `train.py:12` (train); the 2,001st"),
        ("by aten.mm.default, twice.", "by `aten.mm.default`, twice."),
        ("f(x) and GH-12", "`f(x)` and `GH-12`"),
        ("ActorCriticPolicy's Adam", "ActorCriticPolicy's Adam"),
        ("-" * 500 + "[", "`" + "-" * 159 + "…`"),  # at once, not in the lifetime of the universe
    ],
)
def test_sentences_read_well(text: str, shown: str) -> None:
    """Names stand out as code, words stay words."""
    assert prose(text) == shown


@pytest.mark.parametrize(("name", "count"), [("short", 500), ("x y" * 1000, 50)])
def test_an_issue_holds_it(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much differs, it fits the 65,536 characters of an issue, and says what was cut."""
    monkeypatch.chdir(tmp_path)
    found = full(kernel(), name)
    finding = replace(found.first, stack=tuple(Site(name, n, name, name) for n in range(200)))
    many = replace(
        found,
        first=finding,
        first_value=finding,
        decisive=finding,
        unordered=tuple(replace(finding, stream=f"{n}", a_index=n, b_index=n) for n in range(9)),
        system=tuple(NamedDifference(f"{n}{name}", name, name) for n in range(count)),
        holes=found.holes * count,
        drift=found.drift * count,
        notes=found.notes * count,
    )
    text = comparison_markdown(many)
    assert len(text) < 65_536
    assert text.startswith("### rltrace: DIVERGED")
    assert f"rltrace ops {name}"[:40] in text
    assert "… and 5 findings more" in text
    if name == "short":
        assert "… and 460 more" in text
        assert "… and 480 more" in text.partition("#### Cannot be read")[2].partition("####")[0]
    else:
        assert "(too long for an issue; see the JSON report)" in text
