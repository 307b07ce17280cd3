"""What a parity check asks for, and what meets it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from rltrace.errors import UsageError
from rltrace.extensions.parity.impact.logprobs import Gap, measure
from rltrace.extensions.parity.requirements import Measure, Requirement, holds, parse_requirement


def gap_of(a: list[float], b: list[float]) -> Gap:
    return measure("as given", np.array(a), np.array(b), [""] * len(a), [None] * len(a))


def test_what_can_be_asked_for() -> None:
    """Bits, or a limit on the largest difference, the mean or the divergence; said back as it was asked."""
    assert parse_requirement("bitwise") == Requirement(Measure.BITWISE)
    assert parse_requirement("logprob<1e-3") == Requirement(Measure.LARGEST, 1e-3)
    assert parse_requirement(" logprob-mean < 0.5 ") == Requirement(Measure.MEAN, 0.5)
    assert str(parse_requirement("kl<0.000001")) == "kl<1e-06"


@pytest.mark.parametrize("text", ["", "bits", "logprob", "logprob<", "logprob<x", "logprob<0", "logprob>1", "kl<nan"])
def test_what_cannot_be_asked_for_is_named_with_what_can(text: str) -> None:
    """No limit is read as another, and none as no limit at all."""
    with pytest.raises(UsageError, match="give bitwise, or logprob<X"):
        parse_requirement(text)


def test_each_limit_is_held_against_its_own_number() -> None:
    """The largest difference is 0.5, the mean 0.25: one limit between them shows which is asked."""
    gap = gap_of([-1.0, -1.0], [-1.5, -1.0])
    assert holds(parse_requirement("logprob<0.3"), gap) is False
    assert holds(parse_requirement("logprob<0.51"), gap) is True
    assert holds(parse_requirement("logprob<0.5"), gap) is False
    assert holds(parse_requirement("logprob-mean<0.3"), gap) is True
    assert gap.k3 is not None
    assert holds(parse_requirement(f"kl<{gap.k3 * 1.01}"), gap) is True
    assert holds(parse_requirement(f"kl<{gap.k3 * 0.99}"), gap) is False


def test_nothing_measured_meets_no_limit() -> None:
    """Undecided without a gap; an infinity on one side alone breaks every limit, however small the mean of the rest."""
    anything = parse_requirement("logprob<100")
    assert holds(anything, None) is None
    assert holds(anything, gap_of([], [])) is None
    assert holds(anything, gap_of([-1.0, -inf], [-1.0, -1.0])) is False
    assert holds(anything, gap_of([-inf], [-inf])) is None


def test_a_few_tokens_of_many_meet_no_limit() -> None:
    """Less than half of what B was trained on was compared: undecided, unless those few break it already."""
    few = replace(gap_of([-1.0, -1.0], [-1.0, -1.5]), only_b=3)
    assert holds(parse_requirement("logprob<1"), few) is None
    assert holds(parse_requirement("logprob<0.1"), few) is False
    assert holds(parse_requirement("logprob<1"), replace(few, only_b=2)) is True
