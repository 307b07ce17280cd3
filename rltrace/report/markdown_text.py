"""Recorded text that stays text in GitHub's Markdown: as code, in a fence, in a sentence.

Owns escaping: in code spans and fences nothing is a mention, a link, a tag or the border of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rltrace.report.telling import cut

WIDEST, LONGEST = 160, 600
"""Characters of a name, and of a sentence or a line of source."""

_PLAIN = re.compile(r"(?:[^\W_]|['%×,;–-])*|[0-9]+\.[0-9]+|…")
_REFERENCE = re.compile(r"GH-[0-9]+")
_OPEN, _CLOSE = "(", ".,:;)?!"


def prose(text: str) -> str:
    """Words of a sentence of ours as they are; whatever looks like a name, a shape or a path as code."""
    return " ".join(_word(word) for word in cut(plain(text), LONGEST).split())


def _word(word: str) -> str:
    core = word.lstrip(_OPEN)
    opening = word[: len(word) - len(core)]
    bare = core.rstrip(_CLOSE)
    if bare.count("(") > bare.count(")"):  # the call's own bracket: f(x)
        missing = bare.count("(") - bare.count(")")
        bare += core[len(bare) : len(bare) + missing]
    closing = core[len(bare) :]
    harmless = _PLAIN.fullmatch(bare) and not _REFERENCE.fullmatch(bare)
    return f"{opening}{bare if harmless else code(bare)}{closing}"


def code(text: str) -> str:
    """A code span that holds ``text`` whatever is in it; on one line."""
    text = cut(plain(text), WIDEST)
    if not text.strip():
        return "(empty)"
    fence = "`" * (_longest_run(text) + 1)
    room = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{room}{text}{room}{fence}"


def fenced(lines: Iterable[str], language: str = "", longest: int = LONGEST) -> Iterator[str]:
    """A code block."""
    shown = [cut(plain(line), longest) for line in lines]
    fence = "`" * max(3, 1 + max((_longest_run(line) for line in shown), default=0))
    yield fence + language
    yield from shown
    yield fence


def plain(text: str) -> str:
    """On one line, without what cannot be seen and turns what can be seen around."""
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    if character in "\n\r\t\v\f\u2028\u2029\x85":
        return " "
    return character if character.isprintable() or character == " " else "\ufffd"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
