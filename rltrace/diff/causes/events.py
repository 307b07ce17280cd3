"""Events that differ, and which of them a difference of values goes back to.

What an environment returned matters where an op takes it in: an environment that is reset once without a seed, so as to
ask for the shape of an observation, differs in every run and changes nothing. So events decide nothing by themselves.
Owns the way back from a difference that came in from outside to the event that brought it in: the one that tells the
very bytes that the op took in; else the one from which on everything differs that this environment tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt, make_finding, row_at
from rltrace.diff.base.model import Boundary, Cause, Finding, InputsMatch, NamedDifference, Pair
from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.events import NONE, Event, event_of
from rltrace.trace.format.schema import Column, Kind, Origin
from rltrace.trace.read.names import Site

# --- event pairs ------------------------------------------------------------------------------------------------------
#
# Events that both sides have, read back from a place in two matched streams.
#
# Owns what a pair of them tells, and the way from row to row.


GENERATORS = ("own generator", "Python generator", "NumPy generator")
"""Evidence of environments' events: states before them."""

TOLD = (Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP, Kind.CHECKPOINT)
"""Events that bring something in."""

PIECE = 1 << 14
"""Rows that are read at a time, from the difference back."""

FAR, FARTHEST = 1 << 17, 1 << 21
"""Rows that are gone back at most, to the first event met, and while events differ."""


class MatchedEvent(Protocol):
    """An event that both sides have, wherever it was read."""

    event_a: Event
    event_b: Event

    @property
    def row(self) -> int:
        """Where it is in its stream; of two traces, in A's."""

    @property
    def op(self) -> str:
        """``environment-step``."""

    @property
    def module(self) -> str:
        """Whose it is."""

    @property
    def place(self) -> str:
        """Of B's, as ``train.py:12``; empty where it is not known."""

    @property
    def differs(self) -> tuple[str, ...]:
        """Names of the cells that both tell and that differ."""
        told_a, told_b = self.event_a.compared, self.event_b.compared
        return tuple(name for name, cell in told_a.items() if name in told_b and not _same(cell, told_b[name]))

    @property
    def is_seeded(self) -> bool:
        """Whether it is a reset with one seed on both sides."""
        seeds = self.event_a.evidence("seed"), self.event_b.evidence("seed")
        return seeds[0] == seeds[1] and seeds[0] not in (None, NONE)

    @property
    def others_alike(self) -> bool:
        """Whether Python's and NumPy's generators stood alike before it."""
        return all(self.event_a.evidence(name) == self.event_b.evidence(name) for name in GENERATORS[1:])

    def brought(self, differs: Collection[str]) -> set[tuple[int, int]]:
        """What A and B tell in these cells."""
        told_a, told_b = self.event_a.compared, self.event_b.compared
        return {(int(told_a[name].value), int(told_b[name].value)) for name in differs}


@dataclass(frozen=True)
class EventPair(MatchedEvent):
    """One of two rows."""

    a: RowAt
    b: RowAt
    event_a: Event
    event_b: Event

    @property
    def row(self) -> int:
        return self.a.index

    @property
    def op(self) -> str:
        return self.a.op

    @property
    def module(self) -> str:
        return self.a.module

    @property
    def place(self) -> str:
        return f"{self.b.stack[0].file}:{self.b.stack[0].line}" if self.b.stack else ""


def event_at(row: RowAt) -> Event:
    return event_of(row.rows, row.place, row.view.skeleton(row.rows, row.place))


def events_before(
    scene: DiffContext,
    end: int,
    end_b: int | None,
    is_open: Callable[[], bool],
    down_to: int = 0,
    kinds: Collection[Kind] = TOLD,
) -> Iterator[EventPair]:
    """Pairs of events before row ``end`` of A and ``end_b`` of B, the last first."""
    stop = end
    while stop > down_to and end - stop < (FARTHEST if is_open() else FAR):
        start = max(stop - PIECE, down_to)
        rows = scene.a.read(start, stop).rows
        for place in np.flatnonzero(np.isin(rows.column(Column.KIND), list(kinds)))[::-1].tolist():
            partner = scene.matching.partner(start + place)
            if partner is None or (end_b is not None and partner >= end_b) or partner >= scene.b.rows:
                continue
            a, b = RowAt(scene.a, rows, place), row_at(scene.b, partner)
            if a.op == b.op:
                yield EventPair(a, b, event_at(a), event_at(b))
        stop = start


def _same(x: object, y: object) -> bool:
    return repr(x) == repr(y)  # not a number is itself


# --- boundary words ---------------------------------------------------------------------------------------------------
#
# What is said of an event that differs: what it was given, what it returned, how the generators around it stood.


GIVEN: Final = "action"


def because(pair: MatchedEvent, behind: Iterable[str], *, lasts: bool) -> list[str]:
    """``environment 3 (Hopper-v5) returned another observation at its step 812, given the same action``, and so on.

    ``behind``: what else is known of it; ``lasts``: all that it tells differs from there on.
    """
    parts = [_what_differs(pair), *_seeds(pair), *_generators(pair), *behind]
    return parts if lasts else [*parts, "later events were equal again"]


def because_of_it(op: str, site: Site | None, row: int) -> str:
    """The first op that differs."""
    at = f" at {site.file}:{site.line}" if site else ""
    return f"{op}{at} (row {row:,}) is the first op that differs as a result"


def one_sided_because(side: str, event: Event, pair: MatchedEvent) -> str:
    """Where one side alone made a step more."""
    other = "B" if side == "A" else "A"
    verb = "steps" if event.evidence("step") is not None else "resets"
    then = _at(pair.event_a, pair.event_b)
    return f"only {side} {verb} {_name(pair)} here, {other} does not; from its {then} on all its events differ"


def _what_differs(pair: MatchedEvent) -> str:
    given = GIVEN in pair.differs
    returned = [name for name in pair.differs if name != GIVEN and not name.startswith("of ")]
    inside = [name.removeprefix("of ") for name in pair.differs if name.startswith("of ")]
    at = _at(pair.event_a, pair.event_b)
    if pair.op == "checkpoint":
        return f"what {pair.event_a.what} loaded differs"
    more = f"; it is what its environment{'s' if len(inside) > 1 else ''} {_and(inside)} returned" if inside else ""
    if given:
        text = f"{_name(pair)} was given another action at its {at}, though no op before it differs"
        return text + (f"; it returned another {_and(returned)}{more}" if returned else "")
    same = ", given the same action" if GIVEN in pair.event_a.compared else ""
    return f"{_name(pair)} returned another {_and(returned or ['result'])} at its {at}{same}{more}"


def _name(pair: MatchedEvent) -> str:
    return f"{pair.event_a.what} ({pair.module})" if pair.module else pair.event_a.what


def _at(a: Event, b: Event) -> str:
    """``step 812``; of both sides where they count differently."""
    for name in ("step", "reset"):
        x, y = a.evidence(name), b.evidence(name)
        if x is not None and y is not None:
            return f"{name} {x:,}" if x == y else f"{name} {x:,} in A and {y:,} in B"
    return "event"


def _seeds(pair: MatchedEvent) -> list[str]:
    seeds = pair.event_a.evidence("seed"), pair.event_b.evidence("seed")
    if None in seeds:
        return []
    if seeds[0] == seeds[1]:
        return ["it was reset without a seed" if seeds[0] == NONE else f"its seed is {seeds[0]} on both sides"]
    words = ["no seed" if seed == NONE else f"seed {seed}" for seed in seeds]
    return [f"it was reset with {words[0]} in A and {words[1]} in B"]


def _generators(pair: MatchedEvent) -> list[str]:
    """How they stood before the event, those that nobody has touched aside."""
    equal: list[str] = []
    other: list[str] = []
    for name in GENERATORS:
        a, b = pair.event_a.evidence(name), pair.event_b.evidence(name)
        if a and b:
            (equal if a == b else other).append(name.removesuffix(" generator"))
    told = []
    if other:
        told.append(f"{_whose(other)} had another state before it")
    if equal:
        told.append(f"{_whose(equal)} had equal states before it" if not other else f"{_whose(equal)} equal ones")
    return told


def _whose(names: list[str]) -> str:
    """``the environment's own generator and Python's``."""
    words = ["the environment's own generator" if name == "own" else f"{name}'s" for name in names]
    if "own" not in names:
        words[0] += " generator"
    return _and(words)


def _and(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# --- seeded -----------------------------------------------------------------------------------------------------------
#
# What stands behind data that differs and that no op made: how spaces were seeded, how an environment was made.
#
# Owns the sentences. A space that nobody seeded seeds itself, with another seed in every run; then no generator that
# people think of stands elsewhere, and the actions that are sampled from it differ. Nothing is decided here.


ACTIONS, ANY = "action space", "a space"
SPACES = (ACTIONS, "observation space", ANY)
MADE = ("environment", "vector environment")

KINDS = (Kind.SEED, Kind.ENVIRONMENT_MADE, Kind.ENVIRONMENT_RESET)


def behind(scene: DiffContext, end: int, end_b: int | None, about: EventPair | None) -> list[str]:
    """Sentences, without a capital and a full stop. ``about``: the event that is named, which is at ``end``; None: an
    op took in what differs."""
    if not any(_may_tell(view) for view in (scene.a, scene.b)):
        return []
    try:
        return sentences(list(events_before(scene, end, end_b, bool, kinds=KINDS)), about)
    except HoleError:
        return []


def sentences(pairs: Sequence[MatchedEvent], about: MatchedEvent | None) -> list[str]:
    """The same of what was seeded, made and reset before it, the last first."""
    made = _made_of(about, pairs)
    told = [_made(pair) for pair in pairs if made is not None and _made_number(pair) == made and pair.differs]
    if about is None or "action" in about.differs:
        told += _of_spaces((ACTIONS, ANY), pairs, made)
    elif about.event_a.evidence("reset") is not None or about.event_a.evidence("step") is not None:
        told += _of_spaces(SPACES[1:], pairs, made)
    return told


def _may_tell(view: StreamView) -> bool:
    """Whether anything in the trace was seeded or made; asked of a table, so that no row is read in vain."""
    names = (*SPACES, *MADE)
    payloads = view.process.tables["scalars"].payloads
    return any(isinstance(entry, list) and entry[:1] and entry[0] in names for entry in payloads)


def _made_number(pair: MatchedEvent) -> tuple[int | None, int | None]:
    return pair.event_a.evidence("made"), pair.event_b.evidence("made")


def _made_of(about: MatchedEvent | None, pairs: Sequence[MatchedEvent]) -> tuple[int | None, int | None] | None:
    """How manieth environment of its process the event's is, which its resets tell; None: not known."""
    if about is None:
        return None
    of_it = (p for p in (about, *pairs) if p.event_a.what == about.event_a.what and _made_number(p)[0] is not None)
    found = next((_made_number(pair) for pair in of_it), None)
    return found if found and all(found) else None


def _of_spaces(
    names: tuple[str, ...], pairs: Sequence[MatchedEvent], made: tuple[int | None, int | None] | None
) -> Iterator[str]:
    """Of the space that was seeded last, that of the environment itself where there is one."""
    seeds = [pair for pair in pairs if pair.event_a.what in names and pair.event_a.what == pair.event_b.what]
    own = [pair for pair in seeds if made is not None and _made_number(pair) == made]
    for pair in (own or seeds)[:1]:
        words = _seeding(pair)
        if words:
            yield words


def _seeding(pair: MatchedEvent) -> str | None:
    whose = f"the {pair.event_a.what.removeprefix('a ')} of {pair.module}" if pair.module else pair.event_a.what
    seeds = pair.event_a.evidence("seed"), pair.event_b.evidence("seed")
    if pair.differs:
        words = ["no seed" if seed == NONE else f"seed {seed}" for seed in seeds]
        return f"{whose} was given {words[0]} in A and {words[1]} in B{_seeded_at(pair)}"
    if seeds == (NONE, NONE) and pair.event_a.evidence("state") != pair.event_b.evidence("state"):
        return f"{whose} was not seeded{_seeded_at(pair)}: it seeded itself, differently in each run"
    return None


def _made(pair: MatchedEvent) -> str:
    return f"it was made with different arguments{_seeded_at(pair)}"


def _seeded_at(pair: MatchedEvent) -> str:
    return f" at {pair.place}" if pair.place else ""


# --- boundaries -------------------------------------------------------------------------------------------------------


FROM_OUTSIDE = {Cause.OUTSIDE, Cause.CONTROL_FLOW, Cause.ARGUMENTS, Cause.UNTRACKED_WRITE, Cause.ENDED}
"""Causes that what came in at an event can be behind."""

E = TypeVar("E", bound=MatchedEvent)


class EnvironmentEvents(NamedTuple, Generic[E]):
    """What the matched events of one environment show, from one of them to another."""

    all_differ: bool
    seeded: bool
    """It was reset with one seed on both sides."""
    open: E | None
    """The first of those at its end that all differ; None: the last one is equal."""
    passing: E | None = None
    """The first that differed before others were equal again, and that no seed came after."""

    def then(self, later: EnvironmentEvents[E]) -> EnvironmentEvents[E]:
        """With the events that follow."""
        passing = None if later.seeded else self.passing or (None if later.all_differ else self.open)
        return EnvironmentEvents(
            self.all_differ and later.all_differ,
            self.seeded or later.seeded,
            (self.open or later.open) if later.all_differ else later.open,
            passing or later.passing,
        )


@dataclass
class EventTracker(Generic[E]):
    """The matched events before a difference: added in their order while a program runs, or from the last one back.

    What differs in all that an environment tells from some event on, up to the difference, has its origin there. A
    single event that differs may have been put into a replay buffer and taken out much later; but not one that a seeded
    reset came after, before which nobody cared, nor where NumPy's or Python's generator stood elsewhere: then other
    parts of the same data may have been taken out.
    """

    environments: dict[str, EnvironmentEvents[E]] = field(default_factory=dict)
    others_alike: bool | None = None
    """Python's and NumPy's generators, at the last event; None: there is none."""

    @property
    def is_open(self) -> bool:
        """Whether all events of an environment differ."""
        return any(known.all_differ for known in self.environments.values())

    def add(self, pair: E, *, differs: bool, earlier: bool = False) -> None:
        """The next event; ``earlier``: the one before all that were added."""
        what = pair.event_a.what
        one = EnvironmentEvents(differs, pair.is_seeded, pair if differs else None)
        known = self.environments.get(what)
        self.environments[what] = one if known is None else one.then(known) if earlier else known.then(one)
        if not earlier or self.others_alike is None:
            self.others_alike = pair.others_alike

    def origin(self, cause: Cause, oldest: int = 0) -> tuple[E | None, bool]:
        """The event that a difference goes back to, and whether all differ from there on.

        ``oldest``: row before which a single event is too far away.
        """
        known = self.environments.values()
        lasting = [events.open for events in known if events.open is not None]
        if lasting:
            return min(lasting, key=_row), True
        single = [events.passing for events in known if events.passing is not None and events.passing.row >= oldest]
        if single and cause is Cause.OUTSIDE and self.others_alike:
            return min(single, key=_row), False
        return None, True


def _row(pair: MatchedEvent) -> int:
    return pair.row


def taken_in(a: RowAt, b: RowAt) -> set[tuple[int, int]]:
    """Digests, of A and B, of what an op took in from outside and what differs."""
    return {
        (x.digest, y.digest)
        for x, y in zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False)
        if x.digest is not None and y.digest is not None and x.digest != y.digest
        if Origin.OUTSIDE in (x.distance, y.distance)
    }


def event_judgement(
    pair: MatchedEvent, extra: tuple[str, Event] | None, behind: Iterable[str], result: Iterable[str], *, lasts: bool
) -> Judgement:
    """Of a difference that goes back to an event.

    ``extra``: the side that alone has another event of this environment right before it, and that event; ``behind``:
    what else is known of it; ``result``: the first op that differs because of it.
    """
    if extra is not None:
        words = [one_sided_because(*extra, pair), *result]
        return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, "; ".join(words))
    words = [*because(pair, behind, lasts=lasts), *result]
    return Judgement(Cause.OUTSIDE, InputsMatch.UNKNOWN, "; ".join(words))


def came_in(scene: DiffContext, finding: Finding, looked_at: int, first: int | None) -> Finding | None:
    """The finding at the event that ``finding`` goes back to; None where there is none.

    ``looked_at``: rows of A up to which the matching is known. ``first``: the first marked row that differs, where the
    streams are in step up to the finding.
    """
    if finding.cause not in FROM_OUTSIDE:
        return None
    try:
        found, lasts = _origin(scene, finding, looked_at, first)
        return None if found is None else _finding(scene, found, finding, lasts=lasts)
    except HoleError:
        return None


def with_what_is_behind(scene: DiffContext, finding: Finding) -> Finding:
    """A difference that came in from outside, and through no event: with how the spaces were seeded before it."""
    if finding.cause is not Cause.OUTSIDE or finding.a_index is None:
        return finding
    told = behind(scene, finding.a_index, finding.b_index, None)
    return replace(finding, explanation="; ".join([finding.explanation, *told])) if told else finding


def _origin(scene: DiffContext, finding: Finding, looked_at: int, first: int | None) -> tuple[EventPair | None, bool]:
    """From a difference back over the events before it: the last that brought in the very bytes, or else which one."""
    a, b = finding.a_index, finding.b_index
    other_bytes = set() if a is None or b is None else taken_in(row_at(scene.a, a), row_at(scene.b, b))
    end = looked_at if a is None else min(looked_at, a)
    events: EventTracker[EventPair] = EventTracker()
    for pair in events_before(scene, end, b, lambda: events.is_open):
        differs = pair.differs
        if differs and other_bytes & pair.brought(differs):
            return pair, True
        events.add(pair, differs=bool(differs), earlier=True)
    found, lasts = events.origin(finding.cause)
    if found is not None or finding.cause is not Cause.OUTSIDE or first is None:
        return found, lasts
    if first >= end - FAR or events.others_alike is False:
        return None, lasts
    # the first row that differs at all, further back than was looked: an event that no seed undid later
    later = list(events_before(scene, min(first + FAR, end), b, bool, down_to=first))
    far = next((p for p in later if p.a.index == first), None)
    undone = far is not None and any(p.is_seeded and p.event_a.what == far.event_a.what for p in later)
    return (None, lasts) if undone else (far, False)


def _finding(scene: DiffContext, pair: EventPair, later: Finding, *, lasts: bool) -> Finding:
    alone = _extra_event(scene, pair) if lasts else None
    count = Pair(_count(pair.event_a), _count(pair.event_b))
    boundary = Boundary(pair.event_a.what, pair.a.module or None, count, (), later)
    if alone is not None:
        side, row = alone
        decided = event_judgement(pair, (side, event_at(row)), (), _first_op(later), lasts=lasts)
        a, b = (row, None) if side == "A" else (None, row)
        return make_finding(a, b, decided, min(later.identical_before, row.index), boundary=boundary)
    told = behind(scene, pair.a.index, pair.b.index, pair)
    decided = event_judgement(pair, None, told, _first_op(later), lasts=lasts)
    events = pair.event_a, pair.event_b
    cells = tuple(NamedDifference(name, *(_text(event, name) for event in events)) for name in pair.differs)
    before = min(later.identical_before, pair.a.index)
    return make_finding(pair.a, pair.b, decided, before, boundary=replace(boundary, cells=cells))


def _first_op(later: Finding) -> list[str]:
    row = later.a_index if later.a_index is not None else later.b_index
    return [] if later.op is None or row is None else [because_of_it(later.op, later.site, row)]


def _extra_event(scene: DiffContext, pair: EventPair) -> tuple[str, RowAt] | None:
    """An event of this environment that one side alone has, right before the first that differs."""
    before = next((p for p in events_before(scene, pair.a.index, pair.b.index, bool) if _is_of(p, pair)), None)
    if before is None:
        return None
    for side, view, start, stop in (
        ("A", scene.a, before.a.index + 1, pair.a.index),
        ("B", scene.b, before.b.index + 1, pair.b.index),
    ):
        row = _event_between(view, start, stop, pair.event_a.what)
        if row is not None:
            return side, row
    return None


def _is_of(other: EventPair, pair: EventPair) -> bool:
    return other.event_a.what == pair.event_a.what


def _event_between(view: StreamView, start: int, stop: int, what: str) -> RowAt | None:
    if start >= stop or stop - start > FAR:
        return None
    rows = view.read(start, stop).rows
    for place in np.flatnonzero(np.isin(rows.column(Column.KIND), TOLD)).tolist():
        row = RowAt(view, rows, place)
        if event_at(row).what == what:
            return row
    return None


def _count(event: Event) -> int | None:
    return event.evidence("step") or event.evidence("reset")


def _text(event: Event, name: str) -> str | None:
    cell = event.compared.get(name)
    return None if cell is None else cell.text
