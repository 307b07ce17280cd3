"""Which module of A is which of B, by their paths: alike, under other roots or wrappers, or as a map says.

Owns the matching of paths; looks at no numbers. Wrappers (DistributedDataParallel, torch.compile, FSDP, activation
checkpoints) are no part of a name. Where the paths begin differently, the two places are taken at which the trees
below agree in the most modules; where two such choices agree equally, nothing is chosen, and that is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rltrace.diff.base.model import Pair
from rltrace.errors import UsageError

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Attributes under which wrappers hold the module itself, wherever they stand."""
LEADING = "module"
"""The same, right below the root alone: DistributedDataParallel, DataParallel, DeepSpeed."""

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Naming:
    """The partners of modules."""

    pairs: tuple[tuple[str, str], ...]
    """(A's path, B's path), in the order of A's."""
    renamed: tuple[Pair[str], ...]
    """What paths begin with on each side, where that differs."""
    ambiguous: tuple[str, ...]
    """One sentence for each place of A that could be several of B's, or the other way round."""


def match_names(a: Sequence[str], b: Sequence[str], mapped: Mapping[str, str] | None = None) -> Naming:
    """Partners of A's paths among B's, each at most one. ``mapped``: those that a map file gives."""
    found = dict(mapped or {})
    taken = set(found.values())
    left_a, left_b = [path for path in a if path not in found], [path for path in b if path not in taken]
    found |= {path: path for path in set(left_a) & set(left_b)}
    trees = _Trees(found, left_a, left_b)
    renamed, ambiguous = trees.match()
    return Naming(tuple((path, found[path]) for path in a if path in found), tuple(renamed), tuple(ambiguous))


def parts_of(path: str) -> Parts:
    """The names that a path is made of, wrappers left out."""
    names = [name for name in path.split(".") if name not in WRAPPERS]
    return (names[0], *names[2:]) if len(names) > 1 and names[1] == LEADING else tuple(names)


class _Trees:
    """What is left of both sides, matched greedily: the pair of places with the largest agreement first."""

    def __init__(self, found: dict[str, str], a: Iterable[str], b: Iterable[str]) -> None:
        self._found = found
        taken = set(found.values())
        self._a = {parts_of(path): path for path in a if path not in found}
        self._b = {parts_of(path): path for path in b if path not in taken}

    def match(self) -> tuple[list[Pair[str]], list[str]]:
        renamed: list[Pair[str]] = []
        ambiguous: list[str] = []
        while self._a and self._b:
            best = self._best()
            if len(best) != 1:
                ambiguous += [_ambiguity(best)] if best else []
                break
            (top_a, top_b) = best[0]
            self._take(top_a, top_b)
            if top_a != top_b:
                renamed.append(Pair(".".join(top_a), ".".join(top_b)))
        return renamed, ambiguous

    def _best(self) -> list[tuple[Parts, Parts]]:
        """Pairs of places whose trees agree in the most modules, those nearest to the roots."""
        agreement: dict[tuple[Parts, Parts], int] = {}
        by_name: dict[str, list[Parts]] = {}
        for parts in self._b:
            by_name.setdefault(parts[-1], []).append(parts)
        for own in self._a:
            for other in by_name.get(own[-1], ()):
                for cut in _shared_ends(own, other):
                    agreement[cut] = agreement.get(cut, 0) + 1
        for own in self._a:  # the places themselves, where they are called modules
            for other in self._b:
                if (own, other) in agreement:
                    agreement[own, other] += 1
        if not agreement:
            return self._lonely()
        most = max(agreement.values())
        best = [cut for cut, count in agreement.items() if count == most]
        highest = min(len(x) + len(y) for x, y in best)
        return [(x, y) for x, y in best if len(x) + len(y) == highest]

    def _lonely(self) -> list[tuple[Parts, Parts]]:
        """One outermost module on each side, and nothing below them that agrees by name."""
        roots_a = [parts for parts in self._a if len(parts) == 1]
        roots_b = [parts for parts in self._b if len(parts) == 1]
        return [(roots_a[0], roots_b[0])] if len(roots_a) == len(roots_b) == 1 else []

    def _take(self, top_a: Parts, top_b: Parts) -> None:
        for own in [parts for parts in self._a if parts[: len(top_a)] == top_a]:
            other = top_b + own[len(top_a) :]
            if other in self._b:
                self._found[self._a.pop(own)] = self._b.pop(other)


def _shared_ends(a: Parts, b: Parts) -> Iterable[tuple[Parts, Parts]]:
    """Where both may be cut so that what follows is the same; something stays before the cut."""
    for length in range(1, min(len(a), len(b))):
        if a[-length] != b[-length]:
            return
        yield a[:-length], b[:-length]


def _ambiguity(best: Sequence[tuple[Parts, Parts]]) -> str:
    shown = [f"{'.'.join(x)} = {'.'.join(y)}" for x, y in best[:3]]
    rest = f", and {len(best) - 3} more" if len(best) > 3 else ""
    return f"modules can be matched in several equally good ways: {'; '.join(shown)}{rest}"


# --- mapfile ----------------------------------------------------------------------------------------------------------
#
# The map file of ``rltrace compare --map``: which module of A is which of B, where their paths differ.
#
# Owns the lines and what may be wrong with them. One line is ``A-GLOB = B-GLOB``; ``*`` stands for anything, dots too,
# and what it stood for in A stands in its place in B. Empty lines, and what follows a ``#``, say nothing.


NEAR = 3
"""Names that are offered where one is not found."""


class MapError(UsageError):
    """A line of a map file makes no sense, or does not fit the traces."""


@dataclass(frozen=True)
class MapLine:
    """One line of a map."""

    number: int
    """From 1."""
    text: str
    a: str
    b: str


def parse_map(text: str, name: str) -> tuple[MapLine, ...]:
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
        lines.append(MapLine(number, shown, a, b))
    if not lines:
        raise MapError(f"{name} holds no line; one is A-GLOB = B-GLOB")
    return tuple(lines)


def apply_map(lines: Sequence[MapLine], name: str, a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Partners of A's paths among B's, as the lines have it. Raises MapError."""
    found: dict[str, tuple[str, MapLine]] = {}
    taken: dict[str, tuple[str, MapLine]] = {}
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


def _agree(name: str, line: MapLine, before: tuple[str, MapLine] | None, now: str, whose: str) -> None:
    if before is not None and before[0] != now:
        raise MapError(
            f"{name}:{line.number}: {whose} is {now} here, and {before[0]} by line {before[1].number}\n"
            f"  {before[1].text}\n  {line.text}"
        )


def _nothing(name: str, line: MapLine, side: str, wanted: str, known: Sequence[str], of: str = "") -> MapError:
    near = get_close_matches(wanted.replace("*", ""), known, NEAR, 0.4)
    hint = f"; similar: {', '.join(near)}" if near else ""
    what = f"no module of {side} is called {wanted}{of}"
    return MapError(f"{name}:{line.number}: {what}{hint}\n  {line.text}")
