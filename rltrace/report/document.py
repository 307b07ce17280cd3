"""The document of a report: what a verb shows, as data. Text, Markdown, HTML and the terminal interface draw it.

A verb's report is a function from its result to a document, which chooses, words and orders; the labels are those of
docs/internals/glossary.md. The drawings choose nothing, and may fold or shorten long content.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from rltrace.diff.base.model import Pair, Verdict
from rltrace.trace.read.names import Site


class Code(str):
    """Recorded text: a name, a path, a digest."""

    __slots__ = ()


class Number(str):
    """A number in a table, which is aligned right."""

    __slots__ = ()


Inline = str | tuple[str, ...]
"""Text, in which recorded text is ``Code``."""


def inline_text(words: Inline) -> str:
    return words if isinstance(words, str) else "".join(words)


@dataclass(frozen=True)
class Stack:
    """A whole call stack, innermost first."""

    frames: tuple[Site, ...]


Value = Inline | Pair[str] | Site | Stack


@dataclass(frozen=True)
class Fact:
    """One fact under its label."""

    label: Inline
    """Empty: it continues the fact before it."""
    value: Value
    of: str = ""
    """The name of the field that the value belongs to, where the label does not have it."""


ALL = 1 << 30
"""The limit of a section without one."""


class Form(Enum):
    """The layout of a section's facts."""

    FACTS = auto()
    LIST = auto()  # labels are signs
    TABLE = auto()  # values are pairs; None: unset


@dataclass(frozen=True)
class Section:
    """Sentences, facts, a table, commands, then parts under a title."""

    name: str
    """Unique in the document, not shown; empty: it is a part of another section."""
    title: str
    lead: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    form: Form = Form.FACTS
    columns: tuple[str, ...] = ("fact", "A", "B")
    """Headings of the table: of ``rows``, or of the facts if their form is a table."""
    rows: tuple[tuple[Inline, ...], ...] = ()
    """Cells; a row of one cell is a remark."""
    commands: tuple[str, ...] = ()
    parts: tuple[Section, ...] = ()
    limit: int = 20
    """How many of each the text shows; the JSON report has all of them."""

    def __bool__(self) -> bool:
        """Whether it has content."""
        return any((self.lead, self.facts, self.rows, self.commands, self.parts))


@dataclass(frozen=True)
class Document:
    """Everything that a report shows."""

    headline: str = ""
    """The verdict or outcome, in capitals; or the name of what is described."""
    verdict: Verdict | None = None
    """Chooses the colour of the headline."""
    place: str = ""
    """Where the runs diverge; empty if they do not, or not as one finding."""
    answer: tuple[str, ...] = ()
    """What was changed between the runs, and the first difference, where both are known."""
    scope: str = ""
    """What the headline is about: "from step 4 on (B's step 0)"."""
    lead: tuple[str, ...] = ()
    """What the verdict rests on; where there is a place, the first finding says it as well."""
    facts: tuple[Fact, ...] = ()
    """Facts of the whole: the runs, their processes."""
    sections: tuple[Section, ...] = ()
    """Those of findings first, the one that the verdict rests on before the others; the commands to run next last."""

    @property
    def findings(self) -> tuple[Section, ...]:
        return tuple(section for section in self.sections if section.name.startswith("finding"))

    @property
    def rest(self) -> tuple[Section, ...]:
        return self.sections[len(self.findings) :]

    def named(self, *names: str) -> tuple[Section, ...]:
        """The sections with these names, in this order."""
        return tuple(section for name in names for section in self.sections if section.name == name)
