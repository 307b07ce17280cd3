"""From everything that was found to one word and the sentence it rests on.

Owns the conditions of ``identical`` and ``same-values``. A false difference is the worst mistake this can make, a
false agreement the second worst: what is not known is ``unknown``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rltrace.diff.model import Finding, Verdict
from rltrace.diff.pools import PoolResult
from rltrace.diff.steps import StepResult
from rltrace.diff.streams import StreamResult


@dataclass(frozen=True)
class Evidence:
    """All that the verdict may rest on."""

    level: str
    streams: tuple[StreamResult, ...]
    steps: tuple[StepResult, ...]
    pools: tuple[PoolResult, ...]
    """Ops of pool threads, which have no order."""
    lonely: tuple[Finding, ...]
    """Streams that one side alone has."""
    decisive: Finding | None
    unfinished: tuple[tuple[str, str], ...]
    """(side, in which way) of every side that is not complete."""

    @property
    def matched(self) -> int:
        return sum(r.matched for r in self.streams) + sum(p.matched for p in self.pools)

    @property
    def one_sided(self) -> bool:
        """Whether a side ran anything that the other did not."""
        return bool(self.lonely) or any(r.structure.only_a or r.structure.only_b for r in self.streams)

    @property
    def looked_at(self) -> tuple[int, int]:
        extents = [*(r.looked_at for r in self.streams), *(r.rows for r in self.pools)]
        return sum(a for a, _ in extents), sum(b for _, b in extents)


def as_if_complete(evidence: Evidence) -> Evidence:
    """What there would be to decide if what there is of both traces were all of it."""
    streams = tuple(replace(result, open=None) for result in evidence.streams)
    steps = tuple(replace(result, open=None) for result in evidence.steps)
    return replace(evidence, streams=streams, steps=steps, unfinished=())


def decide(evidence: Evidence) -> tuple[Verdict, str]:
    """The verdict and what it rests on."""
    if _nothing_in_common(evidence):
        return Verdict.UNKNOWN, "nothing that could be compared was recorded on both sides"
    if _different_programs(evidence):
        matched, (rows_a, rows_b) = evidence.matched, evidence.looked_at
        ops = "op matches" if matched == 1 else "ops match"
        return Verdict.UNKNOWN, (
            f"these look like different programs: only {matched:,} {ops}, of {rows_a:,} of A and {rows_b:,} of B"
        )
    if evidence.decisive is not None:
        return Verdict.DIVERGED, _diverged(evidence, evidence.decisive)
    reasons = [r.undecided for r in evidence.streams] + [p.undecided for p in evidence.pools]
    undecided = next(filter(None, reasons), None)
    if undecided is not None:
        return Verdict.UNKNOWN, undecided
    left_open = [r.open for r in evidence.streams] + [r.open for r in evidence.steps]
    open_ = next(filter(None, left_open), None)
    if open_ is not None:
        return Verdict.UNKNOWN, open_
    if evidence.unfinished:
        side, how = evidence.unfinished[0]
        return Verdict.UNKNOWN, f"equal so far, but {side.upper()} is not complete: {how}"
    return _equal(evidence)


def _equal(evidence: Evidence) -> tuple[Verdict, str]:
    extent = _extent(evidence)
    lonely_steps = any(any(r.lonely) for r in evidence.steps)
    if not evidence.lonely and not lonely_steps and all(r.is_identical for r in evidence.streams):
        return Verdict.IDENTICAL, f"all {extent} are equal"
    if evidence.level == "step":
        return (
            Verdict.SAME_VALUES,
            f"all matched ones of {extent} are equal, but one side made attempts that the other did not",
        )
    moved = any(r.structure.reordered or r.structure.reordered_steps or r.elsewhere for r in evidence.streams)
    if not evidence.one_sided and not moved and any(r.told.differing for r in evidence.streams):
        return Verdict.SAME_VALUES, (
            f"all {extent} are equal; data from outside torch differs, but no op computed with it"
        )
    if not evidence.one_sided:
        return Verdict.SAME_VALUES, (
            f"both sides ran the same {evidence.matched:,} ops with equal values; some are reordered, or called "
            "from another site"
        )
    drew = "unmatched ops drew from no generator"
    if any(r.drew_alone for r in evidence.streams):
        drew = "unmatched ops left all generators of both sides in the same state"
    return Verdict.SAME_VALUES, (
        f"every matched op has equal values ({evidence.matched:,} matched ops); {drew}, and no matched op depends "
        "on them"
    )


def _diverged(evidence: Evidence, decisive: Finding) -> str:
    if decisive.op is None:
        return f"{decisive.identical_before:,} steps are equal before the first that differs"
    return f"{decisive.identical_before:,} ops of {decisive.stream} are equal before the first that differs"


def _extent(evidence: Evidence) -> str:
    steps = sum(r.matched for r in evidence.steps)
    ops = f"{evidence.matched:,} ops" if evidence.level == "op" else ""
    digested = f"{steps:,} steps" if steps or evidence.level == "step" else ""
    return " and ".join(filter(None, [ops, digested]))


def _nothing_in_common(evidence: Evidence) -> bool:
    rows = any(any(r.looked_at) or r.undecided or r.open for r in evidence.streams)
    steps = any(r.matched or r.ended or r.open for r in evidence.steps)
    return not rows and not steps and evidence.decisive is None


def _different_programs(evidence: Evidence) -> bool:
    if evidence.level == "step":
        return False
    if any(r.same_rows and r.matched for r in evidence.streams):
        return False
    decisive = evidence.decisive
    if decisive is not None:
        return any(r.different_programs for r in evidence.streams if r.decisive is decisive)
    if 0 in evidence.looked_at:
        return False  # a side has nothing, which is told as what it is
    return any(2 * evidence.matched < rows for rows in evidence.looked_at)
