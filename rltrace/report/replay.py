"""The injections of ``rltrace replay``: what is written as JSON, and the lines that are narrated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rltrace.diff.base.model import Comparison, Verdict
from rltrace.diff.metrics.distances import MOST_ULP
from rltrace.rerun.account import Account, MissedInjection, by_reason
from rltrace.rerun.op_kinds import GENERATOR, NUMBER, OUTSIDE, RESULT, OtherKind

MAX_KINDS = 12
"""Kinds of injection in the text."""

PARTS = {OUTSIDE: "outside data", GENERATOR: "RNG states", NUMBER: "logged scalars", RESULT: "results"}


@dataclass(frozen=True)
class ReplayReport:
    """What a replay was to inject, and what came of it."""

    SCHEMA: ClassVar = "rltrace.replay/1"
    MERGED: ClassVar = ("account",)
    COMPUTED: ClassVar = ("outcome",)

    a: str
    """Path of the trace with the values."""
    trace: str
    """That of the replay."""
    inject: tuple[str, ...]
    """Selectors."""
    verdict: Verdict | None
    """Of the comparison that follows ``--lockstep``."""
    account: Account

    @property
    def outcome(self) -> str:
        """``injected`` or ``unresolved``."""
        return "injected" if self.account.complete else "unresolved"


def account_lines(account: Account) -> Iterator[str]:
    """A line for the outcome, then one for each kind of injection that did not happen."""
    if account.complete:
        yield (
            f"injected A's values at all {account.selected:,} selected ops"
            if account.selected > 1
            else ("injected A's values at the selected op")
        )
        if account.propagated:
            yield f"  {account.propagated:,} of them already had other inputs than in A, and were left unchanged"
        yield from _other_lines(account.other)
        return
    yield f"UNRESOLVED: {account.lacking:,} of {account.selected:,} injections did not happen; this run proves nothing"
    kinds = by_reason(account.missed)
    for entry, count in kinds[:MAX_KINDS]:
        yield f"  {_entry(entry)}{f' (and {count - 1:,} more like it)' if count > 1 else ''}"
    if len(kinds) > MAX_KINDS:
        yield f"  and {len(kinds) - MAX_KINDS} more kinds"


def verdict_line(comparison: Comparison) -> str:
    """Whether a run with A's values equals A."""
    if comparison.agrees:
        return f"  it now equals A: {comparison.verdict.value}, by digests of every op and of the final state"
    if comparison.agrees is None:
        return f"  unknown whether it now equals A: {comparison.why}"
    return f"  it does not equal A: {comparison.why}"


def kind_lines(kinds: Sequence[OtherKind], limit: int | None = None) -> Iterator[str]:
    """Two lines for each kind of op at which B gives another result, the most frequent first, ``limit`` at most."""
    ranked = sorted(kinds, key=lambda kind: (-kind.count, kind.row))
    width = max((len(f"{kind.count:,}") for kind in ranked), default=0)
    for kind in ranked[:limit]:
        where = "" if kind.site is None else f" at {kind.site.file}:{kind.site.line} ({kind.site.function})"
        yield f"{kind.count:>{width},}  {kind.op}{where}"
        yield f"{'':{width}}  {'; '.join(_facts(kind))}"
    if len(ranked[:limit]) < len(ranked):
        yield f"{'':{width}}  and {len(ranked) - len(ranked[:limit]):,} more kinds"


def _facts(kind: OtherKind) -> Iterator[str]:
    """Clauses on the ops of a kind."""
    if kind.kernel.a != kind.kernel.b:
        yield f"A {kind.kernel.a or 'kernel unknown'}, B {kind.kernel.b or 'kernel unknown'}"
    elif kind.kernel.a is not None and RESULT in kind.parts:
        yield f"{kind.kernel.a} on both sides"
    if differing := [PARTS[part] for part in kind.parts if part in PARTS and kind.parts != (RESULT,)]:
        yield f"{' and '.join(differing)} differ"
    distances = [] if kind.max_ulp is None or kind.max_ulp > MOST_ULP else [f"{kind.max_ulp:,} ULP"]
    distances += [] if kind.max_relative is None else [f"{kind.max_relative:.2g} relative"]
    if distances:
        yield f"up to {', '.join(distances)}"
    yield f"first at op {kind.row:,} of {kind.stream}, step {kind.step:,}"


def _other_lines(other: Sequence[OtherKind]) -> Iterator[str]:
    """Ops at which the program had other values than A."""
    if not other:
        yield "  the program already had these values"
        return
    ops, kinds = sum(kind.count for kind in other), f"{len(other):,} kinds" if len(other) > 1 else "one kind"
    yield f"  at {ops:,} of them the program had different values, of {kinds}:"
    for line in kind_lines(other, MAX_KINDS):
        yield f"    {line}"


def _entry(entry: MissedInjection) -> str:
    return f"{entry.op}, op {entry.row:,} of {entry.stream} in A, step {entry.step:,}: {entry.why}"
