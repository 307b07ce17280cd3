"""A selector over whole columns and over one row at a time: both find the same."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from selector_examples import ENTRIES, PAYLOADS, SELECTORS

from rltrace.selectors import Key, Selector, parse_selectors
from rltrace.testing.random import random_rows
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Phase
from rltrace.trace.read.names import Words
from rltrace.trace.read.selector_mask import Occurrences, RowMask

WORDS = Words(PAYLOADS)


def rows_of(seed: int, count: int) -> Rows:
    generator = np.random.default_rng(seed)
    rows = random_rows(generator, 0, count, ENTRIES)
    rows.columns[:, Column.KIND] = generator.choice([Kind.OP, Kind.OP, Kind.ENVIRONMENT_STEP], count)
    rows.columns[:, Column.PHASE] = generator.integers(0, len(Phase), count)
    return rows


def facts_of(rows: Rows, i: int, seen: Counter[tuple[int, ...]]) -> dict[Key, Any]:
    """What is known of one row, counting its occurrence."""
    cells = rows.columns[i].tolist()
    place = tuple(cells[column] for column in (Column.STEP, Column.SITE, Column.OP, Column.KIND))
    seen[place] += 1
    return {
        Key.OP: WORDS.op(cells[Column.OP]),
        Key.MODULE: WORDS.module(cells[Column.MODULE]),
        Key.SITE: WORDS.calls(cells[Column.SITE]),
        Key.KERNEL: WORDS.kernels(cells[Column.KERNEL]),
        Key.PHASE: WORDS.phase(cells[Column.PHASE]),
        Key.STREAM: "rank0/main",
        Key.STEP: cells[Column.STEP],
        Key.NTH: seen[place] - 1,
    }


@given(SELECTORS, st.integers(0, 1 << 30), st.integers(0, 40), st.integers(0, 40))
def test_columns_and_rows_agree(texts: list[str], seed: int, count: int, cut: int) -> None:
    """Stretch by stretch, the mask finds the ops that the selector finds row by row, some facts known first or not."""
    selector, rows = parse_selectors(texts), rows_of(seed, count)
    mask, cut, seen = RowMask(selector, "rank0/main", WORDS), min(cut, count), Counter[tuple[int, ...]]()
    found = [*mask.op_indices(rows.cut(0, cut)).tolist(), *(cut + mask.op_indices(rows.cut(cut, count))).tolist()]
    wanted = []
    for i in range(count):
        facts = facts_of(rows, i, seen)
        if rows.columns[i, Column.KIND] == Kind.OP:
            wanted += [i] * selector.matches(facts)
            assert in_two_goes(selector, facts, 1 + i % len(Key)) == selector.matches(facts)
    assert found == wanted
    assert mask.is_possible or not found


def in_two_goes(selector: Selector, facts: dict[Key, Any], first: int) -> bool:
    """Whether it holds where the first few facts are known before the rest."""
    known = dict(list(facts.items())[:first])
    return selector.simplify(known).simplify({key: facts[key] for key in facts.keys() - known.keys()}).matches_all


@given(st.integers(0, 1 << 30), st.integers(0, 30))
def test_events_are_meant_by_their_names_alone(seed: int, count: int) -> None:
    """An event is found by its name; ``op=*`` means operators, and no other key leaves events out."""
    rows = rows_of(seed, count)
    events = rows.column(Column.KIND) == Kind.ENVIRONMENT_STEP
    found = [
        RowMask(parse_selectors([text]), "", WORDS).compute(rows) for text in ("op=environment-*", "op=*", "step=0:")
    ]
    assert [mask.tolist() for mask in found] == [events.tolist(), (~events).tolist(), [True] * count]


def test_no_occurrence_is_known_in_the_step_after_a_hole() -> None:
    """What a hole hides cannot be counted: only the next step's occurrences are known again."""
    rows = rows_of(0, 40)
    counts = Occurrences()
    counts.count(rows.cut(0, 10))
    counts.skip()
    after = counts.count(rows.cut(15, 40))
    steps = rows.column(Column.STEP)[15:]
    assert ((after < 0) == (steps == steps[0])).all()
    assert (after[steps != steps[0]] == Occurrences().count(rows)[15:][steps != steps[0]]).all()


def test_a_hole_within_a_step() -> None:
    """What was seen before a hole is not counted behind it, for the selector as for the count."""
    rows = rows_of(0, 40)
    rows.columns[:, [Column.SITE, Column.OP, Column.STEP]], rows.columns[:, Column.KIND] = (1, 1, 4), Kind.OP
    rows.columns[30:, Column.STEP] = 5
    mask = RowMask(parse_selectors(["nth=0:"]), "", WORDS)
    assert mask.op_indices(rows.cut(0, 10)).tolist() == list(range(10))
    mask.skip()
    assert mask.op_indices(rows.cut(20, 25)).tolist() == []
    assert mask.op_indices(rows.cut(25, 33)).tolist() == [5, 6, 7]
    assert mask.op_indices(rows.cut(33, 40)).tolist() == list(range(7))


def test_an_id_that_no_table_has_matches_nothing() -> None:
    """A phase of a newer format has a name that this one does not know."""
    rows = rows_of(0, 3)
    rows.columns[:, Column.PHASE], rows.columns[1, Column.PHASE] = 200, Phase.FORWARD
    assert RowMask(parse_selectors(["phase=f*"]), "", WORDS).compute(rows).tolist() == [False, True, False]
