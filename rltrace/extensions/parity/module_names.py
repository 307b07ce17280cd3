"""Which module of A is which of B, by their paths: equal paths, other roots or wrappers, or a map file.

Owns the matching of paths; looks at no tensors. Wrappers (DistributedDataParallel, torch.compile, FSDP, activation
checkpoints) are left out of names. Where paths begin differently, the two subtrees that agree in the most modules
are matched; where two such choices agree equally, none is made, and ``Naming.ambiguous`` reports it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from rltrace.diff.base.model import Pair
from rltrace.errors import UsageError

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Attributes under which wrappers hold the wrapped module, at any depth."""
LEADING = "module"
"""The same, directly below the root: DistributedDataParallel, DataParallel, DeepSpeed."""
HEADS = ("lm_head", "embed_out", "output_projection", "logits_processor")
"""Names of the layer that returns logits, for models that do not."""
LOG_PROBABILITIES = ("logprobs", "log_probs", "raw_logprobs", "processed_logprobs")
"""Names of outputs that are log-probabilities of the tokens that were sampled, or trained on."""

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Naming:
    """The partners of modules."""

    pairs: tuple[tuple[str, str], ...]
    """(A's path, B's path), in the order of A's."""
    renamed: tuple[Pair[str], ...]
    """What paths begin with on each side, where that differs."""
    ambiguous: tuple[str, ...]
    """One sentence where modules can be matched in several ways."""


def match_names(a: Sequence[str], b: Sequence[str], mapped: Mapping[str, str] | None = None) -> Naming:
    """Partners of A's paths among B's, each at most one. ``mapped``: those that a map file gives."""
    found = dict(mapped or {})
    mapped_b = set(found.values())
    left_a, left_b = [path for path in a if path not in found], [path for path in b if path not in mapped_b]
    found |= {path: path for path in set(left_a) & set(left_b)}
    trees = _Trees(found, left_a, left_b)
    renamed, ambiguous = trees.match()
    return Naming(tuple((path, found[path]) for path in a if path in found), tuple(renamed), tuple(ambiguous))


def root_of(path: str) -> str:
    """Name of the outermost module of a path: its class, and ``#2`` for a second object of it."""
    return path.partition(".")[0]


def parts_of(path: str) -> Parts:
    """The names of a path, without wrappers."""
    names = [name for name in path.split(".") if name not in WRAPPERS]
    return (names[0], *names[2:]) if len(names) > 1 and names[1] == LEADING else tuple(names)


class _Trees:
    """Unmatched modules of both sides, matched greedily: the two subtrees with the largest agreement first."""

    def __init__(self, found: dict[str, str], a: Iterable[str], b: Iterable[str]) -> None:
        self._found = found
        self._parts = {parts_of(x): parts_of(y) for x, y in found.items()}
        matched_b = set(found.values())
        self._a = {parts_of(path): path for path in a if path not in found}
        self._b = {parts_of(path): path for path in b if path not in matched_b}

    def match(self) -> tuple[list[Pair[str]], list[str]]:
        renamed: list[Pair[str]] = []
        ambiguous: list[str] = []
        while self._a and self._b:
            best = self._best()
            if len(best) != 1:
                ambiguous += [_ambiguity(best)] if best else []
                break
            (top_a, top_b) = best[0]
            self._match_below(top_a, top_b)
            if top_a != top_b:
                renamed.append(Pair(".".join(top_a), ".".join(top_b)))
        return renamed, ambiguous

    def _best(self) -> list[tuple[Parts, Parts]]:
        """Pairs of subtrees that agree in the most modules; of these, those nearest to the roots."""
        agreement: dict[tuple[Parts, Parts], int] = {}
        by_name: dict[str, list[Parts]] = {}
        for parts in self._b:
            by_name.setdefault(parts[-1], []).append(parts)
        for own in self._a:
            for other in by_name.get(own[-1], ()):
                for cut in _shared_ends(own, other):
                    agreement[cut] = agreement.get(cut, 0) + 1
        for own in self._a:  # their own modules, where these were called
            for other in self._b:
                if (own, other) in agreement:
                    agreement[own, other] += 1
        if not agreement:
            return self._only_roots()
        agreement = {cut: count for cut, count in agreement.items() if self._fits(*cut)}
        if not agreement:
            return []
        highest = max(agreement.values())
        best = [cut for cut, count in agreement.items() if count == highest]
        depth = min(len(x) + len(y) for x, y in best)
        return [(x, y) for x, y in best if len(x) + len(y) == depth]

    def _only_roots(self) -> list[tuple[Parts, Parts]]:
        """The outermost modules, where each side has one and no name agrees."""
        if self._found:
            return []
        roots_a = [parts for parts in self._a if len(parts) == 1]
        roots_b = [parts for parts in self._b if len(parts) == 1]
        return [(roots_a[0], roots_b[0])] if len(roots_a) == len(roots_b) == 1 else []

    def _match_below(self, top_a: Parts, top_b: Parts) -> None:
        for own in [parts for parts in self._a if parts[: len(top_a)] == top_a]:
            other = top_b + own[len(top_a) :]
            if other in self._b:
                self._found[self._a.pop(own)] = self._b.pop(other)
                self._parts[own] = other

    def _fits(self, top_a: Parts, top_b: Parts) -> bool:
        """Whether A's nearest module around ``top_a`` that has a partner has it around ``top_b``."""
        above = next((found for k in range(len(top_a), 0, -1) if (found := self._parts.get(top_a[:k]))), ())
        return top_b[: len(above)] == above


def _shared_ends(a: Parts, b: Parts) -> Iterable[tuple[Parts, Parts]]:
    """Non-empty prefixes of both after which the remaining names are equal."""
    for length in range(1, min(len(a), len(b))):
        if a[-length] != b[-length]:
            return
        yield a[:-length], b[:-length]


def _ambiguity(best: Sequence[tuple[Parts, Parts]]) -> str:
    shown = [f"{'.'.join(x)} = {'.'.join(y)}" for x, y in best[:3]]
    rest = f", and {len(best) - 3} more" if len(best) > 3 else ""
    return f"modules can be matched in several equally good ways: {'; '.join(shown)}{rest}"


# --- map files --------------------------------------------------------------------------------------------------------
#
# The file of ``--map``: one ``A-GLOB = B-GLOB`` a line. ``*`` matches anything, dots included, and B's takes what A's
# matched. Empty lines and what follows a ``#`` are ignored.


SUGGESTED = 3
"""Similar names that an error offers."""


class MapError(UsageError):
    """A line of a map file is malformed, or does not fit the traces."""


@dataclass(frozen=True)
class MapLine:
    """One line of a map."""

    number: int
    """From 1."""
    text: str
    a: str
    b: str

    def partners(self, paths: Iterable[str]) -> list[tuple[str, str]]:
        """The paths of A that this line matches, each with the path that it gives for B."""
        pattern = re.compile("(.*)".join(map(re.escape, self.a.split("*"))))
        pieces = self.b.split("*")
        matches = [(path, match.groups()) for path in paths if (match := pattern.fullmatch(path))]
        return [
            (path, "".join(text for pair in zip(pieces, (*groups, ""), strict=True) for text in pair))
            for path, groups in matches
        ]


def read_map(path: str | Path) -> tuple[MapLine, ...]:
    """The lines of a map file. Raises UsageError."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"the map {path} cannot be read: {why}") from None
    return parse_map(text, str(path))


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
    """Partners of A's paths among B's, by the lines of the map file ``name``. Raises MapError."""
    by_a: dict[str, tuple[str, MapLine]] = {}
    by_b: dict[str, tuple[str, MapLine]] = {}
    known_b = set(b)
    for line in lines:
        partners = line.partners(a)
        if not partners:
            raise _unknown(name, line, "A", line.a, a)
        fitting = [(path, partner) for path, partner in partners if partner in known_b]
        if not fitting:
            raise _unknown(name, line, "B", partners[0][1], b, of=f", for {partners[0][0]} of A")
        for path, partner in fitting:
            _check_agreement(name, line, by_a.get(path), partner, f"{path} of A")
            _check_agreement(name, line, by_b.get(partner), path, f"{partner} of B")
            by_a[path], by_b[partner] = (partner, line), (path, line)
    return {path: partner for path, (partner, _) in by_a.items()}


def _check_agreement(name: str, line: MapLine, earlier: tuple[str, MapLine] | None, path: str, owner: str) -> None:
    if earlier is not None and earlier[0] != path:
        raise MapError(
            f"{name}:{line.number}: {owner} is {path} here, and {earlier[0]} by line {earlier[1].number}\n"
            f"  {earlier[1].text}\n  {line.text}"
        )


def _unknown(name: str, line: MapLine, side: str, glob: str, known: Sequence[str], of: str = "") -> MapError:
    near = get_close_matches(glob.replace("*", ""), known, SUGGESTED, 0.4)
    hint = f"; similar: {', '.join(near)}" if near else ""
    return MapError(f"{name}:{line.number}: no module of {side} is called {glob}{of}{hint}\n  {line.text}")


# --- a running program ------------------------------------------------------------------------------------------------


class ModulePartners:
    """A's path for each module of a running program, matched again when an outermost module appears."""

    def __init__(self, a: Iterable[str], b: Callable[[], Iterable[str]], lines: Sequence[MapLine] = ()) -> None:
        """``a``: A's paths. ``b``: the program's paths so far. ``lines`` of a map file have precedence over names."""
        self._a = tuple(dict.fromkeys(a))
        self._b = b
        self._lines = lines
        self._roots: set[str] = set()
        self._partners: Mapping[str, str] = {}

    def of(self, path: str) -> str | None:
        """A's path for a module that is being called; None: there is none, or several are possible."""
        if root_of(path) not in self._roots:
            paths = list(dict.fromkeys(self._b()))
            self._roots.update(map(root_of, (path, *paths)))
            self._partners = {b: a for a, b in match_names(self._a, paths, self._mapped(paths)).pairs}
        return self._partners.get(path)

    def _mapped(self, paths: Sequence[str]) -> dict[str, str]:
        """Partners by the map, of which the first line that fits counts: modules may still be missing."""
        found, known = dict[str, str](), set(paths)
        for line in self._lines:
            for path, partner in line.partners(self._a):
                if path not in found and partner in known and partner not in found.values():
                    found[path] = partner
        return found
