"""What the differences between two programs amount to: their log-probabilities, and what their routers decided.

Owns which source of log-probabilities is taken: what a selector finds, else the logits. Computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rltrace.errors import UsageError
from rltrace.parity.call_range import CallRange
from rltrace.parity.compare import Compared, ParityOptions
from rltrace.parity.impact.attribution import Contributions
from rltrace.parity.impact.chosen_logprobs import gap_of_selected, parse_both
from rltrace.parity.impact.logprobs import Gap, Policy, gap_of_logits
from rltrace.parity.impact.routing import DEFAULT, Routing, routing_of
from rltrace.parity.matching.key_choice import choose_keys, same_steps
from rltrace.parity.matching.row_keying import Keying
from rltrace.parity.matching.row_pairs import partners

Names = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Effects:
    """What was found beyond the rows of modules."""

    gap: Gap | str
    """One sentence: why there is none to be had."""
    routing: tuple[Routing, ...]
    """Of each router, in the order in which A's first decided."""
    notes: tuple[str, ...] = ()
    """What of the routing could not be compared, and why."""
    contributions: Contributions | None = None
    """How much of the gap each module brings; None: it was not measured."""


def gap_between(a: CallRange, b: CallRange, asked: ParityOptions, logprobs: str | None, names: Names) -> Gap | str:
    """The gap alone, of call ranges that nothing else is to be told of; ``names``: as of ``names_of``."""
    a, b, _ = same_steps(a, b)
    known = choose_keys(a, b, asked.rows_by, asked.pad)
    ranks = partners(known.a, known.b, dict(names))
    return _gap(Policy(Keying(a, known.a), ranks), Policy(Keying(b, known.b)), logprobs, names)


def names_of(compared: Compared) -> Names:
    """(A's path, B's) of the modules that were matched."""
    pairs = (module.paired.path for module in compared.modules)
    return [(pair.a, pair.b) for pair in pairs if pair.a is not None and pair.b is not None]


def _gap(a: Policy, b: Policy, logprobs: str | None, names: Names) -> Gap | str:
    if logprobs is None:
        return gap_of_logits(a, b, names)
    return gap_of_selected(a, b, *parse_both(logprobs, "--logprobs"))


def effects_of(compared: Compared, logprobs: str | None = None, routing: str | None = None) -> Effects:
    """``logprobs``, ``routing``: selectors, for both sides or A's and B's with ``::`` between them.

    Raises UsageError where what was asked for by name cannot be had.
    """
    a, b = Policy(compared.a, compared.ranks), Policy(compared.b)
    names = names_of(compared)
    gap = _gap(a, b, logprobs, names)
    if logprobs is not None and isinstance(gap, str):
        raise UsageError(f"--logprobs {logprobs}: {gap}")
    selectors = (DEFAULT, DEFAULT) if routing is None else parse_both(routing, "--routing")
    found, notes = routing_of(a, b, names, selectors)
    if routing is not None and not found and not notes:
        raise UsageError(f"--routing {routing} finds no routing decision with recorded rows, on neither side")
    return Effects(gap, found, notes)
