"""Events that both sides have: in words, as the origin of what differs after them, and how spaces were seeded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from views import both, context_of, lose_rows, views_in

from rltrace.diff.base.findings import Judgement, RowAt, make_finding, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes import events
from rltrace.diff.causes.events import (
    EventPair,
    EventTracker,
    add_seeding_causes,
    event_judgement,
    event_text_parts,
    first_op_text,
    outside_digests,
    seeding_texts,
    trace_to_event,
)
from rltrace.testing import In, digest
from rltrace.trace.format.events import COUNT, DIGEST, EVIDENCE, GENERATOR, INTEGER, NONE, Cell, Event
from rltrace.trace.format.schema import Kind
from rltrace.trace.read.names import Site

NO_ROW = cast(RowAt, None)
"""Nothing is read of the rows of a pair that has these."""


@dataclass(frozen=True)
class Pair(EventPair):
    row: int = 0
    op: str = "environment-step"
    module: str = "Walk"
    place: str = "train.py:3"


def pair(a: dict[str, Any], b: dict[str, Any] | None = None, what: str = "environment 0", **more: Any) -> Pair:
    """Cells by name: counts as numbers, evidence as texts after a ``?``, digests as other texts."""

    def event(cells: dict[str, Any]) -> Event:
        return Event(what, tuple(cell(name, value) for name, value in cells.items()))

    def cell(name: str, value: int | str) -> Cell:
        if isinstance(value, int):
            return Cell(name, COUNT, value)
        return Cell(name, EVIDENCE if value.startswith("?") else DIGEST, ord(value[-1]))

    return Pair(NO_ROW, NO_ROW, event(a), event(a if b is None else b), **more)


STEP = {"step": 812}
RETURNED = "environment 0 (Walk) returned another"


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (pair({**STEP, "observation": "x"}, {**STEP, "observation": "y"}),
         ["environment 0 (Walk) returned another observation at its step 812"]),
        (pair({**STEP, "action": "a", "observation": "x"}, {"step": 1812, "action": "a", "observation": "y"}),
         [f"{RETURNED} observation at its step 812 in A and 1,812 in B, given the same action"]),
        (
            pair({**STEP, "action": "a", "observation": "x"}, {**STEP, "action": "b", "observation": "y"}, module=""),
            [
                "environment 0 was given another action at its step 812, though no op before it differs; it returned "
                "another observation"
            ],
        ),
        (pair({"reset": 2, "action": "a"}, {"reset": 2, "action": "b"}),
         ["environment 0 (Walk) was given another action at its reset 2, though no op before it differs"]),
        (pair({"step": 3, "x": "p", "y": "p", "z": "p"}, {"x": "q", "y": "q", "z": "q"}),
         [f"{RETURNED} x, y and z at its event"]),
        (pair({**STEP, "of 1": "x", "of 2": "p"}, {**STEP, "of 1": "y", "of 2": "q"}),
         [f"{RETURNED} result at its step 812; it is what its environments 1 and 2 returned"]),
        (pair({**STEP, "x": "p", "of 1": "x"}, {**STEP, "x": "q", "of 1": "y"}),
         [f"{RETURNED} x at its step 812; it is what its environment 1 returned"]),
        (pair({"file": "x"}, {"file": "y"}, what="model.pt", op="checkpoint"), ["what model.pt loaded differs"]),
        (pair({"reset": 1, "seed": NONE, "x": "p"}, {"reset": 1, "seed": NONE, "x": "q"}),
         [f"{RETURNED} x at its reset 1", "it was reset without a seed"]),
        (pair({"reset": 1, "seed": 7, "x": "p"}, {"reset": 1, "seed": 7, "x": "q"}),
         [f"{RETURNED} x at its reset 1", "its seed is 7 on both sides"]),
        (pair({"reset": 1, "seed": 7, "x": "p"}, {"reset": 1, "seed": NONE, "x": "q"}),
         ["environment 0 (Walk) was reset with seed 7 in A and no seed in B at its reset 1; it returned another x"]),
        (pair({"reset": 1, "seed": 1 << 60, "x": "p"}, {"reset": 1, "seed": 1 << 61, "x": "q"}),
         ["environment 0 (Walk) was reset with other seeds in B than in A at its reset 1; it returned another x"]),
        (pair({**STEP, "seed": 7, "x": "p"}, {**STEP, "x": "q"}), [f"{RETURNED} x at its step 812"]),
        (
            pair(
                {**STEP, "own generator": "?p", "Python state": "?p", "NumPy state": "?p", "x": "p"},
                {**STEP, "own generator": "?q", "Python state": "?p", "NumPy state": "?p", "x": "q"},
            ),
            [
                f"{RETURNED} x at its step 812",
                "the environment's own generator had another state before it",
                "Python's generator and NumPy's equal ones",
            ],
        ),
        (pair({**STEP, "Python state": "?p", "x": "p"}, {**STEP, "Python state": "?p", "x": "q"}),
         [f"{RETURNED} x at its step 812", "Python's generator had equal states before it"]),
    ],
)  # fmt: skip
def test_in_words(given: Pair, texts: list[str]) -> None:
    """What differs, at which of its steps or resets, how it was seeded, and the states of the generators before it."""
    assert event_text_parts(given, [], persists=True) == texts
    noted = ["note", *texts] if "action" in given.differs else [*texts, "note"]  # how its space was seeded leads
    assert event_text_parts(given, ["note"], persists=False) == [*noted, "later events were equal again"]


@pytest.mark.parametrize(("side", "cells", "verb"), [("A", STEP, "steps"), ("B", {"reset": 1}, "resets")])
def test_an_event_of_one_side(side: str, cells: dict[str, Any], verb: str) -> None:
    """An event of one side is control flow; one that both have and that differs is outside data."""
    of = pair({**STEP, "x": "p"}, {**STEP, "x": "q"})
    judged = event_judgement(of, (side, pair(cells).event_a), ["note"], ["result"], persists=True)
    other = "B" if side == "A" else "A"
    assert judged.cause is Cause.CONTROL_FLOW
    assert judged.explanation == (
        f"only {side} {verb} environment 0 (Walk) here, {other} does not; "
        "from its step 812 on all its events differ; note; result"
    )
    assert event_judgement(of, None, ["note"], ["result"], persists=True).explanation.endswith("; note; result")
    assert event_judgement(of, None, [], [], persists=True).cause is Cause.OUTSIDE


def test_the_first_op() -> None:
    """With its line where that is known."""
    end = "(row 1,234) is the first op that differs as a result"
    assert first_op_text("aten.mm.default", Site("a.py", 3, "f", ""), 1234) == f"aten.mm.default at a.py:3 {end}"
    assert first_op_text("aten.mm.default", None, 1234) == f"aten.mm.default {end}"


# --- seeding ----------------------------------------------------------------------------------------------------------


def seeded(a: int, b: int | None = None, *, made: int = 1, what: str = "action space", states: str = "pq") -> Pair:
    """A space that was given these seeds by its environment with this number."""

    def event(seed: int, state: str) -> Event:
        evidence = [
            Cell(name, EVIDENCE, value) for name, value in (("made", made), ("state", ord(state)), ("seed", seed))
        ]
        return Event(what, (*evidence, Cell("given", INTEGER, seed)))

    return Pair(NO_ROW, NO_ROW, event(a, states[0]), event(a if b is None else b, states[1]))


def about(**cells: Any) -> Pair:
    """An event of environment 1 that differs in its action, or in its observation."""
    made = Cell("made", EVIDENCE, 1)
    counts = [Cell(name, EVIDENCE, value) for name, value in cells.items() if isinstance(value, int)]
    digests = [
        [Cell(name, DIGEST, ord(text[at])) for name, text in cells.items() if isinstance(text, str)] for at in (0, 1)
    ]
    return Pair(NO_ROW, NO_ROW, *(Event("environment 0", (made, *counts, *of)) for of in digests))  # type: ignore[arg-type]


MADE = "it was made with different arguments at train.py:3"
ITSELF = (
    "the action space of Walk was not seeded at train.py:3, so what was drawn from it, if anything, differs in each run"
)


ACTED, OBSERVED = about(step=1, action="xy"), about(step=1, observation="xy")
OF_OBSERVATIONS = [seeded(NONE, what="observation space")]


@pytest.mark.parametrize(
    ("pairs", "of", "texts"),
    [
        ([seeded(NONE)], ACTED, [ITSELF]),
        ([seeded(NONE)], None, [ITSELF]),
        ([seeded(NONE, states="pp")], None, []),
        ([seeded(5, states="pq")], None, []),
        ([seeded(5, 6)], None, ["the action space of Walk was given seed 5 in A and seed 6 in B at train.py:3"]),
        ([seeded(NONE, 6)], None, ["the action space of Walk was given no seed in A and seed 6 in B at train.py:3"]),
        ([seeded(NONE)], OBSERVED, []),
        (OF_OBSERVATIONS, ACTED, []),
        (OF_OBSERVATIONS, OBSERVED, [ITSELF.replace("action", "observation")]),
        (OF_OBSERVATIONS, about(reset=1, observation="xy"), [ITSELF.replace("action", "observation")]),
        (OF_OBSERVATIONS, about(observation="xy"), []),
        ([seeded(NONE, what="a space")], ACTED, [ITSELF.replace("action space", "space")]),
        ([seeded(5, states="pp"), seeded(NONE, made=2)], ACTED, []),
        (
            [seeded(5, states="pp"), seeded(NONE, made=2), seeded(5, what="vector environment", made=2)],
            ACTED,
            [ITSELF],
        ),
        ([seeded(5, 6, made=2), seeded(NONE)], ACTED, [ITSELF]),
        ([seeded(NONE), seeded(5, 6)], ACTED, [ITSELF]),
        ([seeded(5, 6, what="environment")], ACTED, [MADE]),
        ([seeded(5, 6, what="environment", made=2)], ACTED, []),
        ([seeded(5, what="environment")], ACTED, []),
        ([seeded(5, 6, what="environment")], None, [MADE.replace("it was", "the environment Walk was")]),
        ([seeded(NONE, what=GENERATOR)], OBSERVED, [ITSELF.replace("action space", GENERATOR)]),
        ([seeded(NONE, what=GENERATOR), seeded(5, 6, what=GENERATOR), seeded(5, what=GENERATOR)], None,
         ["the generator of Walk was given seed 5 in A and seed 6 in B at train.py:3"]),
    ],
)  # fmt: skip
def test_how_spaces_were_seeded(pairs: list[Pair], of: Pair | None, texts: list[str]) -> None:
    """The last seeding of the space that the data came from, of this environment where that is known."""
    assert seeding_texts(pairs, of) == texts


def test_the_number_of_an_environment_from_its_resets() -> None:
    """An event that does not record its environment's number: its last reset does, and no other environment's."""
    of = pair({"step": 1, "action": "x"}, {"step": 1, "action": "y"})
    resets = [
        Pair(NO_ROW, NO_ROW, *[Event(f"environment {number}", (Cell("made", EVIDENCE, made),))] * 2)
        for number, made in ((3, 2), (0, 1))
    ]
    assert seeding_texts([*resets, seeded(5, 6, what="environment")], of) == [MADE]
    assert seeding_texts([*resets, seeded(5, 6, what="environment", made=2)], of) == []
    assert seeding_texts([seeded(5, 6, what="environment")], of) == []


# --- origins ----------------------------------------------------------------------------------------------------------


def of_environment(row: int, number: int, *, seeded: bool, generators: str = "pp") -> Pair:
    seed = 7 if seeded else NONE
    events = [
        Event(f"environment {number}", (Cell("seed", EVIDENCE, seed), Cell("NumPy state", EVIDENCE, ord(state))))
        for state in generators
    ]
    return Pair(NO_ROW, NO_ROW, *events, row=row)  # type: ignore[arg-type]


HAPPENED = st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.booleans()), max_size=7)


@given(HAPPENED, st.booleans())
def test_the_origin_among_events(events: list[tuple[int, bool, bool]], equal: bool) -> None:
    """The first event from which on all of its environment differ; else a single one that no seeded reset followed,
    where the shared generators are equal at the end."""
    events = [
        (
            of_environment(row, number, seeded=seeded, generators="pp" if equal or row + 1 < len(events) else "pq"),
            differs,
        )
        for row, (number, differs, seeded) in enumerate(events)
    ]
    tracker = EventTracker()
    for event, differs in reversed(events):
        tracker.add(event, ["x"] if differs else [])
    lasting, single, is_open = [], [], False
    for number in (0, 1):
        own = [(event, differs) for event, differs in events if event.event_a.what.endswith(str(number))]
        cut = len(own)
        while cut and own[cut - 1][1]:
            cut -= 1
        lasting += [event.row for event, _ in own[cut:][:1]]
        is_open |= bool(own) and not cut
        last_reset = max((at for at, (event, _) in enumerate(own) if event.is_seeded), default=0)
        single += [event.row for event, differs in own[last_reset:cut] if differs][:1]
    assert tracker.is_open is is_open
    found, persists = tracker.origin(Cause.OUTSIDE)
    if lasting:
        assert (found.row, persists) == (min(lasting), True)
        assert tracker.origin(Cause.ARGUMENTS)[0] is found
    elif single and equal:
        assert (found.row, persists) == (min(single), False)
        assert tracker.origin(Cause.ARGUMENTS) == (None, True)
    else:
        assert (found, persists) == (None, True)


@pytest.mark.parametrize(
    ("episodes", "first"),
    [
        # s, t: a reset with one seed, with another; r: without; upper case: its observation differs. 1: a step whose
        # reward differs; 2: whose observation does; 0: an equal one
        ("s11s11s11", 1),
        ("s11s01s11", 5),
        ("s11s", None),
        ("s11s11s", 1),
        ("S22R22", 0),
        ("t02R22", 2),
        ("t22R22", 0),
        ("T22R22", 0),
        ("R22s22", 4),
        ("s11S12", 1),
    ],
)
def test_the_origin_lies_before_resets_that_change_nothing_of_it(episodes: str, first: int | None) -> None:
    """A reward that differs in every episode goes back to the first; what a seeded reset ended does not count."""
    tracker = EventTracker()
    for row, sign in reversed(list(enumerate(episodes))):
        if sign.isdecimal():
            cells = {"observation": "x", "reward": "x"}
            other = cells | {"0": {}, "1": {"reward": "y"}, "2": {"observation": "y"}}[sign]
        else:
            cells = {"observation": "x", "seed": NONE if sign in "Rr" else 7}
            other = cells | ({"seed": 8} if sign in "Tt" else {}) | ({"observation": "y"} if sign.isupper() else {})
        event = pair(cells, other, row=row)
        tracker.add(event, event.differs)
    found, _ = tracker.origin(Cause.ARGUMENTS)
    assert (None if found is None else found.row) == first


@pytest.mark.parametrize(
    ("seeds", "is_seeded"),
    [((7, 7), True), ((7, 8), False), ((NONE, NONE), False), ((7, None), False), ((None, None), False)],
)
def test_a_reset_with_one_seed(seeds: tuple[int | None, int | None], is_seeded: bool) -> None:
    """A reset is seeded where its seed is the same on both sides."""
    events = [Event("environment 0", () if seed is None else (Cell("seed", EVIDENCE, seed),)) for seed in seeds]
    assert Pair(NO_ROW, NO_ROW, *events).is_seeded is is_seeded  # type: ignore[arg-type]


def finding_at(views: tuple[StreamView, StreamView], row: int, before: int) -> Finding:
    """The ops at this row of both sides (-1: their last ones) read other data from outside; ``before``: equal ops."""
    rows = (row_at(view, row % view.rows) for view in views)
    return make_finding(*rows, Judgement(Cause.OUTSIDE, InputsMatch.DIFFER, "why"), before)


@pytest.mark.parametrize("longer", ["a", "b"])
def test_an_event_of_one_side_right_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer: str) -> None:
    """It follows the last equal one at once: that is why all later ones differ."""
    monkeypatch.setattr(events, "MAX_ROWS_BACK", 6)
    for trace, side in both(tmp_path):
        for _ in range(9):
            trace.op("aten.add.Tensor", outputs=["x"])
        for count, seen in enumerate(("same", *(["extra"] if side == longer else []), f"of {side}"), 1):
            digests = {"observation": seen}
            trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": count}, digests=digests)
        trace.op("aten.mm.default", inputs=[("outside", f"of {side}")], outputs=[side])
    views = views_in(tmp_path)
    last = [view.rows - 1 for view in views]
    context = context_of(*views, [(9, 9), (last[0] - 1, last[1] - 1), (last[0], last[1])])
    later = finding_at(views, -1, 1)
    found = trace_to_event(context, later, last[0] + 1, None)
    assert found.cause is Cause.CONTROL_FLOW
    assert (found.a_index, found.b_index) == ((10, None) if longer == "a" else (None, 10))
    assert found.at_op is later and later.at_op is later
    assert found.explanation.startswith(f"only {longer.upper()} steps environment 0 here, ")
    assert f"(row {last[0]}) is the first op that differs as a result" in found.explanation


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ([], True),
        ([(5, "environment 0", {})], True),
        ([(5, "environment 0", {"seed": 7})], False),
        ([(5, "environment 1", {"seed": 7})], True),
        ([(5, "environment 0", {"seed": NONE})], True),
        ([(38, "environment 0", {"NumPy state": "p"})], True),
        ([(38, "environment 0", {"NumPy state": "?"})], False),
    ],
)
def test_an_event_beyond_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: list[tuple[int, str, dict[str, Any]]], found: bool
) -> None:
    """The first row that differs, long before, is the origin: unless a seeded reset of its environment followed, or the
    shared generators differ at the last event."""
    monkeypatch.setattr(events, "MAX_ROWS_BACK", 8)
    monkeypatch.setattr(events, "CHUNK_ROWS", 4)
    for trace, side in both(tmp_path):
        for row in range(40):
            what = next((event for event in between if event[0] == row), None)
            if row == 2:
                digests = {"observation": f"seen by {side}"}
                trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": 1}, digests=digests)
            elif what is None:
                trace.op("aten.add.Tensor", outputs=["x"])
            else:
                seed = {name: value for name, value in what[2].items() if name == "seed"}
                states = {name: value.replace("?", side) for name, value in what[2].items() if name != "seed"}
                trace.event(Kind.ENVIRONMENT_RESET, what[1], counts={"reset": 1, **seed}, evidence=states)
        trace.op("aten.mm.default", inputs=[("outside", f"of {side}")], outputs=[side])
    views = views_in(tmp_path)
    context = context_of(*views, [(row, row) for row in range(41)])
    later = finding_at(views, -1, 2)
    origin = trace_to_event(context, later, 41, 2)
    assert (origin and origin.a_index) == (2 if found else None)
    assert origin is None or "later events were equal again" in origin.explanation
    assert trace_to_event(context, later, 41, None) is None
    assert trace_to_event(context, later, 41, 36) is None


def test_seeding_that_cannot_be_read(tmp_path: Path) -> None:
    """A finding is left as it is where the seeding cannot be read."""
    for trace, side in both(tmp_path):
        trace.event(Kind.SEED, "action space", owner="Walk", counts={"seed": NONE}, evidence={"state": side})
        trace.commit()
        trace.op("aten.mm.default", inputs=[("outside", f"of {side}")], outputs=[side])
    views = views_in(tmp_path)
    context = context_of(*views, [(0, 0), (1, 1)])
    found = finding_at(views, 1, 0)
    assert "the action space of Walk was not seeded" in add_seeding_causes(context, found).explanation
    damaged = context_of(lose_rows(tmp_path / "a.zarr"), views[1], [(0, 0), (1, 1)])
    assert add_seeding_causes(damaged, found).explanation == found.explanation


def test_outside_data_of_an_op(tmp_path: Path) -> None:
    """The digests that both sides read and that differ, where the bytes came from outside on one of them."""

    for trace, side in both(tmp_path):
        trace.op("aten.mm.default", outputs=["x"])
        inputs = [("outside", f"p{side}"), ("outside", "same"), "outside", In(0, f"q{side}"), ("mixed", f"r{side}")]
        more = ("outside", f"s{side}") if side == "a" else In(0, f"s{side}")
        trace.op("aten.mm.default", inputs=[*inputs, more])
    rows = [row_at(view, 1) for view in views_in(tmp_path)]
    assert outside_digests(*rows) == {(digest("pa"), digest("pb")), (digest("sa"), digest("sb"))}


def test_a_checkpoint(tmp_path: Path) -> None:
    """The event with the very bytes that an op reads: with its counts, and what of it differs on both sides."""
    for trace, side in both(tmp_path):
        trace.event(Kind.CHECKPOINT, "model.pt", digests={"content": f"of {side}"}, integers={"size": ord(side)})
        trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": 7}, digests={"observation": f"o{side}"})
        trace.event(Kind.ENVIRONMENT_RESET, "environment 1", counts={"reset": 3}, digests={"observation": f"p{side}"})
        for what in ("of ", "o", "p"):
            trace.op("aten.mm.default", inputs=[("outside", f"{what}{side}")], outputs=[side])
    views = views_in(tmp_path)
    context = context_of(*views, [(row, row) for row in range(6)])
    counts, texts = [], []
    for row in (3, 4, 5):
        found = trace_to_event(context, finding_at(views, row, 0), row, None)
        assert found.event is not None and found.a_index == row - 3
        counts.append((found.event.count.a, found.event.count.b))
        texts.append(found.explanation)
        if row == 3:
            (one,) = [cell for cell in found.event.cells if cell.name == "size"]
            assert (one.a, one.b) == ("97", "98")
    assert counts == [(None, None), (7, 7), (3, 3)]
    assert texts[0].startswith("what model.pt loaded differs")
    assert all(f"(row {row}) is the first op that differs as a result" in text for row, text in enumerate(texts, 3))
