"""A step's digest in any order is equal exactly when its ops are a permutation that computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format import row_hashes
from rltrace.trace.format.row_hashes import Chains, StepDigests
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag, pack_link
from rltrace.trace.format.tables import KeyTables

LIVED = ("w0", "w1", "w2")
"""Tensors written in the step before."""


@dataclass(frozen=True)
class Do:
    """One instruction of a step; its ``site`` is where it stands in the source."""

    kind: str
    """"new", "draw", "add" (in place, reads), "fill" (overwrites), "view", "event", "scratch"."""
    site: int
    reads: tuple[str, ...] = ()
    writes: str = ""
    number: int = 0


@dataclass
class Tensor:
    value: int
    row: int | None
    step: int
    outside: bool = False
    read: tuple[int, int] | None = None
    """(row, input) of the first read of the step, with nothing written since."""


@dataclass
class Machine:
    """Runs instructions and makes the rows that a recorder would."""

    columns: list[list[int]] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    integers: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=lambda: {"o": Tensor(77, None, 0, outside=True)})
    generator: int = 0
    step: int = 0
    values: int = 5
    """How many there are: few, so that ops often agree by chance."""
    computed: dict[int, int] = field(default_factory=dict)
    """What the instruction at each site computed."""

    def run(self, program: Sequence[Do]) -> Machine:
        for do in program:
            self._row(do)
        return self

    def end_step(self) -> None:
        self.step += 1
        for tensor in self.tensors.values():
            tensor.read = None

    def rows(self) -> Rows:
        return Rows(
            0,
            np.array(self.columns, np.uint32).reshape(-1, len(Column)),
            np.array(self.links, np.int64),
            np.array(self.integers, np.int64),
            np.empty(0),
            np.array(self.digests, np.uint64),
        )

    def _row(self, do: Do) -> None:
        row, links, digests = len(self.columns), [], []
        flags = {
            "view": RowFlag.VIEW,
            "draw": RowFlag.RNG,
            "scratch": RowFlag.MARKED,
            "allocate": RowFlag.ALLOCATION,
        }.get(do.kind, RowFlag(0))
        for place, name in enumerate(do.reads):
            link, digest = self._input(name, row, place, view=do.kind == "view")
            links.append(link)
            digests += [] if digest is None else [digest]
        if do.kind == "fill":
            links.append(pack_link(Origin.OVERWRITTEN))
        inputs = [self.tensors[name].value for name in do.reads]
        if do.kind == "draw":
            digests.append(1000 + self.generator)
            inputs.append(self.generator)
            self.generator += 1
        value = crc32(repr((do.kind, do.number, sorted(inputs))).encode()) % self.values
        if do.kind != "view":
            digests.append(value)
            self.computed[do.site] = value
        if do.writes:
            self.tensors[do.writes] = Tensor(value, row, self.step)
        line = [0] * len(Column)
        line[Column.KIND] = Kind.ENVIRONMENT_STEP if do.kind == "event" else Kind.OP
        line[Column.SITE], line[Column.FLAGS] = do.site, flags
        line[Column.LINKS], line[Column.INTEGERS], line[Column.DIGESTS] = len(links), 1, len(digests)
        self.columns.append(line)
        self.links += links
        self.integers.append(do.number)
        self.digests += digests

    def _input(self, name: str, row: int, place: int, *, view: bool) -> tuple[int, int | None]:
        tensor = self.tensors[name]
        if tensor.outside:
            return (pack_link(Origin.OUTSIDE), None) if view else (pack_link(Origin.OUTSIDE, read=True), tensor.value)
        assert tensor.row is not None
        if view or tensor.step == self.step:
            return pack_link(row - tensor.row, 0), None
        if tensor.read is not None and tensor.read[0] != row:
            return pack_link(row - tensor.read[0], tensor.read[1], known=True), None
        tensor.read = tensor.read or (row, place)
        return pack_link(row - tensor.row, 0, read=True), tensor.value


@cache
def tables() -> KeyTables:
    made = KeyTables()
    made.extend(plain_entries(64))
    return made


def digest(machine: Machine, start: int, cuts: Sequence[int] = ()) -> StepDigests:
    """Digests of the rows from ``start`` on, with rows handed over in parts."""
    rows, taken = machine.rows(), Chains()
    at = sorted({0, start, len(rows), *(cut for cut in cuts if cut <= len(rows))})
    for first, stop in pairwise(at):
        taken.load(rows.cut(first, stop), tables(), [start] if first <= start <= stop else [])
        if first < start <= stop:
            taken.advance_to(start)
            taken.end_step()
        taken.advance_to(stop)
    return taken.end_step()


# --- what is meant, without a hash --------------------------------------------------------------------------------


def meaning(rows: Rows, start: int) -> tuple[Counter[object], list[object]]:
    """The rows from ``start`` on as plain facts: in no order, and those whose order counts in theirs."""
    facts: list[object] = []
    ordered = []
    for i in range(start, len(rows)):
        inputs = sorted(map(repr, (_stands_for(rows, i, k, start) for k in range(rows.columns[i, Column.LINKS]))))
        fact = _result(rows, i), tuple(inputs)
        facts.append(fact)
        origins = [link.distance for link in rows.inputs(i)]
        if rows.columns[i, Column.KIND] != Kind.OP or Origin.OVERWRITTEN in origins:
            ordered.append(fact)
    return Counter(facts), ordered


def _result(rows: Rows, i: int) -> tuple[object, ...]:
    marked = rows.flags(i) & RowFlag.MARKED
    columns = rows.columns[i, [Column.KIND, Column.SITE]].tolist()
    numbers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()
    return (*columns, *numbers, None if marked else (rows.rng(i), tuple(rows.outputs(i))))


def _stands_for(rows: Rows, i: int, place: int, start: int) -> object:
    link = list(rows.inputs(i))[place]
    if link.distance == Origin.OVERWRITTEN:
        return "overwritten"
    target = i - link.distance
    digest = link.digest
    if link.known and target >= start:
        assert link.slot is not None
        digest = list(rows.inputs(target))[link.slot].digest
    if digest is not None:
        return "unwritten" if rows.flags(i) & RowFlag.MARKED else ("bytes", digest)
    if link.distance <= 0:
        return Origin(link.distance).name
    return ("written by", _result(rows, target), link.slot) if target >= start else "before"


# --- programs -------------------------------------------------------------------------------------------------------


@st.composite
def steps(draw: st.DrawFn) -> list[Do]:
    """Instructions of one step; every other is at a site of its own."""
    known = ["o", *LIVED]
    program = []
    for at in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["new", "new", "new", "draw", "add", "add", "fill", "view", "event", "scratch"]))
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        writes, number = "", draw(st.integers(0, 2))
        if kind in ("new", "draw"):
            writes = f"t{at}"
        elif kind in ("add", "fill"):
            writes = draw(st.sampled_from([name for name in known if name != "o"]))
            reads = [writes, *reads] if kind == "add" else []
        elif kind == "event":
            reads = []
        elif kind == "view":
            reads = reads[:1]
        program.append(Do(kind, at, tuple(reads), writes, number))
        if kind in ("new", "draw"):
            known.append(writes)
    return program


def run(program: Sequence[Do], values: int = 5) -> Machine:
    """The tensors that live longer are made in a step of their own."""
    machine = Machine(values=values).run([Do("new", 60 + k, ("o",), name, k) for k, name in enumerate(LIVED)])
    machine.end_step()
    return machine.run(program)


def valid(program: Sequence[Do]) -> bool:
    """Nothing is used before it is there."""
    there = {"o", *LIVED}
    for do in program:
        if not {*do.reads, *([do.writes] if do.kind == "fill" else [])} <= there:
            return False
        there.add(do.writes)
    return True


def conflict(x: Do, y: Do) -> bool:
    """Whether two instructions must keep their order for each to compute the same, or by the rule for ordered rows."""
    touched_x, touched_y = {*x.reads, x.writes} - {""}, {*y.reads, y.writes} - {""}
    clash = bool(({x.writes} - {""}) & touched_y or ({y.writes} - {""}) & touched_x)
    ordered = {x.kind, y.kind} <= {"fill", "event"}
    return clash or ordered or (x.kind == y.kind == "draw")


def shuffled(program: Sequence[Do], draw: st.DataObject, *, safely: bool) -> list[Do]:
    """The instructions in another order; ``safely``: only independent ones change places."""
    rest, done = list(program), []
    while rest:
        free = [i for i, do in enumerate(rest) if not safely or not any(conflict(do, before) for before in rest[:i])]
        done.append(rest.pop(draw.draw(st.sampled_from(free))))
    return done


# --- properties ---------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(steps(), st.data())
def test_independent_instructions_may_change_places(program: list[Do], data: st.DataObject) -> None:
    """Any order that keeps what depends on each other in order has the same digest."""
    other = shuffled(program, data, safely=True)
    a, b = run(program), run(other)
    assert a.computed == b.computed
    assert digest(a, len(LIVED)).any_order == digest(b, len(LIVED)).any_order != 0


@settings(max_examples=150)
@given(steps(), st.data())
def test_the_digest_is_equal_exactly_when_what_it_means_is(program: list[Do], data: st.DataObject) -> None:
    """Whatever the order: equal where the plain facts of the rows are; then every op computed the same and left the
    same behind."""
    other = shuffled(program, data, safely=False)
    if not valid(other):
        return
    a, b = run(program), run(other)
    equal = digest(a, len(LIVED)).any_order == digest(b, len(LIVED)).any_order
    assert equal == (meaning(a.rows(), len(LIVED)) == meaning(b.rows(), len(LIVED)))
    if equal:
        unwritten = {do.site for do in program if do.kind == "scratch"}
        assert {s: v for s, v in a.computed.items() if s not in unwritten} == {
            s: v for s, v in b.computed.items() if s not in unwritten
        }
        assert {k: t.value for k, t in a.tensors.items()} == {k: t.value for k, t in b.tensors.items()}


@settings(max_examples=30)
@given(steps(), st.lists(st.integers(0, 12), max_size=4))
def test_cuts_never_matter(program: list[Do], cuts: list[int]) -> None:
    """Where rows were cut on their way in, links across the cut are followed as within."""
    machine = run(program)
    assert digest(machine, len(LIVED), cuts) == digest(machine, len(LIVED))


PROGRAM = [
    Do("new", 0, ("w0", "o"), "a"),
    Do("new", 1, ("w0", "w1"), "b"),
    Do("add", 2, ("a", "b"), "a"),
    Do("fill", 3, (), "w2", 1),
    Do("fill", 4, (), "w2", 2),
    Do("event", 5),
]


def test_batches_never_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is the same however many rows are hashed at a time, across the end of a step and of what is loaded."""
    rows, digests = random_rows(np.random.default_rng(5), 0, 40), []
    for batch in (1 << 14, 7):
        monkeypatch.setattr(row_hashes, "BATCH", batch)
        chains = Chains()
        chains.load(rows.cut(0, 30), tables(), [20])
        chains.advance_to(20)
        first = chains.end_step()
        chains.advance_to(30)
        chains.load(rows.cut(30, 40), tables(), [])
        chains.advance_to(40)
        digests.append((first, chains.end_step()))
    assert digests[0] == digests[1]


def of(program: Sequence[Do]) -> int:
    return digest(run(program, 9973), len(LIVED)).any_order


@pytest.mark.parametrize(
    "other",
    [
        [*PROGRAM[:-1]],
        [*PROGRAM, PROGRAM[0]],
        [Do("new", 0, ("w0", "o"), "a", number=1), *PROGRAM[1:]],
        [Do("new", 0, ("w1", "o"), "a"), *PROGRAM[1:]],
        [Do("new", 7, ("w0", "o"), "a"), *PROGRAM[1:]],
        [*PROGRAM[:2], Do("add", 2, ("a", "a"), "a"), *PROGRAM[3:]],
    ],
    ids=["fewer", "more", "number", "input", "site", "producer"],
)
def test_anything_else_is_another_digest(other: list[Do]) -> None:
    """An op less or more, another number, input, site or producer is seen."""
    assert of(other) != of(PROGRAM)


@pytest.mark.parametrize(("kind", "is_seen"), [("new", True), ("scratch", False)])
def test_bytes_that_were_read_are_part_of_it(kind: str, is_seen: bool) -> None:
    """Other bytes of an input are another digest though the op computed the same; but not of unwritten memory."""
    a, b = (run([Do(kind, 0, ("o",), "a")]) for _ in range(2))
    b.digests[int(b.rows().digest_offsets[len(LIVED)])] += 1
    assert (digest(a, len(LIVED)).any_order != digest(b, len(LIVED)).any_order) is is_seen


def test_what_allocates_without_a_tensor_has_no_place() -> None:
    """Two allocations may change places; not so two that are given a tensor, which may change it (``resize_``)."""
    alone = [Do("allocate", 0, (), "a"), Do("allocate", 1, (), "b")]
    given = [Do("allocate", 0, ("w0",), "a"), Do("allocate", 1, ("w1",), "b")]
    assert of(alone) == of(alone[::-1])
    assert of(given) != of(given[::-1])


def with_origins(program: Sequence[Do], origin: Origin) -> Machine:
    """The program, of whose rows each link of the step has this origin."""
    machine = run(program)
    first = int(machine.rows().link_offsets[len(LIVED)])
    machine.links[first:] = [pack_link(origin)] * (len(machine.links) - first)
    return machine


@pytest.mark.parametrize(("kind", "has_a_place"), [("new", True), ("view", False)])
def test_what_uses_untracked_memory_has_a_place(kind: str, has_a_place: bool) -> None:
    """No link shows when it was written; a view reads nothing."""
    program = [Do(kind, 0, ("o",), "a"), Do(kind, 1, ("o",), "b")]
    for origin, of_this in ((Origin.UNKNOWN, has_a_place), (Origin.OUTSIDE, False)):
        a, b = (digest(with_origins(word, origin), len(LIVED)).any_order for word in (program, program[::-1]))
        assert (a != b) is of_this


def test_digests_of_inputs() -> None:
    """Of each link: whether one of the rows read its bytes, itself or through the same view, and which they were."""
    machine = run([Do("new", 0, ("o", "w0"), "a"), Do("new", 1, ("a", "w0"), "b")])
    rows = machine.rows()
    known, digests = row_hashes.input_digests(rows)
    w0 = machine.tensors["w0"].value
    first = int(rows.link_offsets[len(LIVED)])
    assert known[first:].tolist() == [True, True, False, True]
    assert digests[first:].tolist() == [77, w0, 0, w0]


def test_a_step_too_long_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory for an open step is bounded; past that the digest is 0, wherever the rows are cut."""
    monkeypatch.setattr(row_hashes, "MAX_STEP_ROWS", 8)
    rows = random_rows(np.random.default_rng(3), 0, 9)
    for cuts in ([9], [4, 9], [8, 9]):
        for longest, expected in ((8, True), (9, False)):
            taken, at = Chains(), 0
            for stop in (min(cut, longest) for cut in cuts):
                taken.load(rows.cut(at, stop), tables(), [])
                taken.advance_to(stop)
                at = stop
            assert (taken.end_step().any_order != 0) is expected


def test_how_long_a_step_is_counts_from_its_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short step after another is the same wherever its rows are cut, however many the stream has."""
    program, start = [*PROGRAM, Do("add", 6, ("a", "b"), "a")], len(LIVED)
    machine = run(program)
    whole = digest(machine, start)
    monkeypatch.setattr(row_hashes, "MAX_STEP_ROWS", len(program))
    for cut in range(start + 1, start + len(program)):
        assert digest(machine, start, [cut, start + len(PROGRAM)]) == whole


def test_a_view_that_is_not_read() -> None:
    """A link to a row that read the same view, where no row did: the input is known by the row alone."""
    machine = run([Do("new", 0, (), "a"), Do("new", 1, ("a",), "b")])
    last = len(machine.columns) - 1
    rows = machine.rows().cut(last - 1, last + 1)
    link = int(rows.link_offsets[1])
    known = [pack_link(1, 0, known=one) for one in (True, False)]
    rows.links[link] = known[0]
    found, digests = row_hashes.input_digests(rows)
    assert not found.any() and not digests.any()


def test_definition_is_frozen() -> None:
    """The digest of known rows is part of the format: a change here is a new version of it."""
    assert of([Do("fill", 1, (), "w0", 3), Do("event", 2, (), "", 4)]) == FROZEN
    origins = [digest(with_origins([Do("view", 0, ("o",))], origin), len(LIVED)).any_order for origin in Origin]
    assert origins == FROZEN_ORIGINS
    more = [Do("draw", 6, ("w1",), "c"), Do("view", 7, ("c",)), Do("view", 8, ("w0",)), Do("scratch", 9, ("o",))]
    assert of([Do("view", 10, ("w2",)), *PROGRAM, *more]) == FROZEN_READS


FROZEN, FROZEN_READS = 10790658023480923715, 13205577857798789727
FROZEN_ORIGINS = [12579144406591367110, 13283666983323085572, 13141083524240162393, 4322238703174548583]
