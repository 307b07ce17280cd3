"""The selector grammar: ``key=glob[,key=glob…]``; a comma means *and*, a repeated option means *or*.

Owns the keys, their parsing and their meaning. Knows nothing of traces: a selector is matched against ``Facts``.

    op=aten.addmm                   operator; overload, and the namespace ``aten``, may be left out
    module=policy.*                 module path; ``*`` crosses dots
    site=ppo.py:train               a frame of the stack: file (its last folders are enough), ``:``, function
    phase=backward                  phase
    stream=rank0/*                  stream name
    step=100:110                    optimizer steps, half open; ``100``, ``100:`` and ``:110`` work too
    nth=0                           occurrence of the op under its site in its step, from 0; a range too
    kernel=*gemm*                   any kernel name (on a CPU: library, instruction set, threads)
    array=*params*                  an array that a row of JAX writes, by its name; of the row, only such arrays
    all                             everything

Globs know ``*``, ``?``, ``[abc]``, ``[!abc]`` and ``\\`` before a literal character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Any

from rltrace.errors import SelectorError


class Key(StrEnum):
    """A property of an op that a selector can constrain."""

    OP = "op"
    MODULE = "module"
    SITE = "site"
    PHASE = "phase"
    STREAM = "stream"
    STEP = "step"
    NTH = "nth"
    KERNEL = "kernel"
    ARRAY = "array"


NUMERIC = (Key.STEP, Key.NTH)
"""Keys whose values are numbers and ranges, not globs."""

OP_KEYS = frozenset((Key.OP, Key.SITE, Key.NTH, Key.KERNEL, Key.ARRAY))
"""Keys that ops have and module calls do not."""

Facts = Mapping[Key, Any]
"""Facts of an op or a module call: for ``site`` the (portable path, qualified function name) of each user frame, for
``kernel`` and ``array`` the names, for ``step`` and ``nth`` a number (None: there is none) or an array; otherwise a
name."""


@dataclass(frozen=True)
class Glob:
    """A pattern that matches a whole name."""

    text: str
    regex: re.Pattern[str]

    def matches(self, name: str) -> bool:
        return self.regex.fullmatch(name) is not None


@dataclass(frozen=True)
class Range:
    """Numbers from ``start`` up to, but not including, ``stop`` (None: no end)."""

    start: int
    stop: int | None

    def matches(self, number: Any) -> Any:
        """Whether a number is in the range (None is not); for an array, a mask."""
        return number is not None and (number >= self.start) & (self.stop is None or number < self.stop)


@dataclass(frozen=True)
class Condition:
    """One ``key=value``."""

    key: Key
    value: Glob | Range
    function: Glob | None = None
    """``site`` only: the pattern after the colon."""

    def holds(self, fact: Any) -> Any:
        """Whether the fact satisfies the condition; for an array of numbers, a mask. One frame of a stack is enough:
        its path may match from any folder on, its function from any class on."""
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
            case Key.KERNEL | Key.ARRAY:
                return any(map(value.matches, fact))
            case Key.OP:
                return any(map(value.matches, _operator_names(fact)))
        return value.matches(fact)


@dataclass(frozen=True)
class Selector:
    """One or more selectors combined with *or*."""

    clauses: tuple[tuple[Condition, ...], ...]
    """All conditions of at least one clause must hold. An empty clause matches everything."""

    def matches(self, facts: Facts) -> bool:
        """Whether the facts match; they must have every key of the selector."""
        return any(all(condition.holds(facts[condition.key]) for condition in clause) for clause in self.clauses)

    def chosen(self, names: Sequence[str]) -> list[bool]:
        """Of the arrays with these names that a row writes, those that are selected, where all else is known."""
        return [self.matches({Key.ARRAY: (name,)}) for name in names]

    def simplify(self, facts: Facts) -> Selector:
        """The conditions that remain once these facts are known; without a clause it matches nothing."""
        return Selector(
            tuple(
                tuple(condition for condition in clause if condition.key not in facts)
                for clause in self.clauses
                if all(condition.holds(facts[condition.key]) for condition in clause if condition.key in facts)
            )
        )

    def project(self, *keys: Key) -> Selector:
        """Only the conditions on these keys: matches everything that the selector matches, and maybe more."""
        return Selector(tuple(tuple(c for c in clause if c.key in keys) for clause in self.clauses))

    def filter_clauses(self, accept: Callable[[Set[Key]], bool]) -> Selector:
        """Only the clauses whose keys ``accept`` returns true for."""
        return Selector(tuple(clause for clause in self.clauses if accept({condition.key for condition in clause})))

    def __and__(self, other: Selector) -> Selector:
        return Selector(tuple(own + others for own, others in product(self.clauses, other.clauses)))

    @cached_property
    def keys(self) -> frozenset[Key]:
        """Keys of all conditions."""
        return frozenset(condition.key for clause in self.clauses for condition in clause)

    @cached_property
    def matches_all(self) -> bool:
        """Whether every op matches."""
        return any(not clause for clause in self.clauses)

    @cached_property
    def call_clauses(self) -> Selector:
        """The clauses that select module calls."""
        return self.filter_clauses(OP_KEYS.isdisjoint)

    @cached_property
    def op_clauses(self) -> Selector:
        """The clauses that select ops; one that has ``module`` and no key of ops selects module calls instead."""
        return self.filter_clauses(lambda keys: Key.MODULE not in keys or not OP_KEYS.isdisjoint(keys))

    @property
    def steps(self) -> Range:
        """The smallest range that contains every step that can match."""
        ranges = [_intersection(c.value for c in clause if c.key is Key.STEP) for clause in self.clauses]
        stops = [r.stop for r in ranges if r.stop is not None]
        return Range(min(r.start for r in ranges), max(stops) if len(stops) == len(ranges) else None)


EVERYTHING = Selector(((),))


def parse_selectors(texts: Iterable[str]) -> Selector:
    """``texts`` combined with *or*; without any, everything is selected. Raises SelectorError."""
    clauses = tuple(_Parser(text).clause() for text in texts)
    return Selector(clauses) if clauses else EVERYTHING


def parse_range(text: str) -> Range:
    """``A:B`` half open, ``A:``, ``:B`` or a single ``A``. Raises SelectorError."""
    return _Parser(text).range(0, len(text))


def within_steps(steps: Range) -> Selector:
    """A selector of all ops of these steps."""
    return Selector(((Condition(Key.STEP, steps),),))


def escape(name: str) -> str:
    """A glob for use in a selector that matches ``name`` and nothing else."""
    escaped = re.sub(r"([\\*?\[\],:])", r"\\\1", name)
    escaped = re.sub(r"^(\s)", r"\\\1", escaped)
    return escaped if len(name) < 2 else re.sub(r"(\s)$", r"\\\1", escaped)


def _intersection(ranges: Iterable[Any]) -> Range:
    bounds = [(r.start, r.stop) for r in ranges]
    stops = [stop for _, stop in bounds if stop is not None]
    return Range(max((start for start, _ in bounds), default=0), min(stops, default=None))


def _operator_names(name: str) -> list[str]:
    """Every name of an operator: ``aten.add.Tensor`` is also ``aten.add``, ``add.Tensor`` and ``add``."""
    names = [name]
    if name.count(".") > 1:
        names.append(name.rpartition(".")[0])
    return names + [n.removeprefix("aten.") for n in names if n.startswith("aten.")]


def _tails(name: str, separator: str) -> list[str]:
    pieces = name.split(separator)
    return [separator.join(pieces[i:]) for i in range(len(pieces))]


class _Parser:
    """Parses one selector text; errors point at the character."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, position: int, what: str) -> SelectorError:
        return SelectorError(f"{what}\n  {self.text}\n  {' ' * position}^")

    def clause(self) -> tuple[Condition, ...]:
        if self.text.strip() == "all":
            return ()
        return tuple(self._condition(start, stop) for start, stop in self._split(0, len(self.text), ","))

    def _split(self, start: int, stop: int, separator: str) -> list[tuple[int, int]]:
        """(start, stop) of each piece between unescaped separators."""
        pieces = []
        position = start
        while position < stop:
            if self.text[position] == "\\":
                position += 1
            elif self.text[position] == separator:
                pieces.append((start, position))
                start = position + 1
            position += 1
        return [*pieces, (start, stop)]

    def _trim(self, start: int, stop: int) -> tuple[int, int]:
        """The bounds without white space at the ends, unless it is escaped."""
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
            likely = f" (op={name}?)" if re.fullmatch(r"[\w.*]+", name) else ""
            raise self.error(start, f"a selector is key=glob{likely}, with a comma between two of them, or 'all'")
        value = start + len(name) + 1
        name = name.strip()
        if name not in set(Key):
            raise self.error(start, f"there is no key {name!r}; the keys are {', '.join(Key)}")
        key = Key(name)
        value, stop = self._trim(value, stop)
        if value == stop:
            raise self.error(value, f"a value is missing after '{key}='")
        if key in NUMERIC:
            return Condition(key, self.range(value, stop))
        if key is Key.SITE:
            return self._site(value, stop)
        return Condition(key, self._glob(value, stop))

    def _site(self, start: int, stop: int) -> Condition:
        pieces = self._split(start, stop, ":")
        if len(pieces) > 2:
            raise self.error(pieces[2][0] - 1, "a site is path:function; a colon in a name needs a backslash before it")
        for first, last in pieces:
            if first == last:
                raise self.error(first, "a site is path:function; '*' matches any")
        globs = [self._glob(*piece) for piece in pieces]
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
        """The regular expression of a glob's brackets; ``-`` between two characters makes a range."""
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
