"""A trace that is followed row by row, as a running program's rows come, and compared with another as a whole."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import KERNEL, Do, Machine, recorded, training

from rltrace.diff import compare
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import Cause, Finding
from rltrace.diff.base.row_diff import difference
from rltrace.diff.base.view import RowRange
from rltrace.diff.causes.classify import Classification, judge
from rltrace.live_diff.reference_trace import Content, Ids, Reference, RowPartners, StepRows
from rltrace.live_diff.view import OWN_IDS, PAYLOADS, LiveRow, LiveView
from rltrace.recorder.base.intern_tables import Tables
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import FIRST_ENTRIES, TABLES, Column, Origin, RowFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

KNOWN_OF_TRACES = (Cause.OUTSIDE, Cause.RNG)
"""Causes of which two whole traces tell more: generators' states between steps, an extra draw before."""


def tables_of(process: ProcessTrace) -> Tables:
    """The same entries under the same ids, as a process has them that is being recorded."""
    tables = Tables()
    tables.remember(*PAYLOADS)
    for name in TABLES:
        entries = list(zip(process.tables[name].keys.tolist(), process.tables[name].payloads, strict=True))
        for key, payload in entries[name in FIRST_ENTRIES :]:
            tables.add(name, key, payload)
    return tables


def followed(path_a: Path, path_b: Path) -> Classification | None:
    """What is found of B while its rows come one by one; None: every row that A has is equal."""
    (process_a,), (process_b,) = (open_trace(path).processes for path in (path_a, path_b))
    (stream_a,), (stream_b,) = process_a.streams, process_b.streams
    reference, tables = Reference(process_a, stream_a), tables_of(process_b)
    ids, partners = Ids(process_a, tables), RowPartners()
    kept: dict[int, LiveRow] = {}
    steps_a = stream_a.read(0, stream_a.rows).column(Column.STEP)
    rows = stream_b.read(0, stream_b.rows)
    left: tuple[int, StepRows | None] = -1, None
    for i in range(len(rows)):
        here, place = row_of(rows, i, ids)
        if left[0] != here.step:
            start, stop = np.searchsorted(steps_a, [here.step, here.step + 1]).tolist()
            left = here.step, StepRows(reference, start, stop)
        assert left[1] is not None
        found = left[1].pop(place, here.content, lambda found: True)
        partners.add(i, None if found is None else found.row)
        if found is None:
            kept[i] = here
            continue
        a = RowAt(reference.view, found.rows, found.i)
        view = LiveView(reference.view, tables, partners, kept.get, set(), here.step - a.step)
        b = RowAt(view, here.rows(*rows.columns[i, [Column.KERNEL, Column.SETTINGS]].tolist()), 0)
        assert (b.op, b.stack, b.kernel, b.settings, b.module) == whole(process_b, rows, i)
        differs = difference(RowRange(a.view, a.rows), a.place, RowRange(view, b.rows), 0)
        quick = here.harmless_difference(found.rows, found.i) if found.only_digests else None
        assert quick is None or found.same or (quick.found, quick.marked) == (differs.found, differs.marked)
        if differs.found:
            return judge(DiffContext(a.view, view, partners, ()), a, b, differs)
        if differs.marked:
            kept[i] = here
    return None


def row_of(rows: Any, i: int, ids: Ids) -> tuple[LiveRow, tuple[int, int]]:
    """Row ``i`` as its program made it, and which of A's it may be."""
    cells = rows.cut(i, i + 1)
    op, structure, site, module, scalars = cells.columns[0, Column.OP : Column.SCALARS + 1].tolist()
    kind, phase, flags, step, digests = cells.columns[
        0, [Column.KIND, Column.PHASE, Column.FLAGS, Column.STEP, Column.DIGESTS]
    ].tolist()
    numbers = (part.tobytes() for part in (cells.integers, cells.floats, cells.digests))
    content = Content((ids.of("structures", structure), ids.of("scalars", scalars)), *numbers)
    fixed = op, structure, site, module, scalars, kind << 24 | phase << 16 | flags, digests
    notes = np.insert(cells.link_notes, 0, i, axis=1).tobytes()
    return LiveRow(i, step, fixed, cells.links.tobytes(), notes, content), (ids.of("ops", op), ids.of("sites", site))


def whole(process: ProcessTrace, rows: Any, i: int) -> tuple[object, ...]:
    """What a reader of the finished trace makes of a row."""
    row = RowAt(Reference(process, process.streams[0]).view, rows, i)
    return row.op, row.stack, row.kernel, row.settings, row.module


def agree(path_a: Path, path_b: Path) -> Finding | None:
    """The first difference in values of the whole traces, after it was held that following B finds the same."""
    found, other = followed(path_a, path_b), compare(path_a, path_b).first_value
    assert (found is None) == (other is None)
    if found is None or other is None:
        return None
    judgement = found.judgement
    assert (found.a.index, found.b.index, found.b.op) == (other.a_index, other.b_index, other.op)
    assert (judgement.cause, judgement.inputs_match) == (other.cause, other.inputs_match)
    assert other.explanation.startswith(judgement.explanation)
    assert judgement.cause in KNOWN_OF_TRACES or other.explanation == judgement.explanation
    return other


# --- programs ---------------------------------------------------------------------------------------------------------

OTHER_KERNEL = tuple({**KERNEL, "isa": "AVX512"}.items())


def edited(name: str, number: int, **fields: object) -> list[Do]:
    """The program with one instruction of this name changed."""
    program = training()
    place = [place for place, do in enumerate(program) if do.name == name][number]
    return [*program[:place], replace(program[place], **fields), *program[place + 1 :]]  # type: ignore[arg-type]


def inserted(before: str, number: int, *dos: Do) -> list[Do]:
    program = training()
    place = [place for place, do in enumerate(program) if do.name == before][number]
    return [*program[:place], *dos, *program[place:]]


LOG = Do("aten.norm.default", ("w2",), "n", 98, source="log(w2.norm())")


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (training(), None),
        (inserted("aten.mm.default", 2, LOG), None),
        (edited("aten.mm.default", 2, kernel=OTHER_KERNEL), Cause.KERNEL),
        (edited("aten.mm.default", 2, noise="x"), Cause.SAME_KERNEL),
        (edited("aten.rand.default", 1, kernel=OTHER_KERNEL), Cause.KERNEL),
        (edited("aten.mm.default", 2, noise="x", kernel=None), Cause.COMPUTATION),
        (edited("outside", 3, noise="other"), Cause.OUTSIDE),
        (edited("aten.add_.Tensor", 4, floats=(0.5,)), Cause.ARGUMENTS),
        (edited("aten.mul.Tensor", 3, shape=(8,)), Cause.ARGUMENTS),
        (inserted("aten.rand.default", 0, Do("seed", noise="1")), Cause.RNG),
        (inserted("aten.addmm.default", 3, Do("alias", (), "w2", noise="numpy")), Cause.UNTRACKED_WRITE),
        (inserted("aten.sub.Tensor", 1, Do("aten.add_.Tensor", ("p",), "p", 97)), Cause.CONTROL_FLOW),
    ],
)
def test_programs(tmp_path: Path, program: list[Do], cause: Cause | None) -> None:
    """Each cause that a row and the rows before it show is named alike, at the same op and in the same words."""
    a, b = (recorded(tmp_path / name, side).path for name, side in (("a", training()), ("b", program)))
    found = agree(a, b)
    assert (found and found.cause) is cause


def rows_by_hand() -> Iterator[tuple[str, Callable[[TraceBuilder, str], object], Cause | None]]:
    def marked(trace: TraceBuilder, side: str) -> None:
        empty = trace.op("aten.empty.memory_format", outputs=[], flags=RowFlag.ALLOCATION)
        copied = trace.op("aten.clone.default", inputs=[In(empty)], outputs=[f"junk {side}"], flags=RowFlag.MARKED)
        trace.op("aten.add.Tensor", inputs=[copied], outputs=[f"sum {side}"])

    def overlapping(trace: TraceBuilder, side: str) -> None:
        links = [In(origin=Origin.OVERWRITTEN), In(trace.op("aten.randn.default", outputs=["t"], rng="seed"))]
        trace.op("aten.copy_.default", inputs=links, outputs=[side], kernel=KERNEL, flags=RowFlag.OVERLAPPING)

    def read_before(trace: TraceBuilder, side: str) -> None:
        first = trace.op("aten.mm.default", inputs=[("outside", "w")], outputs=["y"])
        trace.op("aten.mul.Tensor", inputs=[In(first, slot=0, known=True)], outputs=[f"z {side}"])

    def settings_differ(trace: TraceBuilder, side: str) -> None:
        under = {"threads": 4, "grad_mode": side == "a"}
        first = trace.op("aten.ones.default", outputs=["x"])
        trace.op("aten.gelu.default", inputs=[In(first)], outputs=[side], kernel=KERNEL, settings=under)

    def one(op: str, **cells: object) -> Callable[[TraceBuilder, str], object]:
        return lambda trace, side: trace.op(op, **{k: v(side) if callable(v) else v for k, v in cells.items()})

    cells: dict[str, object] = {"inputs": lambda s: [("mixed", s)], "flags": RowFlag.MARKED}
    number = one("aten._local_scalar_dense.default", value=lambda s: float(s == "a"), **cells)
    unwritten = one("aten.clone.default", outputs=lambda s: [s], **cells)
    elsewhere = one("aten.mm.default", inputs=lambda s: [In(origin=Origin.UNKNOWN, digest=s)], outputs=lambda s: [s])
    unread = one("aten.mm.default", inputs=["unknown"], outputs=lambda s: [s], kernel=KERNEL)
    led = one("aten.mm.default", inputs=["unknown"], outputs=lambda s: [s], kernel=lambda s: {**KERNEL, "isa": s})
    inductor = {"library": "Inductor", "names": ["cpp_fused_sin_0"]}
    compiled = one("inductor.compiled_graph", outputs=lambda s: [s], kernel=lambda s: {**inductor, "code": s})
    yield "marked", marked, Cause.UNKNOWN
    yield "unwritten", unwritten, None
    yield "overlapping", overlapping, Cause.SAME_KERNEL
    yield "read before", read_before, Cause.COMPUTATION
    yield "settings", settings_differ, Cause.KERNEL
    yield "number", number, Cause.UNKNOWN
    yield "elsewhere", elsewhere, Cause.UNKNOWN
    yield "unread", unread, Cause.UNKNOWN
    yield "led", led, Cause.UNKNOWN
    yield "compiled", compiled, Cause.KERNEL


@pytest.mark.parametrize(("build", "cause"), [pytest.param(*case, id=name) for name, *case in rows_by_hand()])
def test_rows_by_hand(tmp_path: Path, build: Callable[[TraceBuilder, str], object], cause: Cause | None) -> None:
    """Memory that nobody wrote, an overlapping copy, other settings, inputs of which nothing is known: named alike."""
    paths = []
    for side in ("a", "b"):
        trace = TraceBuilder(tmp_path / side)
        build(trace, side)
        paths.append(trace.finish())
    found = agree(paths[0], paths[1])
    assert (found and found.cause) is cause


@given(st.randoms(use_true_random=False), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_random_edits(random: Random, edits: int) -> None:
    """Several changes at once: the first, and one of its causes, are the same."""
    program = training()
    for _ in range(edits):
        place = random.randrange(2, len(program))
        if not program[place].is_op:
            continue
        fields: dict[str, object] = random.choice(
            [{"noise": "x"}, {"kernel": OTHER_KERNEL}, {"shape": (8,)}, {"floats": (0.25,)}, {"kernel": None}]
        )
        program[place] = replace(program[place], **fields)  # type: ignore[arg-type]
        if random.random() < 0.5:
            program.insert(place, LOG)
    with tempfile.TemporaryDirectory() as folder:
        a, b = (recorded(Path(folder) / name, side) for name, side in (("a", training()), ("b", program)))
        agree(a.path, b.path)


def test_an_op_that_is_forgotten(tmp_path: Path) -> None:
    """A row that A does not have, and of which nothing is known any more, is said to be that."""
    machine: Machine = recorded(tmp_path / "a", training())
    process = open_trace(machine.path).processes[0]
    reference = Reference(process, process.streams[0])
    partners = RowPartners()
    partners.add(0, None)
    view = LiveView(reference.view, tables_of(process), partners, lambda row: None, set(), 0)
    assert str(RowAt(view, *view.row(0))) == "an op that A does not run"
    assert view.keys("ops", np.array([OWN_IDS, 0]))[0] == view.keys("ops", np.array([OWN_IDS, 0]))[1]
