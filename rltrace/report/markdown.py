"""A document as Markdown for an issue tracker, shortened.

Owns what is cut, and escaping for GitHub: recorded text is in code spans and fences only, where nothing is a mention, a
link, a tag or a table's border. Chooses no fact.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from rltrace.diff.base.model import Comparison, Pair
from rltrace.report.diff import verdict_document
from rltrace.report.document import Code, Document, Fact, Form, Inline, Section, Stack, Value
from rltrace.report.redaction import NO_DISCLOSURE, Disclosure, omission_note, redacted_comparison
from rltrace.trace.read.names import Site
from rltrace.wording import cut

# --- markdown text ----------------------------------------------------------------------------------------------------


MAX_NAME, MAX_TEXT = 160, 600
"""Characters of a name, and of a sentence or a source line."""

_PLAIN = re.compile(r"(?:[^\W_]|['%×,;–-])*|[0-9]+\.[0-9]+|…")
_REFERENCE = re.compile(r"GH-[0-9]+")
_OPEN, _CLOSE = "(", ".,:;)?!"


def prose(text: str) -> str:
    """A sentence, in which words that look like a name, a shape or a path become code."""
    return " ".join(_word(word) for word in cut(plain(text), MAX_TEXT).split())


def _word(word: str) -> str:
    core = word.lstrip(_OPEN)
    opening = word[: len(word) - len(core)]
    bare = core.rstrip(_CLOSE)
    if bare.count("(") > bare.count(")"):  # a bracket of the call: f(x)
        missing = bare.count("(") - bare.count(")")
        bare += core[len(bare) : len(bare) + missing]
    closing = core[len(bare) :]
    harmless = _PLAIN.fullmatch(bare) and not _REFERENCE.fullmatch(bare)
    return f"{opening}{bare if harmless else code(bare)}{closing}"


def code(text: str) -> str:
    """``text`` as a code span on one line."""
    text = cut(plain(text), MAX_NAME)
    if not text.strip():
        return "(empty)"
    fence = "`" * (_longest_run(text) + 1)
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def fenced(lines: Iterable[str], language: str = "", width: int = MAX_TEXT) -> Iterator[str]:
    """A code block."""
    shown = [cut(plain(line), width) for line in lines]
    fence = "`" * max(3, 1 + max((_longest_run(line) for line in shown), default=0))
    yield fence + language
    yield from shown
    yield fence


def plain(text: str) -> str:
    """``text`` on one line; characters that are not printable, such as changes of direction, become U+FFFD."""
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    if character in "\n\r\t\v\f\u2028\u2029\x85":
        return " "
    return character if character.isprintable() or character == " " else "\ufffd"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


# --- markdown ---------------------------------------------------------------------------------------------------------


MAX_ISSUE = 65_536
"""Characters of a GitHub issue."""

MAX_FACTS, MAX_TABLE_ROWS = 20, 40
"""Facts of a section; the JSON report has all of them."""

MAX_FINDINGS, MAX_FRAMES, MAX_COMMANDS = 5, 30, 6

MAX_COMMAND = 2000
"""Characters of a command, which cannot be run if it is cut."""

Lines = Iterator[str]


def comparison_markdown(comparison: Comparison, disclosure: Disclosure = NO_DISCLOSURE) -> str:
    """The document of a comparison, without folders, the machine and command arguments unless ``disclosure`` shows
    them."""
    shown = redacted_comparison(comparison, disclosure)
    return document_markdown(verdict_document(shown), omission_note(disclosure))


def document_markdown(document: Document, note: str = "") -> str:
    """The verdict, its findings and the commands to run next, then ``note``; ends with a newline."""
    where = f" at {prose(document.place)}" if document.place else f" {document.scope}".rstrip()
    first = [f"### rltrace: {document.headline}{where}", *map(prose, (*document.answer, *document.lead))]
    first += _section(Section("", "", facts=document.facts))
    for number, finding in enumerate(document.findings[:MAX_FINDINGS]):
        first += _section(finding, with_stack=number == 0)
    left = len(document.findings) - MAX_FINDINGS
    first += [f"… and {left:,} findings more"] if left > 0 else []
    middle = ["\n\n".join(_section(section)) for section in document.rest if section.name != "next"]
    last = [block for section in document.named("next") for block in _section(section)]
    last += [f"<sub>{note}</sub>"] if note else []
    space = MAX_ISSUE - sum(len(block) + 2 for block in [*first, *last])
    return "\n\n".join([*first, *_fitting(middle, space), *last]) + "\n"


def _fitting(blocks: list[str], space: int) -> Lines:
    """The ``blocks`` that fit into ``space`` characters, and the titles of the others."""
    for number, block in enumerate(blocks):
        short = f"{block.partition(chr(10))[0]}\n\n(too long for an issue; see the JSON report)"
        reserved = 200 * (len(blocks) - number)  # for the titles that follow
        shown = block if len(block) + reserved < space else short
        space -= len(shown) + 2
        yield shown


def _section(section: Section, with_stack: bool = False, level: int = 4) -> Lines:
    """The blocks of a section: title, sentences, facts, source lines, folded stack, table, commands, parts."""
    if section.title:
        yield f"{'#' * min(level, 6)} {prose(section.title)}"
    yield from map(prose, section.lead[:MAX_FACTS])
    if section.form is Form.TABLE:
        yield from _table(section.columns, [_cells(fact) for fact in section.facts])
    else:
        yield from _facts(section)
    for fact in section.facts:
        if isinstance(fact.value, Site) and fact.value.source:
            yield "\n".join(fenced([fact.value.source], "python"))
        elif isinstance(fact.value, Stack) and with_stack:
            yield from _stack(fact.value)
    yield from _table(section.columns, section.rows)
    if section.commands:
        yield "\n".join(fenced(section.commands[:MAX_COMMANDS], "sh", MAX_COMMAND))
    for part in section.parts[:MAX_FACTS]:
        yield from _section(part, level=level + 1)
    yield from _more(max(len(section.lead), len(section.parts)), MAX_FACTS)


def _facts(section: Section) -> Lines:
    facts = [fact for fact in section.facts if not isinstance(fact.value, Stack)]
    if facts:
        yield "\n".join(_bullet(fact, section.form) for fact in facts[:MAX_FACTS])
    yield from _more(len(facts), MAX_FACTS)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Inline]]) -> Lines:
    if rows:
        lines = [columns, ["---"] * len(columns), *(list(map(_inline, row)) for row in rows[:MAX_TABLE_ROWS])]
        yield "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    yield from _more(len(rows), MAX_TABLE_ROWS)


def _more(count: int, limit: int) -> Lines:
    if count > limit:
        yield f"… and {count - limit:,} more"


def _cells(fact: Fact) -> tuple[Inline, ...]:
    assert isinstance(fact.value, Pair)
    return (fact.label, *(Code(side) if side else "(unset)" for side in (fact.value.a, fact.value.b)))


def _bullet(fact: Fact, form: Form) -> str:
    label = f"{_inline(fact.label)} {code(fact.of)}" if fact.of else _inline(fact.label)
    return f"- {label}{' ' if form is Form.LIST else ': '}{_value(fact.value)}"


def _value(value: Value) -> str:
    match value:
        case Pair():
            a, b = (code(side) if side else "–" for side in (value.a, value.b))
            return f"{a} on both sides" if value.a == value.b else f"A {a}, B {b}"
        case Site():
            where = code(f"{value.file}:{value.line}")
            return f"{where} in {code(value.function)}" if value.function else where
        case Stack():
            return ""
    return _inline(value)


def _inline(words: Inline) -> str:
    pieces = (words,) if isinstance(words, str) else words
    return "".join(code(piece) if isinstance(piece, Code) else _padded(piece) for piece in pieces)


def _padded(text: str) -> str:
    """A sentence that keeps the spaces at its ends."""
    return f"{' ' * text.startswith(' ')}{prose(text)}{' ' * text.endswith(' ')}"


def _stack(stack: Stack) -> Lines:
    frames = [
        line
        for site in stack.frames[:MAX_FRAMES]
        for line in (f"{site.file}:{site.line} in {site.function}", f"    {site.source}" if site.source else "")
        if line
    ]
    more = len(stack.frames) - MAX_FRAMES
    yield f"<details><summary>Call stack, innermost first ({len(stack.frames)} frames)</summary>"
    yield "\n".join(fenced([*(cut(line, 2 * MAX_NAME) for line in frames), *([f"… {more} more"] if more > 0 else [])]))
    yield "</details>"
