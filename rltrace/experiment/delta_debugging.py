"""The smallest set of origin classes that repairs a run, found by running it with fewer and fewer of them.

Owns the search and its order, knows nothing of what a class or a trial is. The method: leave out one class at a time
first, which finds every class that matters by itself in as many trials as there are classes. Where those do not do,
others matter together, and recursive delta debugging finds which (rddmin: Févotte and Lathuilière, "Debugging and
optimization of HPC programs with the Verrou tool", 2019; ddmin: Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input", 2002). What comes out is one-minimal: each class of it was seen to be needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from rltrace.errors import RltraceError

C = TypeVar("C", bound=Hashable)
Repairs = Callable[[frozenset[C]], bool]
"""Whether the run is repaired with exactly these classes injected."""


class NothingToSearchError(RltraceError):
    """A search would prove nothing: all classes together do not repair the run, or it needs none of them."""


@dataclass(frozen=True)
class Minimal(Generic[C]):
    """What a search found. Classes are in the order in which they were given."""

    classes: tuple[C, ...]
    """Repair the run; without any one of them they do not."""
    alone: tuple[C, ...]
    """Of these, the ones without which nothing else repairs it."""
    together: tuple[tuple[C, ...], ...]
    """Sets of which one member at least is needed: without a whole set the rest does not repair the run, and each set
    is as small as that allows."""


def minimise(classes: Sequence[C], repairs: Repairs[C]) -> Minimal[C]:
    """Search ``classes`` (distinct, in any order). ``repairs`` is asked for each set at most once.

    Raises NothingToSearchError where all of them do not repair the run, or none of them does.
    """
    return _Search(classes, repairs).run()


class _Search(Generic[C]):
    def __init__(self, classes: Sequence[C], repairs: Repairs[C]) -> None:
        self._classes = tuple(dict.fromkeys(classes))
        self._ask = repairs
        self._known: dict[frozenset[C], bool] = {}

    def run(self) -> Minimal[C]:
        everything = frozenset(self._classes)
        if not self._repairs(everything):
            raise NothingToSearchError("all classes together do not repair the run")
        if self._repairs(frozenset()):
            raise NothingToSearchError("the run needs none of the classes: it is repaired without any")
        alone = frozenset(c for c in self._classes if not self._repairs(everything - {c}))
        together = self._sets_that_matter(alone)
        enough = alone.union(*together)
        kept = self._one_minimal(enough if self._repairs(enough) else everything)
        return Minimal(self._ordered(kept), self._ordered(alone), tuple(self._ordered(found) for found in together))

    def _sets_that_matter(self, alone: frozenset[C]) -> list[frozenset[C]]:
        """Smallest sets, apart from each other, that must not be left out as a whole."""
        found: list[frozenset[C]] = []
        while not self._repairs(alone.union(*found)):
            rest = self._ordered(frozenset(self._classes) - alone.union(*found))
            if not rest:
                break  # more classes repair less: no set to blame
            found.append(self._breaking(rest))
        return found

    def _breaking(self, rest: tuple[C, ...]) -> frozenset[C]:
        """A smallest part of ``rest`` without which all other classes do not repair the run: ddmin."""
        everything = frozenset(self._classes)
        parts = 2
        while len(rest) > 1:
            chunks = _split(rest, parts)
            smaller = next((c for c in chunks if not self._repairs(everything - frozenset(c))), None)
            if smaller is not None:
                rest, parts = smaller, 2
                continue
            others = [tuple(c for c in rest if c not in chunk) for chunk in chunks] if parts > 2 else []
            smaller = next((c for c in others if not self._repairs(everything - frozenset(c))), None)
            if smaller is not None:
                rest, parts = smaller, max(parts - 1, 2)
            elif parts < len(rest):
                parts = min(2 * parts, len(rest))
            else:
                break
        return frozenset(rest)

    def _one_minimal(self, kept: frozenset[C]) -> frozenset[C]:
        """Leave out classes, the last ones first, until each one left is needed."""
        changed = True
        while changed:
            changed = False
            for c in reversed(self._ordered(kept)):
                if self._repairs(kept - {c}):
                    kept, changed = kept - {c}, True
        return kept

    def _repairs(self, classes: frozenset[C]) -> bool:
        if classes not in self._known:
            self._known[classes] = self._ask(classes)
        return self._known[classes]

    def _ordered(self, classes: Iterable[C]) -> tuple[C, ...]:
        wanted = frozenset(classes)
        return tuple(c for c in self._classes if c in wanted)


def _split(items: tuple[C, ...], parts: int) -> list[tuple[C, ...]]:
    """``items`` in ``parts`` runs of nearly equal length."""
    size, more = divmod(len(items), parts)
    ends = [size * k + min(k, more) for k in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(ends)]
