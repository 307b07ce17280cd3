"""The selector grammar, one everywhere: ``key=glob[,key=glob…]``; a comma means *and*, a repeated option means *or*.

Owns the words, their parsing and their meaning; knows nothing of traces. Whatever is selected from offers ``Facts``.

    op=aten.addmm                   operator; overload, and the namespace ``aten``, may be left out
    module=policy.*                 module path; ``*`` crosses dots
    site=ppo.py:train               a frame of the stack: file (its last folders are enough), ``:``, function
    phase=backward                  phase
    stream=rank0/*                  stream name
    step=100:110                    optimizer steps, half open; ``100``, ``100:`` and ``:110`` work too
    nth=0                           occurrence of the op under its site in its step, from 0; a range too
    kernel=*gemm*                   any kernel name (on a CPU: library, instruction set, threads)
    all                             everything

Globs know ``*``, ``?``, ``[abc]``, ``[!abc]`` and ``\\`` before a character that shall stand for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Any

from rltrace.errors import SelectorError


class Key(StrEnum):
    """What can be asked of an op."""

    OP = "op"
    MODULE = "module"
    SITE = "site"
    PHASE = "phase"
    STREAM = "stream"
    STEP = "step"
    NTH = "nth"
    KERNEL = "kernel"


COUNTED = (Key.STEP, Key.NTH)
"""Keys whose values are numbers and ranges, not globs."""


OF_OPS = frozenset((Key.OP, Key.SITE, Key.NTH, Key.KERNEL))
"""What ops alone have, and calls of modules have not."""

Facts = Mapping[Key, Any]
"""What is known of an op or a call: of ``site`` the (portable path, qualified function name) of each user frame, of
``kernel`` the names, of ``step`` and ``nth`` a number (None: there is none) or an array of numbers; else a name."""


@dataclass(frozen=True)
class Glob:
    """A pattern for a whole name."""

    text: str
    regex: re.Pattern[str]

    def matches(self, name: str) -> bool:
        return self.regex.fullmatch(name) is not None


@dataclass(frozen=True)
class Range:
    """Numbers from ``start`` up to, not with, ``stop`` (None: no end)."""

    start: int
    stop: int | None

    def matches(self, number: Any) -> Any:
        """Whether it holds a number, and not None; of an array, which of them."""
        return number is not None and (number >= self.start) & (self.stop is None or number < self.stop)

    def is_within(self, other: Range) -> bool:
        """Whether every number of it is in the other."""
        ends = other.stop is None or (self.stop is not None and self.stop <= other.stop)
        return self.start >= other.start and ends


@dataclass(frozen=True)
class Condition:
    """One ``key=value``."""

    key: Key
    value: Glob | Range
    function: Glob | None = None
    """``site`` only: what stood after the colon."""

    def holds(self, fact: Any) -> Any:
        """Whether the fact of its key meets it; of an array of numbers, which of them. Of a stack, some frame has to:
        the path from any of its folders on, the function from any class on."""
        value, function = self.value, self.function
        if isinstance(value, Range):
            return value.matches(fact)
        match self.key:
            case Key.SITE:
                return any(
                    any(map(value.matches, _tails(path, "/")))
                    and (function is None or any(map(function.matches, _tails(name, "."))))
                    for path, name in fact
                )
            case Key.KERNEL:
                return any(map(value.matches, fact))
            case Key.OP:
                return any(map(value.matches, _operator_names(fact)))
        return value.matches(fact)


@dataclass(frozen=True)
class Selector:
    """What the selectors given together ask for."""

    clauses: tuple[tuple[Condition, ...], ...]
    """One must hold; all conditions of it. An empty clause holds for everything."""

    def matches(self, facts: Facts) -> bool:
        """Whether it is met, where all facts are known that it asks for."""
        return any(all(condition.holds(facts[condition.key]) for condition in clause) for clause in self.clauses)

    def given(self, facts: Facts) -> Selector:
        """What is left to be met where these facts are known: nothing at all can be where no clause is left."""
        return Selector(
            tuple(
                tuple(condition for condition in clause if condition.key not in facts)
                for clause in self.clauses
                if all(condition.holds(facts[condition.key]) for condition in clause if condition.key in facts)
            )
        )

    def about(self, *keys: Key) -> Selector:
        """Its conditions on these keys alone: what it does not find, the selector does not."""
        return Selector(tuple(tuple(c for c in clause if c.key in keys) for clause in self.clauses))

    def where(self, chosen: Callable[[Set[Key]], bool]) -> Selector:
        """Its clauses whose keys are chosen."""
        return Selector(tuple(clause for clause in self.clauses if chosen({condition.key for condition in clause})))

    def __and__(self, other: Selector) -> Selector:
        return Selector(tuple(own + others for own, others in product(self.clauses, other.clauses)))

    @cached_property
    def keys(self) -> frozenset[Key]:
        """Everything that it asks for."""
        return frozenset(condition.key for clause in self.clauses for condition in clause)

    @cached_property
    def everything(self) -> bool:
        """Whether no op at all is left out."""
        return any(not clause for clause in self.clauses)

    @cached_property
    def of_calls(self) -> Selector:
        """What of it finds calls of modules."""
        return self.where(OF_OPS.isdisjoint)

    @cached_property
    def of_ops(self) -> Selector:
        """What of it finds ops: not what asks for modules and nothing that only an op has, which means calls."""
        return self.where(lambda keys: Key.MODULE not in keys or not OF_OPS.isdisjoint(keys))

    @property
    def steps(self) -> Range:
        """The smallest range that holds every step it allows."""
        ranges = [_intersection(c.value for c in clause if c.key is Key.STEP) for clause in self.clauses]
        stops = [r.stop for r in ranges if r.stop is not None]
        return Range(min(r.start for r in ranges), max(stops) if len(stops) == len(ranges) else None)


EVERYTHING = Selector(((),))


def parse_selectors(texts: Iterable[str]) -> Selector:
    """The selector that ``texts`` give together; none at all select everything. Raises SelectorError."""
    clauses = tuple(_Parser(text).clause() for text in texts)
    return Selector(clauses) if clauses else EVERYTHING


def parse_range(text: str) -> Range:
    """``A:B`` half open, ``A:``, ``:B`` or ``A`` alone. Raises SelectorError."""
    return _Parser(text).range(0, len(text))


def within_steps(steps: Range) -> Selector:
    """What finds everything within these steps."""
    return Selector(((Condition(Key.STEP, steps),),))


def escape(name: str) -> str:
    """A glob that matches ``name`` and nothing else, fit to stand in a selector."""
    escaped = re.sub(r"([\\*?\[\],:])", r"\\\1", name)
    escaped = re.sub(r"^(\s)", r"\\\1", escaped)
    return escaped if len(name) < 2 else re.sub(r"(\s)$", r"\\\1", escaped)


def _intersection(ranges: Iterable[Any]) -> Range:
    bounds = [(r.start, r.stop) for r in ranges]
    stops = [stop for _, stop in bounds if stop is not None]
    return Range(max((start for start, _ in bounds), default=0), min(stops, default=None))


def _operator_names(name: str) -> list[str]:
    """``aten.add.Tensor`` goes by ``aten.add``, ``add.Tensor`` and ``add`` as well."""
    names = [name]
    if name.count(".") > 1:
        names.append(name.rpartition(".")[0])
    return names + [n.removeprefix("aten.") for n in names if n.startswith("aten.")]


def _tails(name: str, separator: str) -> list[str]:
    parts = name.split(separator)
    return [separator.join(parts[i:]) for i in range(len(parts))]


class _Parser:
    """Parses one selector text; knows where it stands, for the error."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, position: int, what: str) -> SelectorError:
        return SelectorError(f"{what}\n  {self.text}\n  {' ' * position}^")

    def clause(self) -> tuple[Condition, ...]:
        if self.text.strip() == "all":
            return ()
        return tuple(self._condition(start, stop) for start, stop in self._split(0, len(self.text), ","))

    def _split(self, start: int, stop: int, separator: str) -> list[tuple[int, int]]:
        """Where the parts between unescaped separators lie."""
        parts = []
        position = start
        while position < stop:
            if self.text[position] == "\\":
                position += 1
            elif self.text[position] == separator:
                parts.append((start, position))
                start = position + 1
            position += 1
        return [*parts, (start, stop)]

    def _trim(self, start: int, stop: int) -> tuple[int, int]:
        """Without white space at the ends, unless a backslash protects it."""
        while start < stop and self.text[start].isspace():
            start += 1
        while start < stop and self.text[stop - 1].isspace() and not self._escaped(start, stop - 1):
            stop -= 1
        return start, stop

    def _escaped(self, start: int, position: int) -> bool:
        before = self.text[start:position]
        return (len(before) - len(before.rstrip("\\"))) % 2 == 1

    def _condition(self, start: int, stop: int) -> Condition:
        start, stop = self._trim(start, stop)
        name, equals, _ = self.text[start:stop].partition("=")
        if not equals:
            if name.strip() == "all":
                raise self.error(start, "'all' cannot be combined: omit it, or the rest")
            raise self.error(start, "a selector is key=glob, with a comma between two of them, or 'all'")
        value = start + len(name) + 1
        name = name.strip()
        if name not in set(Key):
            raise self.error(start, f"there is no key {name!r}; the keys are {', '.join(Key)}")
        key = Key(name)
        value, stop = self._trim(value, stop)
        if value == stop:
            raise self.error(value, f"a value is missing after '{key}='")
        if key in COUNTED:
            return Condition(key, self.range(value, stop))
        if key is Key.SITE:
            return self._site(value, stop)
        return Condition(key, self._glob(value, stop))

    def _site(self, start: int, stop: int) -> Condition:
        parts = self._split(start, stop, ":")
        if len(parts) > 2:
            raise self.error(parts[2][0] - 1, "a site is path:function; a colon in a name needs a backslash before it")
        for first, last in parts:
            if first == last:
                raise self.error(first, "a site is path:function; '*' matches any")
        globs = [self._glob(*part) for part in parts]
        return Condition(Key.SITE, globs[0], globs[1] if len(globs) == 2 else None)

    def range(self, start: int, stop: int) -> Range:
        low_text, colon, high_text = self.text[start:stop].partition(":")
        high_at = start + len(low_text) + 1
        if not colon:
            number = self._number(low_text, start)
            return Range(number, number + 1)
        low = self._number(low_text, start) if low_text.strip() else 0
        high = self._number(high_text, high_at) if high_text.strip() else None
        if high is not None and high <= low:
            raise self.error(high_at, f"the range is empty: it begins at {low} and ends before {high}")
        return Range(low, high)

    def _number(self, text: str, position: int) -> int:
        if not re.fullmatch(r"\s*[0-9]+\s*", text):
            raise self.error(position, "a number from 0, or a range A:B (half open), is expected here")
        return int(text)

    def _glob(self, start: int, stop: int) -> Glob:
        pattern = []
        position = start
        while position < stop:
            character = self.text[position]
            if character == "\\":
                position += 1
                if position == stop:
                    raise self.error(position - 1, "a backslash needs a character after it")
                pattern.append(re.escape(self.text[position]))
            elif character == "[":
                closing = self._closing_bracket(position, stop)
                pattern.append(self._character_set(position, closing))
                position = closing
            else:
                pattern.append({"*": ".*", "?": "."}.get(character) or re.escape(character))
            position += 1
        return Glob(self.text[start:stop], re.compile("".join(pattern), re.DOTALL))

    def _closing_bracket(self, opening: int, stop: int) -> int:
        first = opening + 2 if self.text[opening + 1 : opening + 2] == "!" else opening + 1
        closing = self.text.find("]", first + 1, stop)
        if closing < 0:
            raise self.error(opening, "this bracket is never closed; write \\[ for the character itself")
        return closing

    def _character_set(self, opening: int, closing: int) -> str:
        """``[...]`` of a regular expression for the glob's brackets; ``-`` between two characters makes a range."""
        text = self.text[opening + 1 : closing]
        negated = text.startswith("!")
        members = []
        position = int(negated)
        while position < len(text):
            low, dash, high = text[position], text[position + 1 : position + 2], text[position + 2 : position + 3]
            if dash == "-" and high:
                if low > high:
                    raise self.error(opening + 1 + position, f"the range {low}-{high} is empty")
                members.append(f"{re.escape(low)}-{re.escape(high)}")
                position += 3
            else:
                members.append(re.escape(low))
                position += 1
        return f"[{'^' if negated else ''}{''.join(members)}]"
