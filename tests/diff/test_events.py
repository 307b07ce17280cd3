"""What came in with an event: the origin of what differs because of it, and nothing where nothing does."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from recorded import Record, recorder
from torch import nn
from toy_environments import Walk
from views import both, compare_in, opened, views_in

from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.base.view import StreamView
from rltrace.diff.display.browser import Browser
from rltrace.diff.display.row_pairs import Relation
from rltrace.json import to_json
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.testing import In
from rltrace.trace.format.schema import Kind
from rltrace.trace.read.reader import open_trace

Program = Callable[[bool], object]


@pytest.fixture
def compared(tmp_path: Path) -> Callable[[Program], Comparison]:
    """A program recorded twice in this process, called with its side, and compared."""

    record: Record = recorder(tmp_path)

    def run(program: Program) -> Comparison:
        def side(is_b: bool) -> Path:
            torch.manual_seed(0)
            np.random.seed(0)
            return record(lambda: program(is_b)).path

        paths = [side(is_b) for is_b in (False, True)]
        return compare(*paths)

    return run


class Faulty(Walk):
    """An observation that is off by a little at one of its steps."""

    def __init__(self, at: int | None, **given: Any) -> None:
        super().__init__(**given)
        self.at, self.steps = at, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        seen, *rest = super().step(action)
        return (seen + np.float32(1e-3) if self.steps == self.at else seen, *rest)


def network() -> nn.Module:
    return nn.Linear(1, 2)


def play(env: Walk, agent: nn.Module, steps: int, seed: int | None = 0) -> None:
    seen, _ = env.reset(seed=seed)
    for _ in range(steps):
        with torch.no_grad():
            action = agent(torch.as_tensor(seen)).argmax()
        seen, _, ended, *_ = env.step(int(action))
        if ended:
            seen, _ = env.reset()


def test_an_observation_that_differs_is_the_origin_of_what_follows(compared: Any) -> None:
    """Not the op that took it in: the event, with its environment, its step, what differs and what does not."""
    found = compared(lambda is_b: play(Faulty(4 if is_b else None, length=99), network(), 8))
    first = found.first_value
    assert (found.verdict, first.cause, first.op) == (Verdict.DIVERGED, Cause.OUTSIDE, "environment-step")
    assert first is found.decisive is found.first
    assert (first.event.name, first.event.count.a) == ("environment 0", 4)
    assert [cell.name for cell in first.event.cells] == ["observation"]
    assert first.explanation.startswith(
        "environment 0 (Faulty) returned another observation at its step 4, given the same"
    )
    number = first.event.components[0]
    assert number.name == "observation, component 0 of 1"
    assert float(number.b) - float(number.a) == pytest.approx(1e-3)
    assert f"; its {number.name}, is {number.a} in A and {number.b} in B; " in first.explanation
    assert "had equal states before it" in first.explanation
    assert "aten.addmm.default" in first.explanation or "aten.linear" in first.explanation
    assert to_json(found)["first_value"]["event"]["cells"][0]["name"] == "observation"
    report = document_text(verdict_document(found))
    assert f"field    {number.name}\n           A  {number.a}\n           B  {number.b}\n" in report


def test_the_part_of_an_observation_that_differs_is_named(compared: Any) -> None:
    """Of a dictionary: the entry, which an op reads, and its numbers; and that of an action."""

    class Parts(Faulty):
        def step(self, action: Any) -> Any:
            seen, *rest = super().step(action["left"])
            return ({"far": seen + np.float32(action["right"]), "near": np.zeros(2, np.float32)}, *rest)

    def program(is_b: bool, *, is_given_other: bool = False) -> None:
        env, agent = Parts(3 if is_b and not is_given_other else None, length=99), network()
        env.reset(seed=0)
        for _ in range(5):
            agent(torch.as_tensor(env.step({"left": 1, "right": int(is_b and is_given_other)})[0]["far"]))

    given = compared(lambda is_b: program(is_b, is_given_other=True)).first_value
    assert [cell.name for cell in given.event.cells][:1] == ["action.right"]
    assert "(Parts) was given another action.right at its step 1, though no op" in given.explanation
    first = compared(program).first_value
    assert (first.event.count.a, [cell.name for cell in first.event.cells]) == (3, ["observation.far"])
    assert first.explanation.startswith("environment 0 (Parts) returned another observation.far at its step 3, given")
    assert first.event.components[0].name == "observation.far, component 0 of 1"


def test_an_event_that_nothing_depends_on_is_no_divergence(compared: Any) -> None:
    """An unseeded reset, to ask for a shape, differs in every run; so do steps of a check of the environment."""

    def program(_is_b: bool) -> None:
        env = Walk(noise=1.0)
        size = len(env.reset()[0])
        for _ in range(3):
            env.step(1)
        play(env, nn.Linear(size, 2), 5)

    found = compared(program)
    assert found.verdict is Verdict.SAME_VALUES
    assert found.events.differing == 4
    assert "no op computed with it" in found.why
    assert "4 events differ" in document_text(verdict_document(found))


def test_another_kernel_is_not_blamed_on_an_environment(tmp_path: Path) -> None:
    """An event differs, and so does an op with equal inputs after it: the op is an origin of its own."""

    for trace, isa in both(tmp_path, "AVX2", "AVX512"):
        trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": 1}, digests={"observation": isa})
        trace.op("aten.mm.default", inputs=[In(digest="x")], outputs=[isa], kernel={"library": "ATen", "isa": isa})
    found = compare_in(tmp_path)
    assert (found.decisive.cause, found.decisive.op) == (Cause.KERNEL, "aten.mm.default")
    assert found.events.differing == 1


def test_what_went_into_a_buffer_and_came_out_much_later_goes_back_to_the_event(compared: Any) -> None:
    """One observation is off, all after it are equal again: the buffer is where it stayed."""

    def program(is_b: bool) -> None:
        env = Faulty(3 if is_b else None, length=99)
        first = env.reset(seed=0)[0]
        kept = [first, *(env.step(k % 2)[0] for k in range(10))]
        network()(torch.as_tensor(np.stack(kept)))

    found = compared(program)
    first = found.first_value
    assert (first.cause, first.op, first.event.count.a) == (Cause.OUTSIDE, "environment-step", 3)
    assert "later events were equal again" in first.explanation


def test_an_action_from_an_unseeded_space_is_the_origin(compared: Any) -> None:
    """Every generator of the process stood alike: the action came from elsewhere."""

    def program(is_b: bool) -> None:
        env = Walk(length=99)
        env.action_space.seed(1 + is_b)
        env.reset(seed=0)
        for _ in range(12):
            seen, *_ = env.step(env.action_space.sample())
        network()(torch.as_tensor(seen))

    first = compared(program).first_value
    assert (first.cause, first.op) == (Cause.OUTSIDE, "environment-step")
    assert "was given another action" in first.explanation
    assert "; the environment's own generator had equal states before it; " in first.explanation


def test_a_reward_that_differs_in_every_episode_goes_back_to_the_first_step(compared: Any) -> None:
    """Seeded resets lie between, which set back nothing that a wrapper does; rows after it are not called identical."""

    def program(is_b: bool) -> None:
        env = gymnasium.wrappers.TransformReward(Walk(length=3), lambda _: 1.0 - is_b / 2)
        env.reset(seed=0)
        kept = []
        for k in range(8):
            torch.zeros(3).add(k)
            _, reward, ended, *_ = env.step(1)
            kept.append(float(reward))
            if ended:
                env.reset(seed=k)
        torch.as_tensor(np.array(kept)).sin()

    found = compared(program)
    first = found.first_value
    assert (first.cause, first.op, first.event.count.a) == (Cause.OUTSIDE, "environment-step", 1)
    assert (found.events.stream, found.events.row) == (first.stream, first.a_index)
    browser = Browser(*(opened(Path(side.path)) for side in (found.a, found.b)))
    assert next(piece for piece in browser.pieces if piece.a0 <= first.a_index < piece.a1).equal is False


def test_steps_that_compute_the_same_are_not_called_identical_where_events_differ(tmp_path: Path) -> None:
    """Their fold says so, and opened it shows the events."""
    for trace, side in both(tmp_path):
        for step in range(4):
            for number in range(10):
                trace.op("aten.mm.default", outputs=[f"y{step}.{number}"])
            seen = {"observation": f"{side if step in (0, 2) else 'same'}{step}"}
            trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": step}, digests=seen)
            trace.op("aten.mm.default", outputs=[f"z{step}"])
            trace.end_step(parameters=f"p{step}", gradients="g", generators="r")
    browser = Browser(*views_in(tmp_path))
    first, *_, last = browser.pieces
    assert first.equal and last.is_computed_alike and not last.equal
    browser.open(len(browser.pieces) - 1)
    lines = [browser.line(number) for number in range(len(browser))]
    assert [line.a for line in lines if line.relation is Relation.DIFFERS] == [10, 34]


@pytest.mark.parametrize("as_vector", [False, True])
def test_environments_of_one_seed_are_said_to_return_the_same(compared: Any, as_vector: bool) -> None:
    """Where those of the other side returned something else each."""

    def program(is_b: bool) -> None:
        seeds = [0, 0, 0] if is_b else [1, 2, 3]
        if as_vector:
            seen, _ = gymnasium.vector.AsyncVectorEnv([Noisy] * 3, context="fork").reset(seed=seeds)
        else:
            seen = np.stack([Noisy().reset(seed=seed)[0] for seed in seeds])
        network()(torch.as_tensor(seen))

    found = compared(program).first_value
    assert found.op == "environment-reset"
    assert "; in B environments 0, 1 and 2 returned the same; " in found.explanation


class Noisy(Walk):
    def __init__(self) -> None:
        super().__init__(noise=1.0)


def test_an_extra_draw_is_placed_between_two_events(compared: Any) -> None:
    """Of NumPy's own generator, drawn from in B alone between two steps, long before a batch is sampled with it."""

    def program(is_b: bool) -> None:
        np.random.seed(3)
        env = Walk(length=99)
        env.reset(seed=0)
        for step in range(9):
            if is_b and step == 5:
                np.random.rand(3)
            env.step(1)
        network()(torch.from_numpy(np.random.rand(1).astype(np.float32)))

    found = compared(program).first_value
    assert found.cause is Cause.OUTSIDE
    assert found.explanation.startswith("NumPy's generator was drawn from, or seeded, otherwise between row ")
    assert "(environment 0, step 5) and row" in found.explanation
    assert "(environment 0, step 6); there NumPy's generator is 6 words further on in B; input " in found.explanation


def test_rows_after_an_event_that_differs_are_not_called_identical(compared: Any) -> None:
    """A finding that goes back to nothing: the events before it that differ are mentioned beside its equal ops."""

    def program(is_b: bool) -> None:
        env = Walk(noise=1.0)
        env.reset()
        play(env, network(), 5)
        torch.as_tensor(np.array([1.0 + is_b])).sin()

    report = document_text(verdict_document(compared(program)))
    before = next(line for line in report.splitlines() if line.startswith("  before"))
    assert "identical ops; data from outside torch differs from row " in before


@pytest.mark.parametrize("wrapped", [False, True])
def test_another_seed_is_what_a_later_reset_without_one_goes_back_to(compared: Any, wrapped: bool) -> None:
    """Given to the environment, or by a wrapper to what it wraps; the first observation is one that nothing reads."""

    class Seeds(gymnasium.Wrapper):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.env.reset(seed=self.pending if seed is None else seed, options=options)

    def program(is_b: bool) -> None:
        env = Seeds(Walk(noise=1.0)) if wrapped else Walk(noise=1.0)
        env.pending = 5 * is_b
        env.reset(seed=None if wrapped else 5 * is_b)
        env.pending = None
        play(env, network(), 3, seed=None)

    first = compared(program).first_value
    assert (first.op, first.event.count.a) == ("environment-reset", 1)
    assert "was reset with seed 0 in A and seed 5 in B at its reset 1; it returned another obs" in first.explanation
    assert "without a seed" not in first.explanation
    assert (first.event.cells[0].name, first.event.cells[0].a, first.event.cells[0].b) == ("seed", "0", "5")


def test_a_first_reset_that_one_side_alone_makes_is_named_with_its_seed(compared: Any) -> None:
    """As a library makes it that seeds its environments so; the other resets them without a seed."""

    def program(is_b: bool) -> None:
        agent, env = network(), Walk(noise=1.0)
        if not is_b:
            torch.ones(1)
            env.reset(seed=5)
        play(env, agent, 3, seed=None)

    found = compared(program).decisive
    assert (found.cause, found.op, found.b_index) == (Cause.CONTROL_FLOW, "environment-reset", None)
    assert found.explanation.startswith("only A resets environment 0 (Walk) with seed 5 here, B does not; ")
    assert found.a_index - found.identical_before == 1


def test_a_step_that_one_side_alone_makes_is_control_flow(compared: Any) -> None:
    """A step too many in a callback: what the environment returns from then on differs, and that is why."""

    def program(is_b: bool) -> None:
        env, agent = Walk(length=99), network()
        seen, _ = env.reset(seed=0)
        for k in range(6):
            with torch.no_grad():
                agent(torch.as_tensor(seen))
            if is_b and k == 3:
                env.step(1)
            seen, *_ = env.step(1)

    found = compared(program)
    decisive = found.decisive
    assert (found.verdict, decisive.cause, decisive.op) == (Verdict.DIVERGED, Cause.CONTROL_FLOW, "environment-step")
    assert (decisive.a_index, decisive.b_index is None) == (None, False)
    assert decisive.explanation.startswith("only B steps environment 0")


@pytest.mark.parametrize(("other", "first"), [("111101000", 7), ("100111100", 2), ("011011100", 1)])
def test_steps_that_are_equal_by_chance_are_not_matched_in_another_order(compared: Any, other: str, first: int) -> None:
    """Other actions lead where another step of the first run was: named is the step after which the runs never meet."""
    actions = "110111111", other

    def program(is_b: bool) -> None:
        env, agent = Walk(length=99), network()
        env.reset(seed=0)
        for action in actions[is_b]:
            seen, *_ = env.step(int(action))
        agent(torch.as_tensor(seen))

    decisive = compared(program).decisive
    assert (decisive.op, decisive.cause) == ("environment-step", Cause.OUTSIDE)
    assert decisive.event.count.a == decisive.event.count.b == first


def test_an_episode_that_ends_elsewhere_goes_back_to_the_step_that_said_so(compared: Any) -> None:
    """Ops of one side follow from it; the reward and the end that differ come first."""

    def program(is_b: bool) -> None:
        env, kept = Walk(length=2 if is_b else 3), []
        for _ in range(2):
            env.reset(seed=0)
            ended = False
            while not ended:
                seen, _, ended, *_ = env.step(1)
                kept.append(torch.as_tensor(seen).sin())
        torch.stack(kept).sum()

    found = compared(program)
    decisive = found.decisive
    assert (decisive.cause, decisive.op, decisive.event.count.a) == (Cause.OUTSIDE, "environment-step", 2)
    assert [cell.name for cell in decisive.event.cells] == ["terminated"]


def test_generators_without_a_draw_are_no_difference(tmp_path: Path) -> None:
    """Python's and NumPy's, unseeded, and an environment's own that it never asks: evidence alone, so ``identical``."""
    paths = []
    record = recorder(tmp_path)
    for _ in range(2):
        torch.manual_seed(0)
        random.seed()
        np.random.seed()
        paths.append(record(lambda: play(Walk(), network(), 4, seed=None)).path)
    assert compare(*paths).verdict is Verdict.IDENTICAL


def test_a_list_of_both_sides_shows_the_event_as_different(compared: Any) -> None:
    """Where one looks at both runs op by op, too."""
    found = compared(lambda is_b: play(Faulty(4 if is_b else None, length=99), network(), 8))
    traces = [open_trace(side.path) for side in (found.a, found.b)]
    browser = Browser(*(StreamView(t.processes[0], t.processes[0].streams[0]) for t in traces), [found.first_value])
    row = found.first_value.a_index
    opened = [[piece] if piece.lines is not None else browser.opened(piece) for piece in browser.pieces]
    lines = next(p.lines for parts in opened for p in parts if p.lines is not None and row in p.lines.a)
    assert lines.relation[lines.a.tolist().index(row)] == Relation.DIFFERS


def test_an_unseeded_space_is_named_and_one_with_another_seed(compared: Any) -> None:
    """The sentence that a person needs, whether the action goes into an environment or straight to an op."""

    def program(*, seeds: tuple[int, int] | None, steps: bool) -> Program:
        def run(is_b: bool) -> None:
            env = Walk(length=99)
            torch.zeros((2, 3)).sum((0, 1))
            env.action_space = gymnasium.spaces.Box(-1, 1, (1,))
            if seeds:
                env.action_space.seed(seeds[is_b])
            env.reset(seed=0)
            action = env.action_space.sample()
            if steps:
                env.step(action)
            network()(torch.as_tensor(action))

        return run

    for steps in (True, False):
        first = compared(program(seeds=None, steps=steps)).first_value
        assert first.op == ("environment-step" if steps else "aten.addmm.default")
        said = "the action space of Walk was not seeded at test_events.py:"
        assert said in first.explanation.replace("tests/diff/", "")
        assert "so what was drawn from it, if anything, differs in each run" in first.explanation
        first = compared(program(seeds=(3, 4), steps=steps)).first_value
        assert first.explanation.startswith("the action space of Walk was given seed 3 in A and seed 4 in B")
        assert "it was made with" not in first.explanation
        found = compared(program(seeds=(3, 3), steps=steps))
        assert found.verdict is Verdict.IDENTICAL


def test_an_environment_that_was_made_otherwise_says_so(compared: Any) -> None:
    """What it was made with is no difference by itself; where the environment is at fault it is why."""

    def program(length: int) -> Program:
        def run(is_b: bool) -> None:
            env = Walk(length=3, noise=0.1 * is_b) if length else Walk(length=4 + is_b)
            play(env, network(), 2)

        return run

    first = compared(program(3)).first_value
    assert (first.op, first.cause) == ("environment-reset", Cause.OUTSIDE)
    assert "it was made with different arguments at " in first.explanation
    assert " (noise: 0.0 | 0.1)" in first.explanation
    assert first.made[0].startswith("the environment Walk was made with different arguments at ")
    found = compared(program(0))
    assert found.verdict is Verdict.SAME_VALUES


def test_other_wrappers_are_named_with_their_arguments(compared: Any) -> None:
    """Where what the environment returns differs: those that one side alone has, or has with other arguments."""

    def program(is_b: bool) -> None:
        env: Any = Walk(length=99)
        if is_b:
            env = gymnasium.wrappers.TransformObservation(env, lambda seen: 2 * seen, None)
        play(gymnasium.wrappers.TimeLimit(env, 50 + is_b), network(), 4)

    explanation = compared(program).first_value.explanation
    assert (
        "environment 0 (Walk) has other wrappers: TimeLimit(max_episode_steps=50) in A, TimeLimit(max_episode_steps=51)"
        " and TransformObservation(func=<lambda>, observation_space=None) in B; "
    ) in explanation


def test_a_vector_that_was_made_otherwise_stands_beside_what_its_environments_return(compared: Any) -> None:
    """Its arguments by name, those that differ alone; it is another environment than the one that returned it."""

    def program(is_b: bool) -> None:
        mode = ("NextStep", "SameStep")[is_b]
        envs = gymnasium.vector.SyncVectorEnv([lambda: Walk(length=2)] * 2, autoreset_mode=mode)
        seen, _ = envs.reset(seed=0)
        for _ in range(6):
            torch.as_tensor(seen).sin()
            seen, *_ = envs.step(np.ones(2, np.int64))

    found = compared(program)
    assert "the vector environment SyncVectorEnv was made with different arguments at " in found.decisive.explanation
    assert " (autoreset_mode: 'NextStep' | 'SameStep')" in found.decisive.explanation
    reset = (
        "nvironment 0 (Walk) is reset by B only right after its step 2, which ended its episode, as is environment 1"
    )
    assert found.decisive.explanation.startswith(f"e{reset}; ")
    (top,) = verdict_document(found).answer
    assert found.decisive.made[0].removeprefix("the") in top and "; first difference: aten." in top
    assert top.endswith(f", e{reset}.")
