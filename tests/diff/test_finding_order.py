"""Findings of several processes: collectives order them, and show which rank received a difference."""

from pathlib import Path

import pytest
from rank_programs import WORLD, Program, both_programs, reducing
from views import compare_in

from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.causes.collectives import ARRIVING, IN_FLIGHT
from rltrace.diff.finding_order import first_of
from rltrace.recorder.core import op_info
from rltrace.testing.builder import TraceBuilder


def streams(found: Comparison) -> tuple[str | None, list[str], list[str]]:
    """Streams of the first finding, of those in no known order, and of those that come later."""
    first = found.first.stream if found.first else None
    return first, [f.stream for f in found.unordered], [f.stream for f in found.later]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("at", [0, 1])
def test_where_it_began_comes_before_who_received_it(tmp_path: Path, waits: bool, at: int) -> None:
    """Whichever rank it is; the other one's finding says with which collective, from which stream."""
    found = compare(reducing(tmp_path / "a", waits=waits), reducing(tmp_path / "b", 4, waits=waits, at=at))
    assert found.verdict is Verdict.DIVERGED
    assert streams(found) == (f"rank{at}/main", [], [f"rank{1 - at}/main"])
    assert found.first == found.first_value == found.decisive
    assert (found.first.a_index, found.first.received) == (16, None)
    (later,) = found.later
    assert (later.a_index, later.cause) == (19, Cause.OUTSIDE)
    assert later.received is not None
    assert vars(later.received) == {
        "op": "c10d.allreduce_.default",
        "a_index": 17,
        "b_index": 17,
        "ranks": (0, 1),
        "origins": (f"rank{at}/main",),
    }
    assert f"as rank{at}/main does before it" in later.explanation


def test_the_other_ranks_own_difference_is_none_that_it_received(tmp_path: Path) -> None:
    """Two ranks that diverge before they meet are in no order, and neither received it."""
    for built, value in both_programs(tmp_path):
        for rank in built.ranks:
            rank.compute(value)
            rank.meet("allreduce_")
            rank.read(value)
    found = compare_in(tmp_path)
    assert streams(found) == (None, ["rank0/main", "rank1/main"], [])
    assert all(finding.received is None for finding in found.unordered)


@pytest.mark.parametrize(("root", "ordered"), [(1, True), (0, False)])
@pytest.mark.parametrize("name", ["broadcast_", "scatter_"])
def test_only_who_sends_comes_before(tmp_path: Path, name: str, root: int, ordered: bool) -> None:
    """What the root of a broadcast computed before it precedes the others; nothing of theirs precedes the root's."""
    for built, value in both_programs(tmp_path):
        built.ranks[1].compute(value)
        for rank in built.ranks:
            rank.meet(name, integers=[root])
        built.ranks[0].compute(value)
    found = compare_in(tmp_path)
    one = "rank1/main", list[str](), ["rank0/main"]
    assert streams(found) == (one if ordered else (None, ["rank0/main", "rank1/main"], []))


@pytest.mark.parametrize(("sender", "ordered"), [(1, True), (0, False)])
def test_a_message_orders_two_processes(tmp_path: Path, sender: int, ordered: bool) -> None:
    """What was computed before a send precedes what was computed with what the receiver read; there is no way back."""
    for built, value in both_programs(tmp_path):
        built.ranks[1].compute(value)
        built.ranks[sender].meet("send", integers=[1 - sender, 0])
        receiver = built.ranks[1 - sender]
        receiver.meet("recv_", integers=[sender, 0])
        receiver.read("message")
        built.ranks[0].compute(value)
    found = compare_in(tmp_path)
    assert (found.first is not None and found.first.stream == "rank1/main") is ordered
    assert bool(found.unordered) is not ordered


@pytest.mark.parametrize(
    ("waits", "reads", "ordered"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_what_is_on_its_way_orders_nothing_yet(tmp_path: Path, waits: bool, reads: bool, ordered: bool) -> None:
    """A collective that returns at once is over when an op has read what came with it."""
    for built, value in both_programs(tmp_path):
        built.ranks[1].compute(value)
        for rank in built.ranks:
            rank.meet("allreduce_", waits=waits)
        if reads:
            built.ranks[0].read("sum")
        built.ranks[0].compute(value)
    found = compare_in(tmp_path)
    assert streams(found)[0] == ("rank1/main" if ordered else None)


def test_ops_of_one_side_only_have_a_place_in_the_other_run(tmp_path: Path) -> None:
    """That of A before a collective precedes that of B after it; in one thread both precede what follows."""
    for built, value in both_programs(tmp_path):
        for rank in built.ranks:
            rank.compute()
        if value == "x":
            built.ranks[1].stream.op("aten.sin.default", outputs=["sine"])
        for rank in built.ranks:
            rank.meet("allreduce_")
        if value != "x":
            built.ranks[0].stream.op("aten.cos.default", outputs=["cosine"])
    assert streams(compare_in(tmp_path)) == ("rank1/main", [], ["rank0/main"])


def test_a_difference_goes_through_groups(tmp_path: Path) -> None:
    """From rank 2 to rank 1 in one group, to rank 0 in another: the origin is rank 2's for both."""
    groups = ("1", (1, 2)), ("2", (0, 1))
    for built, value in both_programs(tmp_path, 3):
        for step in range(3):
            now = value if step == 2 else "x"
            built.ranks[2].compute(now)
            for group in groups:
                for member in group[1]:
                    built.ranks[member].meet("allreduce_", group)
                    built.ranks[member].read(f"{group} {'x' if member == 2 else now}")
            for rank in built.ranks:
                rank.stream.end_step()
    found = compare_in(tmp_path)
    assert streams(found) == ("rank2/main", [], ["rank0/main", "rank1/main"])
    received = [finding.received for finding in found.later]
    assert [part and (part.origins, part.ranks) for part in received] == [
        (("rank2/main",), (0, 1)),
        (("rank2/main",), (1, 2)),
    ]


@pytest.mark.parametrize("named", [True, False])
def test_without_knowing_who_takes_part_nothing_is_ordered(tmp_path: Path, named: bool) -> None:
    """Nothing is ordered either where the ranks ran other collectives before: then counting them means nothing. What a
    rank received comes last, as another may have sent it."""

    group = WORLD if named else ("0", ())
    for built, value in both_programs(tmp_path):
        for rank, before in zip(built.ranks, ("barrier", "allgather_"), strict=True):
            rank.meet(before if named else "barrier", group)
        built.ranks[1].compute(value)
        for rank in built.ranks:
            rank.meet("allreduce_", group)
            rank.read(value)
    found = compare_in(tmp_path)
    assert streams(found) == (None, ["rank1/main", "rank0/main"], [])


def test_a_rank_that_one_side_lacks_is_a_finding(tmp_path: Path) -> None:
    """A rank that one side lacks is a finding, though no other rank runs anything else."""

    def program(path: Path, ranks: int) -> Path:
        built = Program(path, ranks)
        for rank in built.ranks:
            rank.compute()
            rank.stream.end_step()
        return built.finish()

    found = compare(program(tmp_path / "a", 2), program(tmp_path / "b", 1))
    assert found.verdict is Verdict.DIVERGED
    assert streams(found) == ("rank1/main", [], [])
    assert found.first is not None and "only A has the stream rank1/main" in found.first.explanation


def test_a_run_that_fails_before_its_first_op(tmp_path: Path) -> None:
    """It ended, and with what: not only that the other run has ops."""
    a, b = TraceBuilder(tmp_path / "a"), TraceBuilder(tmp_path / "b")
    a.op("aten.mm.default", outputs=["x"])
    a.end_step()
    b.main.stream()
    found = compare(a.finish(), b.finish(ending={"status": 1, "exception": "ImportError"}))
    assert found.verdict is Verdict.DIVERGED
    assert found.first is not None and found.first.cause is Cause.ENDED
    assert "B ends here with an uncaught ImportError; A continues with aten.mm.default" in found.first.explanation


def test_received_from_processes_that_were_not_recorded(tmp_path: Path) -> None:
    """The finding is the first there is, and says that it came from others."""
    for built, value in both_programs(tmp_path, 1):
        built.ranks[0].meet("allreduce_")
        built.ranks[0].read(value)
    found = compare_in(tmp_path)
    assert found.first.received is not None
    assert found.first.received.origins == ()
    assert "came from other processes with c10d.allreduce_.default (row 0)" in found.first.explanation


def test_the_tables_are_the_recorders() -> None:
    """What the recorder counts as sent by others is what is counted here; the first argument is what it arrives in."""

    def names(schemas: object) -> set[str]:
        return {name.replace("::", ".") for name in schemas}  # type: ignore[attr-defined]

    assert names(op_info.ARRIVING) == ARRIVING
    assert names(op_info.IN_FLIGHT) == IN_FLIGHT
    torch = pytest.importorskip("torch")
    for name, arguments in op_info.ARRIVING.items():
        schema = getattr(torch.ops.c10d, name.partition("::")[2]).default._schema
        assert [schema.arguments[0].name] == list(arguments)


@pytest.mark.parametrize("who", [{}, {"rank": [1]}, {"ranks": 7}, {"ranks": ["0", 1]}, {"group": [], "ranks": [0, 1]}])
def test_a_group_that_makes_no_sense_orders_nothing(tmp_path: Path, who: dict[str, object]) -> None:
    """A trace is data, and may come from anywhere."""
    for built, value in both_programs(tmp_path):
        for rank in built.ranks:
            rank.compute(value if rank.number else "x")
            words = [["T"], {"group": "0", "rank": rank.number, **who}, False]
            rank.stream.op("c10d.allreduce_.default", inputs=["unknown"], scalars=words)
            rank.read(value)
    found = compare_in(tmp_path)
    assert streams(found) == (None, ["rank1/main", "rank0/main"], [])
    assert found.unordered[1].received is not None and found.unordered[1].received.ranks == ()


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ([[], [0]], [0]),
        ([[1], [0]], [0, 1]),
        ([[1], [0], [0]], [0, 1]),
        ([[1, 2], [0], []], [2]),
        ([[], [2], [1]], [0, 1, 2]),
    ],
)
def test_what_precedes_each_other_has_no_order(before: list[list[int]], first: list[int]) -> None:
    """There is always a first finding: a difference that several seem to have from each other is one all the same."""
    assert first_of(before) == first
