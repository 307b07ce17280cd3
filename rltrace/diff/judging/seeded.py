"""What stands behind data that differs and that no op made: how spaces were seeded, how an environment was made.

Owns the sentences. A space that nobody seeded seeds itself, with another seed in every run; then no generator that
people think of stands elsewhere, and the actions that are sampled from it differ. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rltrace.diff.judging.event_pairs import EventPair, Told, events_before
from rltrace.diff.judging.scene import Scene
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.events import NONE
from rltrace.trace.schema import Kind

ACTIONS, ANY = "action space", "a space"
SPACES = (ACTIONS, "observation space", ANY)
MADE = ("environment", "vector environment")

KINDS = (Kind.SEED, Kind.ENVIRONMENT_MADE, Kind.ENVIRONMENT_RESET)


def behind(scene: Scene, end: int, end_b: int | None, about: EventPair | None) -> list[str]:
    """Sentences, without a capital and a full stop. ``about``: the event that is named, which is at ``end``; None: an
    op took in what differs."""
    if not any(_may_tell(view) for view in (scene.a, scene.b)):
        return []
    try:
        return sentences(list(events_before(scene, end, end_b, bool, kinds=KINDS)), about)
    except HoleError:
        return []


def sentences(pairs: Sequence[Told], about: Told | None) -> list[str]:
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


def _made_number(pair: Told) -> tuple[int | None, int | None]:
    return pair.event_a.evidence("made"), pair.event_b.evidence("made")


def _made_of(about: Told | None, pairs: Sequence[Told]) -> tuple[int | None, int | None] | None:
    """How manieth environment of its process the event's is, which its resets tell; None: not known."""
    if about is None:
        return None
    of_it = (p for p in (about, *pairs) if p.event_a.what == about.event_a.what and _made_number(p)[0] is not None)
    found = next((_made_number(pair) for pair in of_it), None)
    return found if found and all(found) else None


def _of_spaces(
    names: tuple[str, ...], pairs: Sequence[Told], made: tuple[int | None, int | None] | None
) -> Iterator[str]:
    """Of the space that was seeded last, that of the environment itself where there is one."""
    seeds = [pair for pair in pairs if pair.event_a.what in names and pair.event_a.what == pair.event_b.what]
    own = [pair for pair in seeds if made is not None and _made_number(pair) == made]
    for pair in (own or seeds)[:1]:
        words = _seeding(pair)
        if words:
            yield words


def _seeding(pair: Told) -> str | None:
    whose = f"the {pair.event_a.what.removeprefix('a ')} of {pair.module}" if pair.module else pair.event_a.what
    seeds = pair.event_a.evidence("seed"), pair.event_b.evidence("seed")
    if pair.differs:
        words = ["no seed" if seed == NONE else f"seed {seed}" for seed in seeds]
        return f"{whose} was given {words[0]} in A and {words[1]} in B{_at(pair)}"
    if seeds == (NONE, NONE) and pair.event_a.evidence("state") != pair.event_b.evidence("state"):
        return f"{whose} was not seeded{_at(pair)}: it seeded itself, differently in each run"
    return None


def _made(pair: Told) -> str:
    return f"it was made with different arguments{_at(pair)}"


def _at(pair: Told) -> str:
    return f" at {pair.place}" if pair.place else ""
