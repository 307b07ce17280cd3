"""Whole comparisons: what counts as the same, what ends early, what cannot be said."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import Do, Record, training
from views import both, compare_in

from rltrace.diff import CompareOptions, compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.errors import NotATraceError, UsageError
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Kind, within_stream
from rltrace.trace.kernels import evidence
from rltrace.trace.read.reader import open_trace


def after(program: list[Do], name: str, *extra: Do) -> list[Do]:
    """The program with ``extra`` inserted after every instruction of this name."""
    return [item for do in program for item in ([do, *extra] if do.name == name else [do])]


LOG = (
    Do("aten.abs.default", ("e",), "log", 50, source="log(e.abs().mean())"),
    Do("aten.mean.default", ("log",), "log", 50, source="log(e.abs().mean())"),
    Do("aten._local_scalar_dense.default", ("log",), "", 50, source="log(e.abs().mean())"),
)


def test_logging_added_everywhere(record: Record) -> None:
    """With log lines in every step and all later lines shifted, values are the same and the extra ops are hunks."""
    program = training(6)
    logged = [replace(do, line=do.line + 7) for do in after(program, "aten.sub.Tensor", *LOG)]
    comparison = compare(record(program).path, record(logged).path)
    assert comparison.verdict is Verdict.SAME_VALUES
    structure = comparison.structure
    assert (structure.only_a, structure.only_b, structure.reordered) == (0, 18, 0)
    assert [(h.kind, h.b_count) for h in structure.hunks] == [("only-b", 3)] * 6
    assert structure.hunks[0].first == "aten.abs.default at train.py:57 (train)"
    assert comparison.first.cause is Cause.CONTROL_FLOW
    assert comparison.first_value is None and comparison.decisive is None
    assert compare(record(logged).path, record(program).path).structure.only_a == 18


def test_strict_wants_the_same_ops(record: Record) -> None:
    """--strict makes added ops a difference, without changing the verdict's name."""
    program = training()
    comparison = compare(
        record(program).path, record(after(program, "aten.sub.Tensor", *LOG)).path, CompareOptions(strict=True)
    )
    assert (comparison.verdict, comparison.agrees) == (Verdict.SAME_VALUES, False)


def test_equal_structure_in_another_order(record: Record) -> None:
    """The same, where only the values show that two rows changed places."""

    def program(names: str) -> list[Do]:
        done = [Do("aten.randn.default", (), f"w{n}", 1) for n in "ab"]
        done += [Do("aten.clone.default", (f"w{n}",), f"c{n}", 12) for n in names]
        return [*done, Do("aten.add.Tensor", ("ca", "cb"), "s", 20), Do("step")]

    comparison = compare(record(program("ab")).path, record(program("ba")).path)
    assert (comparison.verdict, comparison.structure.reordered) == (Verdict.SAME_VALUES, 1)


def test_swapped_numbers_are_no_permutation(record: Record) -> None:
    """Two draws that come out the other way round are in their generator's order: a difference."""
    program = [
        Do("aten.multinomial.default", ("o",), "x", 5, noise="0"),
        Do("aten.multinomial.default", ("o",), "y", 5, noise="1"),
    ]
    outside = [Do("outside", (), "o", noise="first")]
    a = record([*outside, program[0], Do("outside", (), "o", noise="second"), program[1], Do("step")])
    b = record([*outside, program[1], Do("outside", (), "o", noise="second"), program[0], Do("step")])
    comparison = compare(a.path, b.path)
    assert comparison.first_value.a_index == 0


def test_extra_op_whose_bytes_are_used_without_a_trace(tmp_path: Path) -> None:
    """A one-sided write that a matched op computes with is harmless where every output comes out equal."""
    for trace, side in both(tmp_path):
        x = trace.op("aten.mm.default", inputs=[("outside", "x")], outputs=["x"])
        if side == "b":
            x = trace.op("aten.mul_.Tensor", ("train.py", 9, "f", "x.mul_(2)"), inputs=[x], outputs=["2x"])
        trace.op("aten.sign.default", ("train.py", 10, "f", "x.sign()"), inputs=[x], outputs=["signs"])
        trace.end_step()
    comparison = compare_in(tmp_path)
    assert (comparison.verdict, comparison.decisive) == (Verdict.SAME_VALUES, None)
    assert comparison.first.b_index == 1
    assert "affects results" not in comparison.first.explanation


# --- ops that are equal in all that is recorded -----------------------------------------------------------------------


ONE = Do("aten.mul.Tensor", ("w1",), "h", 40)
MORE = Do("aten.mul.Tensor", ("w1",), "again", 40)
"""The same line once more: which of the two is the extra one cannot be known."""


def test_bytes_that_changed_unseen_are_no_business_of_equal_writers(record: Record) -> None:
    """Two equal ops wrote the same: where other bytes are read, these were changed, whichever of them was the last."""
    rest = [Do("step"), Do("aten.add.Tensor", ("h", "w2"), "y", 50), Do("step")]
    unseen = Do("alias", (), "h", noise="numpy")
    a = record([*training(2), MORE, ONE, rest[0], unseen, *rest[1:]])
    b = record([*training(2), ONE, *rest])
    value = compare(a.path, b.path).first_value
    assert value.cause is Cause.UNTRACKED_WRITE
    assert "changed without any recorded op: in A its bytes are not those" in value.explanation


def test_moved_ops_that_read_first_are_moved_once(record: Record) -> None:
    """Which op is the first to read a tensor in a step is a matter of order; the fewest moves that explain it count."""
    one, other = Do("aten.view.default", ("w1",), "", 41), Do("aten.mul.Tensor", ("w2",), "", 42)
    third = Do("aten.mm.default", ("w2",), "", 43)
    a = record([*training(2), other, third, other, one, third, one, other, one, third, Do("step")])
    b = record([*training(2), other, one, third, other, one, third, other, one, third, Do("step")])
    comparison = compare(a.path, b.path)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (comparison.structure.only_a, comparison.structure.only_b, comparison.structure.reordered) == (0, 0, 1)


# --- ends -----------------------------------------------------------------------------------------------------------


def test_one_run_ended_earlier(record: Record) -> None:
    """Of two complete runs the one with fewer steps ended: a difference, at the other's next op."""
    a, b = record(training(3)), record(training(5))
    comparison = compare(a.path, b.path)
    assert comparison.verdict is Verdict.DIVERGED
    assert (comparison.first.cause, comparison.first.a_index) == (Cause.ENDED, None)
    assert comparison.first.b_index == a.trace.stream().rows == comparison.first.identical_before
    assert comparison.first_value is None
    assert "2 optimizer steps more" in comparison.first.explanation
    turned = compare(b.path, a.path).first
    assert (turned.cause, turned.b_index) == (Cause.ENDED, None)


def test_a_last_log_line_is_no_early_end(record: Record) -> None:
    """An extra evaluation printed at the very end is an addition, not an early end of the other run."""
    program = training(3)
    comparison = compare(record(program).path, record([*program, *LOG]).path)
    assert (comparison.verdict, comparison.structure.only_b) == (Verdict.SAME_VALUES, 3)


@pytest.mark.parametrize(
    ("programs", "states", "verdict", "unfinished"),
    [
        ((training(), []), ("complete", "killed"), Verdict.UNKNOWN, ("b",)),
        ((training(3), training(5)), ("killed", "complete"), Verdict.UNKNOWN, ("a",)),
        ((training(3), training(5)), ("stopped", "complete"), Verdict.UNKNOWN, ()),
        ((training(), training()), ("killed", "killed"), Verdict.UNKNOWN, ("a", "b")),
        ((training(), training()), ("stopped", "stopped"), Verdict.IDENTICAL, ()),
    ],
    ids=[
        "killed before a commit",
        "killed earlier",
        "stopped earlier",
        "both killed at one row",
        "both stopped by --until",
    ],
)
def test_unfinished_traces_that_agree(
    record: Record, programs: Any, states: tuple[str, str], verdict: Verdict, unfinished: tuple[str, ...]
) -> None:
    """They are equal so far; recordings that were ended at one step are compared as what they are."""
    comparison = compare(*(record(do, state=state).path for do, state in zip(programs, states, strict=True)))
    assert (comparison.verdict, comparison.unfinished) == (verdict, unfinished)
    assert (comparison.agrees, comparison.first) == (None if verdict is Verdict.UNKNOWN else True, None)
    assert ("equal so far" in comparison.why) is (verdict is Verdict.UNKNOWN)


def test_a_difference_in_an_unfinished_trace(record: Record) -> None:
    """What differs, differs, whether or not the trace is finished."""
    program = training(5)
    other = [replace(do, noise="x") if do.name == "aten.mean.default" else do for do in program]
    comparison = compare(record(program, state="killed").path, record(other[:-9]).path)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.unfinished == ("a",)


def test_extra_ops_and_an_unfinished_trace(record: Record) -> None:
    """Log lines and a kill: what the killed side lacks at the end is not called one-sided."""
    program = training(5)
    a, b = record(after(program, "aten.sub.Tensor", *LOG)[:40], state="killed"), record(program)
    comparison = compare(a.path, b.path)
    assert comparison.verdict is Verdict.UNKNOWN
    assert comparison.structure.only_b == 0


# --- what cannot be compared ----------------------------------------------------------------------------------------


def test_unrelated_programs(record: Record) -> None:
    """Two programs that share no op are different programs: the verdict is unknown, no difference of values."""
    other = [replace(do, file="walker.py", line=do.line + 3, source=f"other {do.line}", noise="y") for do in training()]
    for do in range(len(other)):
        if other[do].name not in ("step", "outside"):
            other[do] = replace(other[do], shape=(7, do))
    comparison = compare(record(training()).path, record(other).path)
    assert (comparison.verdict, comparison.agrees) == (Verdict.UNKNOWN, None)
    assert "different programs" in comparison.why
    assert comparison.unlike
    text = document_text(verdict_document(comparison))
    assert "look like different programs" in text and "compared rank0/main: 0 ops" in text
    assert not any(title in text for title in ("First difference", "Ops on one side only", "System and settings"))


def test_the_same_path_twice(record: Record) -> None:
    """A trace compared with itself is a slip of the keyboard."""
    path = record(training()).path
    with pytest.raises(UsageError, match="same trace"):
        compare(path, path.parent / "." / path.name)


def test_not_a_trace(record: Record, tmp_path: Path) -> None:
    """What is no trace is said to be none."""
    with pytest.raises(NotATraceError):
        compare(record(training()).path, tmp_path / "nothing.zarr")


def test_two_digest_algorithms(record: Record) -> None:
    """Digests of two algorithms say nothing about each other."""
    a, b = (record(training(), facts={"digest": name}) for name in ("one/1", "two/1"))
    with pytest.raises(UsageError, match=r"one/1.*two/1"):
        compare(a.path, b.path)


def test_two_engines_are_compared_step_by_step(record: Record) -> None:
    """Rows of two engines are not compared; the step digests are, and it is said."""
    program = training()
    other = [replace(do, noise="x") if do.floats == (3e-3,) else do for do in program]
    comparison = compare(record(program, engine="dispatch").path, record(other, engine="native").path)
    assert (comparison.level, comparison.verdict) == ("step", Verdict.DIVERGED)
    assert comparison.first.step == 2
    assert "two engines" in comparison.notes[0]


def test_nothing_recorded(tmp_path: Path) -> None:
    """Two traces without a row or a step: nothing can be said."""
    paths = [TraceBuilder(tmp_path / f"{name}.zarr").finish() for name in "ab"]
    assert compare(*paths).verdict is Verdict.UNKNOWN


def test_no_torch_is_loaded(record: Record) -> None:
    """Comparing, reporting and verifying need no torch."""
    program = training()
    other = [replace(do, noise="x") if do.name == "aten.mean.default" else do for do in program]
    paths = [str(record(program).path), str(record(other).path)]
    code = (
        "import sys; from rltrace.diff import compare; from rltrace.report.diff import verdict_document\n"
        "from rltrace.report.text import document_text; from rltrace.extensions.archive.verify import verify\n"
        f"document_text(verdict_document(compare(*{paths!r})), color=True); verify({paths[0]!r})\n"
        "sys.exit(bool({'torch', 'zarr', 'textual'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- streams and processes ------------------------------------------------------------------------------------------


def two_streams(path: Path, main: str, worker: str, step_of_worker: int = 0) -> Path:
    trace = TraceBuilder(path)
    thread = trace.stream("rank0/main/thread:loader")
    for step in range(3):
        if step == step_of_worker:
            thread.op("aten.stack.default", inputs=[("outside", worker)], outputs=[f"batch {worker}"])
        if step == 1:
            trace.op("aten.mm.default", inputs=[("outside", main)], outputs=[f"y {main}"])
        trace.end_step()
    return trace.finish()


def test_streams_are_ordered_by_steps(tmp_path: Path) -> None:
    """Two threads that differ within one step: a finding for each, and no first; in two steps the earlier is first."""
    one, two = (
        compare(two_streams(tmp_path / f"a{step}", "x", "x", step), two_streams(tmp_path / f"b{step}", "y", "y", step))
        for step in (1, 2)
    )
    assert (one.verdict, one.first) == (Verdict.DIVERGED, None)
    assert sorted(f.stream for f in one.unordered) == ["rank0/main", "rank0/main/thread:loader"]
    assert (two.first.stream, two.unordered) == ("rank0/main", ())


@pytest.mark.parametrize(("draws", "verdict"), [(False, Verdict.SAME_VALUES), (True, Verdict.DIVERGED)])
def test_a_thread_of_one_side_only(tmp_path: Path, draws: bool, verdict: Verdict) -> None:
    """An extra thread that logs is harmless; one that draws is not."""
    for trace, side in both(tmp_path):
        trace.op("aten.mm.default", inputs=[("outside", "x")], outputs=["y"])
        if side == "b":
            trace.stream("rank0/main/thread:log").op("aten.rand.default", rng="s" if draws else None, outputs=["r"])
    comparison = compare_in(tmp_path)
    assert comparison.verdict is verdict
    assert comparison.first.cause is Cause.CONTROL_FLOW


# --- several optimizers, windows ------------------------------------------------------------------------------------


def actor_critic(order: str) -> list[Do]:
    """One letter per attempt: ``a`` of the actor's optimizer, ``c`` of the critic's."""
    program = [Do("aten.randn.default", (), "wa", 1), Do("aten.randn.default", (), "wc", 2)]
    for letter in order:
        ordinal = "ac".index(letter)
        program += [
            Do("aten.mm.default", (f"w{letter}", f"w{letter}"), "g", 10 + ordinal),
            Do("aten.add_.Tensor", (f"w{letter}", "g"), f"w{letter}", 20 + ordinal),
            Do("step", ordinal=ordinal, optimizer="Adam" if letter == "a" else "SGD"),
        ]
    return program


def test_optimizers_out_of_step(record: Record) -> None:
    """The critic takes one attempt more: later attempts are matched by their optimizer's own count."""
    a, b = record(actor_critic("acacac")), record(actor_critic("acacacc"))
    comparison = compare(a.path, b.path)
    assert (comparison.first.cause, comparison.first.step) == (Cause.ENDED, 6)
    assert (comparison.first.optimizer.name, comparison.first.optimizer.count) == ("SGD", 3)


def windowed(path: Path, first: int, end: int | None, value: str = "x", worker: str | None = None) -> Path:
    """A run of which steps ``first`` to ``end`` were recorded op by op; ``worker``: parameters of a worker's step."""
    trace = TraceBuilder(path, first_step=first)
    if worker is not None:
        stream = trace.process("rank0/worker:1").stream()
        for op in range(20 * (first == 0)):
            stream.op("aten.sin.default", outputs=[f"{op}"])
        stream.end_step(parameters=worker, gradients="g", generators="r", recorded=first == 0)
    for step in range(6):
        if step == first:
            trace.window(first, end)
        recorded = first <= step and (end is None or step < end)
        bytes_of_step = value if step >= 3 else "same"
        if recorded:
            trace.op("aten.mm.default", inputs=[("outside", f"{step}")], outputs=[f"{step} {bytes_of_step}"])
        trace.end_step(parameters=f"{step} {bytes_of_step}", gradients="g", generators="r", recorded=recorded)
    return trace.finish()


def test_windows_of_the_same_steps(tmp_path: Path) -> None:
    """Two windows around the step that differs name its op."""
    comparison = compare(windowed(tmp_path / "a.zarr", 3, 4), windowed(tmp_path / "b.zarr", 3, 4, "y"))
    assert (comparison.first.op, comparison.first.step, comparison.first.a_index) == ("aten.mm.default", 3, 0)


def test_windows_after_the_step_that_differs(tmp_path: Path) -> None:
    """Digests of the steps outside the window show that the difference is older."""
    comparison = compare(windowed(tmp_path / "a.zarr", 4, 5), windowed(tmp_path / "b.zarr", 4, 5, "y"))
    assert (comparison.first.op, comparison.first.step) == (None, 3)
    assert comparison.first_value.step == 4
    assert "--steps 2:4" in comparison.advice[0]


def test_a_window_against_a_full_recording(tmp_path: Path) -> None:
    """Ops are compared where both have them, step digests elsewhere."""
    full, window = windowed(tmp_path / "a.zarr", 0, None), windowed(tmp_path / "b.zarr", 2, 4)
    assert compare(full, window).verdict is Verdict.IDENTICAL
    other = windowed(tmp_path / "c.zarr", 2, 4, "y")
    comparison = compare(full, other)
    assert (comparison.first.op, comparison.first.a_index, comparison.first.b_index) == ("aten.mm.default", 3, 1)


@pytest.mark.parametrize("sides", ["ab", "ba"])
def test_a_worker_that_ends_before_the_window(tmp_path: Path, sides: str) -> None:
    """Its ops, which one side has, are no difference, and a note says so; its steps are compared by their digests."""
    traces = {
        "a": windowed(tmp_path / "a.zarr", 0, None, worker="w"),
        "b": windowed(tmp_path / "b.zarr", 2, 4, worker="w"),
    }
    comparison = compare(*(traces[side] for side in sides))
    assert (comparison.verdict, comparison.level) == (Verdict.IDENTICAL, "op")
    assert any(note.startswith("no op of rank0/worker:1 is recorded") and "step 2" in note for note in comparison.notes)
    traces["b"] = windowed(tmp_path / "c.zarr", 2, 4, worker="other")
    first = compare(*(traces[side] for side in sides)).first
    assert (first.stream, first.op) == ("rank0/worker:1", None)


def test_windows_without_a_common_step(tmp_path: Path) -> None:
    """Disjoint windows are compared by the digests of their steps."""
    comparison = compare(windowed(tmp_path / "a.zarr", 0, 1), windowed(tmp_path / "b.zarr", 1, 2))
    assert (comparison.verdict, comparison.level) == (Verdict.IDENTICAL, "step")


ITERATION, KEY = "jit.train.iteration", "0" * 16
WITHIN = within_stream("rank0/main", ITERATION, KEY)


def driven(path: Path, first: int = 0, end: int | None = None, carry: int = 99, product: int = 99) -> Path:
    """A loop of JAX of six iterations, of which ``first`` to ``end`` were recorded; ``carry``, ``product``: from which
    one on what it passes on, or a product within it, differs."""
    trace = TraceBuilder(path, first_step=first)
    within, before = trace.stream(WITHIN), None
    if first == 0:
        trace.stream(within_stream("rank0/main", "jit.train.before", KEY)).op("tanh", outputs=["weights"])
    for step in range(6):
        carries = [f"{step} {name} {'odd' if step > carry else ''}" for name in "abcd"]
        if step == first:
            trace.window(first, end)
            within.window(first, end)
            for name in carries if first else ():
                before = trace.op("", kind=Kind.WINDOW, module=name, outputs=[name], scalars=["carry"])
        recorded = first <= step and (end is None or step < end)
        if recorded:
            for number in range(2):
                value = f"{step} {number} {'odd' if step >= product and number else ''}"
                within.op("dot_general", inputs=[("unknown", carries[0])] if number else [], outputs=[value])
            given = ("outside", carries[0]) if before is None else before
            kernel = {evidence.WITHIN: f"{ITERATION}@{KEY} 2"}
            returned = f"{step + 1} {'odd' if step >= carry else ''}"
            before = trace.op(ITERATION, inputs=[given], outputs=[returned], kernel=kernel)
        digest = f"{step} {'odd' if step >= carry else ''}"
        trace.end_step(parameters=digest, gradients=0, generators="g", recorded=recorded)
    return trace.finish()


@pytest.mark.parametrize(
    ("a", "b", "iterations"),
    [((0, None), (2, 4), 2), ((2, 4), (0, None), 2), ((2, 4), (3, 6), 1), ((2, None), (0, 3), 1)],
)
def test_windows_of_a_loop_of_jax(
    tmp_path: Path, a: tuple[int, int | None], b: tuple[int, int | None], iterations: int
) -> None:
    """Iterations that both have are compared, and what is within them; a window has fewer than it begins with."""
    compared = compare(driven(tmp_path / "a.zarr", *a), driven(tmp_path / "b.zarr", *b))
    assert (compared.verdict, compared.level, compared.notes) == (Verdict.IDENTICAL, "op", ())
    assert compared.compared == {"rank0/main": iterations, WITHIN: 2 * iterations}


def test_a_difference_within_a_window_of_jax(tmp_path: Path) -> None:
    """It is found at the row that whole trace and window both have."""
    whole, window = driven(tmp_path / "a.zarr"), driven(tmp_path / "b.zarr", 2, 4, product=3)
    first = compare(whole, window).decisive
    assert (first.stream, first.op, first.step, first.a_index, first.b_index) == (WITHIN, "dot_general", 3, 7, 3)


def test_a_difference_before_a_window_of_jax(tmp_path: Path) -> None:
    """The digests of the steps name the first iteration, and the first row of the window says that it began with it."""
    whole, window = driven(tmp_path / "a.zarr"), driven(tmp_path / "b.zarr", 2, 4, carry=1)
    compared = compare(whole, window)
    assert (compared.verdict, compared.level, compared.notes) == (Verdict.DIVERGED, "op", ())
    assert compared.first is not None and compared.first_value is not None
    assert (compared.first.op, compared.first.step) == (None, 1)
    value = compared.first_value
    assert (value.op, value.step, value.cause) == (ITERATION, 2, Cause.BEFORE_WINDOW)


# --- damage ---------------------------------------------------------------------------------------------------------


def big(path: Path, *odd: int) -> Path:
    """Plain rows over several segments; ``odd``: rows whose output is another one."""
    trace = TraceBuilder(path)
    for row in range(3 * 500):
        trace.op("aten.relu.default", outputs=[f"{row} odd" if row in odd else row])
        if (row + 1) % 500 == 0:
            trace.commit()
    return trace.finish()


def damage(path: Path, segment: int, shorten: bool = False) -> None:
    """Flip a bit in the rows of one segment, or cut them short."""
    stream = open_trace(path).processes[0].streams[0]
    key = stream.segments[segment].files[0].key
    file = path / "processes" / "0" / key
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data[: len(data) // 2] if shorten else data))


@pytest.mark.parametrize(("side", "odd"), [("a", 1_200), ("b", 499)], ids=["after the hole", "right before it"])
def test_a_hole_that_does_not_matter(tmp_path: Path, side: str, odd: int) -> None:
    """Digests after the hole are equal, so what is in it is equal too; or a window reaches into it."""
    big(tmp_path / "a.zarr"), big(tmp_path / "b.zarr", odd)
    damage(tmp_path / f"{side}.zarr", 1)
    assert compare_in(tmp_path).first.a_index == odd


def test_a_hole_that_hides_the_answer(tmp_path: Path) -> None:
    """The first difference lies where a side cannot be read: unknown, naming the hole, whatever differs later."""
    a, b = big(tmp_path / "a.zarr"), big(tmp_path / "b.zarr", 700, 1_200)
    damage(b, 1)
    comparison = compare(a, b)
    assert (comparison.verdict, comparison.first, comparison.agrees) == (Verdict.UNKNOWN, None, None)
    assert any(hole.side == "b" and hole.first == 500 for hole in comparison.holes)
    assert "rltrace verify" in comparison.advice[0]


def test_a_hole_and_the_digests_of_steps(tmp_path: Path) -> None:
    """Where rows cannot be read, the step that hides the difference is named all the same."""
    for trace, side in both(tmp_path):
        for step in range(6):
            trace.op("aten.relu.default", outputs=[f"{step} {side if step > 2 else ''}"])
            trace.end_step()
            trace.commit()
    damage(tmp_path / "b.zarr", 3)
    comparison = compare_in(tmp_path)
    assert comparison.verdict is Verdict.UNKNOWN
    assert "step 3 of A" in comparison.notes[0]
    assert [line.split(" -o")[0].split("&& ")[-1] for line in comparison.advice[1:3]] == [
        "rltrace record --steps 3:4 --until 3"
    ] * 2


def test_equal_but_damaged(tmp_path: Path) -> None:
    """Damage that the digests around it show to be without consequence changes no verdict, but is listed."""
    a, b = big(tmp_path / "a.zarr"), big(tmp_path / "b.zarr")
    damage(b, 1, shorten=True)
    comparison = compare(a, b)
    assert comparison.verdict is Verdict.IDENTICAL
    assert comparison.b.processes[0].state == "damaged" and comparison.holes[0].first == 500
