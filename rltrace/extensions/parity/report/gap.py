"""The gap between two programs' log-probabilities, and their routing decisions, as text.

Owns the wording of these sections of ``rltrace compare``; readable at 80 columns and without colour. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rltrace.extensions.parity.impact.logprobs import Gap
from rltrace.extensions.parity.impact.routing import Flip, Routing
from rltrace.extensions.parity.impact.summary import Effects
from rltrace.report.diff_text import wrapped
from rltrace.report.style import Style
from rltrace.wording import cut, sentence

FLIPS = 6
"""Flipped decisions that are listed; the JSON report has more."""
TOKENS = 5
NAME = 36
"""Columns of a router's name."""


def effects_texts(effects: Effects, *, color: bool = False) -> list[str]:
    """The sections that are not empty."""
    style = Style(color)
    sections = [
        _gap(effects.gap, style),
        _routing(effects.routing, effects.routing_notes, style),
    ]
    return [text for text in ("\n".join(section) for section in sections) if text]


# --- log-probabilities ------------------------------------------------------------------------------------------------


def _gap(gap: Gap | str, style: Style) -> Iterator[str]:
    if isinstance(gap, str) or not gap.n:
        yield style.bold("Log-probabilities")
        yield from wrapped(
            sentence(
                gap if isinstance(gap, str) else f"no sampled token has a log-probability on both sides: {gap.source}"
            )
        )
        return
    yield style.bold(f"Log-probabilities of {gap.n:,} sampled tokens or actions")
    yield f"  equal    {gap.equal:,}{_share(gap.share_equal)}"
    if gap.mean is not None and gap.largest is not None and gap.k1 is not None and gap.k3 is not None:
        yield f"  |A - B|  {gap.mean:.3e} mean, {gap.largest:.3e} max"
        yield f"  KL(A||B) k1 {gap.k1:.3e}, k3 {gap.k3:.3e}; sampled by A (Schulman 2020)"
    if gap.unmeasured:
        yield f"  not finite {gap.unmeasured:,}: NaN or infinite on one side"
    if gap.portions:
        parts = [f"{portion.carries:.0%} in the {portion.tokens:,}" for portion in gap.portions]
        yield f"  share    {', '.join(parts)} with the largest |A - B|:"
    for pair in gap.furthest[:TOKENS]:
        numbers = f"A {pair.a:>11.5f}  B {pair.b:>11.5f}  B - A {pair.b - pair.a:>10.2e}"
        yield f"    {_place(pair.place, pair.token):<29} {numbers}"
    if gap.only_a or gap.only_b:
        lacks = [f"{count:,} of {name}" for name, count in (("A", gap.only_a), ("B", gap.only_b)) if count]
        yield from wrapped(f"{' and '.join(lacks)}", "           ", "  one side ")
    yield from wrapped(sentence(gap.source), "           ", "  from     ")


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.1%})"


def _place(place: str, token: int | None) -> str:
    """``token 14 of sequence 1, id 31``."""
    return place if token is None else f"{place}, id {token}"


# --- routing ----------------------------------------------------------------------------------------------------------


def _routing(routing: Sequence[Routing], notes: Sequence[str], style: Style) -> Iterator[str]:
    if not routing and not notes:
        return
    flipped, decisions = sum(r.flipped for r in routing), sum(r.n for r in routing)
    yield style.bold(f"Routing: {flipped:,} of {decisions:,} decisions chose other experts")
    if routing:
        yield f"    {'router':<{NAME}}{'chosen':>9} {'flipped':>8} {'order':>6} {'weights':>8}"
    for one in routing:
        mark = "!" if one.flipped else "="
        of = "" if one.experts is None else f"/{one.experts}"
        weights = "?" if one.reweighted is None else f"{one.reweighted:,}"
        name = cut(_name(one), NAME - 1)
        line = f"  {mark} {name:<{NAME}}{f'{one.chosen}{of}':>9} {one.flipped:>8,} {one.reordered:>6,} {weights:>8}"
        yield style.bold(line) if one.flipped else line
    yield from _margins(routing)
    listed = [(one, flip) for one in routing for flip in one.flips]
    for one, flip in listed[:FLIPS]:
        yield from wrapped(_flip(one, flip), "      ", "    ")
    if flipped > min(len(listed), FLIPS):
        yield f"    … and {flipped - min(len(listed), FLIPS):,} more"
    for note in dict.fromkeys([*(one.why_no_margins for one in routing if one.why_no_margins), *notes]):
        yield from wrapped(sentence(note), "    ", "  ")


def _margins(routing: Sequence[Routing]) -> Iterator[str]:
    """The margins of flipped decisions, and how many others have as small ones."""
    for one in routing:
        if one.largest_flipped is None:
            continue
        closer = "" if not one.closer else f"; {one.closer:,} with as small a margin in A did not flip"
        middle = f", the median margin is {one.margins_a.quantiles[3]:.1e}" if one.margins_a.known else ""
        text = f"{_name(one)} flipped at margins up to {one.largest_flipped:.1e}{closer}{middle}"
        yield from wrapped(text, "    ", "  ")


def _flip(one: Routing, flip: Flip) -> str:
    margins = [f"{name} {m:.1e}" for name, m in (("A", flip.margin_a), ("B", flip.margin_b)) if m is not None]
    close = f" (margin {', '.join(margins)})" if margins else ""
    return f"{_place(flip.place, flip.token)}, {_name(one)}: {list(flip.a)} became {list(flip.b)}{close}"


def _name(one: Routing) -> str:
    """Its path without the outermost module, and its number if there are several."""
    path = one.module_b.partition(".")[2] or one.module_b
    return path if not one.occurrence else f"{path} ({one.occurrence + 1})"
