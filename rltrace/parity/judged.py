"""What was required of two programs, held against what was found.

Owns what ``bitwise`` means; limits on a gap are for ``rltrace.parity.require``. Without a requirement, bitwise
equality is what is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from rltrace.parity.effects.gap import Gap
from rltrace.parity.model import Parity, Required, Verdict
from rltrace.parity.require import Requirement, found, holds

BITWISE = {Verdict.BITWISE: True, Verdict.DIFFERS: False, Verdict.UNDECIDED: None}


def judge(asked: Sequence[Requirement], parity: Parity, gap: Gap | str | None) -> tuple[Required, ...]:
    """``gap``: of the log-probabilities; one sentence where there is none to be had; None: nobody looked."""
    return tuple(_about_gap(one, gap) if one.about_gap else _bitwise(one, parity) for one in asked)


def _bitwise(asked: Requirement, parity: Parity) -> Required:
    return Required(str(asked), BITWISE[parity.verdict], parity.why)


def _about_gap(asked: Requirement, gap: Gap | str | None) -> Required:
    if not isinstance(gap, Gap):
        return Required(str(asked), None, gap or "no log-probabilities were looked for")
    number = found(asked, gap)
    if number is None:
        why = "no taken token has a log-probability on both sides"
    else:
        of = f" of {gap.n + gap.only_b:,}" if gap.only_b else ""
        why = f"it is {number:.3g} over {gap.n:,}{of} taken tokens"
    return Required(str(asked), holds(asked, gap), why)


def agrees(required: Sequence[Required], parity: Parity) -> bool | None:
    """Whether all that was required holds; None: it cannot be said."""
    answers = [one.holds for one in required] or [BITWISE[parity.verdict]]
    if False in answers:
        return False
    return None if None in answers else True
