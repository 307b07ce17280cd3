"""Events that differ, and the event that a difference of values goes back to.

What an environment returned matters only where an op reads it: an environment that is reset once without a seed, to
get the shape of an observation, differs in every run and changes nothing. So events alone decide no verdict. Outside
data that differs goes back to the event with these very bytes; else to the event from which on all events of an
environment differ.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt, make_finding, row_at
from rltrace.diff.base.model import Cause, Finding, FindingEvent, InputsMatch, NamedDifference, Pair
from rltrace.diff.base.view import StreamView, is_shifted
from rltrace.errors import HoleError
from rltrace.trace.format.events import (
    FLOAT,
    GENERATOR,
    INTEGER,
    NONE,
    SEPARATOR,
    WRAPPERS,
    Event,
    event_of,
    words_further,
)
from rltrace.trace.format.schema import UNTOUCHED, Column, Kind, Origin
from rltrace.trace.read.names import Site
from rltrace.wording import counted, joined

# --- event pairs ------------------------------------------------------------------------------------------------------
#
# Matched events, read backwards from a place in two matched streams.


OWN = "own generator"
STATES = ("Python state", "NumPy state")
BEFORE_4_6 = ("Python generator", "NumPy generator")
"""Evidence cells of environment events: RNG states before them; the last two are those of older traces."""

OF_ENVIRONMENTS = (Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP)

INPUT_EVENTS = (*OF_ENVIRONMENTS, Kind.CHECKPOINT)
"""Events through which outside data enters."""

CHUNK_ROWS = 1 << 14
"""Rows that are read at a time, backwards from the difference."""

MAX_ROWS_BACK, MAX_ROWS_BACK_OPEN = 1 << 17, 1 << 21
"""Rows that are searched backwards at most; the second limit while all events of an environment differ."""


@dataclass(frozen=True)
class EventPair:
    """An event of both traces."""

    a: RowAt
    b: RowAt
    event_a: Event
    event_b: Event

    @property
    def row(self) -> int:
        """A's."""
        return self.a.index

    @property
    def op(self) -> str:
        """``environment-step``."""
        return self.a.op

    @property
    def module(self) -> str:
        """Its owner: the class of an environment, for example."""
        return self.a.module

    @property
    def place(self) -> str:
        """Call site in B, ``train.py:12``; "" where it is not known."""
        return f"{self.b.stack[0].file}:{self.b.stack[0].line}" if self.b.stack else ""

    @property
    def differs(self) -> tuple[str, ...]:
        """Names of the cells that both have and that differ."""
        cells_a, cells_b = self.event_a.compared, self.event_b.compared
        return tuple(name for name, cell in cells_a.items() if name in cells_b and not _same(cell, cells_b[name]))

    @property
    def is_seeded(self) -> bool:
        """Whether it is a reset with one seed on both sides."""
        seeds = self.event_a.evidence("seed"), self.event_b.evidence("seed")
        return seeds[0] == seeds[1] and seeds[0] not in (None, NONE)

    @property
    def is_seeded_differently(self) -> bool:
        """Whether it is a reset with another seed in B."""
        seeds = self.event_a.evidence("seed"), self.event_b.evidence("seed")
        return None not in seeds and seeds[0] != seeds[1]

    @property
    def shared_generators_equal(self) -> bool:
        """Whether the states of Python's and NumPy's generators were equal before it."""
        return all(self.event_a.evidence(name) == self.event_b.evidence(name) for name in (*STATES, *BEFORE_4_6))

    @property
    def components(self) -> tuple[NamedDifference, ...]:
        """The numbers that differ in its small fields, by field and component."""
        return tuple(found for name in self.differs for found in _components(self, name))

    def differing_digests(self, differs: Collection[str]) -> set[tuple[int, int]]:
        """Digests of A and B in these cells."""
        cells_a, cells_b = self.event_a.compared, self.event_b.compared
        return {(int(cells_a[name].value), int(cells_b[name].value)) for name in differs}


def event_at(row: RowAt) -> Event:
    return event_of(row.rows, row.place, row.view.skeleton(row.rows, row.place))


def events_before(
    context: DiffContext,
    end: int,
    end_b: int | None,
    is_open: Callable[[], bool],
    down_to: int = 0,
    kinds: Collection[Kind] = INPUT_EVENTS,
) -> Iterator[EventPair]:
    """Pairs of events before row ``end`` of A and ``end_b`` of B, the last first."""
    stop = end
    while stop > down_to and end - stop < (MAX_ROWS_BACK_OPEN if is_open() else MAX_ROWS_BACK):
        start = max(stop - CHUNK_ROWS, down_to)
        rows = context.a.read(start, stop).rows
        for place in np.flatnonzero(np.isin(rows.column(Column.KIND), list(kinds)))[::-1].tolist():
            partner = context.matching.partner(start + place)
            if partner is None or (end_b is not None and partner >= end_b) or partner >= context.b.rows:
                continue
            a, b = RowAt(context.a, rows, place), row_at(context.b, partner)
            if a.op == b.op:
                yield EventPair(a, b, event_at(a), event_at(b))
        stop = start


def _components(pair: EventPair, name: str) -> Iterator[NamedDifference]:
    """The components of one field that differ; none where its value was not recorded on both sides."""
    a, b = (event.recorded.get(name) for event in (pair.event_a, pair.event_b))
    if a is None or b is None or a.shape != b.shape:
        cells = pair.event_a.compared[name], pair.event_b.compared[name]
        if cells[0].letter in (INTEGER, FLOAT):
            yield NamedDifference(name, *(cell.text for cell in cells))
        return
    sizes = "×".join(map(str, a.shape))
    for place, (x, y) in zip(np.ndindex(a.shape), zip(a.elements, b.elements, strict=True), strict=True):
        if not _same(x, y):
            at = ", ".join(map(str, place))
            which = f"{name}, component {f'({at})' if len(place) > 1 else at} of {sizes}" if place else name
            yield NamedDifference(which, repr(x), repr(y))


def _same(x: object, y: object) -> bool:
    return repr(x) == repr(y)  # NaN equals NaN


# --- event text -------------------------------------------------------------------------------------------------------
#
# Clauses on an event that differs: its action, its results, and the RNG states before it.


ACTION: Final = "action"


def event_text_parts(pair: EventPair, seeding_notes: Iterable[str], *, persists: bool) -> list[str]:
    """``environment 3 (Hopper-v5) returned another observation at its step 812, given the same action``, and so on.

    ``persists``: all later events of this environment differ as well.
    """
    notes = list(seeding_notes)
    parts = [_what_differs(pair), *_numbers(pair), *_seeds(pair), *_generators(pair)]
    parts = [*notes, *parts] if _given_in(pair.differs) else [*parts, *notes]  # an action comes from a space
    return parts if persists else [*parts, "later events were equal again"]


def first_op_text(op: str, site: Site | None, row: int) -> str:
    """A clause on the first op that differs."""
    at = f" at {site.file}:{site.line}" if site else ""
    return f"{op}{at} (row {row:,}) is the first op that differs as a result"


def extra_event_text(side: str, event: Event, pair: EventPair) -> str:
    """A clause on an event that only one side has."""
    other = "B" if side == "A" else "A"
    verb = "steps" if event.evidence("step") is not None else "resets"
    seed = event.evidence("seed")
    seeded = f" with seed {seed}" if seed is not None and seed < SEVERAL else ""
    followed_by = _at(pair.event_a, pair.event_b)
    did = f"only {side} {verb} {_name(pair)}{seeded} here, {other} does not"
    return f"{did}; from its {followed_by} on all its events differ"


def _given_in(names: Iterable[str]) -> list[str]:
    """Those that are the action, or entries of one that is a dictionary."""
    return [name for name in names if name.partition(".")[0] == ACTION]


def _what_differs(pair: EventPair) -> str:
    given = _given_in(pair.differs)
    returned = [name for name in pair.differs if name not in given and not name.startswith("of ")]
    inside = [name.removeprefix("of ") for name in pair.differs if name.startswith("of ")]
    at = _at(pair.event_a, pair.event_b)
    if pair.op == "checkpoint":
        return f"what {pair.event_a.what} loaded differs{_entries_text(pair)}"
    more = f"; it is what its environment{'s' if len(inside) > 1 else ''} {joined(inside)} returned" if inside else ""
    if given:
        text = f"{_name(pair)} was given another {joined(given)} at its {at}, though no op before it differs"
        return text + (f"; it returned another {joined(returned)}{more}" if returned else "")
    if pair.is_seeded_differently:
        text = f"{_name(pair)} was reset with {_seed_words(pair)} at its {at}"
        return text + (f"; it returned another {joined(returned)}{more}" if returned else "")
    same = ", given the same action" if _given_in(pair.event_a.compared) else ""
    return f"{_name(pair)} returned another {joined(returned or ['result'])} at its {at}{same}{more}"


def _entries_text(pair: EventPair) -> str:
    """`` in optimizer.state.0.exp_avg and 2 more of its 14 entries``; "" where no entry was recorded on both sides."""
    a, b = pair.event_a.texts, pair.event_b.texts
    names = dict.fromkeys([*a, *b]) if a and b else {}
    found = [
        name if name in a and name in b else f"{name} (only in {'A' if name in a else 'B'})"
        for name in names
        if a.get(name) != b.get(name)
    ]
    more = f" and {len(found) - MAX_SHOWN:,} more" if len(found) > MAX_SHOWN else ""
    return f" in {', '.join(found[:MAX_SHOWN])}{more} of its {counted(len(names), 'entry', 'entries')}" if found else ""


MAX_SHOWN = 3
"""Entries of a checkpoint that are named."""


def _numbers(pair: EventPair) -> Iterator[str]:
    """``its observation, component 2 of 4, is 0.0601 in A and 0.0602 in B, and 3 more numbers differ``."""
    first, *others = pair.components or (None,)
    if first is not None:
        comma = "," if "," in first.name else ""
        more = counted(len(others), "more number") + (" differs" if len(others) == 1 else " differ")
        yield f"its {first.name}{comma} is {first.a} in A and {first.b} in B" + (f", and {more}" if others else "")


def _name(pair: EventPair) -> str:
    return f"{pair.event_a.what} ({pair.module})" if pair.module else pair.event_a.what


def _at(a: Event, b: Event) -> str:
    """``step 812``; both numbers where the sides count differently."""
    for name in ("step", "reset"):
        x, y = a.evidence(name), b.evidence(name)
        if x is not None and y is not None:
            return f"{name} {x:,}" if x == y else f"{name} {x:,} in A and {y:,} in B"
    return "event"


def _seeds(pair: EventPair) -> list[str]:
    seed = pair.event_a.evidence("seed")
    if seed is None or seed != pair.event_b.evidence("seed"):
        return []
    return ["it was reset without a seed" if seed == NONE else f"its seed is {seed} on both sides"]


SEVERAL = 1 << 48
"""Seeds of several environments are recorded as one number, a digest; no smaller one is taken for that."""


def _seed_words(pair: EventPair) -> str:
    """``seed 0 in A and no seed in B``."""
    seeds = pair.event_a.evidence("seed"), pair.event_b.evidence("seed")
    if all(seed is not None and SEVERAL <= seed != NONE for seed in seeds):
        return "other seeds in B than in A"
    words = ["no seed" if seed == NONE else f"seed {seed}" for seed in seeds]
    return f"{words[0]} in A and {words[1]} in B"


def _generators(pair: EventPair) -> list[str]:
    """RNG states before the event, those of untouched generators left out."""
    equal: list[str] = []
    other: list[str] = []
    for name in (OWN, *STATES, *BEFORE_4_6):
        a, b = pair.event_a.evidence(name), pair.event_b.evidence(name)
        if a and b and not a == b == UNTOUCHED:
            (equal if a == b else other).append(name.partition(" ")[0])
    texts = []
    if other:
        texts.append(f"{_owners(other)} had another state before it")
    if equal:
        texts.append(f"{_owners(equal)} had equal states before it" if not other else f"{_owners(equal)} equal ones")
    return texts


def _owners(names: list[str]) -> str:
    """``the environment's own generator and Python's``."""
    words = ["the environment's own generator" if name == "own" else f"{name}'s" for name in names]
    if "own" not in names:
        words[0] += " generator"
    return joined(words)


# --- seeding ----------------------------------------------------------------------------------------------------------
#
# Clauses on how spaces were seeded and environments constructed, where outside data differs. An unseeded space seeds
# itself, differently in every run, so the actions sampled from it differ though all other RNG states are equal.


ACTIONS, ANY = "action space", "a space"
SPACES = (ACTIONS, "observation space", ANY)
ENVIRONMENTS = ("environment", "vector environment")

SEEDING_EVENTS = (Kind.SEED, Kind.ENVIRONMENT_MADE, Kind.ENVIRONMENT_RESET)


GIVEN, OTHERWISE = "was given", "was drawn from, or seeded, otherwise"


class SeedingNotes(NamedTuple):
    """Clauses on what was done otherwise before a difference of outside data."""

    texts: list[str]
    made: tuple[str, ...] = ()
    """Those on environments that were made otherwise, with their names."""


def seeding_notes(context: DiffContext, end: int, end_b: int | None, about: EventPair | None) -> SeedingNotes:
    """Clauses on seeding before row ``end``; ``about``: the event at ``end`` that differs; None: it is an op."""
    has_seeding = any(_has_seeding(view) for view in (context.a, context.b))
    try:
        texts = otherwise_drawn_texts(chain(filter(None, [about]), events_before(context, end, end_b, bool)))
        if context.a.shortcuts.bisection and not has_seeding:
            return SeedingNotes(texts)
        pairs = list(events_before(context, end, end_b, bool, kinds=SEEDING_EVENTS))
        made = tuple(made_texts(pairs, about, named=True))
        return SeedingNotes([*seeding_texts(pairs, about), *texts], made)
    except HoleError:
        return SeedingNotes([])


def otherwise_drawn_texts(pairs: Iterable[EventPair]) -> list[str]:
    """The clause on the two events between which Python's or NumPy's generator came into another state on one side;
    ``pairs``: the last first."""
    later: EventPair | None = None
    for pair in pairs:
        if pair.shared_generators_equal and later is not None:
            evidence_a, evidence_b = later.event_a.evidence, later.event_b.evidence
            states = [(name, evidence_a(name), evidence_b(name)) for name in (*STATES, *BEFORE_4_6)]
            names = [name.partition(" ")[0] for name, a, b in states if a != b]
            places = [
                f"row {each.row:,} ({each.event_a.what}, {_at(each.event_a, each.event_b)})" for each in (pair, later)
            ]
            further = [_further(name, a, b) for name, a, b in states if a and b and name in STATES]
            return [f"{_owners(names)} {OTHERWISE} between {' and '.join(places)}{''.join(further)}"]
        if pair.shared_generators_equal:
            break
        later = pair
    return []


def _further(name: str, a: int, b: int) -> str:
    """``; there NumPy's generator is 6 words further on in B``; "" where the words may be others."""
    words = words_further(a, b) or 0
    side = "B" if words > 0 else "A"
    owner = _owners([name.partition(" ")[0]])
    return f"; there {owner} is {counted(abs(words), 'word')} further on in {side}" if words else ""


def seeding_texts(pairs: Sequence[EventPair], about: EventPair | None) -> list[str]:
    """Clauses on seeding from the seeding, construction and reset events before ``about``, the last first."""
    number = _environment_number(about, pairs)
    texts = made_texts(pairs, about)
    if about is None or _given_in(about.differs):
        texts += _of_spaces((ACTIONS, ANY), pairs, number)
    elif about.event_a.evidence("reset") is not None or about.event_a.evidence("step") is not None:
        texts += _of_spaces(SPACES[1:], pairs, number)
    return [*texts, *_of_generators(pairs)]


def _of_generators(pairs: Sequence[EventPair]) -> list[str]:
    """Clauses on generators that the program made for itself and seeded otherwise, and the last that it did not."""
    made = [pair for pair in pairs if pair.event_a.what == pair.event_b.what == GENERATOR]
    given = [pair for pair in made if pair.differs]
    texts = dict.fromkeys(filter(None, map(_seeding, given or made)))
    return list(texts)[: MAX_MADE if given else 1]


def _has_seeding(view: StreamView) -> bool:
    """Whether the trace has such events, by a table alone, so that no row is read in vain."""
    names = (*SPACES, *ENVIRONMENTS, GENERATOR)
    payloads = view.process.tables["scalars"].payloads
    return any(isinstance(entry, list) and entry[:1] and entry[0] in names for entry in payloads)


def _number(pair: EventPair) -> tuple[int | None, int | None]:
    return pair.event_a.evidence("made"), pair.event_b.evidence("made")


def _environment_number(about: EventPair | None, pairs: Sequence[EventPair]) -> tuple[int | None, int | None] | None:
    """Construction numbers, in A and B, of the environment of an event, as its resets record them; None: not known."""
    if about is None:
        return None
    events = (p for p in (about, *pairs) if p.event_a.what == about.event_a.what and _number(p)[0] is not None)
    found = next((_number(pair) for pair in events), None)
    return found if found and all(found) else None


def _of_spaces(
    names: tuple[str, ...], pairs: Sequence[EventPair], number: tuple[int | None, int | None] | None
) -> Iterator[str]:
    """The clause on the space that was seeded last, preferably one of this environment, or of a vector of it."""
    seeds = [pair for pair in pairs if pair.event_a.what in names and pair.event_a.what == pair.event_b.what]
    own = [pair for pair in seeds if number is not None and _number(pair) == number]
    vectors = [_number(pair) for pair in pairs if pair.event_a.what == ENVIRONMENTS[1]]
    of_vectors = [pair for pair in seeds if _number(pair) in vectors]
    texts = (_seeding(pair) for pair in [*own[:1], *of_vectors] or seeds[:1])
    yield from list(filter(None, texts))[:1]


def _seeding(pair: EventPair) -> str | None:
    whose = f"the {pair.event_a.what.removeprefix('a ')} of {pair.module}" if pair.module else pair.event_a.what
    seeds = pair.event_a.evidence("seed"), pair.event_b.evidence("seed")
    if pair.differs:
        return f"{whose} {GIVEN} {_seed_words(pair)}{_seeded_at(pair)}"
    if seeds == (NONE, NONE) and pair.event_a.evidence("state") != pair.event_b.evidence("state"):
        return f"{whose} was not seeded{_seeded_at(pair)}, so what was drawn from it, if anything, differs in each run"
    return None


def made_texts(pairs: Sequence[EventPair], about: EventPair | None, *, named: bool = False) -> list[str]:
    """Clauses on how the environment of an event was made and wrapped, where that differs; ``named``: never as it."""
    return [*_argument_texts(pairs, about, named=named), *_wrapper_texts(pairs, about)]


def _argument_texts(pairs: Sequence[EventPair], about: EventPair | None, *, named: bool) -> Iterator[str]:
    """Clauses on what was made with different arguments: this environment, vectors, or where none is at fault any."""
    number = _environment_number(about, pairs)
    made = [pair for pair in pairs if pair.event_a.what in ENVIRONMENTS and pair.differs]
    found = [p for p in made if about is None or _number(p) == number or p.event_a.what != ENVIRONMENTS[0]]
    for pair in found[:MAX_MADE]:
        own = number is not None and _number(pair) == number and not named
        whose = "it" if own else f"the {pair.event_a.what} {pair.module}"
        yield f"{whose} was made with different arguments{_seeded_at(pair)}{_differing_texts(pair)}"


MAX_MADE = 2
"""Environments of which the arguments are shown."""


def _differing_texts(pair: EventPair) -> str:
    """``: autoreset_mode: NextStep | SameStep``; "" where no text differs."""
    a, b = pair.event_a.texts, pair.event_b.texts
    differing = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    shown = [f"{name}: {a.get(name, '(none)')} | {b.get(name, '(none)')}" for name in differing]
    return f" ({', '.join(shown)})" if shown else ""


def _wrapper_texts(pairs: Sequence[EventPair], about: EventPair | None) -> Iterator[str]:
    """The clause on other wrappers of this environment, or of any where no environment is at fault."""
    for pair in pairs if about is None else (about, *pairs):
        if about is not None and pair.event_a.what != about.event_a.what:
            continue
        sides = [event.texts.get(WRAPPERS, "").split(SEPARATOR) for event in (pair.event_a, pair.event_b)]
        only = [[name for name in own if name and name not in other] for own, other in (sides, sides[::-1])]
        if sides[0] != sides[1]:
            words = [f"{' and '.join(names)} in {side}" for names, side in zip(only, "AB", strict=True) if names]
            which = ", ".join(words) or "the same in another order"
            yield f"{_name(pair)} has other wrappers: {which}"
            return


def _seeded_at(pair: EventPair) -> str:
    return f" at {pair.place}" if pair.place else ""


# --- tracing back -----------------------------------------------------------------------------------------------------


FROM_OUTSIDE = {Cause.OUTSIDE, Cause.CONTROL_FLOW, Cause.ARGUMENTS, Cause.UNTRACKED_WRITE, Cause.ENDED}
"""Causes that an earlier event can explain."""


@dataclass
class _Run:
    """The last events of an environment that have one field, as far as they differ in it."""

    newest: int
    """Seeded resets after the last of them."""
    first: EventPair | None = None
    """The first of them; None: the last event with this field is equal."""
    is_open: bool = True
    """Whether all of them so far differ."""
    spans: bool = False
    """Whether a seeded reset lies between them: what differs does not come from the state that it sets."""

    @property
    def lasts(self) -> bool:
        """Whether what differs there may have reached the end, whatever seeded resets lie between."""
        return self.first is not None and (self.newest == 0 or self.spans)


ANY_FIELD = ""
"""The field of the run of all events of an environment that differ in any field."""


@dataclass
class _Environment:
    """The last events of one environment."""

    runs: dict[str, _Run] = field(default_factory=dict)
    """By field."""
    seeded: int = 0
    """Resets with one seed on both sides."""
    passing: EventPair | None = None
    """The first event that differs although a later one is equal, with no seeded reset after it."""

    def add(self, pair: EventPair, differs: Collection[str]) -> None:
        """Add the event before all added ones; ``differs``: its fields that differ."""
        every = self.runs.setdefault(ANY_FIELD, _Run(0))
        if differs and not every.is_open and not self.seeded:
            self.passing = pair
        for name in (*pair.event_a.compared, ANY_FIELD):
            run = self.runs.setdefault(name, _Run(self.seeded))
            if not run.is_open:
                continue
            if name in differs or (name == ANY_FIELD and differs):
                run.first, run.spans = pair, run.spans or self.seeded > run.newest
            elif run.first is None or not pair.is_seeded_differently:
                run.is_open = False
        for run in self.runs.values() if pair.is_seeded_differently else ():
            if run.is_open and run.first is not None:
                run.first = pair
        self.seeded += pair.is_seeded


@dataclass
class EventTracker:
    """The matched events before a difference, added backwards.

    If all events of an environment differ from one on, up to the difference, that one is the origin; so it is where all
    that have a field differ in it, as a reward that a wrapper scales does in every episode. A single event that differs
    may have gone into a replay buffer and been sampled much later, unless a seeded reset followed it, or the state of
    NumPy's or Python's generator differs: then other parts of equal data may have been sampled.
    """

    fields: frozenset[str] | None = None
    """The fields that count; None: all."""
    environments: dict[str, _Environment] = field(default_factory=dict)
    shared_generators_equal: bool | None = None
    """Whether the states of Python's and NumPy's generators are equal at the last event; None: there is no event."""

    @property
    def is_open(self) -> bool:
        """Whether all events of an environment differ, or all that have a field differ in it."""
        return any(run.is_open and run.first is not None for run in self._runs())

    def begin_again(self, fields: frozenset[str]) -> None:
        """Forget the added events; only ``fields`` count from now on."""
        self.fields = fields
        self.environments.clear()

    def add(self, pair: EventPair, differs: Collection[str]) -> None:
        """Add the event before all added ones; ``differs``: its fields that differ."""
        self.environments.setdefault(pair.event_a.what, _Environment()).add(pair, differs)
        if self.shared_generators_equal is None:
            self.shared_generators_equal = pair.shared_generators_equal

    def origin(self, cause: Cause) -> tuple[EventPair | None, bool]:
        """The event that a difference goes back to (None: there is none), and whether all later ones differ."""
        lasting = [run.first for run in self._runs() if run.lasts and run.first is not None]
        if lasting:
            return min(lasting, key=attrgetter("row")), True
        passing = (known.passing for known in self.environments.values())
        single = [event for event in passing if event is not None]
        if single and cause is Cause.OUTSIDE and self.shared_generators_equal:
            return min(single, key=attrgetter("row")), False
        return None, True

    def _runs(self) -> Iterator[_Run]:
        for known in self.environments.values():
            yield from (run for name, run in known.runs.items() if self.fields is None or name in self.fields)


def outside_digests(a: RowAt, b: RowAt) -> set[tuple[int, int]]:
    """Digests, in A and B, of the outside data of an op that differs."""
    return {
        (x.digest, y.digest)
        for x, y in zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False)
        if x.digest is not None and y.digest is not None and x.digest != y.digest
        if Origin.OUTSIDE in (x.distance, y.distance)
    }


def event_judgement(
    pair: EventPair,
    extra: tuple[str, Event] | None,
    seeding_notes: Iterable[str],
    result: Iterable[str],
    *,
    persists: bool,
) -> Judgement:
    """The cause of a difference that goes back to an event.

    ``extra``: (side, event) of an event of this environment right before it on one side only; ``result``: clauses on
    the first op that differs because of it.
    """
    if extra is not None:
        words = [extra_event_text(*extra, pair), *seeding_notes, *result]
        return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, "; ".join(words))
    words = [*event_text_parts(pair, seeding_notes, persists=persists), *result]
    return Judgement(Cause.OUTSIDE, InputsMatch.UNKNOWN, "; ".join(words))


def trace_to_event(context: DiffContext, finding: Finding, matched_rows: int, first: int | None) -> Finding | None:
    """The finding at the event that ``finding`` goes back to; None: there is none.

    ``matched_rows``: rows of A that are matched. ``first``: the first marked row that differs, where all rows before
    the finding match position by position.
    """
    if finding.cause not in FROM_OUTSIDE:
        return None
    a, b = finding.a_index, finding.b_index
    end = matched_rows if a is None else min(matched_rows, a)
    try:
        bytes_read = set() if a is None or b is None else outside_digests(row_at(context.a, a), row_at(context.b, b))
        found, persists = _origin(context, bytes_read, Pair(end, b), finding.cause, first)
        return None if found is None else _finding(context, found, finding, persists=persists)
    except HoleError:
        return None


def trace_to_sent_event(
    context: DiffContext, finding: Finding, bytes_read: set[tuple[int, int]], ends: Pair[int]
) -> Finding | None:
    """The finding at the event of another stream that ``finding`` goes back to; None: there is none.

    ``bytes_read``: digests, in A and B, of what its op read from outside. ``ends``: how many rows of that stream
    happened before it.
    """
    try:
        found, persists = _origin(context, bytes_read, ends, finding.cause, None)
        return _finding(context, found, finding, persists=persists) if found is not None and persists else None
    except HoleError:
        return None


def event_explanation(context: DiffContext, row: int) -> str | None:
    """How an event of A differs from that of B which it is matched with, and what was seeded or made otherwise before;
    None: it is not known."""
    partner = context.matching.partner(row)
    if partner is None or partner >= context.b.rows:
        return None
    try:
        a, b = row_at(context.a, row), row_at(context.b, partner)
    except HoleError:
        return None
    pair = EventPair(a, b, event_at(a), event_at(b))
    if a.op != b.op or not pair.differs:
        return None
    notes = seeding_notes(context, row, partner, pair)
    return "; ".join(event_text_parts(pair, notes.texts, persists=True))


def add_seeding_causes(context: DiffContext, finding: Finding) -> Finding:
    """Add clauses on seeding to a finding of outside data that goes back to no event."""
    if finding.cause is not Cause.OUTSIDE or finding.a_index is None:
        return finding
    texts, made = seeding_notes(context, finding.a_index, finding.b_index, None)
    one_sided = _one_sided_texts(context, Pair(finding.a_index, finding.b_index))
    first = [text for text in texts if OTHERWISE in text or GIVEN in text]  # before anything that was chosen with it
    words = [*one_sided, *first, finding.explanation, *(text for text in texts if text not in first)]
    return replace(finding, explanation="; ".join(words), made=made) if len(words) > 1 else finding


def _one_sided_texts(context: DiffContext, ends: Pair[int]) -> list[str]:
    """The clause on environments that one side alone steps or resets right before an op: what it reads may come from
    there. Their events are known by their numbers, as a library may make them at another line."""
    if is_shifted(context.a.process, context.b.process):
        return []
    try:
        a, b = (_events_by_name(view, end or 0) for view, end in ((context.a, ends.a), (context.b, ends.b)))
    except HoleError:
        return []
    found = [(name, text) for name in a if name in b and (text := _one_sided_text(a[name], b[name]))]
    others = [name for name, _ in found[1:]]
    more = f", as {'is' if len(others) == 1 else 'are'} {joined(others)}" if others else ""
    return [f"{text}{more}" for _, text in found[:1]]


NamedEvents = list[tuple[str, str, Event]]
"""Of one environment: what it is called, ``step 17``, and the event."""


def _events_by_name(view: StreamView, end: int) -> dict[str, NamedEvents]:
    """The last events of environments before a row, by environment."""
    rows = view.read(max(end - ALIKE_ROWS, view.start), end).rows
    found: dict[str, NamedEvents] = {}
    for place in np.flatnonzero(np.isin(rows.column(Column.KIND), OF_ENVIRONMENTS)).tolist():
        row = RowAt(view, rows, place)
        event = event_at(row)
        name = f"{event.what} ({row.module})" if row.module else event.what
        found.setdefault(event.what, []).append((name, _at(event, event), event))
    return found


def _one_sided_text(a: NamedEvents, b: NamedEvents) -> str:
    """``environment 2 (CartPole-v1) is reset by B only right after its step 17, which ended its episode``; "" where no
    side alone does something after their last common event."""
    common = {at for _, at, _ in a} & {at for _, at, _ in b}
    after = [list(takewhile(lambda own: own[1] not in common, reversed(own)))[::-1] for own in (a, b)]
    if not common or len(after[0]) == len(after[1]) or min(map(len, after)):
        return ""
    side = "AB"[not after[0]]
    name, _, event = next(filter(None, after))[0]
    last = next(own for own in reversed(a) if own[1] in common)
    ended = any(last[2].fields.get(end) == 1 for end in ENDS)
    verb = "stepped" if event.evidence("step") is not None else "reset"
    return f"{name} is {verb} by {side} only right after its {last[1]}" + ", which ended its episode" * ended


ENDS = ("terminated", "truncated", "done")
"""Fields of a step that say whether it ended the episode, where they are numbers."""


def _origin(
    context: DiffContext, other_bytes: set[tuple[int, int]], ends: Pair[int], cause: Cause, first: int | None
) -> tuple[EventPair | None, bool]:
    """The event before ``ends`` that a difference goes back to, and whether later ones differ.

    Where an event has these very bytes, it is the first of the run of differing events that ends with it.
    """
    end, b = ends.a or 0, ends.b
    events = EventTracker()
    exact: EventPair | None = None
    for pair in events_before(context, end, b, lambda: events.is_open):
        differs = pair.differs
        names = frozenset(name for name in differs if other_bytes & pair.differing_digests([name]))
        if exact is None and names:
            exact = pair
            events.begin_again(names)
        if exact is None or pair.event_a.what == exact.event_a.what:
            events.add(pair, differs)
        if exact is not None and not events.is_open:
            break
    found, persists = events.origin(cause)
    if found is not None or cause is not Cause.OUTSIDE or first is None:
        return found, persists
    if first >= end - MAX_ROWS_BACK or events.shared_generators_equal is False:
        return None, persists
    # beyond the search: the first row that differs at all, if it is an event that no seeded reset followed
    later = list(events_before(context, min(first + MAX_ROWS_BACK, end), b, bool, down_to=first))
    oldest_pair = next((p for p in later if p.a.index == first), None)
    reset_later = oldest_pair is not None and any(
        p.is_seeded and p.event_a.what == oldest_pair.event_a.what for p in later
    )
    return (None, persists) if reset_later else (oldest_pair, False)


def _finding(context: DiffContext, pair: EventPair, later: Finding, *, persists: bool) -> Finding:
    extra = _extra_event(context, pair) if persists else None
    count = Pair(_count(pair.event_a), _count(pair.event_b))
    event = FindingEvent(pair.event_a.what, pair.a.module or None, count, (), later)
    if extra is not None:
        side, row = extra
        earlier = list(events_before(context, pair.a.index, pair.b.index, bool, kinds=SEEDING_EVENTS))
        texts = made_texts(earlier, pair)
        decided = event_judgement(
            pair, (side, event_at(row)), texts, _first_op(later, context.a.name), persists=persists
        )
        decided = replace(decided, made=tuple(made_texts(earlier, pair, named=True)))
        a, b = (row, None) if side == "A" else (None, row)
        before = min(later.identical_before, row.index, pair.b.index if side == "A" else pair.a.index)
        return make_finding(a, b, decided, before, event=event)
    notes = seeding_notes(context, pair.a.index, pair.b.index, pair)
    texts = [*_alike_texts(pair), *notes.texts]
    decided = event_judgement(pair, None, texts, _first_op(later, context.a.name), persists=persists)
    decided = replace(decided, made=notes.made)
    events = pair.event_a, pair.event_b
    names = ("seed",) * pair.is_seeded_differently + pair.differs
    cells = tuple(NamedDifference(name, *(_text(event, name) for event in events)) for name in names)
    before = min(later.identical_before, pair.a.index)
    event = replace(event, cells=cells, components=pair.components)
    return make_finding(pair.a, pair.b, decided, before, event=event)


ALIKE_ROWS = 512
"""Rows before and after a reset among which those of other environments are looked for."""


def _alike_texts(pair: EventPair) -> Iterator[str]:
    """The clause on environments that returned the same as this one on one side only, as those with one seed do."""
    found = [_alike(pair.a, pair.event_a), _alike(pair.b, pair.event_b)]
    for side, names, others in (("A", found[0], found[1]), ("B", found[1], found[0])):
        if len(names) > max(len(others), 1):
            yield f"in {side} environments {joined(sorted(names))} returned the same"


def _alike(row: RowAt, event: Event) -> list[int]:
    """Numbers of the environments that returned the same at a reset of this number, those of a vector in this one."""
    seen = event.recorded.get("observation")
    if event.what.startswith("vector"):
        count = seen.shape[0] if seen is not None and seen.shape else 0
        one_by_one = np.reshape(seen.elements, (count, -1)).tolist() if seen is not None and count else []
        return max(([k for k in range(count) if one_by_one[k] == own] for own in one_by_one), key=len, default=[])
    first = max(row.index - ALIKE_ROWS, 0)
    rows = row.view.read(first, min(row.index + ALIKE_ROWS, row.view.rows)).rows
    places = np.flatnonzero(rows.column(Column.KIND) == Kind.ENVIRONMENT_RESET).tolist()
    others = [event_at(RowAt(row.view, rows, at)) for at in places if event.evidence("reset") is not None]
    same = (one for one in others if one.evidence("reset") == event.evidence("reset"))
    return [int(one.what.split()[-1]) for one in same if one.compared == event.compared]


def _first_op(later: Finding, stream: str) -> list[str]:
    row = later.a_index if later.a_index is not None else later.b_index
    if later.op is None or row is None:
        return []
    text = first_op_text(later.op, later.site, row)
    return [text if later.stream == stream else f"in {later.stream}, which received it, {text}"]


def _extra_event(context: DiffContext, pair: EventPair) -> tuple[str, RowAt] | None:
    """(side, row) of an event of this environment on one side only, right before the first that differs."""
    earlier = events_before(context, pair.a.index, pair.b.index, bool)
    before = next((each for each in earlier if each.event_a.what == pair.event_a.what), None)
    starts = (context.a.start, context.b.start) if before is None else (before.a.index + 1, before.b.index + 1)
    ends = zip("AB", (context.a, context.b), starts, (pair.a.index, pair.b.index), strict=True)
    found = [(side, _event_between(view, start, stop, pair.event_a.what)) for side, view, start, stop in ends]
    extra = [(side, row) for side, row in found if row is not None]
    return extra[0] if len(extra) == 1 or (extra and before is not None) else None


def _event_between(view: StreamView, start: int, stop: int, what: str) -> RowAt | None:
    if start >= stop or stop - start > MAX_ROWS_BACK:
        return None
    rows = view.read(start, stop).rows
    for place in np.flatnonzero(np.isin(rows.column(Column.KIND), INPUT_EVENTS)).tolist():
        row = RowAt(view, rows, place)
        if event_at(row).what == what:
            return row
    return None


def _count(event: Event) -> int | None:
    return event.evidence("step") or event.evidence("reset")


def _text(event: Event, name: str) -> str | None:
    return next((cell.text for cell in event.cells if cell.name == name), None)
