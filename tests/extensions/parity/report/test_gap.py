"""The gap and the routing, as text and as JSON."""

from __future__ import annotations

import json
from math import inf

import numpy as np
import pytest

from rltrace.extensions.parity.impact.logprobs import NoGap, measure
from rltrace.extensions.parity.impact.routing import Decisions, compare_decisions
from rltrace.extensions.parity.impact.summary import Effects
from rltrace.extensions.parity.report.compare import effects_sections
from rltrace.json import to_json
from rltrace.report.document import Document
from rltrace.report.text import document_text

GAP = measure(
    "a log-softmax of the logits",
    np.array([-1.0, -2.0, -3.0, -inf]),
    np.array([-1.0, -2.5, -2.0, -4.0]),
    ["token 3 of sequence 0", "token 4 of sequence 0", "token 3 of sequence 1", "token 4 of sequence 1"],
    [7, 8, None, 9],
    only_a=2,
)
SCORES = np.array([[0.5, 0.3, 0.25], [0.5, 0.3, 0.1]]), np.array([[0.5, 0.25, 0.375], [0.5, 0.3, 0.1]])
ROUTING = compare_decisions(
    ("Policy.layers.0.gate", "Policy.layers.0.gate"),
    (
        Decisions(np.array([[0, 1], [0, 1]]), SCORES[0][:, :2], SCORES[0]),
        Decisions(np.array([[0, 2], [0, 1]]), SCORES[1][:, [0, 2]], SCORES[1]),
    ),
    ["token 3 of sequence 0", "token 4 of sequence 0"],
    [7, 8],
)


def texts(effects: Effects) -> list[str]:
    """What is printed of each."""
    return [document_text(Document(sections=(section,))) for section in effects_sections(effects)]


def test_text() -> None:
    """Every section in full, at 80 columns."""
    gap, routing = texts(Effects(GAP, (ROUTING,), ("layers.1.gate chose experts in A only",)))
    assert gap.splitlines() == [
        "Log-probabilities of 4 sampled tokens or actions",
        "  equal      1 (25.0%)",
        "  |A - B|    5.000e-01 mean, 1.000e+00 max",
        "  KL(A||B)   k1 -1.667e-01, k3 2.749e-01; sampled by A (Schulman 2020)",
        "  not finite 1: NaN or infinite on one side",
        "  share      67% in the 1, 67% in the 1 with the largest |A - B|",
        "  one side   2 of A",
        "  from       A log-softmax of the logits.",
        "  furthest                            A         B      B - A",
        "  token 4 of sequence 1, id 9      -inf  -4.00000        inf",
        "  token 3 of sequence 1        -3.00000  -2.00000   1.00e+00",
        "  token 4 of sequence 0, id 8  -2.00000  -2.50000  -5.00e-01",
    ]
    assert routing.splitlines() == [
        "Routing: 1 of 2 decisions chose other experts",
        "  layers.0.gate flipped at margins up to 1.2e-01, the median margin is 5.0e-02.",
        "  Layers.1.gate chose experts in A only.",
        "  router           chosen  flipped  order  weights",
        "  ! layers.0.gate     2/3        1      0        1",
        "  of the 1",
        "    token 3 of sequence 0, id 7, layers.0.gate: [0, 1] became [0, 2] (margin A",
        "    5.0e-02, B 1.2e-01)",
    ]


def test_no_gap_says_why_and_no_routing_says_nothing() -> None:
    """One section of one sentence."""
    (text,) = texts(Effects(NoGap("no token ids of A are known"), ()))
    assert text.splitlines() == ["Log-probabilities", "  No token ids of A are known."]


def test_json() -> None:
    """The same numbers; infinities as text, so that any reader can read it."""
    found = json.loads(json.dumps(to_json(Effects(GAP, (ROUTING,), ("a note",))), allow_nan=False))
    assert found["gap"]["furthest"][0] == {"place": "token 4 of sequence 1", "token": 9, "a": "-inf", "b": -4.0}
    assert (found["gap"]["n"], found["gap"]["equal"], found["gap"]["unmeasured"]) == (4, 1, 1)
    (routing,) = found["routing"]
    assert (routing["flipped"], routing["module_b"], routing["experts"]) == (1, "Policy.layers.0.gate", 3)
    assert routing["margins_a"]["quantiles"][0] == pytest.approx(0.05)
    assert routing["flips"][0]["margin_b"] == 0.125
    assert found["routing_notes"] == ["a note"]
    assert to_json(Effects(NoGap("why"), ()))["gap"] == {"why": "why"}
