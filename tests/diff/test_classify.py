"""What a differing input is put down to: by where its bytes came from on both sides."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from views import both, context_of, opened, views_in

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.model import Cause, InputsMatch, NamedDifference
from rltrace.diff.base.row_diff import difference
from rltrace.diff.causes.classify import NOT_RERUN, Classification, alignments_text, judge
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import PLACEMENT_SHIFT, Kind, Origin, RowFlag, ValueKind
from rltrace.trace.write.packers import NewValue, NewValues

Row = dict[str, Any]
"""An op, ``aten.mm.default`` unless named otherwise."""

SUM: Row = {"name": "c10d.allreduce_.default", "inputs": ["unknown"], "outputs": ["s"]}
SUM |= {"scalars": [["T"], {"group": "g", "rank": 0, "ranks": [0, 3]}]}
INPUT = "input 0 (float32[4])"


def opening(digest: str) -> Row:
    return {"name": "rltrace.state", "kind": Kind.WINDOW, "inputs": [("outside", digest)], "scalars": ["w"]}


def reading(*inputs: Any, outputs: str = "y") -> Row:
    return {"inputs": inputs, "outputs": [outputs]}


def judged(
    folder: Path,
    a: list[Row],
    b: list[Row],
    matched: int | None = None,
    settings: tuple[NamedDifference, ...] = (),
) -> Classification:
    """The last rows of both sides, after these rows; ``matched``: how many of those before are, by their places."""
    for trace, rows in both(folder, a, b):
        if any(row.get("kind") == Kind.WINDOW for row in rows):
            trace.window(0)
        for row in rows:
            trace.op(**{"name": "aten.mm.default", **row})
        trace.end_step()
    views = views_in(folder)
    count = len(a) - 1 if matched is None else matched
    context = replace(context_of(*views, [(row, row) for row in range(count)]), settings=settings)
    ranges = [view.read(0, view.rows) for view in views]
    i, j = len(a) - 1, len(b) - 1
    return judge(context, row_at(views[0], i), row_at(views[1], j), difference(ranges[0], i, ranges[1], j))


def sent(digest: str, origin: Origin = Origin.OUTSIDE) -> In:
    return In(origin=origin, digest=digest, sent=1)


@pytest.mark.parametrize(
    ("a", "b", "matched", "cause", "why"),
    [
        ([SUM, reading(sent("p"))], [SUM, reading(sent("q"), outputs="z")], None, Cause.OUTSIDE,
         f"{INPUT} came from other processes with c10d.allreduce_.default (row 0) and differs"),
        ([SUM, reading(sent("p", Origin.UNKNOWN))], [SUM, reading(sent("q", Origin.UNKNOWN))], None, Cause.OUTSIDE,
         f"{INPUT}, which another thread computed from what came from other processes with c10d.allreduce_.default "
         "(row 0), differs"),
        ([SUM, reading(sent("p", Origin.UNKNOWN))], [SUM, reading(sent("q", Origin.UNKNOWN))], 0, Cause.UNKNOWN,
         f"{INPUT} differs; another stream wrote it, or it is in memory that cannot be followed"),
        ([SUM, reading(sent("p"))], [SUM, reading(sent("q"))], 0, Cause.OUTSIDE,
         f"{INPUT} came from outside (no recorded op wrote it) and differs, though what the op returned is equal: "
         "it may not have used the elements that differ"),
        ([opening("w"), reading(In(0, digest="p"))], [opening("w"), reading(In(0, digest="q"))], None,
         Cause.UNTRACKED_WRITE,
         f"{INPUT} was equal when the recording of ops began, and its bytes changed without any recorded op"),
        ([opening("w"), reading(In(0, digest="p"))], [opening("v"), reading(In(0, digest="q"))], None,
         Cause.BEFORE_WINDOW, f"{INPUT} dates from before the recording of ops began, and differs"),
        ([opening("w"), reading(In(0, digest="p"))], [reading(outputs="w"), reading(In(0, digest="w"))], None,
         Cause.UNTRACKED_WRITE,
         f"{INPUT} was equal when the recording of ops began, and its bytes changed without any recorded op"),
        ([opening("p"), opening("q"), reading(("outside", "p"))],
         [opening("p"), opening("q"), reading(("outside", "q"))], None, Cause.UNTRACKED_WRITE,
         f"{INPUT} was equal when the recording of ops began, and its bytes changed without any recorded op"),
        ([opening("p"), opening("r"), reading(("outside", "p"))],
         [opening("q"), opening("r"), reading(("outside", "q"))], None, Cause.OUTSIDE,
         f"{INPUT} came from outside (no recorded op wrote it) and differs, though what the op returned is equal: "
         "it may not have used the elements that differ"),
        ([opening("q"), reading(outputs="r"), reading(("outside", "p"))],
         [opening("r"), reading(outputs="q"), reading(In(1, digest="q"))], None, Cause.UNTRACKED_WRITE,
         f"{INPUT} was equal when the recording of ops began, and its bytes changed without any recorded op"),
        ([opening("p"), reading(outputs="r"), reading(("outside", "p"))],
         [reading(outputs="s"), reading(outputs="r"), reading(In(1, digest="r"))], None, Cause.BEFORE_WINDOW,
         f"{INPUT} dates from before the recording of ops began on one side, and differs"),
        ([reading(outputs="p"), reading(outputs="q"), reading(In(0, digest="p"))],
         [reading(outputs="p"), reading(outputs="q"), reading(In(1, digest="q"))], None, Cause.ARGUMENTS,
         f"it was called on another tensor: {INPUT} is what the 1st call of aten.mm.default at train.py:12 (train) "
         "wrote (row 0) in A, and what the 2nd call wrote (row 1) in B; PYTHONHASHSEED is not set, so a set of "
         "strings has another order in each process"),
        ([reading(outputs="q"), reading(("mixed", "p"))], [reading(outputs="q"), reading(In(0, digest="q"))], None,
         Cause.CONTROL_FLOW, f"{INPUT} was last written by several ops in A, and by one op in B"),
        ([reading(outputs="p"), reading("mixed")], [reading(outputs="p"), reading(In(0), outputs="z")], None,
         Cause.CONTROL_FLOW, f"{INPUT} was last written by several ops in A, and by one op in B"),
        ([reading(outputs="p"), reading(In(0))], [reading(outputs="p"), reading("mixed", outputs="z")], None,
         Cause.CONTROL_FLOW, f"{INPUT} was last written by several ops in B, and by one op in A"),
        ([reading(), reading(("mixed", "p"))], [reading(), reading(("mixed", "q"))], None, Cause.UNTRACKED_WRITE,
         f"{INPUT} differs here, though the ops that wrote it are equal on both sides: its bytes changed without "
         "any recorded op"),
    ],
)  # fmt: skip
def test_an_input_that_differs(
    tmp_path: Path, a: list[Row], b: list[Row], matched: int | None, cause: Cause, why: str
) -> None:
    """It was received, came from outside or from before the window, or was written by other ops or by none."""
    found = judged(tmp_path, a, b, matched).judgement
    assert (found.cause, found.explanation) == (cause, why)
    if "other processes" in why:
        assert (found.received.a_index, found.received.ranks) == (0, (0, 3))


CPU, MORE = {"library": "ATen", "isa": "AVX2", "threads": 1}, {"library": "ATen", "isa": "AVX2", "threads": 4}
SAME = "ATen AVX2, 1 thread"
OUTSIDE = ("outside", "o")
FOUR = tuple(NamedDifference(f"env.S{number}", None, "1") for number in range(4))
UNSET = [f"env.S{number} unset against 1" for number in range(3)]


def run(name: str, kernel: dict[str, Any] | None, *inputs: Any, **more: Any) -> tuple[Row, Row]:
    """The same op on both sides, which returned something else."""
    same = {"name": name, "kernel": kernel, "inputs": inputs, **more}
    return {**same, "outputs": ["y"]}, {**same, "outputs": ["z"]}


def without_kernel(pair: tuple[Row, Row], *sides: int) -> tuple[Row, Row]:
    found = [{**row, "kernel": None} if side in sides else row for side, row in enumerate(pair)]
    return found[0], found[1]


@pytest.mark.parametrize(
    ("pair", "settings", "cause", "known", "why"),
    [
        (run("aten.mm.default", CPU, OUTSIDE), (), Cause.SAME_KERNEL, InputsMatch.READ,
         f"its inputs match and its outputs differ under the same kernel evidence ({SAME}); {NOT_RERUN}"),
        (run("aten.mm.default", CPU, 0), (), Cause.SAME_KERNEL, InputsMatch.INFERRED,
         "its inputs match (by the ops that wrote them, not read again) and its outputs differ under the same "
         f"kernel evidence ({SAME}); {NOT_RERUN}"),
        (run("aten.mm.default", CPU, OUTSIDE, rng="g"), (), Cause.SAME_KERNEL, InputsMatch.READ,
         "its inputs match and its outputs differ; the RNG state is the same under the same kernel evidence "
         f"({SAME}); {NOT_RERUN}"),
        (run("aten.add.Tensor", CPU, 0), (), Cause.UNKNOWN, InputsMatch.UNKNOWN,
         "its outputs differ, though by the ops that wrote them its inputs match, and it gives the same bits from "
         "equal inputs: memory that it reads may have been written by no recorded op (record --check-links)"),
        (run("aten.add.Tensor", CPU, OUTSIDE), (), Cause.SAME_KERNEL, InputsMatch.READ,
         f"its inputs match and its outputs differ under the same kernel evidence ({SAME}); {NOT_RERUN}"),
        *(
            (
                without_kernel(run("aten.add.Tensor", CPU, 0), *sides),
                (),
                Cause.COMPUTATION,
                InputsMatch.INFERRED,
                f"its inputs match and its outputs differ; the kernel is unknown on {missing}",
            )
            for sides, missing in (((0,), "A"), ((1,), "B"), ((0, 1), "either side"))
        ),
        (run("aten.mm.default", CPU, "unknown"), (), Cause.UNKNOWN, InputsMatch.UNKNOWN,
         "its outputs differ, and not all of its inputs could be compared"),
        (run("aten.mm.default", CPU, OUTSIDE, scalars=["T", [{"object": "ScriptObject"}]]), (), Cause.UNKNOWN,
         InputsMatch.UNKNOWN,
         "its outputs differ, and it takes an object whose content is not recorded, as packed parameters are, and "
         "not all of its inputs could be compared"),
        (run("aten.mm.default", CPU, OUTSIDE), FOUR, Cause.KERNEL, InputsMatch.READ,
         "its inputs match and its outputs differ: the settings that select kernels differ "
         f"({', '.join(UNSET)} and 1 more)"),
        (run("aten.mm.default", CPU, OUTSIDE), FOUR[:3], Cause.KERNEL, InputsMatch.READ,
         f"its inputs match and its outputs differ: the settings that select kernels differ ({', '.join(UNSET)})"),
        (run("aten.mm.default", CPU, "unknown"), FOUR[:1], Cause.UNKNOWN, InputsMatch.UNKNOWN,
         "its outputs differ, and not all of its inputs could be compared; the settings that select kernels differ "
         f"({UNSET[0]}), which explains it if they match"),
        (run("aten.softmax.int", CPU, OUTSIDE),
         (*FOUR[:2], NamedDifference("env.ATEN_CPU_CAPABILITY", "default", None)), Cause.KERNEL, InputsMatch.READ,
         "its inputs match and its outputs differ: the settings that select kernels differ "
         f"(env.ATEN_CPU_CAPABILITY default against unset, {UNSET[0]}, {UNSET[1]})"),
        (({**run("aten.mm.default", CPU, OUTSIDE)[0]}, {**run("aten.mm.default", MORE, OUTSIDE)[1]}), (), Cause.KERNEL,
         InputsMatch.READ, "its inputs match and its outputs differ: another kernel ran (threads 1 against 4)"),
        (run("inductor.fused.default", None, OUTSIDE), (), Cause.COMPUTATION, InputsMatch.READ,
         "its inputs match and its outputs differ; the kernel is unknown on either side; a compiled region is "
         "recorded as one op; record --compile eager runs it op by op"),
        (run("ctypes.libm.scale", {"library": "libm"}, OUTSIDE, "overwritten"), (), Cause.SAME_KERNEL,
         InputsMatch.READ,
         f"its inputs match and its outputs differ under the same kernel evidence (libm); {NOT_RERUN}; it may have "
         "read state that is in no argument; it wrote to memory that no op had written, and what it leaves "
         "unwritten there can differ"),
    ],
)  # fmt: skip
def test_an_op_whose_inputs_match(
    tmp_path: Path,
    pair: tuple[Row, Row],
    settings: tuple[NamedDifference, ...],
    cause: Cause,
    known: InputsMatch,
    why: str,
) -> None:
    """Its kernels decide, as far as they are known and its inputs are."""
    found = judged(tmp_path, [reading(outputs="w"), pair[0]], [reading(outputs="w"), pair[1]], settings=settings)
    assert (found.judgement.cause, found.judgement.inputs_match) == (cause, known)
    assert found.judgement.explanation == why


@pytest.mark.parametrize(
    ("kind", "cause", "why"),
    [
        (Kind.ENVIRONMENT_STEP, Cause.OUTSIDE, "what the environment-step brought in differs"),
        (Kind.CHECKPOINT, Cause.OUTSIDE, "what the checkpoint brought in differs"),
        (Kind.SEED, Cause.UNKNOWN, "the seed differs"),
    ],
)
def test_events_that_differ(tmp_path: Path, kind: Kind, cause: Cause, why: str) -> None:
    """What came in with an event came from outside."""
    row: Row = {"name": "", "kind": kind, "scalars": ["e", ["o=", "d"]]}
    found = judged(tmp_path, [{**row, "outputs": ["p"]}], [{**row, "outputs": ["q"]}]).judgement
    assert (found.cause, found.explanation) == (cause, why)


def test_events(tmp_path: Path) -> None:
    """A tensor of a window's start is named by its module and what it is."""
    weight: Row = {"name": "", "kind": Kind.WINDOW, "module": "net", "scalars": ["weight"]}
    found = judged(tmp_path, [{**weight, "outputs": ["p"]}], [{**weight, "outputs": ["q"]}]).judgement
    assert (found.cause, found.inputs_match) == (Cause.BEFORE_WINDOW, InputsMatch.UNKNOWN)
    assert found.explanation == "net weight already differed when the recording of ops began"


def test_overlapping_memory_and_calls_outside_torch(tmp_path: Path) -> None:
    """What may explain the difference is said beside the cause, whichever side has it."""
    plain, overlapping = reading(), {**reading(outputs="z"), "flags": RowFlag.OVERLAPPING}
    found = judged(tmp_path, [plain], [overlapping]).judgement.explanation
    assert found.endswith("so its result depends on the order in which a kernel accesses it")


def test_inputs_that_begin_elsewhere(tmp_path: Path) -> None:
    """The first input whose address is aligned otherwise, where both sides know theirs."""

    def written(name: str, *alignments: int) -> RowAt:
        trace = TraceBuilder(tmp_path / f"{name}.zarr")
        trace.op("aten.mm.default", inputs=["unknown"] * 2, outputs=["y"])
        trace.commit()
        if alignments:
            trace.main.request_values()
            new = [
                NewValue(ValueKind.PLACEMENT, 0, 0, 0, place, alignment << PLACEMENT_SHIFT, b"", 0)
                for place, alignment in enumerate(alignments)
            ]
            trace.main.writer.commit(0, None, values=NewValues(new))
        return row_at(opened(trace.finish()), 0)

    known, same, other, unknown = written("a", 64, 4), written("b", 0, 4), written("c", 0, 8), written("d")
    assert alignments_text(known, same) == alignments_text(known, unknown) == alignments_text(unknown, known) == ""
    text = "; input 1 (float32[4]) is aligned to 4 bytes in A, to 8 in B, and kernels choose their loops by alignment"
    assert alignments_text(known, other) == text


def test_memory_in_flight(tmp_path: Path) -> None:
    """A number computed from what a collective may still be writing: a write that no recorded op made."""
    a, b = ({**reading(sent(side)), "value": number, "flags": RowFlag.MARKED} for number, side in enumerate("pq"))
    found = judged(tmp_path, [SUM, a], [SUM, b]).judgement
    assert (found.cause, found.inputs_match) == (Cause.UNTRACKED_WRITE, InputsMatch.DIFFER)
    assert found.explanation == (
        f"{INPUT} was in flight: it reads what c10d.allreduce_.default (row 0) may still be writing, before the "
        "program waits for that"
    )
    (tmp_path / "before").mkdir()
    found = judged(tmp_path / "before", [SUM, a], [SUM, b], 0).judgement
    assert found.explanation.startswith("it reads memory that no recorded op wrote: uninitialised, or written by code")
