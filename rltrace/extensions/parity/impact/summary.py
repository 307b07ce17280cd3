"""The effects of differences between two programs: on log-probabilities and routing decisions.

Owns the source of log-probabilities: what a selector finds, else the logits. Computes nothing itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rltrace.errors import UsageError
from rltrace.extensions.parity.compare import Compared
from rltrace.extensions.parity.impact.chosen_logprobs import gap_of_named, gap_of_selected, parse_both
from rltrace.extensions.parity.impact.logprobs import Gap, NoGap, Policy, gap_of_logits, temperature_of
from rltrace.extensions.parity.impact.routing import DEFAULT, Routing, routing_of

Names = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Effects:
    """Results beyond the rows of modules."""

    gap: Gap | NoGap
    routing: tuple[Routing, ...]
    """Of each router, in the order of A's first decisions."""
    routing_notes: tuple[str, ...] = ()
    """Routing that was not compared, and why."""


def _gap(a: Policy, b: Policy, logprobs: str | None, names: Names) -> Gap | str:
    if logprobs is None:
        found = gap_of_logits(a, b, names)
        named = gap_of_named(a, b) if isinstance(found, str) else found
        return found if isinstance(named, str) else named
    return gap_of_selected(a, b, *parse_both(logprobs, "--logprobs"))


def effects_of(compared: Compared, logprobs: str | None = None, routing: str | None = None) -> Effects:
    """``logprobs``, ``routing``: selectors, for both sides or A's and B's with ``::`` between them.

    Raises UsageError where a selector finds nothing.
    """
    a, b = Policy(compared.a, compared.ranks), Policy(compared.b)
    matched = (module.paired.path for module in compared.modules)
    names = [(pair.a, pair.b) for pair in matched if pair.a is not None and pair.b is not None]
    gap = _gap(a, b, logprobs, names)
    if logprobs is not None and isinstance(gap, str):
        raise UsageError(f"--logprobs {logprobs}: {gap}")
    if isinstance(gap, Gap) and (temperature := temperature_of(a)):
        gap = replace(gap, source=f"{gap.source}; A sampled at temperature {temperature}")
    selectors = (DEFAULT, DEFAULT) if routing is None else parse_both(routing, "--routing")
    found, notes = routing_of(a, b, names, selectors)
    if routing is not None and not found and not notes:
        raise UsageError(f"--routing {routing} finds no routing decision with recorded rows, on neither side")
    return Effects(NoGap(gap) if isinstance(gap, str) else gap, found, notes)
