"""The document of a verdict as Markdown for an issue tracker: short enough to be read.

Owns what is cut. GitHub's dialect renders it as meant whatever the traces hold: recorded names stand in code spans and
fences only, where nothing is a mention, a link, a tag or a table's border. Chooses no fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rltrace.diff.base.model import Comparison, Pair
from rltrace.report.document import Code, Fact, Form, Inline, Section, Stack, Value, verdict_document
from rltrace.report.phrases import HEADLINES, cut
from rltrace.report.redaction import NOTHING, Disclosure, left_out, outgoing_comparison
from rltrace.trace.read.names import Site

# --- markdown text ----------------------------------------------------------------------------------------------------
#
# Recorded text that stays text in GitHub's Markdown: as code, in a fence, in a sentence.
#
# Owns escaping: in code spans and fences nothing is a mention, a link, a tag or the border of a table.


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


# --- markdown ---------------------------------------------------------------------------------------------------------


ROOM = 65_536
"""Characters that an issue of GitHub's holds."""

MOST, MOST_IN_TABLES = 20, 40
"""Facts of a section; the JSON report has all of them."""

MOST_FINDINGS, MOST_FRAMES, MOST_COMMANDS = 5, 30, 6

LONGEST_COMMAND = 2000
"""Characters; a command that is cut cannot be run."""

Lines = Iterator[str]


def comparison_markdown(comparison: Comparison, asked: Disclosure = NOTHING) -> str:
    """The verdict, the first difference with its evidence, and what to do next; ends with a newline.

    Hides folders, the machine and command arguments unless ``asked``.
    """
    document = verdict_document(outgoing_comparison(comparison, asked))
    where = f" at {prose(document.place)}" if document.place else ""
    first = [f"### rltrace: {HEADLINES[document.verdict]}{where}", prose(document.lead), *_facts(document.runs)]
    for number, finding in enumerate(document.findings[:MOST_FINDINGS]):
        first += _section(finding, with_stack=number == 0)
    left = len(document.findings) - MOST_FINDINGS
    first += [f"… and {left:,} findings more"] if left > 0 else []
    middle = ["\n\n".join(_section(section)) for section in document.rest if section.name != "next"]
    last = [block for section in document.named("next") for block in _section(section)]
    last += [f"<sub>{left_out(asked)}</sub>"] if left_out(asked) else []
    room = ROOM - sum(len(block) + 2 for block in [*first, *last])
    return "\n\n".join([*first, *_fitting(middle, room), *last]) + "\n"


def _fitting(blocks: list[str], room: int) -> Lines:
    """Those of ``blocks`` that fit, and the titles of the others."""
    for number, block in enumerate(blocks):
        short = f"{block.partition(chr(10))[0]}\n\n(too long for an issue; see the JSON report)"
        kept = 200 * (len(blocks) - number)  # the titles of those that follow
        shown = block if len(block) + kept < room else short
        room -= len(shown) + 2
        yield shown


def _section(section: Section, with_stack: bool = False) -> Lines:
    """Its blocks: title, sentences, facts, the source line for all to see, the stack for who opens it, commands."""
    yield f"#### {prose(section.title)}"
    yield from map(prose, section.lead[:MOST])
    yield from _facts(section)
    for fact in section.facts:
        if isinstance(fact.value, Site) and fact.value.source:
            yield "\n".join(fenced([fact.value.source], "python"))
        elif isinstance(fact.value, Stack) and with_stack:
            yield from _stack(fact.value)
    if section.commands:
        yield "\n".join(fenced(section.commands[:MOST_COMMANDS], "sh", LONGEST_COMMAND))


def _facts(section: Section) -> Lines:
    is_table = section.form is Form.TABLE
    facts = [fact for fact in section.facts if not isinstance(fact.value, Stack)]
    most = MOST_IN_TABLES if is_table else MOST
    rows = [_row(fact) if is_table else _bullet(fact, section.form) for fact in facts[:most]]
    if rows:
        yield "\n".join(["| fact | A | B |", "| --- | --- | --- |", *rows] if is_table else rows)
    if len(facts) > most:
        yield f"… and {len(facts) - most:,} more"


def _row(fact: Fact) -> str:
    assert isinstance(fact.value, Pair)
    cells = (_inline(fact.label), *(code(v) if v else "(unset)" for v in (fact.value.a, fact.value.b)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _bullet(fact: Fact, form: Form) -> str:
    label = f"{_inline(fact.label)} {code(fact.of)}" if fact.of else _inline(fact.label)
    return f"- {label}{' ' if form is Form.LIST else ': '}{_value(fact.value)}"


def _value(value: Value) -> str:
    match value:
        case Pair():
            a, b = (code(side) if side else "–" for side in (value.a, value.b))
            return f"{a} on both sides" if value.a == value.b else f"A {a}, B {b}"
        case Site():
            return f"{code(f'{value.file}:{value.line}')} in {code(value.function)}"
        case Stack():
            return ""
    return _inline(value)


def _inline(words: Inline) -> str:
    pieces = (words,) if isinstance(words, str) else words
    return "".join(code(piece) if isinstance(piece, Code) else _padded(piece) for piece in pieces)


def _padded(text: str) -> str:
    """A sentence, with the spaces at its ends."""
    return f"{' ' * text.startswith(' ')}{prose(text)}{' ' * text.endswith(' ')}"


def _stack(stack: Stack) -> Lines:
    frames = [
        line
        for site in stack.frames[:MOST_FRAMES]
        for line in (f"{site.file}:{site.line} in {site.function}", f"    {site.source}" if site.source else "")
        if line
    ]
    more = len(stack.frames) - MOST_FRAMES
    yield f"<details><summary>Call stack, innermost first ({len(stack.frames)} frames)</summary>"
    yield "\n".join(fenced([*(cut(line, 2 * WIDEST) for line in frames), *([f"… {more} more"] if more > 0 else [])]))
    yield "</details>"
