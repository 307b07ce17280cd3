"""Redaction of a comparison for a report that strangers read, such as one attached to an issue.

Owns what is hidden. Folders, the machine and arguments of commands are left out unless they are requested; tokens and
passwords always are. Redacts the objects before they are laid out, so no form of report can forget it. In doubt text is
hidden; source lines and logged numbers stay, as a report is about them.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from rltrace.command_lines import COMMENT, FROM_HERE
from rltrace.diff.base.model import Comparison, NamedDifference, Side, SourceEdit
from rltrace.masking import home_as_tilde, masked_text
from rltrace.wording import joined

T = TypeVar("T")

ELLIPSIS = "…"

_PATH = re.compile(
    r"(?:file://|(?<![\w./…)\]~-]))"  # where a path begins; a division or the inside of a URL is none
    r"(?P<path>(?:~[\w.-]*)?/(?:[\w.@+=%,-]+/)+[\w.@+=%,-]*|~[\w.-]*/[\w.@+=%,-]+|/(?:home|Users|root)/?(?![\w]))"
)
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?|/root/?|~[\w.-]*/?")
_FOLDER_CHANGE = re.compile(r"""\(cd (?:'[^']*'|"[^"]*"|[^\s'"])+ && """)


@dataclass(frozen=True)
class Disclosure:
    """What a report shows although it is hidden by default."""

    host: bool = False
    """The machine's name and folders."""
    arguments: bool = False
    """Whole command lines."""


NO_DISCLOSURE = Disclosure()


class Redactor:
    """Removes from objects the text that must not be disclosed."""

    def __init__(self, disclosure: Disclosure, *traces: str) -> None:
        """``traces``: paths of the traces, which are replaced by names wherever they occur."""
        self._disclosure = disclosure
        longest_first = sorted({path for path in traces if self.trace_name(path) != path}, key=len, reverse=True)
        self._names = [
            (re.compile(rf"(?<![\w./~-]){re.escape(p)}(?![\w-])"), self.trace_name(p)) for p in longest_first
        ]

    def redact(self, value: T) -> T:
        """A copy of text, sequences, mappings and frozen dataclasses with all text in it redacted."""
        return cast(T, self._redact(value))

    def _redact(self, value: Any) -> Any:
        match value:
            case Enum():
                return value
            case str():
                return self.text(value)
            case Comparison():
                return replace(self._fields(value), advice=tuple(self.command(line) for line in value.advice))
            case Side():
                return replace(self._fields(value), path=self.trace_name(value.path))
            case NamedDifference():
                return self._difference(value)
            case SourceEdit():
                return _in_stacks_only(self._fields(value))
            case tuple() | list():
                items = [self._redact(item) for item in value]
                return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
            case Mapping():
                return {self._redact(key): self._redact(item) for key, item in value.items()}
        return self._fields(value) if is_dataclass(value) else value

    def _fields(self, value: Any) -> Any:
        return replace(value, **{f.name: self._redact(getattr(value, f.name)) for f in fields(value)})

    def text(self, text: str) -> str:
        """``text`` without secrets, and without folders unless they are disclosed."""
        for path, name in self._names:
            text = path.sub(lambda _, name=name: name, text)  # type: ignore[misc]
        text = masked_text(text)
        return text if self._disclosure.host else _PATH.sub(_last_part, text)

    def trace_name(self, path: str) -> str:
        """The name of a trace in the report: its path if relative, else the last part of it."""
        if self._disclosure.host:
            return home_as_tilde(path)
        as_path = Path(path)
        return as_path.name if as_path.is_absolute() or {"..", "~"} & set(as_path.parts[:1]) else path

    def command(self, line: str) -> str:
        """A command to run next; without the program's arguments it can be read, but not pasted."""
        change = _FOLDER_CHANGE.match(line)
        rest = line[change.end() :] if change else line
        comment = COMMENT.search(rest)
        rest = rest[: comment.start()] if comment else rest
        rest = rest.removesuffix(")") if change else rest
        words = _words(rest)
        if "--" in words and not self._disclosure.arguments:
            cut = words.index("--") + 1
            given = f" {shlex.join(words[cut:])}"
            head = rest.removesuffix(given) if rest.endswith(given) else shlex.join(words[:cut])
            rest = f"{head} {self.program(words[cut:])}"
        said = comment[0] if comment else ""
        if change and self._disclosure.host:
            return f"{change[0]}{self.text(rest)}){said}"
        return self.text(rest.replace(FROM_HERE, "") + said)

    def program(self, words: list[str]) -> str:
        """A command line with ``…`` for its arguments, unless they are disclosed."""
        if self._disclosure.arguments:
            return self.text(shlex.join(words))
        shown, rest = words[:1], words[1:]
        if rest[:1] == ["-m"]:
            shown, rest = [*shown, *rest[:2]], rest[2:]
        else:
            flags = next((k for k, word in enumerate(rest) if not word.startswith("-")), len(rest))
            if rest[flags : flags + 1] and rest[flags].endswith(".py"):
                shown = [*shown, *([ELLIPSIS] if flags else []), rest[flags]]
                rest = rest[flags + 1 :]
        quoted = [word if word == ELLIPSIS else shlex.quote(self.trace_name(word)) for word in shown]
        return self.text(" ".join([*quoted, *([ELLIPSIS] if rest else [])]))

    def _difference(self, fact: NamedDifference) -> NamedDifference:
        shown: NamedDifference = self._fields(fact)
        if fact.a != fact.b and shown.a == shown.b:
            return replace(shown, b=f"{shown.b} (what differs is not shown)")
        return shown


def _in_stacks_only(edit: SourceEdit) -> SourceEdit:
    """An edit without the text of lines that are in no call stack: no other fact of a report shows them."""
    only_a, only_b = (
        tuple(site if site.function else replace(site, source="") for site in own) for own in (edit.only_a, edit.only_b)
    )
    return replace(edit, only_a=only_a, only_b=only_b)


def redacted_comparison(comparison: Comparison, disclosure: Disclosure = NO_DISCLOSURE) -> Comparison:
    """``comparison`` for a report that strangers read."""
    return Redactor(disclosure, comparison.a.path, comparison.b.path).redact(comparison)


def omission_note(disclosure: Disclosure) -> str:
    """One sentence on what was left out; "" if nothing was."""
    hidden = [] if disclosure.host else ["machine", "folders"]
    hidden += [] if disclosure.arguments else ["command arguments"]
    if not hidden:
        return ""
    listed = joined(hidden)
    options = [*([] if disclosure.host else ["--with-host"]), *([] if disclosure.arguments else ["--with-arguments"])]
    return f"{listed[:1].upper()}{listed[1:]} are left out ({' and '.join(options)} show them)."


def _last_part(match: re.Match[str]) -> str:
    path = match["path"]
    return "~" if _HOME.fullmatch(path) else f"{ELLIPSIS}/{path.rstrip('/').rpartition('/')[2]}"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # not made by rltrace: it is redacted as text
        return [line]
