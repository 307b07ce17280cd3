"""Events of a running program held against A's: which of those that differed a difference of values goes back to.

Owns what has to be remembered for that while the program runs. The rule is that of a comparison
(``rltrace.diff.judging.boundaries``): an event decides nothing by itself. Where an op took in other data, the event
that told the very bytes brought it in; else the first from which on all that its environment tells differs; else one
that differed alone, if no seed was given to that environment after it. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from rltrace.diff.judging.boundaries import FROM_OUTSIDE
from rltrace.diff.judging.boundary_words import because, one_sided_because
from rltrace.diff.judging.event_pairs import FAR, TOLD, Told
from rltrace.diff.judging.seeded import KINDS, sentences
from rltrace.diff.model import Cause, Pair
from rltrace.trace.events import Event
from rltrace.trace.schema import Kind, event_name

MOST_TOLD = 1 << 14
"""Pairs of bytes that differ, and of which is remembered which event told them."""

MOST_BEHIND = 256
"""Events of seeds, of environments made and reset that are remembered."""

HELD = (*TOLD, Kind.SEED, Kind.ENVIRONMENT_MADE)
"""Events that are held against A's."""


@dataclass(frozen=True)
class Place:
    """Where an event stands in the program's stream."""

    row: int
    step: int
    site: int
    """Id of its call site, in the program's tables."""


@dataclass(frozen=True)
class Met(Told):
    """An event of the program and A's."""

    kind: Kind
    owner: str
    row_a: int
    at: Place
    event_a: Event
    event_b: Event
    line: str
    """``train.py:12``."""
    extra: Extra | None = None
    """What happened to the same environment right before it, and not in A."""

    @property
    def op(self) -> str:
        return event_name(self.kind)

    @property
    def module(self) -> str:
        return self.owner

    @property
    def place(self) -> str:
        return self.line

    @property
    def cells(self) -> tuple[Pair[str], ...]:
        """What differs in it."""
        told_a, told_b = self.event_a.told, self.event_b.told
        return tuple(Pair(told_a[name].text, told_b[name].text) for name in self.differs)


@dataclass(frozen=True)
class Extra:
    """An event that A does not have."""

    kind: Kind
    owner: str
    at: Place
    event: Event


@dataclass
class _Environment:
    """What is known of the events of one environment."""

    open: Met | None = None
    """The first from which on all events differ so far."""
    passing: Met | None = None
    """The first that differed before they were equal again, since a seed was given last."""
    extra: Extra | None = None
    """What happened last, where A does not have it."""


@dataclass(frozen=True)
class Origin:
    """The event that a difference goes back to."""

    pair: Met
    cause: Cause
    because: tuple[str, ...]


@dataclass
class Happenings:
    """The events of one thread."""

    _environments: dict[str, _Environment] = field(default_factory=dict)
    _brought: dict[tuple[int, int], Met] = field(default_factory=dict)
    _behind: deque[Met] = field(default_factory=lambda: deque(maxlen=MOST_BEHIND))
    _others_alike = True
    """Python's and NumPy's generators, at the last event."""

    def alone(self, extra: Extra) -> None:
        """Something happened that did not happen in A."""
        self._of(extra.event.what).extra = extra

    def extra(self, what: str) -> Extra | None:
        """The same, where nothing has happened to that environment since."""
        return self._of(what).extra

    def met(self, pair: Met) -> None:
        """Something happened that happened in A."""
        if pair.kind in KINDS:
            self._behind.appendleft(pair)
        if pair.kind not in TOLD:
            return
        known, differs = self._of(pair.event_b.what), pair.differs
        known.extra = None
        self._others_alike = pair.others_alike
        if pair.is_seeded:
            known.passing = None
        if differs:
            known.open = known.open or pair
            if len(self._brought) > MOST_TOLD:
                self._brought.clear()
            self._brought.update(dict.fromkeys(pair.brought(differs), pair))
        elif known.open is not None:
            known.passing = known.passing or (None if pair.is_seeded else known.open)
            known.open = None

    def behind(self, cause: Cause, taken_in: Collection[tuple[int, int]], row: int) -> Origin | None:
        """Where what differs at ``row`` of the program came in; None: with no event that is known.

        ``taken_in``: digests, of A and here, of what the op took in from outside and what differs.
        """
        if cause not in FROM_OUTSIDE:
            return None
        told = [self._brought[pair] for pair in taken_in if pair in self._brought]
        open_ = [known.open for known in self._environments.values() if known.open is not None]
        pair = max(told, key=_row, default=None) or min(open_, key=_row, default=None)
        lasts = True
        if pair is None and cause is Cause.OUTSIDE and self._others_alike:
            passed = (known.passing for known in self._environments.values())
            pair = min((p for p in passed if p is not None and row - p.at.row < FAR), key=_row, default=None)
            lasts = False
        if pair is None:
            return None
        if pair.extra is not None and lasts:
            return Origin(pair, Cause.CONTROL_FLOW, (one_sided_because("B", pair.extra.event, pair),))
        return Origin(pair, Cause.OUTSIDE, tuple(because(pair, self.seeds(pair), lasts=lasts)))

    def seeds(self, about: Met | None) -> list[str]:
        """What is known of how spaces were seeded and environments made, before ``about`` or at all."""
        return sentences([pair for pair in self._behind if about is None or pair.at.row < about.at.row], about)

    def _of(self, what: str) -> _Environment:
        return self._environments.setdefault(what, _Environment())


def _row(pair: Met) -> int:
    return pair.at.row
