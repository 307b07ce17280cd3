"""What a recording that was compared with another trace says, word by word."""

from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.json import to_json
from rltrace.live_diff.follower import LiveCounts, LiveFinding, LiveOutcome, LiveResult
from rltrace.report.live_diff import LiveReport, against_lines, commands
from rltrace.trace.read.names import Site

SITE = Site("train.py", 12, "update", "loss = f(x)")
PLACE = ("rank0/main", 1300, 1234, 7, "aten.mm.default", "critic", SITE)
NONE = Pair[str](None, None)


def lines(tally: LiveCounts, first: LiveFinding | None = None) -> list[str]:
    return list(against_lines([LiveResult("rank0/main", tally, first)], "a.zarr", "b.zarr"))


def test_equal() -> None:
    """How many ops that rests on, and what it does not rest on."""
    assert lines(LiveCounts(matched=1200)) == ["equal to a.zarr: all 1,200 ops give the same"]
    assert lines(LiveCounts(steps=3)) == ["equal to a.zarr: the digests of 3 steps are the same"]
    (line,) = lines(LiveCounts(matched=1200, marked=2, unchecked=30))
    assert "30 more ops are in steps that A does not have" in line
    assert "2 of them not counted" in line


def test_ops_of_one_side() -> None:
    """No verdict on them, and the command that gives one."""
    assert lines(LiveCounts(matched=5, only_b=1, only_a=2)) == [
        "all 5 matched ops give the same as a.zarr; 1 op only in this run, 2 ops only in A",
        "  to see whether those matter: rltrace diff a.zarr b.zarr",
    ]


def test_nothing_compared() -> None:
    """Never taken for equal."""
    assert lines(LiveCounts(only_b=3)) == [
        "nothing could be compared with a.zarr: none of its ops ran (3 ops only in this run)"
    ]
    assert lines(LiveCounts())[0].startswith("nothing could be compared with")


def test_the_first_difference() -> None:
    """Where, on both sides, what and why; and what to look at next."""
    first = LiveFinding(*PLACE, Cause.SAME_KERNEL, InputsMatch.INFERRED, "because", NONE, (Pair("aa", "bb"),))
    assert lines(LiveCounts(matched=1290), first) == [
        "differs from a.zarr at op 1,300 of rank0/main (1,234 in A), step 7: aten.mm.default",
        "  train.py:12 in update: loss = f(x)",
        "  same-kernel: because",
    ]
    found = [LiveResult("rank0/main", LiveCounts(), first)]
    assert commands(found, "a.zarr", "b.zarr", "ended") == ["rltrace diff a.zarr b.zarr"]
    shown = to_json(LiveReport(LiveOutcome.DIFFERS, "a.zarr", "b.zarr", "ended", tuple(found)))["processes"][0]["first"]
    assert (shown["a_index"], shown["b_index"], shown["inputs_match"]) == (1234, 1300, "inferred")


def test_a_trace_that_grows() -> None:
    """How far it is stands below; what was narrated while the program ran is not repeated."""
    first = LiveFinding(*PLACE, Cause.OUTSIDE, InputsMatch.DIFFER, "because", NONE, ())
    found = [LiveResult("rank0/main", LiveCounts(matched=1290), first)]
    assert list(against_lines(found, "a.zarr", "b.zarr", "ended", said=True)) == ["differs from a.zarr, as said above"]
    assert list(against_lines(found, "a.zarr", "b.zarr", "killed", "why"))[-1] == "  a.zarr was killed; why"
    assert list(against_lines([], "a.zarr", "b.zarr", "missing")) == [
        "nothing could be compared with a.zarr: it does not exist"
    ]
    equal = [LiveResult("", LiveCounts(matched=5))]
    assert list(against_lines(equal, "a.zarr", "b.zarr", "growing")) == [
        "equal to a.zarr: all 5 ops give the same",
        "  a.zarr is still being recorded",
    ]
    assert commands(equal, "a.zarr", "b.zarr", "growing") == ["rltrace diff a.zarr b.zarr"]
    assert commands(equal, "a.zarr", "b.zarr", "ended") == []


def test_a_difference_without_an_op() -> None:
    """At level step it is a step; an op of A alone is counted there."""
    where = ("rank0/main", None, None, 7, "", "", None)
    rest = (Cause.UNKNOWN, InputsMatch.UNKNOWN, "because", NONE, ())
    assert lines(LiveCounts(), LiveFinding(*where, *rest))[0] == "differs from a.zarr in step 7 of rank0/main"
    only_a = LiveFinding("rank0/main", None, 12, 7, "aten.mm.default", "", None, *rest)
    assert lines(LiveCounts(), only_a)[0] == "differs from a.zarr at op 12 of rank0/main in A, step 7: aten.mm.default"
