"""The verdict from all results of a comparison, with its reason.

A false difference would be the worst error, a false agreement the second worst: where facts are missing, the verdict is
``unknown``.
"""

from dataclasses import dataclass, replace

from rltrace.diff.base.model import Finding, Verdict
from rltrace.diff.processes import PoolResult
from rltrace.diff.stream.compare import StreamResult
from rltrace.diff.stream.steps import StepResult
from rltrace.diff.trained_state import trained_alike_text


@dataclass(frozen=True)
class Evidence:
    """All results that the verdict may rest on."""

    level: str
    streams: tuple[StreamResult, ...]
    steps: tuple[StepResult, ...]
    pools: tuple[PoolResult, ...]
    """Ops of pool threads, which have no order."""
    one_sided_streams: tuple[Finding, ...]
    """Findings at streams that only one side has."""
    decisive: Finding | None
    unfinished: tuple[tuple[str, str], ...]
    """(side, reason) of every side that is not complete."""
    trained_alike: int | None = None
    """Optimizer attempts of runs that trained the same, though ``decisive`` differs; None: that is not known."""

    @property
    def matched(self) -> int:
        return sum(r.matched for r in self.streams) + sum(p.matched for p in self.pools)

    @property
    def one_sided(self) -> bool:
        """Whether a side ran anything that the other did not."""
        return bool(self.one_sided_streams) or any(r.structure.only_a or r.structure.only_b for r in self.streams)

    @property
    def looked_at(self) -> tuple[int, int]:
        extents = [*(r.looked_at for r in self.streams), *(r.rows for r in self.pools)]
        return sum(a for a, _ in extents), sum(b for _, b in extents)


def assume_complete(evidence: Evidence) -> Evidence:
    """The evidence if both traces were complete as they are."""
    streams = tuple(replace(result, open=None) for result in evidence.streams)
    steps = tuple(replace(result, open=None) for result in evidence.steps)
    return replace(evidence, streams=streams, steps=steps, unfinished=())


def decide(evidence: Evidence) -> tuple[Verdict, str]:
    """The verdict and its reason."""
    if _nothing_in_common(evidence):
        return Verdict.UNKNOWN, "nothing that could be compared was recorded on both sides"
    if different_programs(evidence):
        matched, (rows_a, rows_b) = evidence.matched, evidence.looked_at
        ops = "op matches" if matched == 1 else "ops match"
        return Verdict.UNKNOWN, (
            f"these look like different programs: only {matched:,} {ops}, of {rows_a:,} of A and {rows_b:,} of B"
        )
    decisive = evidence.decisive
    if decisive is not None and evidence.trained_alike is None:
        equal = "steps" if decisive.op is None else f"ops of {decisive.stream}"
        return Verdict.DIVERGED, f"{decisive.identical_before:,} {equal} are equal before the first that differs"
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
    if evidence.trained_alike is not None:
        return Verdict.SAME_VALUES, trained_alike_text(evidence.trained_alike)
    return _equal(evidence)


def _equal(evidence: Evidence) -> tuple[Verdict, str]:
    extent = _extent(evidence)
    one_sided_steps = any(any(r.one_sided) for r in evidence.steps)
    if not evidence.one_sided_streams and not one_sided_steps and all(r.is_identical for r in evidence.streams):
        return Verdict.IDENTICAL, f"all {extent} are equal"
    if evidence.level == "step":
        why = f"all matched ones of {extent} are equal, but one side made steps that the other did not"
        return Verdict.SAME_VALUES, why
    moved = any(r.structure.reordered or r.structure.reordered_steps or r.moved_calls for r in evidence.streams)
    if not evidence.one_sided and not moved and any(r.events.differing for r in evidence.streams):
        why = f"all {extent} are equal; data from outside torch differs, but no op computed with it"
        return Verdict.SAME_VALUES, why
    if not evidence.one_sided and not moved:
        why = f"all {extent} are equal, apart from addresses in the pickles of objects that processes exchange"
        return Verdict.SAME_VALUES, why
    if not evidence.one_sided:
        return Verdict.SAME_VALUES, (
            f"both sides ran the same {evidence.matched:,} ops with equal values; some are reordered, or called "
            "from another site"
        )
    drew = "unmatched ops drew from no generator"
    if any(r.drew_one_sided for r in evidence.streams):
        drew = "unmatched ops left all generators of both sides in the same state"
    return Verdict.SAME_VALUES, (
        f"every matched op has equal values ({evidence.matched:,} matched ops); {drew}, and no value that both sides "
        "computed differs after them"
    )


def _extent(evidence: Evidence) -> str:
    steps = sum(r.matched for r in evidence.steps)
    ops = f"{evidence.matched:,} ops" if evidence.level == "op" else ""
    digested = f"{steps:,} steps" if steps or evidence.level == "step" else ""
    return " and ".join(filter(None, [ops, digested]))


def _nothing_in_common(evidence: Evidence) -> bool:
    rows = any(any(r.looked_at) or r.undecided or r.open for r in evidence.streams)
    steps = any(r.matched or r.ended or r.open for r in evidence.steps)
    return not rows and not steps and evidence.decisive is None


def different_programs(evidence: Evidence) -> bool:
    """Whether the two have too little in common for one program."""
    if evidence.level == "step":
        return False
    if any(r.same_rows and r.matched for r in evidence.streams):
        return False
    decisive = evidence.decisive
    if decisive is not None:
        return any(r.different_programs for r in evidence.streams if r.decisive is decisive)
    if 0 in evidence.looked_at:
        return False  # a side has no rows, which has its own reason
    return any(2 * evidence.matched < rows for rows in evidence.looked_at)
