"""What a finding of data from outside says about the generators around it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import recorder
from views import both, compare_in, opened, view_of

from rltrace.diff import compare
from rltrace.diff.base.findings import Judgement, make_finding, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.rng import Draws, draws_from, generators_note, rng_ends_equal, state_column
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Generator, Origin, RowFlag, Step

FRAME = ("train.py", 1, "train", "act(observation)")


def finding(folder: Path, observed_in: int, states: dict[str, list[dict[str, object]]]) -> Finding:
    """Two runs of two steps whose observation differs in one of them; ``states``: generators as each step ends."""
    for trace, side in both(folder):
        for step, generators in enumerate(states[side]):
            seen = f"observation of {side}" if step == observed_in else "observation"
            trace.op("aten.mm.default", [FRAME], inputs=[In(origin=Origin.OUTSIDE, digest=seen)], outputs=[seen])
            trace.end_step(parameters="p", gradients="g", **generators)  # type: ignore[arg-type]
    found = compare_in(folder).first_value
    assert found.cause is Cause.OUTSIDE
    return found


def states(torch: str, python: str, numpy: str) -> dict[str, object]:
    return {"generators": torch, "python": python, "numpy": numpy}


SAME, OTHER = states("t", "p", "n"), states("t", "p", "other")


@pytest.mark.parametrize(
    ("observed_in", "a", "b", "said"),
    [
        (1, [SAME, states("t2", "p", "n")], None, "the torch, Python and NumPy {} were equal as this step began"),
        (1, [SAME] * 2, [OTHER] * 2, "the torch and Python {} were equal as this step began, the NumPy ones were not"),
        (
            1,
            [SAME] * 2,
            [SAME, OTHER],
            "the torch, Python and NumPy {} were equal as this step began, the NumPy ones differ at its end",
        ),
        (0, [SAME] * 2, [SAME, OTHER], "the torch, Python and NumPy {} are equal at the end of this step"),
    ],
    ids=[
        "what the attempt before left",
        "an unseeded generator",
        "an extra draw",
        "in the first step, by the states at its end",
    ],
)
def test_states_around_other_data(tmp_path: Path, observed_in: int, a: Any, b: Any, said: str) -> None:
    """Generators in one state are distinguished from those in another."""
    found = finding(tmp_path, observed_in, {"a": a, "b": b or a})
    assert found.explanation.endswith(f"; {said.format('generator states')}")


@pytest.mark.parametrize("generators", [None, "t"])
def test_not_known(tmp_path: Path, generators: str | None) -> None:
    """Where states were not digested, or a side had no such generator yet, nothing is said of them."""
    known: dict[str, object] = {"generators": generators, "python": 0, "numpy": 0}
    found = finding(tmp_path, 1, {"a": [known] * 2, "b": [known] * 2})
    assert "Python" not in found.explanation
    assert ("torch generator states were equal" in found.explanation) is (generators is not None)


@pytest.mark.parametrize(
    ("seed", "drawn", "said"),
    [
        (15, False, ": its generator, which nothing had drawn from since, was seeded with 16 in A, 15 in B"),
        (15, True, "an earlier extra draw; in A its generator was seeded with 16, and nothing had drawn from it"),
        (700_003, False, ": its generator, which nothing had drawn from since, was seeded with 16 in A, 700003 in B"),
    ],
)
def test_the_seeds_of_a_generator_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, drawn: bool, said: str
) -> None:
    """Small ones that it was just seeded with, or near a number of the command, of each side that is known."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--seed=700000"])
    record = recorder(tmp_path)

    def side(seed: int, draws: bool) -> str:
        generator = torch.Generator()
        generator.manual_seed(seed)
        if draws:
            generator.set_state(torch.Generator().manual_seed(2**40).get_state())
        return record(lambda: torch.randperm(9, generator=generator)).path

    first = compare(side(16, False), side(seed, drawn)).first_value
    assert first.cause is Cause.RNG and first.explanation.endswith(said)


# --- draws of one side ------------------------------------------------------------------------------------------------
#
# A letter is a row: ``t`` draws from torch's generator, ``m`` too, in a marked row, ``d`` from a device's, ``o`` and
# ``p`` from generators that the program made, ``u`` from one that is not known, ``.`` from none; capital letters are
# rows of one side alone. A digit ends a step with torch's generator in that state.

GENERATORS = {
    "t": Generator.TORCH,
    "m": Generator.TORCH,
    "d": Generator.DEVICE,
    "o": Generator.OWN,
    "p": 17,
    "u": Generator.UNKNOWN,
}


def side(path: Path, rows: str, state: str = "complete", end: str | None = None, thread: str = "") -> StreamView:
    def build(trace: TraceBuilder) -> None:
        for row in rows:
            if row.isdigit():
                trace.end_step(parameters="p", gradients="g", generators=row)
                continue
            drawn = {} if row == "." else {"rng": "g", "generator": GENERATORS[row.lower()]}
            flags = RowFlag.MARKED if row in "mM" else 0
            trace.op("aten.rand.default", outputs=["y"], flags=flags, **drawn)
        for row in thread:
            other = trace.stream("rank0/main/thread:other")
            other.op("aten.rand.default", outputs=["y"], rng="g", generator=GENERATORS[row])

    return view_of(path, build, state=state, generators=end)


def draws_of(a: StreamView, b: StreamView) -> Draws:
    def finding(of_a: bool, index: int) -> Finding:
        row, judgement = row_at(a if of_a else b, index), Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, "")
        return make_finding(row if of_a else None, None if of_a else row, judgement, index)

    return Draws(a, b, finding)


def drawn(folder: Path, a: str, b: str, **more: object) -> tuple[Draws, StreamView, StreamView, list[np.ndarray]]:
    views = [side(folder / f"{name}.zarr", rows, **more) for name, rows in (("a", a), ("b", b))]  # type: ignore[arg-type]
    draws, sides, alone = draws_of(*views), [], []
    for view, rows in zip(views, (a, b), strict=True):
        word = [row for row in rows if not row.isdigit()]
        alone.append(np.array([k for k, row in enumerate(word) if row.isupper()], np.int64))
        matched = np.array([k for k, row in enumerate(word) if not row.isupper()], np.int64)
        sides.append((view.read(0, view.rows), matched, alone[-1]))
    draws.add(sides[0], sides[1])
    return draws, *views, alone


def ends_of(draws: Draws) -> tuple[int, int]:
    """Where the streams end, as all of them was compared."""
    return draws._views[True].rows, draws._views[False].rows


def place_of(found: Finding | None) -> tuple[int | None, int | None] | None:
    return None if found is None else (found.a_index, found.b_index)


@pytest.mark.parametrize(
    ("a", "b", "more", "unsettled"),
    [
        ("tt.", "tt.", {}, None),
        ("tTt", "tt", {}, None),
        ("ttT", "tt", {}, (2, None)),
        ("tt.", "tTTt.T", {}, (None, 5)),
        ("ttT", "tt", {"end": "same"}, None),
        ("t1T2t", "t1t2", {}, None),
        ("t1T", "t1", {}, (1, None)),
        ("T1t", "t1T", {}, (None, 1)),
        ("T1", "1", {}, None),
        ("T1T", "1", {}, (1, None)),
        ("1", "T1T", {}, (None, 1)),
        ("T1", "2", {}, (0, None)),
        ("dD", "d", {}, (1, None)),
        ("Dd", "d", {}, None),
        ("oO", "o", {}, (1, None)),
        ("OO", "", {}, None),
        ("OO", "", {"thread": "o"}, (0, None)),
        ("OO", "", {"thread": "p"}, None),
        ("Uu", "u", {}, (0, None)),
        ("ttT", "tt", {"state": "killed"}, None),
        ("Tm", "m", {}, (0, None)),
        ("Tm", "t", {}, (0, None)),
        ("Tt", "m", {}, (0, None)),
        ("Tmt", "mt", {}, None),
        ("Oo", "m", {}, (0, None)),
    ],
)
def test_draws_of_one_side(
    tmp_path: Path, a: str, b: str, more: dict[str, object], unsettled: tuple[int | None, int | None] | None
) -> None:
    """Harmless where the generator is in the same state afterwards, or where nothing else ever draws from it."""
    draws, *_, alone = drawn(tmp_path, a, b, **more)
    assert place_of(draws.unsettled(ends_of(draws))) == unsettled
    assert draws.any_one_sided is any(len(rows) for rows in alone)


@pytest.mark.parametrize(("ends", "unsettled"), [((4, 3), None), ((3, 2), (1, None)), ((2, 1), (1, None))])
def test_only_what_was_compared_settles(
    tmp_path: Path, ends: tuple[int, int], unsettled: tuple[int | None, int | None] | None
) -> None:
    """A draw of both sides after the end of the walk is no proof."""
    draws, *_ = drawn(tmp_path, "tT.t", "t.t")
    assert place_of(draws.unsettled(ends)) == unsettled


def test_draws_after_the_value_at_which_the_walk_ends(tmp_path: Path) -> None:
    """They were not compared: the draw of one side before that value comes first."""
    for trace, is_b in both(tmp_path, False, True):
        trace.op("aten.mm.default", [FRAME], outputs=["y"])
        if is_b:
            trace.op("aten.rand.default", [FRAME], outputs=["z"], rng="g")
        trace.op("aten.sum.default", [FRAME], outputs=["of b" if is_b else "of a"])
        trace.op("aten.rand.default", [FRAME], outputs=["r"], rng="h")
    found = compare_in(tmp_path)
    assert found.first_value.a_index == 1
    assert place_of(found.decisive) == (None, 1)


def test_steps_that_digests_prove_equal_settle_a_draw(tmp_path: Path) -> None:
    """An evaluation that puts the generator back is not the cause of another seed long after it."""
    for trace, is_b in both(tmp_path, False, True):
        for step in range(6):
            other = is_b and step == 4
            trace.op("aten.rand.default", [FRAME], outputs=[f"r{step}{other}"], rng=f"{step}{other}")
            if is_b and step == 1:
                trace.op("aten.rand.default", [FRAME], outputs=["e"], rng="e")
            trace.op("aten.add_.Tensor", [FRAME], outputs=[f"p{step}{other}"])
            trace.end_step(parameters=f"{step}", gradients="g", generators=f"{step}{is_b and step >= 4}")
    found = compare_in(tmp_path)
    assert found.decisive is not None and found.decisive == found.first_value
    assert (found.decisive.step, found.decisive.cause) == (4, Cause.RNG)
    assert "on one side only" not in found.decisive.explanation


@pytest.mark.parametrize(
    ("a", "b", "cause"),
    [
        ("t.t", "t.Tt", (None, 2)),
        ("t.t", "Tt.t", None),
        ("t.TTt", "t.t", (2, None)),
        ("t.t", "t.Dt", None),
        ("t.t", "t.Ut", (None, 2)),
        ("t.u", "t.TDu", (None, 2)),
        ("tT.t", "tT.t", (1, None)),
        ("..TT.t", "T...t", (None, 0)),
    ],
)
def test_the_draw_that_explains_another_state(tmp_path: Path, a: str, b: str, cause: tuple[int, int] | None) -> None:
    """The first of one side since both last drew from the generator; the rows up to the last pair are known."""
    views = [side(tmp_path / f"whole {name}.zarr", rows) for name, rows in (("a", a), ("b", b))]
    draws, *_ = drawn(tmp_path, a[:-1], b[:-1])
    pair = [row_at(view, view.rows - 1) for view in views]
    assert place_of(draws.causing_draw(*pair, ends_of(draws))) == cause


@pytest.mark.parametrize(
    ("a", "tail", "more", "settled"),
    [
        ("tt", "..", {}, True),
        ("tt", "t", {}, False),
        ("tt", "t", {"end": "same"}, True),
        ("t", "oo", {}, True),
        ("to", "oo", {}, False),
        ("t", "oo", {"thread": "o"}, False),
        ("t", "op", {}, True),
        ("tp", "op", {}, False),
    ],
)
def test_draws_at_the_end_of_one_side(
    tmp_path: Path, a: str, tail: str, more: dict[str, object], settled: bool
) -> None:
    """Harmless in the same cases; what is drawn before the end counts as drawn by both."""
    long, short = side(tmp_path / "a.zarr", a + tail, **more), side(tmp_path / "b.zarr", a, **more)  # type: ignore[arg-type]
    rest = long.read(len(a), len(a) + len(tail))
    for views in ((long, short), (short, long)):
        draws = draws_of(*views)
        assert draws.are_settled(long, rest) is settled
        assert draws.any_one_sided is (tail != "..")


def test_ends_that_differ_settle_nothing(tmp_path: Path) -> None:
    """The states of both sides count, not those of one."""
    long, short = (side(tmp_path / f"{rows}.zarr", rows, end=rows) for rows in ("ttt", "tt"))
    for views in ((long, short), (short, long)):
        assert not draws_of(*views).are_settled(long, long.read(2, 3))


def test_all_draws_of_a_stream(tmp_path: Path) -> None:
    """Draws are counted by generator; they are not known where rows cannot be read."""
    view = side(tmp_path / "a.zarr", "t.dt1.o")
    found = [draws_from(view.stream, GENERATORS[word]) for word in "tdopu"]
    assert [drawing.rows.tolist() for drawing in found if drawing] == [[0, 3], [2], [5], [], []]
    (tmp_path / "a.zarr/processes/0/streams/0/rows/c.0.0").unlink()
    assert draws_from(opened(tmp_path / "a.zarr").stream, Generator.TORCH) is None


def test_states_at_the_end(tmp_path: Path) -> None:
    """Equal only where both are known; another one is a note."""
    views = [side(tmp_path / f"{k}.zarr", "t", end=end) for k, end in enumerate(["x", "x", "y", None])]
    processes = [view.process for view in views]
    assert [rng_ends_equal(processes[0], other, Generator.TORCH) for other in processes] == [True, True, False, False]
    assert [state_column(number) for number in (Generator.TORCH, Generator.DEVICE, Generator.DEVICE + 3)] == [
        Step.TORCH_GENERATOR,
        Step.DEVICE_GENERATORS,
        Step.DEVICE_GENERATORS,
    ]
    assert state_column(Generator.OWN) is state_column(Generator.UNKNOWN) is None
    assert not rng_ends_equal(processes[0], processes[1], Generator.DEVICE)
    assert not rng_ends_equal(processes[0], processes[1], Generator.OWN)
    notes = [generators_note(processes[0], other) for other in processes]
    assert [notes[0], notes[1], notes[3]] == [None] * 3
    assert str(notes[2]).startswith("the torch generator states differ as rank0/main ends")


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("sts", "stu", "in A its generator had been set back to the state in which aten.rand.default"),
        ("stu", "sts", "in B its generator had been set back to the state in which aten.rand.default"),
        ("ss", "su", "another seed, or an earlier extra draw"),
        ("st", "su", "another seed, or an earlier extra draw"),
    ],
    ids=["A sets it back", "B does", "nothing was drawn between", "neither"],
)
def test_a_generator_that_one_side_sets_back(tmp_path: Path, a: str, b: str, said: str) -> None:
    """A state that an earlier op drew from, with others between, is one to which the program returned."""
    for trace, is_b in both(tmp_path, False, True):
        for state in b if is_b else a:
            trace.op("aten.rand.default", [FRAME], outputs=[f"drawn from {state}"], rng=state)
    found = compare_in(tmp_path).first_value
    assert found.cause is Cause.RNG
    assert found.explanation.startswith(f"the RNG state already differed before the op drew: {said}")
    assert ("(row 0) drew (as fork_rng" in found.explanation) is ("set back" in said)


@pytest.mark.parametrize(
    ("before", "generator", "said"),
    [
        ("", Generator.TORCH, "nothing drew from it before: another seed, or none, where torch takes one at random"),
        ("the same stream", Generator.TORCH, "another seed, or an earlier extra draw"),
        ("another thread", Generator.TORCH, "another seed, or an earlier extra draw"),
        ("", Generator.OWN, "another seed, or an earlier extra draw"),
    ],
    ids=["first", "second", "a thread's", "of the program's own"],
)
def test_the_first_draw_of_a_process(tmp_path: Path, before: str, generator: Generator, said: str) -> None:
    """Nothing but the seed can differ where no op of any thread drew before."""
    for trace, is_b in both(tmp_path, False, True):
        if before == "another thread":
            trace.main.stream("rank0/main/thread:x").op(
                "aten.rand.default", outputs=["y"], rng="g", generator=generator
            )
        if before == "the same stream":
            trace.op("aten.rand.default", [FRAME], outputs=["y"], rng="g", generator=generator)
        trace.op("aten.rand.default", [FRAME], outputs=[f"z{is_b}"], rng=f"state {is_b}", generator=generator)
    found = compare_in(tmp_path).first_value
    assert found.cause is Cause.RNG
    assert found.explanation == f"the RNG state already differed before the op drew: {said}"


def test_ends_that_differ_leave_a_draw_unsettled(tmp_path: Path) -> None:
    """One side's end is no proof; both ends in one state are, whichever side drew."""
    for ends, unsettled in (("xy", True), ("xx", False)):
        long, short = (
            side(tmp_path / f"{ends}{rows}.zarr", rows, end=end) for rows, end in zip(("tT", "t"), ends, strict=True)
        )
        for views in ((long, short), (short, long)):
            draws = draws_of(*views)
            alone = [np.array([1] if view is long else [], np.int64) for view in views]
            given = [(view.read(0, view.rows), np.array([0]), rows) for view, rows in zip(views, alone, strict=True)]
            draws.add(given[0], given[1])
            assert (draws.unsettled(ends_of(draws)) is not None) is unsettled


def test_draws_of_a_trace_that_goes_on(tmp_path: Path) -> None:
    """What one side has not run yet may restore the state, whichever side it is."""
    long, short = side(tmp_path / "a.zarr", "tT"), side(tmp_path / "b.zarr", "t", state="killed")
    for views in ((long, short), (short, long)):
        draws = draws_of(*views)
        assert draws.unsettled(ends_of(draws)) is None
