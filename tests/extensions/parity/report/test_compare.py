"""What is said of two programs compared by row: pinned as text, and as JSON that holds all of it."""

import json
from dataclasses import fields, replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from golden import pinned

from rltrace.diff.base.model import Pair
from rltrace.extensions.parity.impact.logprobs import Gap, NoGap, measure
from rltrace.extensions.parity.impact.routing import Decisions, compare_decisions
from rltrace.extensions.parity.impact.summary import Effects
from rltrace.extensions.parity.model import (
    Distance,
    ModuleOrigin,
    ModuleResult,
    Parity,
    ParityOp,
    ParitySide,
    ParityVerdict,
    Reason,
    Repeated,
    Required,
    RowsBy,
    TensorResult,
    UncomparedTensor,
)
from rltrace.extensions.parity.report.compare import SHOWN, ParityReport, effects_sections, parity_document
from rltrace.json import to_json
from rltrace.report.document import Document
from rltrace.report.text import document_text
from rltrace.trace.read.names import Site

GOLDEN = Path(__file__).parent / "golden"
SITE = Site("policy.py", 31, "Attention.forward", "return self.out(weights @ values)")
FAR = Distance(2.5e-6, 3.1e-4, 1_024, 40, 1.0e-6, "token 9 of sequence 2")


def module(path: str, differing: int = 0, other: str = "", **more: object) -> ModuleResult:
    distance = FAR if differing else None
    output = TensorResult("output", Pair("", "0"), Pair("float32", "float32"), 80, 80 - differing, differing, distance)
    plain: dict[str, object] = {"path": Pair(path, other or path), "kind": Pair("Linear", "Linear")}
    plain |= {"calls": Pair(20, 1), "rows": 80, "equal": 80 - differing, "differing": differing}
    plain |= {"tensors": (output,), "uncompared": (), "distance": distance, "dtype": None}
    return ModuleResult(**{**plain, **more})  # type: ignore[arg-type]


def op(row: int, rows: int, kernel: str = "MKL, 2 threads") -> ParityOp:
    return ParityOp(row, "aten.addmm.default", ("float32[64]", f"float32[{rows},64]", "float32[64,64]"), kernel, SITE)


ORIGIN = ModuleOrigin(
    path=Pair("Policy.layers.0.out", "Trainer.policy.layers.0.out"),
    rows=40,
    of=80,
    call=Pair(7, 131),
    row="token 3 of sequence 0",
    own=False,
    op=Pair(op(61, 4), op(1_204, 80)),
    several=(),
    reason=Reason.SHAPE,
    explanation="addmm over 4 rows against 80 rows",
)

DIFFERS = Parity(
    verdict=ParityVerdict.DIFFERS,
    why="rows of 2 of the 3 compared modules differ",
    a=ParitySide("generator.zarr", "rank0/main", "calls", 60, 3, 20, 80, 2, 0, 0),
    b=ParitySide("trainer.zarr", "rank0/main", "phase=forward", 3, 3, 1, 84, 0, 4, 4),
    rows_by=RowsBy.TOKENS,
    how="rows with the same tokens so far are matched; masks of A mark the padding",
    modules=(
        module("Policy.embed", other="Trainer.policy.embed"),
        module("Policy.layers.0.out", 40, "Trainer.policy.layers.0.out"),
        module(
            "Policy.head",
            40,
            "Trainer.policy.head",
            dtype=Pair("bfloat16", "float32"),
            uncompared=(
                UncomparedTensor("output", "cache", "a", 20, "its 4 x 8 x 9 rows are not the 4 x 1 rows of the pass"),
            ),
        ),
    ),
    origins=(ORIGIN, replace(ORIGIN, path=Pair("Policy.head", "Trainer.policy.head"), rows=2)),
    only_a=(),
    only_b=("Trainer", "Trainer.value"),
    renamed=(Pair("Policy", "Trainer.policy"),),
    repeated=(
        Repeated("a", "decoded against prefilled", 40, 3, "Policy.layers.0.out", "call 7 against call 90"),
        Repeated("b", "alone against in a batch", 12, 0, "", ""),
    ),
    holes=("rows 5 to 9 of rank0/main cannot be read",),
    notes=("3 outermost calls of B, of step 1, are left out",),
    advice=("rltrace ops trainer.zarr",),
)
BITWISE = replace(
    DIFFERS,
    verdict=ParityVerdict.BITWISE,
    why="all 160 rows of 2 modules are bitwise equal",
    modules=(module("Policy.embed"), module("Policy")),
    **dict.fromkeys(("origins", "only_b", "renamed", "repeated", "holes", "notes", "advice"), ()),
)
REQUIRED = (Required("bitwise", False, DIFFERS.why), Required("logprob<0.001", None, "no logits were found"))


NO_EFFECTS = Effects(NoGap("no token ids of A are known"), ())


def text_of(
    parity: Parity, required: tuple[Required, ...] = (), effects: Effects = NO_EFFECTS, *, color: bool = False
) -> str:
    return document_text(parity_document(ParityReport(None, required, parity, effects)), color=color)


@pytest.mark.parametrize(
    ("name", "parity", "required"),
    [("differs", DIFFERS, REQUIRED), ("bitwise", BITWISE, ())],
    ids=["differs", "bitwise"],
)
def test_the_text_is_pinned(name: str, parity: Parity, required: tuple[Required, ...]) -> None:
    """Word by word; at most 80 columns, commands to paste aside."""
    text = text_of(parity, required)
    assert text + "\n" == pinned(GOLDEN / f"compare-{name}.txt", text + "\n")
    commands = {f"  {command}" for command in parity.advice}
    assert all(len(line) <= 80 for line in text.splitlines() if line not in commands)


def test_colour_changes_no_word() -> None:
    colored = text_of(DIFFERS, REQUIRED, color=True)
    assert "\x1b[1;31mDIFFERS\x1b[0m" in colored
    assert colored.replace("\x1b[1;31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") == text_of(DIFFERS, REQUIRED)


def test_of_many_modules_those_are_shown_where_something_changes() -> None:
    """Two hundred equal ones, then the first that diverges: those around it, the first and the last are listed."""
    many = [module(f"Policy.layers.{k}") for k in range(200)]
    many += [module("Policy.layers.0.out", 40), *(module(f"Policy.after.{k}", 40) for k in range(200))]
    text = text_of(replace(DIFFERS, modules=tuple(many)))
    listed = [line for line in text.splitlines() if line[:4] in ("  = ", "  x ", "  ! ") and line[4] != " "]
    assert 3 < len(listed) <= SHOWN
    assert [line.split()[1] for line in listed] == ["layers.0", "layers.199", "layers.0.out", "after.0", "after.199"]
    assert text.count("… 198 more") == 2


def test_json_has_every_field() -> None:
    """All that a comparison found, whatever the text leaves out; numbers that JSON lacks are text."""
    found = to_json(ParityReport(False, REQUIRED, DIFFERS, NO_EFFECTS))
    assert found["schema"] == "rltrace.compare/1"
    assert {field.name for field in fields(Parity)} <= set(found)
    first = found["modules"][1]
    assert set(first) == {field.name for field in fields(ModuleResult)}
    assert set(first["distance"]) == {field.name for field in fields(Distance)}
    assert found["first"] == found["origins"][0]
    assert found["first"]["op"]["b"]["site"]["source"] == SITE.source
    endless = replace(DIFFERS, modules=(module("M", 40, distance=replace(FAR, absolute=float("inf"))),))
    text = json.dumps(to_json(ParityReport(None, (), endless, NO_EFFECTS)), allow_nan=False)
    assert json.loads(text)["modules"][0]["distance"]["absolute"] == "inf"


@pytest.mark.parametrize(("largest", "said"), [(1.6, True), (2e-6, False)])
def test_a_gap_that_no_output_explains_is_said_first(largest: float, said: bool) -> None:
    """As where the sampler's log-probabilities are of truncated logits, and the logits agree but for rounding."""
    gap = Gap("what the programs computed", 4, 0, 0, largest / 2, largest, 0.1, 0.1)
    lead = text_of(DIFFERS, effects=Effects(gap, ())).splitlines()[1]
    assert lead.startswith("  Log-probabilities differ by up to 1.6") is said


def test_a_gap_is_said_first_where_nothing_else_was_compared() -> None:
    """As where the model of an engine is compiled as a whole."""
    gap = Gap("what the programs computed", 4, 0, 0, 0.02, 0.094, 0.1, 0.1)
    parity = replace(DIFFERS, verdict=ParityVerdict.UNDECIDED, modules=(), origins=(), why="no module")
    lead = text_of(parity, effects=Effects(gap, ())).splitlines()[1:3]
    assert lead == ["  Log-probabilities differ by up to 0.094.", "  No module."]


def test_values_that_were_not_kept_are_said_to_be_unknown() -> None:
    parity = replace(DIFFERS, modules=(module("Policy", 40, distance=None),))
    assert "The outputs of Policy differ in 40 of 80 rows." in text_of(parity)


# --- log-probabilities and routing ------------------------------------------------------------------------------------


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
