"""The gap between two programs' log-probabilities, and their routing decisions, as sections of a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rltrace.extensions.parity.impact.logprobs import Gap, NoGap
from rltrace.extensions.parity.impact.routing import Flip, Routing
from rltrace.extensions.parity.impact.summary import Effects
from rltrace.report.document import ALL, Code, Fact, Inline, Number, Section
from rltrace.wording import sentence, sentences

FLIPS = 6
"""Flipped decisions that are listed; the JSON report has more."""
TOKENS = 5


def effects_sections(effects: Effects) -> tuple[Section, ...]:
    """Those that are not empty."""
    return tuple(filter(None, (_gap(effects.gap), _routing(effects.routing, effects.routing_notes))))


# --- log-probabilities ------------------------------------------------------------------------------------------------


def _gap(gap: Gap | NoGap) -> Section:
    if isinstance(gap, NoGap):
        return Section("gap", "Log-probabilities", sentences(gap.why))
    if not gap.n:
        why = f"no sampled token has a log-probability on both sides: {gap.source}"
        return Section("gap", "Log-probabilities", sentences(why))
    furthest = ((one, (f"{one.a:.5f}", f"{one.b:.5f}", f"{one.b - one.a:.2e}")) for one in gap.furthest[:TOKENS])
    rows = ((_place(one.place, one.token), *map(Number, numbers)) for one, numbers in furthest)
    title = f"Log-probabilities of {gap.n:,} sampled tokens or actions"
    return Section("gap", title, facts=tuple(_facts(gap)), columns=("furthest", "A", "B", "B - A"), rows=tuple(rows))


def _facts(gap: Gap) -> Iterator[Fact]:
    share = "" if gap.share_equal is None else f" ({gap.share_equal:.1%})"
    yield Fact("equal", f"{gap.equal:,}{share}")
    if gap.mean is not None and gap.largest is not None and gap.k1 is not None and gap.k3 is not None:
        yield Fact("|A - B|", f"{gap.mean:.3e} mean, {gap.largest:.3e} max")
        yield Fact("KL(A||B)", f"k1 {gap.k1:.3e}, k3 {gap.k3:.3e}; sampled by A (Schulman 2020)")
    if gap.unmeasured:
        yield Fact("not finite", f"{gap.unmeasured:,}: NaN or infinite on one side")
    if gap.portions:
        parts = [f"{portion.carries:.0%} in the {portion.tokens:,}" for portion in gap.portions]
        yield Fact("share", f"{', '.join(parts)} with the largest |A - B|")
    if gap.only_a or gap.only_b:
        lacks = [f"{count:,} of {name}" for name, count in (("A", gap.only_a), ("B", gap.only_b)) if count]
        yield Fact("one side", " and ".join(lacks))
    yield Fact("from", sentence(gap.source))


def _place(place: str, token: int | None) -> str:
    """``token 14 of sequence 1, id 31``."""
    return place if token is None else f"{place}, id {token}"


# --- routing ----------------------------------------------------------------------------------------------------------


def _routing(routing: Sequence[Routing], notes: Sequence[str]) -> Section:
    flipped, decisions = sum(r.flipped for r in routing), sum(r.n for r in routing)
    reasons = dict.fromkeys([*(one.why_no_margins for one in routing if one.why_no_margins), *notes])
    flips = [_flip(one, flip) for one in routing for flip in one.flips]
    return Section(
        "routing",
        f"Routing: {flipped:,} of {decisions:,} decisions chose other experts",
        (*_margins(routing), *sentences(*reasons)),
        columns=("router", "chosen", "flipped", "order", "weights"),
        rows=tuple(map(_row, routing)),
        parts=(Section("", f"of the {flipped:,}", tuple(flips[:FLIPS])),) if flips else (),
        limit=ALL,
    )


def _row(one: Routing) -> tuple[Inline, ...]:
    chosen = f"{one.chosen}" if one.experts is None else f"{one.chosen}/{one.experts}"
    weights = "?" if one.reweighted is None else f"{one.reweighted:,}"
    name = ("! " if one.flipped else "= ", Code(_name(one)))
    return name, *map(Number, (chosen, f"{one.flipped:,}", f"{one.reordered:,}", weights))


def _margins(routing: Sequence[Routing]) -> Iterator[str]:
    """The margins of flipped decisions, and how many others have as small ones."""
    for one in routing:
        if one.largest_flipped is None:
            continue
        closer = "" if not one.closer else f"; {one.closer:,} with as small a margin in A did not flip"
        middle = f", the median margin is {one.margins_a.quantiles[3]:.1e}" if one.margins_a.known else ""
        yield f"{_name(one)} flipped at margins up to {one.largest_flipped:.1e}{closer}{middle}."


def _flip(one: Routing, flip: Flip) -> str:
    margins = [f"{name} {m:.1e}" for name, m in (("A", flip.margin_a), ("B", flip.margin_b)) if m is not None]
    close = f" (margin {', '.join(margins)})" if margins else ""
    return f"{_place(flip.place, flip.token)}, {_name(one)}: {list(flip.a)} became {list(flip.b)}{close}"


def _name(one: Routing) -> str:
    """Its path without the outermost module, and its number if there are several."""
    path = one.module_b.partition(".")[2] or one.module_b
    return path if not one.occurrence else f"{path} ({one.occurrence + 1})"
