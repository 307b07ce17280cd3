"""What of a comparison may leave the house: a report that is attached to an issue is read by strangers.

Owns what is hidden and how that reads. Folders, the machine and the arguments of commands are left out unless asked
for; tokens and passwords always are. Works on the objects themselves, before any of them is laid out, so that no form
of report can forget it. Masking errs on the side of hiding. Source lines and logged numbers stay: they are what a
report is for.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from rltrace.diff.base.model import Comparison, NamedDifference, Side
from rltrace.masking import home_as_tilde, masked_text

T = TypeVar("T")

LEFT_OUT = "…"

_PATH = re.compile(
    r"(?:file://|(?<![\w./…)\]~-]))"  # where a path begins; a division or the inside of a URL is none
    r"(?P<path>(?:~[\w.-]*)?/(?:[\w.@+=%,-]+/)+[\w.@+=%,-]*|~[\w.-]*/[\w.@+=%,-]+|/(?:home|Users|root)/?(?![\w]))"
)
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?|/root/?|~[\w.-]*/?")
_FOLDER_CHANGE = re.compile(r"""cd (?:'[^']*'|"[^"]*"|[^\s'"])+ && """)


@dataclass(frozen=True)
class Disclosure:
    """What somebody asked to be shown after all."""

    host: bool = False
    """The machine's name and folders."""
    arguments: bool = False
    """Command lines as they were typed."""


NOTHING = Disclosure()


class Redactor:
    """Lets objects out, their texts cleaned."""

    def __init__(self, asked: Disclosure, *traces: str) -> None:
        """``traces``: paths as they were given; they are told by their names wherever they stand."""
        self._asked = asked
        longest_first = sorted({path for path in traces if self.trace_name(path) != path}, key=len, reverse=True)
        self._names = [
            (re.compile(rf"(?<![\w./~-]){re.escape(p)}(?![\w-])"), self.trace_name(p)) for p in longest_first
        ]

    def of(self, thing: T) -> T:
        """``thing`` with every text in it cleaned: texts, sequences, mappings and frozen dataclasses of such."""
        return cast(T, self._of(thing))

    def _of(self, thing: Any) -> Any:
        match thing:
            case Enum():
                return thing
            case str():
                return self.text(thing)
            case Comparison():
                return replace(self._fields(thing), advice=tuple(self.command(line) for line in thing.advice))
            case Side():
                return replace(self._fields(thing), path=self.trace_name(thing.path))
            case NamedDifference():
                return self._difference(thing)
            case tuple() | list():
                items = [self._of(item) for item in thing]
                return type(thing)._make(items) if hasattr(thing, "_make") else type(thing)(items)
            case Mapping():
                return {self._of(key): self._of(value) for key, value in thing.items()}
        return self._fields(thing) if is_dataclass(thing) else thing

    def _fields(self, thing: Any) -> Any:
        return replace(thing, **{f.name: self._of(getattr(thing, f.name)) for f in fields(thing)})

    def text(self, text: str) -> str:
        """``text`` without secrets, and without folders unless they were asked for."""
        for path, name in self._names:
            text = path.sub(lambda _, name=name: name, text)  # type: ignore[misc]
        text = masked_text(text)
        return text if self._asked.host else _PATH.sub(_last_part, text)

    def trace_name(self, path: str) -> str:
        """A trace as it is called: its path where that is relative, else its name."""
        if self._asked.host:
            return home_as_tilde(path)
        given = Path(path)
        return given.name if given.is_absolute() or {"..", "~"} & set(given.parts[:1]) else path

    def command(self, line: str) -> str:
        """A command to run next; without the recorded program's arguments, it can be read but not be pasted."""
        change = _FOLDER_CHANGE.match(line)
        rest = line[change.end() :] if change else line
        words = _words(rest)
        if "--" in words and not self._asked.arguments:
            cut = words.index("--") + 1
            rest = f"{shlex.join(words[:cut])} {self.program(words[cut:])}"
        folder = change[0] if change and self._asked.host else ""
        return folder + self.text(rest)

    def program(self, words: list[str]) -> str:
        """A command line as it may be shown: what was run, ``…`` for how."""
        if self._asked.arguments:
            return self.text(shlex.join(words))
        shown, rest = words[:1], words[1:]
        if rest[:1] == ["-m"]:
            shown, rest = [*shown, *rest[:2]], rest[2:]
        else:
            flags = next((k for k, word in enumerate(rest) if not word.startswith("-")), len(rest))
            if rest[flags : flags + 1] and rest[flags].endswith(".py"):
                shown = [*shown, *([LEFT_OUT] if flags else []), rest[flags]]
                rest = rest[flags + 1 :]
        told = [word if word == LEFT_OUT else shlex.quote(self.trace_name(word)) for word in shown]
        return self.text(" ".join([*told, *([LEFT_OUT] if rest else [])]))

    def _difference(self, fact: NamedDifference) -> NamedDifference:
        shown: NamedDifference = self._fields(fact)
        if fact.a != fact.b and shown.a == shown.b:
            return replace(shown, b=f"{shown.b} (what differs is not shown)")
        return shown


def outgoing_comparison(comparison: Comparison, asked: Disclosure = NOTHING) -> Comparison:
    """``comparison`` as it may be shown to strangers."""
    return Redactor(asked, comparison.a.path, comparison.b.path).of(comparison)


def left_out(asked: Disclosure) -> str:
    """One sentence on what is missing; "" where nothing is."""
    hidden = [*([] if asked.host else ["machine", "folders"]), *([] if asked.arguments else ["command arguments"])]
    if not hidden:
        return ""
    listed = hidden[0] if len(hidden) == 1 else f"{', '.join(hidden[:-1])} and {hidden[-1]}"
    options = [*([] if asked.host else ["--with-host"]), *([] if asked.arguments else ["--with-arguments"])]
    return f"{listed[:1].upper()}{listed[1:]} are left out ({' and '.join(options)} show them)."


def _last_part(match: re.Match[str]) -> str:
    path = match["path"]
    if _HOME.fullmatch(path):
        return "~"
    return f"{LEFT_OUT}/{path.rstrip('/').rpartition('/')[2]}"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # no command of ours; nothing of it is known to be harmless but its text
        return [line]
