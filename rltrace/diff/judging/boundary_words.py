"""What is said of an event that differs: what it was given, what it returned, how the generators around it stood."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rltrace.diff.judging.event_pairs import GENERATORS, Told
from rltrace.diff.model import Site
from rltrace.trace.events import NONE, Event

GIVEN: Final = "action"


def because(pair: Told, behind: Iterable[str], *, lasts: bool) -> list[str]:
    """``environment 3 (Hopper-v5) returned another observation at its step 812, given the same action``, and so on.

    ``behind``: what else is known of it; ``lasts``: all that it tells differs from there on.
    """
    parts = [_what_differs(pair), *_seeds(pair), *_generators(pair), *behind]
    return parts if lasts else [*parts, "later events were equal again"]


def because_of_it(op: str, site: Site | None, row: int) -> str:
    """The first op that differs."""
    at = f" at {site.file}:{site.line}" if site else ""
    return f"{op}{at} (row {row:,}) is the first op that differs as a result"


def one_sided_because(side: str, event: Event, pair: Told) -> str:
    """Where one side alone made a step more."""
    other = "B" if side == "A" else "A"
    verb = "steps" if event.evidence("step") is not None else "resets"
    then = _at(pair.event_a, pair.event_b)
    return f"only {side} {verb} {_name(pair)} here, {other} does not; from its {then} on all its events differ"


def _what_differs(pair: Told) -> str:
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
    same = ", given the same action" if GIVEN in pair.event_a.told else ""
    return f"{_name(pair)} returned another {_and(returned or ['result'])} at its {at}{same}{more}"


def _name(pair: Told) -> str:
    return f"{pair.event_a.what} ({pair.module})" if pair.module else pair.event_a.what


def _at(a: Event, b: Event) -> str:
    """``step 812``; of both sides where they count differently."""
    for name in ("step", "reset"):
        x, y = a.evidence(name), b.evidence(name)
        if x is not None and y is not None:
            return f"{name} {x:,}" if x == y else f"{name} {x:,} in A and {y:,} in B"
    return "event"


def _seeds(pair: Told) -> list[str]:
    seeds = pair.event_a.evidence("seed"), pair.event_b.evidence("seed")
    if None in seeds:
        return []
    if seeds[0] == seeds[1]:
        return ["it was reset without a seed" if seeds[0] == NONE else f"its seed is {seeds[0]} on both sides"]
    words = ["no seed" if seed == NONE else f"seed {seed}" for seed in seeds]
    return [f"it was reset with {words[0]} in A and {words[1]} in B"]


def _generators(pair: Told) -> list[str]:
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
