"""Delta debugging: the smallest set of origin classes that repairs a run.

Independent of what a class or a trial is. First, one class at a time is left out, which finds every individually needed
class in as many trials as there are classes. If those do not suffice, recursive delta debugging finds classes that are
needed jointly (rddmin: Févotte and Lathuilière, "Debugging and optimization of HPC programs with the Verrou tool",
2019; ddmin: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002). The result is
one-minimal: without any one of its classes the run is not repaired.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from rltrace.errors import RltraceError

C = TypeVar("C", bound=Hashable)
Repairs = Callable[[frozenset[C]], bool]
"""Whether the run is repaired with exactly these classes injected."""


class NothingToSearchError(RltraceError):
    """All classes together do not repair the run, or it needs none of them."""


def minimise(classes: Sequence[C], repairs: Repairs[C]) -> tuple[C, ...]:
    """Those of ``classes`` (distinct, in any order) that repair the run, and do not without any one of them, in order.

    ``repairs`` is called at most once for each set. Raises NothingToSearchError where all classes do not repair the
    run, or it needs none.
    """
    return _Search(classes, repairs).run()


class _Search(Generic[C]):
    def __init__(self, classes: Sequence[C], repairs: Repairs[C]) -> None:
        self._classes = tuple(dict.fromkeys(classes))
        self._test = repairs
        self._known: dict[frozenset[C], bool] = {}

    def run(self) -> tuple[C, ...]:
        everything = frozenset(self._classes)
        if not self._repairs(everything):
            raise NothingToSearchError("all classes together do not repair the run")
        if self._repairs(frozenset()):
            raise NothingToSearchError("the run needs none of the classes: it is repaired without any")
        individually_needed = frozenset(c for c in self._classes if not self._repairs(everything - {c}))
        jointly_needed = self._sets_that_matter(individually_needed)
        enough = individually_needed.union(*jointly_needed)
        return self._ordered(self._one_minimal(enough if self._repairs(enough) else everything))

    def _sets_that_matter(self, individually_needed: frozenset[C]) -> list[frozenset[C]]:
        """Smallest disjoint sets that must not be left out as a whole."""
        found: list[frozenset[C]] = []
        while not self._repairs(individually_needed.union(*found)):
            rest = self._ordered(frozenset(self._classes) - individually_needed.union(*found))
            if not rest:
                break  # more classes repair less: there is no such set
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

    def _one_minimal(self, minimal: frozenset[C]) -> frozenset[C]:
        """Leave out classes, the last ones first, until each one left is needed."""
        changed = True
        while changed:
            changed = False
            for c in reversed(self._ordered(minimal)):
                if self._repairs(minimal - {c}):
                    minimal, changed = minimal - {c}, True
        return minimal

    def _repairs(self, classes: frozenset[C]) -> bool:
        if classes not in self._known:
            self._known[classes] = self._test(classes)
        return self._known[classes]

    def _ordered(self, classes: Iterable[C]) -> tuple[C, ...]:
        chosen = frozenset(classes)
        return tuple(c for c in self._classes if c in chosen)


def _split(items: tuple[C, ...], parts: int) -> list[tuple[C, ...]]:
    """``items`` in ``parts`` runs of nearly equal length."""
    size, more = divmod(len(items), parts)
    ends = [size * k + min(k, more) for k in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(ends)]
