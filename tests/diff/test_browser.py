"""Both sides line by line: nothing is lost, nothing is shown twice, and a line says of a pair what its rows say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from programs import Do, Record, recorded, training
from tampering import bases, load, rewrite, store
from views import opened

from rltrace.diff import compare
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.display import browser as browse
from rltrace.diff.display import segments
from rltrace.diff.display.browser import Browser, BrowserLine
from rltrace.diff.display.row_pairs import Relation
from rltrace.errors import HoleError
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import Trace, open_trace

LOG = Do("aten.mean.default", ("e",), "log", 50)
OTHER = (("library", "ATen"), ("isa", "AVX512"), ("threads", 4))


def browser_of(a: Path | Trace, b: Path | Trace) -> Browser:
    """Opened on the findings of the comparison, as the interface does."""
    a, b = (t if isinstance(t, Trace) else open_trace(t) for t in (a, b))
    found = compare(a, b)
    sides = [StreamView(t.processes[0], t.processes[0].streams[0]) for t in (a, b)]
    return Browser(*sides, [f for f in (found.decisive, found.first_value, found.first) if f])


def all_open(browser: Browser) -> list[BrowserLine]:
    """Every line once everything is open."""
    while folded := [k for k, piece in enumerate(browser.pieces) if not piece.is_open]:
        browser.open(folded[0])
        assert not browser.pieces[folded[0]].trouble
    return [browser.line(k) for k in range(len(browser))]


def logged(program: list[Do]) -> list[Do]:
    return [x for do in program for x in ([do, LOG] if do.name == "aten.sub.Tensor" else [do])]


def other_kernel(program: list[Do], nth: int) -> list[Do]:
    ops = [k for k, do in enumerate(program) if do.is_op]
    return [replace(do, kernel=OTHER) if k == ops[nth] else do for k, do in enumerate(program)]


EDITS: dict[str, Callable[[list[Do]], list[Do]]] = {
    "none": lambda program: program,
    "kernel": lambda program: other_kernel(program, 20),
    "first op": lambda program: other_kernel(program, 0),
    "log": logged,
    "both": lambda program: logged(other_kernel(program, 20)),
    "longer": lambda program: [*program, *training(1)[2:]],
}


@pytest.mark.parametrize("stepless", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_every_row_stands_on_one_line_in_order(
    record: Record, edit: str, stepless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without optimizer steps that divide the rows, however few are read at a time."""
    monkeypatch.setattr(segments, "MAX_ROWS", 64)
    monkeypatch.setattr(browse, "MAX_ROWS", 64)
    program = [do for do in training(6) if not stepless or do.name != "step"]
    changed = [do for do in EDITS[edit](training(6)) if not stepless or do.name != "step"]
    browser = browser_of(record(program).path, record(changed).path)
    lines = all_open(browser)
    assert [line.a for line in lines if line.a is not None] == list(range(browser.a.rows))
    assert [line.b for line in lines if line.b is not None] == list(range(browser.b.rows))


@pytest.mark.parametrize("edit", EDITS)
def test_a_line_says_what_its_rows_say(record: Record, edit: str) -> None:
    """Equal: the same digests; differs or receives: others; one side: the other has no row."""
    browser = browser_of(record(training()).path, record(EDITS[edit](training())).path)
    for line in all_open(browser):
        if line.relation in (Relation.ONLY_A, Relation.ONLY_B):
            assert (line.a is None) != (line.b is None)
            continue
        assert line.a is not None and line.b is not None
        (rows_a, i), (rows_b, j) = browser.a.row(line.a), browser.b.row(line.b)
        same = rows_a.outputs(i) == rows_b.outputs(j) and rows_a.value(i) == rows_b.value(j)
        assert same == (line.relation is Relation.EQUAL), line


def test_finding_differs_and_what_follows_receives(record: Record) -> None:
    """The op of the verdict is marked as one that differs by itself, the ops that compute with its result are not."""
    browser = browser_of(record(training()).path, record(other_kernel(training(), 20)).path)
    lines = all_open(browser)
    unequal = [line for line in lines if line.relation is not Relation.EQUAL]
    assert unequal[0].relation is Relation.DIFFERS and (unequal[0].a, unequal[0].b) in browser.pins
    assert {line.relation for line in unequal[1:]} == {Relation.RECEIVES}


def test_what_is_identical_is_never_read(record: Record) -> None:
    """Two equal traces are one fold, and opening it reads nothing."""
    a, b = (open_trace(record(training()).path) for _ in range(2))
    browser = browser_of(a, b)
    before = browser.a.stream.counter.chunks
    assert len(browser) == 1
    browser.open(0)
    assert len(browser) == browser.a.rows and browser.a.stream.counter.chunks == before


def test_fold_puts_back_what_was_opened(record: Record) -> None:
    """Opening and folding a step leaves the lines as they were."""
    browser = browser_of(record(training()).path, record(other_kernel(training(), 20)).path)
    before = [browser.line(k) for k in range(len(browser))]
    at = next(k for k, piece in enumerate(browser.pieces) if not piece.is_open and not piece.equal)
    browser.open(at)
    assert len(browser) > len(before)
    browser.fold(at)
    assert [browser.line(k) for k in range(len(browser))] == before


def test_reveal_finds_every_row(record: Record) -> None:
    """Whatever hides a row, revealing it leads to the line that shows it."""
    a, b = record(training()).path, record(logged(other_kernel(training(), 20))).path
    for side in ("a", "b"):
        for row in range(0, browser_of(a, b).a.rows, 7):
            browser = browser_of(a, b)
            line = browser.line(browser.reveal(side, row))
            assert (line.a if side == "a" else line.b) == row and line.relation is not None


def test_seek_stops_where_a_difference_may_begin(record: Record) -> None:
    """Forwards and backwards, over steps that were never opened."""
    program = other_kernel(other_kernel(training(), 20), 34)  # 34 draws: nothing reaches it
    browser = browser_of(record(training()).path, record(program).path)
    found = browser.seek(0, 1)
    assert found == ("a", 20)
    second = browser.seek(browser.reveal(*found), 1)
    assert second == ("a", 34)
    assert browser.seek(browser.reveal(*second), -1) is not None
    assert browser.seek(0, 1, lambda: True) is None


def test_damage_is_a_line_of_its_own(record: Record) -> None:
    """Rows that cannot be read leave a fold that says why."""
    a, b = record(training()).path, record(other_kernel(training(), 20)).path
    traces = open_trace(a), open_trace(b)
    browser = browser_of(*traces)
    files = [p for p in (b / "processes/0/streams/0/rows").rglob("*") if p.is_file() and p.name != "zarr.json"]
    files[0].write_bytes(b"no chunk")
    for trace in traces:
        trace.processes[0].streams[0]._cache.clear()
    at = next(k for k, piece in enumerate(browser.pieces) if not piece.is_open and not piece.equal)
    browser.open(at)
    assert "cannot be read" in browser.pieces[at].trouble and not browser.pieces[at].is_open


@settings(max_examples=10)
@given(st.data())
def test_any_two_programs(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Ops dropped, repeated and run otherwise at random: no row is lost or shown twice."""
    folder = tmp_path_factory.mktemp("browse")
    program = training(3)
    keep = data.draw(st.lists(st.sampled_from([0, 1, 1, 1, 1, 2, 3]), min_size=len(program), max_size=len(program)))
    changed: list[Do] = []
    for do, how in zip(program, keep, strict=True):
        if do.name in ("step", "outside") or do.writes.startswith("w") or how == 1:
            changed.append(do)
        elif how == 2 and do.is_op:
            changed += [do, do]
        elif how == 3 and do.is_op:
            changed.append(replace(do, kernel=OTHER))
        elif do.writes:
            changed.append(do)
    a = recorded(folder / "a.zarr", program).path
    b = recorded(folder / "b.zarr", changed).path
    lines = all_open(browser := browser_of(a, b))
    assert sorted(line.a for line in lines if line.a is not None) == list(range(browser.a.rows))
    assert sorted(line.b for line in lines if line.b is not None) == list(range(browser.b.rows))


def keep_op(name: str) -> Callable[[RowRange], NDArray[np.bool_]]:
    """Rows of one operator."""
    return lambda stretch: np.array([stretch.view.op(stretch.rows, i) == name for i in range(len(stretch))], bool)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("edit", EDITS)
def test_filter_leaves_what_is_wanted(record: Record, edit: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a filter every line shows a wanted row, and every wanted row has its line, whether it was set before
    anything was opened or after; without it everything is back.
    """
    for module in (segments, browse):
        monkeypatch.setattr(module, "MAX_ROWS", 16)
    browser = browser_of(record(training(6)).path, record(EDITS[edit](training(6))).path)
    keep = keep_op("aten.mm.default"), keep_op("aten.mm.default")
    wanted = [[k for k in range(view.rows) if keep[0](view.read(k, k + 1))[0]] for view in (browser.a, browser.b)]
    if when == "after":
        all_open(browser)
    browser.set_filter(keep)
    lines = all_open(browser)
    assert [line.a for line in lines if line.a is not None] == wanted[0]
    assert [line.b for line in lines if line.b is not None] == wanted[1]
    assert browser.is_hidden("a", wanted[0][1] - 1) and not browser.is_hidden("a", wanted[0][1])
    assert browser.line(browser.line_of("a", wanted[0][1] - 1)).a == wanted[0][1]
    browser.set_filter(None)
    assert [line.a for line in all_open(browser) if line.a is not None] == list(range(browser.a.rows))


def test_next_origin_is_one_that_the_filter_shows(record: Record) -> None:
    """With a filter set, the search for the next origin passes over those that are hidden."""
    ops = [k for k, do in enumerate(training()) if do.name == "aten.mm.default"]
    rand = next(k for k, do in enumerate(training()) if do.draws and k > ops[1])
    changed = [replace(do, kernel=OTHER) if k in (ops[1], rand) else do for k, do in enumerate(training())]
    a, b = record(training()), record(changed)
    browser = browser_of(a.path, b.path)
    browser.set_filter((keep_op(training()[rand].name), keep_op(training()[rand].name)))
    assert browser.seek(0, 1) == ("a", a.rows[rand])


def test_hidden_receivers_lead_to_the_next_row(record: Record) -> None:
    """A row that is hidden has no line of its own; asked for, the next one that is shown is found, not the last."""
    browser = browser_of(record(training()).path, record(other_kernel(training(), 20)).path)
    lines = all_open(browser)
    at = next(k for k, line in enumerate(lines) if line.relation is Relation.RECEIVES)
    row = lines[at].a
    after = next(line.a for line in lines[at:] if line.relation is not Relation.RECEIVES)
    browser.set_hide_receivers(True)
    assert row is not None and browser.is_hidden("a", row)
    assert browser.line(browser.line_of("a", row)).a == after


def test_one_trace_by_itself(record: Record) -> None:
    """A stream alone: a fold for each step, then its rows, each once, with no other side; nothing is read for it."""
    browser = Browser(opened(record(training(4)).path), None)
    steps = browser.a.process.steps
    assert len(browser) == len(steps) + (browser.a.rows > int(steps[-1][7]))
    assert [browser.step_of(piece) for piece in browser.pieces[:4]] == [0, 1, 2, 3]
    before = browser.a.stream.counter.chunks
    lines = all_open(browser)
    assert [(line.a, line.b) for line in lines] == [(k, None) for k in range(browser.a.rows)]
    assert browser.a.stream.counter.chunks == before
    browser.set_filter((keep_op("aten.mm.default"), keep_op("aten.mm.default")))
    shown = [browser.line(k) for k in range(len(browser))]
    assert {browser.a.op(*browser.a.row(line.a)) for line in shown if line.a is not None} == {"aten.mm.default"}


def test_one_trace_without_steps(record: Record) -> None:
    """A stream that no step divides lies open from the start; an empty one has no line."""
    browser = Browser(opened(record([do for do in training(2) if do.name != "step"]).path), None)
    assert len(browser) == browser.a.rows and browser.line(3).a == 3


def test_a_row_without_a_record_is_a_hole(tmp_path: Path) -> None:
    """A row between two segments, whose commit the journal has lost, is reported as unreadable, and no other row is."""
    trace = TraceBuilder(tmp_path / "whole.zarr")
    for part in range(3):
        trace.op("aten.mm.default", outputs=[f"x{part}"])
        trace.op("aten.relu.default", outputs=[f"y{part}"])
        trace.commit()
    files = load(trace.finish())
    broken = rewrite(files, bases(files)[0], lambda record: None if record.get("first") == 2 else record)
    view = opened(store(broken, tmp_path / "broken.zarr"))
    assert [view.op(*view.row(k)) for k in (0, 1, 4, 5)] == ["aten.mm.default", "aten.relu.default"] * 2
    for row in (2, 3):
        with pytest.raises(HoleError):
            view.row(row)
