"""The map file of ``rltrace compare --map``: which module of A is which of B, where their paths differ.

Owns the lines and what may be wrong with them. One line is ``A-GLOB = B-GLOB``; ``*`` stands for anything, dots too,
and what it stood for in A stands in its place in B. Empty lines, and what follows a ``#``, say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rltrace.errors import UsageError

NEAR = 3
"""Names that are offered where one is not found."""


class MapError(UsageError):
    """A line of a map file makes no sense, or does not fit the traces."""


@dataclass(frozen=True)
class Line:
    """One line of a map."""

    number: int
    """From 1."""
    text: str
    a: str
    b: str


def parse_map(text: str, name: str) -> tuple[Line, ...]:
    """The lines of a map file called ``name``. Raises MapError."""
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        shown = raw.partition("#")[0].strip()
        if not shown:
            continue
        a, equals, b = (part.strip() for part in shown.partition("="))
        if not (equals and a and b) or "=" in b:
            raise MapError(f"{name}:{number}: a line is A-GLOB = B-GLOB\n  {shown}")
        if a.count("*") != b.count("*"):
            counts = f"{a.count('*')} on the left, {b.count('*')} on the right"
            raise MapError(f"{name}:{number}: each * of A matches one of B: there are {counts}\n  {shown}")
        lines.append(Line(number, shown, a, b))
    if not lines:
        raise MapError(f"{name} holds no line; one is A-GLOB = B-GLOB")
    return tuple(lines)


def apply_map(lines: Sequence[Line], name: str, a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Partners of A's paths among B's, as the lines have it. Raises MapError."""
    found: dict[str, tuple[str, Line]] = {}
    taken: dict[str, tuple[str, Line]] = {}
    known_b = set(b)
    for line in lines:
        pattern = re.compile("(.*)".join(map(re.escape, line.a.split("*"))))
        hits = [(path, match.groups()) for path in a if (match := pattern.fullmatch(path))]
        if not hits:
            raise _nothing(name, line, "A", line.a, a)
        partners = [(path, _filled(line.b, groups)) for path, groups in hits]
        fitting = [(path, partner) for path, partner in partners if partner in known_b]
        if not fitting:
            raise _nothing(name, line, "B", partners[0][1], b, of=f", for {partners[0][0]} of A")
        for path, partner in fitting:
            _agree(name, line, found.get(path), partner, f"{path} of A")
            _agree(name, line, taken.get(partner), path, f"{partner} of B")
            found[path], taken[partner] = (partner, line), (path, line)
    return {path: partner for path, (partner, _) in found.items()}


def _filled(glob: str, groups: Iterable[str]) -> str:
    rest = iter(groups)
    return "".join(part if part != "*" else next(rest) for part in re.split(r"(\*)", glob))


def _agree(name: str, line: Line, before: tuple[str, Line] | None, now: str, whose: str) -> None:
    if before is not None and before[0] != now:
        raise MapError(
            f"{name}:{line.number}: {whose} is {now} here, and {before[0]} by line {before[1].number}\n"
            f"  {before[1].text}\n  {line.text}"
        )


def _nothing(name: str, line: Line, side: str, wanted: str, known: Sequence[str], of: str = "") -> MapError:
    near = get_close_matches(wanted.replace("*", ""), known, NEAR, 0.4)
    hint = f"; similar: {', '.join(near)}" if near else ""
    what = f"no module of {side} is called {wanted}{of}"
    return MapError(f"{name}:{line.number}: {what}{hint}\n  {line.text}")
