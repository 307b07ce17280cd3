"""Sentences of an experiment, and its kinds of op as ``OriginClass``. Pure functions; decides nothing."""

from collections.abc import Sequence

from rltrace.diff.base.model import Comparison, Finding
from rltrace.experiment.outcome import OriginClass
from rltrace.rerun.account import Account
from rltrace.rerun.op_kinds import OtherKind


def classes_of(kinds: Sequence[OtherKind]) -> tuple[OriginClass, ...]:
    """The kinds as classes of the outcome, frequent ones first; which of them matter was not tried."""
    ops = sum(kind.count for kind in kinds)
    return tuple(
        OriginClass(
            op=kind.op,
            kernel=kind.kernel,
            site=kind.site,
            count=kind.count,
            share=kind.count / ops,
            matters=None,
            stream=kind.stream,
            first_row=kind.row,
            first_step=kind.step,
            max_ulp=kind.max_ulp,
            max_relative=kind.max_relative,
            parts=kind.parts,
            kind=kind.kind,
            kinds_b=kind.kinds_b,
        )
        for kind in sorted(kinds, key=lambda kind: (-kind.count, kind.row))
    )


def kinds_text(count: int) -> str:
    """``one kind of op``, ``6 kinds of op``."""
    return "one kind of op" if count == 1 else f"{count:,} kinds of op"


def runs_text(count: int) -> str:
    """How often a run was made, with the same result each time: ``in one run``, ``in 2 runs of 2``."""
    return "in one run" if count == 1 else f"in {count:,} runs of {count:,}"


def first_finding(found: Comparison) -> Finding | None:
    """The first difference, one in values before any other."""
    return next((f for f in (found.first_value, found.decisive, found.first, *found.unordered) if f is not None), None)


def place_text(finding: Finding) -> str:
    """``aten.mm.default at train.py:12 (update), step 3``."""
    where = "" if finding.site is None else f" at {finding.site.file}:{finding.site.line} ({finding.site.function})"
    when = "" if finding.step is None else f", step {finding.step:,}"
    return f"{finding.op}{where}{when}" if finding.op is not None else f"the digests of step {finding.step}"


def divergence_text(found: Comparison, letter: str) -> str:
    """``diverges from A at aten.mm.default …``."""
    first = first_finding(found)
    return (
        f"does not equal {letter}: {found.why}" if first is None else f"diverges from {letter} at {place_text(first)}"
    )


def is_later(finding: Finding, than: Finding) -> bool:
    """Whether a finding comes after another one of the same run, as far as order is known."""
    if finding.step != than.step:
        return (finding.step or 0) > (than.step or 0)
    if finding.stream != than.stream:
        return False
    return finding.identical_before > than.identical_before


def missing_text(account: Account, side: str) -> str:
    """``3 of 500 injections did not happen; the first: …``."""
    left = account.selected - account.injected
    text = f"{left:,} of {account.selected:,} injections did not happen"
    if not account.missed:
        return text
    first = account.missed[0]
    where = f"op {first.row:,} of {first.stream} in {side}0, step {first.step:,}"
    return f"{text}; the first: {first.op}, {where}: {first.why}"
