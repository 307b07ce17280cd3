"""A run held against another as it goes: the first op that differs is the one that a comparison names, and is kept."""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_programs import WRONG, run_text, scale_, scaled, text_of
from recorded import Recorded
from torch import nn
from toy_environments import Walk

import rltrace
from rltrace.commands._live_diff import live_status
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Finding, InputsMatch, Verdict
from rltrace.live_diff import recorder
from rltrace.live_diff.result import LiveFinding, LiveOutcome, LiveResult
from rltrace.live_diff.start import against_block
from rltrace.trace.tools.verify import verify


class Sides:
    """A program recorded as A, and again held against it."""

    def __init__(self, folder: Path, program: Callable[[bool], Any], *, stop: bool = False, **options: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.returned: list[Any] = []
        self.stopped = False
        for make, is_b in (
            (lambda: rltrace.record(self.path_a, **options), False),
            (lambda: against_block(self.path_a, self.path_b, stop=stop), True),
        ):
            held = self._run(make(), program, is_b)
        (self.found,) = held.found

    def _run(self, context: AbstractContextManager[Any], program: Callable[[bool], Any], is_b: bool) -> Any:
        """Every run comes through here: a call site is what its lines say."""
        torch.manual_seed(0)
        entered = None
        try:
            with context as entered:
                self.returned.append(program(is_b))
        except KeyboardInterrupt:
            self.stopped = True
        return entered

    @property
    def path_a(self) -> Path:
        return self.folder / "a.zarr"

    @property
    def path_b(self) -> Path:
        return self.folder / "b.zarr"

    @property
    def first(self) -> LiveFinding:
        assert self.found.first is not None
        return self.found.first

    def compared(self) -> Comparison:
        return compare(self.path_a, self.path_b)


@pytest.fixture
def held(tmp_path: Path) -> Callable[..., Sides]:
    return lambda program, **options: Sides(tmp_path, program, **options)


Held = Callable[..., Sides]

ALSO_SAID = re.compile(r", and (none gave A's result|A's result came [0-9,]+ times)")


def named_alike(sides: Sides) -> LiveFinding:
    """The finding, which is the first difference in values that a comparison of the two whole traces names."""
    first, other = sides.first, sides.compared().first_value
    assert other is not None
    assert (first.a_index, first.b_index, first.op) == (other.a_index, other.b_index, other.op)
    in_one_voice(first, other)
    assert first.outputs == other.outputs
    assert verify(sides.path_b).sound
    return first


def in_one_voice(first: LiveFinding, other: Finding) -> None:
    """One cause, known in one way, in the same words; only whether calling the op again gave A's result is more."""
    assert (first.cause, first.inputs_match) == (other.cause, other.inputs_match)
    assert (first.kernel, first.site, first.module) == (other.kernel, other.site, other.module or "")
    assert ALSO_SAID.sub("", first.explanation) == other.explanation


def training(is_b: bool) -> list[torch.Tensor]:
    """An op that is off in one step of four; a log line more; dropout, so that a draw too many would show."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        WRONG[0] = 0.01 if is_b and step == 2 else 0.0
        if is_b:
            model[0].weight.norm()
        scaled(model(torch.randn(5, 4))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def test_the_first_op_that_differs(held: Held) -> None:
    """Its inputs match by induction; on them it repeats itself and never gives A's result; all that stands there."""
    sides = held(training)
    first = named_alike(sides)
    assert (first.op, first.step, first.inputs_match) == ("against.scaled.default", 2, InputsMatch.INFERRED)
    assert first.site is not None
    assert first.site.function == "training"
    assert first.again is not None
    assert (first.again.repeats, first.again.of_a) == (True, 0)
    assert first.again.of_b == first.again.times == 100
    assert (sides.found.word, sides.found.counts.only_b) == (LiveOutcome.DIFFERS, 6)
    assert "none gave A's result" in first.explanation


def test_rounds_that_gave_what_other_rounds_gave(held: Held) -> None:
    """As a race may: each op has inputs of its own round, so it is not the one of another that came out like it."""

    def program(is_b: bool) -> None:
        for off in (0.5, 0.0, 0.25) if is_b else (0.0, 0.5, 0.25):
            WRONG[0] = off
            scaled(torch.ones(3))

    assert named_alike(held(program)).b_index == 1


def test_a_comparison_tells_what_was_tried_on_the_spot(held: Held) -> None:
    """Of two traces alone, whether a kernel repeats itself is not known; here it was called again."""
    sides = held(training)
    tried, plain = sides.compared(), compare(sides.path_b, sides.path_a)
    for found in (tried, plain):  # whichever of the two is A
        assert found.first_value is not None and found.first_value.repeats is True
        assert "re-executed 100 times on its inputs while it was recorded, it is deterministic" in (
            found.first_value.explanation
        )
        assert found.first_value is found.decisive


def test_the_program_notices_nothing(held: Held, tmp_path: Path) -> None:
    """Calling the op again draws nothing and writes nothing of the program's: it ends as it ends recorded plainly."""
    sides = held(training)
    torch.manual_seed(0)
    with rltrace.record(tmp_path / "plain.zarr"):
        plain = training(True)
    assert all(map(torch.equal, plain, sides.returned[1]))
    rows = [Recorded(path).raw for path in (sides.path_b, tmp_path / "plain.zarr")]
    assert np.array_equal(rows[0].digests, rows[1].digests)
    assert np.array_equal(rows[0].links, rows[1].links)


def test_what_it_read_and_gave_is_kept(held: Held) -> None:
    """The values of that op, and of no other."""
    sides = held(training)
    found = Recorded(sides.path_b)
    values = found.process.values
    row = found.rows[sides.first.b_index]
    (result,) = (values.get(digest) for digest in row.outputs)
    (read,) = (values.get(digest) for digest in values.inputs(0, row.index).values())
    assert result is not None
    assert read is not None
    assert np.array_equal(read.numbers * np.float32(1.01), result.numbers)
    assert len(values) == 2


def test_in_place(held: Held) -> None:
    """What it read is gone when it has run; it was copied before, so it can be called again, and is kept."""

    def program(is_b: bool) -> torch.Tensor:
        WRONG[0] = 0.5 * is_b
        x = torch.arange(6.0).reshape(2, 3) + 1
        scale_(x[1])
        return x * 1

    sides = held(program)
    first = named_alike(sides)
    assert first.again is not None
    assert (first.again.repeats, first.again.of_a, first.again.of_b) == (True, 0, 100)
    values = Recorded(sides.path_b).process.values
    (read,) = (values.get(digest) for digest in values.inputs(0, first.b_index).values())
    assert read is not None
    assert read.numbers.tolist() == [4.0, 5.0, 6.0]


def test_in_place_and_too_large(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound nothing is copied before; it is said, and what it left behind is not taken for its input."""
    monkeypatch.setattr(recorder, "MAX_EARLY", 8)

    def program(is_b: bool) -> torch.Tensor:
        WRONG[0] = 0.5 * is_b
        x = torch.ones(6)
        scale_(x)
        return x

    sides = held(program)
    first = named_alike(sides)
    assert first.again is None
    assert "it overwrote its input" in first.why_not
    assert Recorded(sides.path_b).process.values.inputs(0, first.b_index) == {}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads need two cores to get in each other's way")
def test_an_op_that_does_not_repeat_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scatter on two threads: its runs diverge, and on the spot it is seen not to repeat."""
    monkeypatch.setattr(recorder, "TIMES", 300)
    torch.manual_seed(0)
    index, values = torch.randint(0, 4096, (65_536,)), torch.randn(65_536)

    def program(is_b: bool) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            for _ in range(20):
                out = torch.zeros(4096)
                values.mul(1.0)  # on both threads, so that neither of them sleeps when the next op begins
                out.index_put_((index,), values, accumulate=True)
        finally:
            torch.set_num_threads(threads)

    parted = 0
    for number in range(20):
        sides = Sides(tmp_path / str(number), program)
        if sides.found.word is not LiveOutcome.DIFFERS:
            continue
        parted += 1
        first = named_alike(sides)
        assert (first.op, first.cause) == ("aten.index_put_.default", Cause.SAME_KERNEL)
        assert first.again is not None
        if not first.again.repeats:  # even so many calls may agree by chance
            assert "it is nondeterministic" in first.explanation
            return
    if parted:
        pytest.fail(f"{parted} pairs of runs parted, and on the spot the op was never seen not to repeat")
    pytest.skip("on this machine two threads never got in each other's way")


def test_equal_runs(held: Held) -> None:
    """Nothing to find, nothing kept."""
    sides = held(lambda is_b: training(False))
    assert (sides.found.word, sides.found.first) == (LiveOutcome.EQUAL, None)
    assert sides.found.counts.matched == len(Recorded(sides.path_b).rows)
    assert len(Recorded(sides.path_b).process.values) == 0


# --- what is no difference --------------------------------------------------------------------------------------------


def test_ops_of_one_side_alone(held: Held) -> None:
    """More here, fewer here: told, and no difference, as long as nothing that both run is another value."""

    def program(is_b: bool) -> torch.Tensor:
        x = torch.ones(3)
        if is_b:
            x.mean()
        y = x + 1
        if not is_b:
            (y * 7).sum()
        return y.exp()

    sides = held(program)
    assert (sides.found.word, sides.found.counts.only_b, sides.found.counts.only_a) == (LiveOutcome.ONE_SIDED, 1, 2)
    assert sides.compared().verdict is Verdict.SAME_VALUES


def test_calls_of_one_line_that_change_places(held: Held) -> None:
    """A program that walks a set: the same calls in another order."""
    tensors = [torch.full((n,), float(n)) for n in (2, 3, 3, 4)]

    def program(is_b: bool) -> None:
        for tensor in reversed(tensors) if is_b else tensors:
            tensor.add(1)

    assert held(program).found.word is LiveOutcome.EQUAL


@pytest.mark.parametrize("used", [False, True])
def test_memory_that_nobody_wrote(held: Held, used: bool) -> None:
    """What an op reads of it is no difference, however it differs; what others compute with that is one for it."""

    def program(is_b: bool) -> None:
        half = torch.empty(8)
        with torch.utils._python_dispatch._disable_current_modes():
            half.fill_(float(is_b))  # as somebody has left it
        half[:2] = 1.0
        total = half.sum()
        if used:
            total.exp()

    sides = held(program)
    if not used:
        assert (sides.found.word, sides.found.counts.marked) == (LiveOutcome.EQUAL, 1)
        assert sides.compared().verdict is Verdict.IDENTICAL
    else:
        other = sides.compared().decisive
        assert other is not None
        assert sides.first.cause is other.cause is Cause.UNKNOWN
        assert f"written by row {other.b_index}," in sides.first.explanation


# --- other causes -----------------------------------------------------------------------------------------------------


def other_data(is_b: bool) -> None:
    torch.from_numpy(np.full(3, 2.0 if is_b else 1.0, np.float32)).add(1)


def other_seed(is_b: bool) -> None:
    if is_b:
        torch.manual_seed(5)
    torch.randn(3)


def other_number(is_b: bool) -> None:
    torch.ones(3).mul(3.0 if is_b else 2.0)


def other_shape(is_b: bool) -> None:
    torch.ones(3 + is_b).mul(2.0)


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (other_data, Cause.OUTSIDE),
        (other_seed, Cause.RNG),
        (other_number, Cause.ARGUMENTS),
        (other_shape, Cause.ARGUMENTS),
    ],
)
def test_what_is_no_computation(held: Held, program: Callable[[bool], None], cause: Cause) -> None:
    """Another cause is named as a comparison names it, and the op is not called again: it would tell nothing."""
    sides = held(program)
    first = sides.first
    other = sides.compared().decisive
    assert other is not None
    assert (first.a_index, first.b_index) == (other.a_index, other.b_index)
    in_one_voice(first, other)
    assert first.cause is cause
    assert first.again is None


def test_a_write_more_that_matters(held: Held) -> None:
    """It is seen where a matched op computes with it, and who wrote the input is told."""

    def program(is_b: bool) -> None:
        x = torch.ones(3)
        if is_b:
            x.add_(1)
        x.exp()

    sides = held(program)
    assert (sides.first.op, sides.first.cause) == ("aten.exp.default", Cause.CONTROL_FLOW)
    assert "input 0 (float32[3]) in A was last written by aten.ones.default" in sides.first.explanation
    assert "and in B was last written by aten.add_.Tensor at" in sides.first.explanation
    other = sides.compared().decisive
    assert other is not None
    assert (other.op, other.b_index) == ("aten.add_.Tensor", 1)


def test_a_draw_more_that_matters(held: Held) -> None:
    """It shows at the next op that draws and that both run."""

    def program(is_b: bool) -> None:
        if is_b:
            torch.rand(1)
        torch.randn(3)

    sides = held(program)
    assert (sides.first.op, sides.first.cause) == ("aten.randn.default", Cause.RNG)


# --- windows, threads, the end ----------------------------------------------------------------------------------------


def weights(is_b: bool) -> None:
    parameter = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for step in range(4):
        WRONG[0] = 0.5 if is_b and step == 0 else 0.0
        scaled(parameter).sum().mul(2).exp().backward()
        optimizer.step()
        optimizer.zero_grad()


class Faulty(Walk):
    """An observation that is off by a little at one of its steps."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(length=99)
        self.at, self.steps = at, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        seen, *rest = super().step(action)
        return (seen + np.float32(1e-3) if self.steps == self.at else seen, *rest)


def played(env: Any, steps: int, *, after: Callable[[int], object] = int, seed: int | None = 0) -> None:
    """A linear agent; ``after`` is called with the number of each step."""
    agent = nn.Linear(1, 2)
    seen, _ = env.reset(seed=seed)
    for step in range(steps):
        seen, *_ = env.step(int(agent(torch.as_tensor(seen)).argmax()))
        after(step)
    agent(torch.as_tensor(seen))


def one_is_off(is_b: bool) -> None:
    env = Faulty()
    env.at = 4 * is_b
    Walk(noise=1.0).reset()  # without a seed, to ask for a shape: that decides nothing
    played(env, 8)


def one_goes_into_a_buffer(is_b: bool) -> None:
    env, memory = Faulty(), np.zeros((8, 1), np.float32)
    env.at = 4 * is_b
    env.reset(seed=0)
    for step in range(8):
        memory[step] = env.step(step & 1)[0]
    nn.Linear(1, 2)(torch.as_tensor(memory))


def its_space_is_not_seeded(_is_b: bool) -> None:
    env = Walk(length=99)
    env.action_space = gymnasium.spaces.Box(-1, 1, (1,))
    env.reset(seed=0)
    for _ in range(9):
        action = env.action_space.sample()
        seen, *_ = env.step(action[0] > 0)
    nn.Linear(1, 2)(torch.as_tensor(seen + action))


def one_steps_once_more(is_b: bool) -> None:
    env = Walk(length=99)
    played(env, 6, after=lambda step: env.step(0) if is_b and step == 2 else None)


@pytest.mark.parametrize("program", [one_is_off, one_goes_into_a_buffer, its_space_is_not_seeded, one_steps_once_more])
def test_an_event_that_brought_it_in(held: Held, program: Callable[[bool], object]) -> None:
    """The very row, cause and sentence that a comparison of the two whole traces names; and nothing is called again."""
    sides = held(program)
    first, other = sides.first, sides.compared().decisive
    assert other is not None
    assert (first.a_index, first.b_index, first.op) == (other.a_index, other.b_index, other.op)
    in_one_voice(first, other)
    assert other.op.startswith("environment-")
    assert (first.again, first.why_not) == (None, "it is not an op")
    assert ("the action space of Walk was not seeded" in first.explanation) == (program is its_space_is_not_seeded)
    assert ("the action space of Walk was not seeded" in other.explanation) == (program is its_space_is_not_seeded)


def test_events_that_decide_nothing(held: Held) -> None:
    """An environment that nobody seeded and nothing is computed from; one that one side alone has."""

    def program(is_b: bool) -> None:
        for _ in range(1 + is_b):
            played_alone = Walk(noise=1.0)
            played_alone.reset()
            played_alone.step(1)
        played(Walk(length=99), 4)

    assert held(program).found.first is None


def test_a_window(held: Held) -> None:
    """A's window is recorded; what it begins with is compared first, since everything rests on it."""
    sides = held(lambda is_b: weights(False), steps=(2, 4))
    assert sides.found.word is LiveOutcome.EQUAL
    assert Recorded(sides.path_b).rows[0].step == 2


def test_a_difference_from_before_the_window(held: Held) -> None:
    """The parameter that differs already is named; no op is."""

    def program(is_b: bool) -> None:
        parameter = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.5 if is_b else 0.1)
        for _ in range(3):
            parameter.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    sides = held(program, steps=(2, 3))
    assert sides.first.cause is Cause.BEFORE_WINDOW
    other = sides.compared().first_value
    assert other is not None
    assert (sides.first.a_index, sides.first.b_index) == (other.a_index, other.b_index)
    assert (sides.first.cause, sides.first.explanation) == (other.cause, other.explanation)


def test_a_generator_that_nobody_draws_from(held: Held) -> None:
    """Its state as the window begins differs in every run, and is no difference to either comparison."""

    def program(is_b: bool) -> None:
        random.seed(int(is_b))
        weights(False)

    sides = held(program, steps=(2, 4))
    assert (sides.found.word, sides.compared().verdict) == (LiveOutcome.EQUAL, Verdict.IDENTICAL)


def test_stop(held: Held, tmp_path: Path) -> None:
    """The program ends right after that op, whose row is the last; the trace says that it was asked for."""
    sides = held(training, stop=True)
    assert sides.stopped
    assert len(sides.returned) == 1
    found = Recorded(sides.path_b)
    assert found.process.state == "stopped"
    assert found.rows[-1].index == sides.first.b_index
    whole = Sides(tmp_path / "whole", training)
    assert sides.first == named_alike(whole)


def test_the_exit_status_of_a_comparison(held: Held) -> None:
    """0, 1 and 125, which ``git bisect run`` reads as good, bad and skip; a harmless op more is no difference."""

    def one_more(is_b: bool) -> None:
        training(False)
        if is_b:
            torch.ones(2).sin()

    for program, status in ((lambda _: training(False), 0), (training, 1), (one_more, 0)):
        sides = held(program)
        assert live_status(sides.path_a, sides.path_b, 0) == status
        assert live_status(sides.path_a, sides.path_b, 3) == (status or 125)
        for path in (sides.path_a, sides.path_b):
            shutil.rmtree(path)
    assert live_status(sides.path_a, sides.path_b, 127) == 125


def test_a_program_that_goes_on_for_longer(held: Held) -> None:
    """Steps that A does not have are counted, and nothing is said of them."""

    def program(is_b: bool) -> None:
        parameter = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(5 if is_b else 3):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()

    found = held(program).found
    assert found.counts.unchecked > 0
    assert found.first is None


def test_a_program_that_is_another(held: Held) -> None:
    """Nothing is met: that is said, rather than that it is equal."""

    def program(is_b: bool) -> None:
        if is_b:
            torch.ones(3).sum()
        else:
            torch.zeros(3).exp()

    assert held(program).found.word is LiveOutcome.NOTHING


# --- random programs --------------------------------------------------------------------------------------------------


def holds(found: LiveResult, comparison: Comparison) -> None:
    """What was said while it ran is what a comparison says of the two whole traces."""
    if comparison.verdict is Verdict.IDENTICAL:
        assert found.word is LiveOutcome.EQUAL
    elif comparison.verdict is Verdict.SAME_VALUES:
        assert found.word is not LiveOutcome.DIFFERS
    elif comparison.verdict is Verdict.DIVERGED and comparison.first_value is not None:
        finding = comparison.first_value
        assert found.first is not None
        assert (found.first.a_index, found.first.b_index) == (finding.a_index, finding.b_index)
    elif comparison.verdict is Verdict.DIVERGED:  # an op of one side alone, which matters only to what nobody reads
        assert found.word is not LiveOutcome.EQUAL


@given(st.randoms(use_true_random=False), st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_random_programs(random: Random, extra: int) -> None:
    """Extra ops, harmless and not, and ops that are off from some line on: the same op, or none, is named."""
    texts = text_of(random, extra)
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), lambda is_b: run_text(texts[is_b]))
        holds(sides.found, sides.compared())


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    WRONG[0] = 0.0
