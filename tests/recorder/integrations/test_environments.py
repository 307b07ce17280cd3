"""Environments of Gymnasium: events of each that the program makes, of its resets and its steps, under any wrapper."""

import abc
import random
import sys
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from recorded import Record
from toy_environments import Doubled, Walk, events

from rltrace.digest import digest_buffer, seed_of
from rltrace.trace.format.events import NONE
from rltrace.trace.format.schema import Kind

MADE = (Kind.ENVIRONMENT_MADE,)
BOTH = (*MADE, Kind.ENVIRONMENT_RESET)


def digest(values: list[float]) -> int:
    return digest_buffer(np.array(values, np.float32), seed_of("float32", (len(values),)))


def test_a_reset_and_each_step_are_events_with_what_went_in_and_came_out(record: Record) -> None:
    """The class was made by hand, no ``gymnasium.make`` is involved; the observation has a tensor's digest."""
    with record.block() as got:
        env = Walk(length=2)
        env.reset(seed=7)
        torch.ones(1)
        env.step(1)
        env.step(1)
    reset, first, second = events(got)
    assert (reset.kind, reset.what, reset.owner) == (Kind.ENVIRONMENT_RESET, "environment 0", "Walk")
    assert reset.compared == {"observation": digest([0.0])}
    assert (reset.cells["reset"], reset.cells["seed"]) == (1, 7)
    assert first.compared["observation"] == digest([1.0])
    assert (first.compared["reward"], first.compared["terminated"], first.compared["truncated"]) == (0.1, 0, 0)
    assert (second.compared["terminated"], second.cells["step"]) == (1, 2)
    assert first.compared["action"] == second.compared["action"] != 0
    assert first.row.line == "env.step(1)"


def test_of_a_stack_of_wrappers_the_outermost_call_is_the_event(record: Record) -> None:
    """Wrappers of the library and of the program's own, stacked: one event a step, of what the program is given."""
    with record.block() as got:
        env = RecordEpisodeStatistics(TimeLimit(Doubled(Walk()), 10))
        env.reset(seed=0)
        env.step(1)
    found = events(got)
    assert [event.kind for event in found] == [Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP]
    assert found[1].compared["observation"] == digest([2.0])
    assert found[1].owner == "Walk"


def test_an_environment_has_one_number_under_any_wrapper_and_each_its_own(record: Record) -> None:
    """Numbers go by the first event, not by an address, so they are the same in every run."""
    with record.block() as got:
        inner, other = Walk(), gymnasium.make("CartPole-v1")
        other.reset()
        inner.reset()
        Doubled(inner).step(0)
        Doubled(Doubled(inner)).reset()
    found = events(got)
    assert [event.what.split()[-1] for event in found] == ["0", "1", "1", "1"]
    assert [event.owner for event in found] == ["CartPole-v1", "Walk", "Walk", "Walk"]


def test_a_class_defined_while_recording_is_known_and_may_call_its_base(record: Record) -> None:
    """``super().step()`` runs what it would run, and is no second event."""
    seen: list[Any] = []
    with record.block() as got:

        class Late(Walk):
            def step(self, action: Any) -> Any:
                return super().step(action)

            reset = Walk.reset

        env = Late()
        env.reset()
        seen.append(env.step(1)[0].tolist())
    assert [event.owner for event in events(got)] == ["Late", "Late"]
    assert seen == [[1.0]]


def test_a_step_that_raises_is_no_event_and_the_next_one_is(record: Record) -> None:
    with record.block() as got:
        env = Walk()
        env.length = None
        try:
            env.step(1)
        except TypeError:
            env.length = 3
        env.step(1)
    assert [event.cells["step"] for event in events(got)] == [1]


def test_observations_of_any_make_have_a_digest(record: Record) -> None:
    """Dictionaries in any order, tuples, tensors, strings; ``info`` is not."""

    class Anything(Walk):
        given: Any = None

        def step(self, action: Any) -> Any:
            return self.given, np.float32(1.0), np.bool_(False), False, {"now": object()}

    def observed(given: Any) -> dict[str, object]:
        def program() -> None:
            env = Anything()
            env.given = given
            env.step(None)

        found = events(record(program))[0].compared
        return {name: found[name] for name in found if name.startswith("observation")}

    x, y = np.arange(3.0), np.arange(2)
    assert observed({"x": x, "y": y}) == observed({"y": y.copy(), "x": x.copy()}) != observed({"x": y, "y": x})
    assert observed(torch.arange(3.0, dtype=torch.float64)) == observed(x)
    assert observed({"x": x, "y": y}).keys() == {"observation.x", "observation.y"}
    assert observed({"x": x})["observation.x"] == observed(x)["observation"]
    nested = observed({"x": {"z": x, "y": y}, "w": (x, y)})
    assert nested.keys() == {"observation.x.y", "observation.x.z", "observation.w.0", "observation.w.1"}
    assert nested["observation.w.0"] == observed(x)["observation"]
    assert observed({"x": dict.fromkeys("abcdefghijklmnop", x), "y": {1: y}}).keys() == {"observation"}
    assert observed({"y": {1: y}, "z": {}}).keys() == {"observation.y", "observation.z"}
    assert observed((x, "word")) != observed((x, "other"))
    assert observed([object()]) == observed([object()])


def test_what_cannot_be_read_counts_by_its_class(record: Record) -> None:
    """The recording goes on, whatever an observation does when it is looked at."""

    class Shy(dict[str, int]):
        def __getitem__(self, key: str) -> int:
            raise RuntimeError(key)

    class Secretive(Walk):
        def step(self, action: Any) -> Any:
            return Shy(a=1), 0.0, False, False, {}

    found = events(record(lambda: [Secretive().step(0) for _ in range(2)]))
    assert found[0].compared == found[1].compared


def test_a_tensor_that_an_environment_returns_is_read_without_an_op(record: Record) -> None:
    class Torch(Walk):
        def step(self, action: Any) -> Any:
            return torch.ones(2), torch.ones(()), torch.zeros((), dtype=torch.bool), False, {}

    found = record(lambda: Torch().step(0))
    assert [row.name for row in found.rows] == ["", "ones", "ones", "zeros", ""]
    assert set(events(found)[0].compared) == {"action", "observation", "reward", "terminated", "truncated"}


def test_evidence_is_how_generators_stood_before_the_event(record: Record) -> None:
    """Untouched ones are recorded as that; one that was drawn from has its state; the environment's own too."""
    random.seed(0)
    np.random.seed(0)
    with record.block() as got:
        env = Walk(noise=1.0)
        env.reset()
        env.reset(seed=3)
        env.step(1)
        random.random()
        np.random.rand()
        env.step(1)
        env.reset(seed=3)
        env.step(1)
    unseeded, seeded, first, second, _, again = events(got)
    assert (unseeded.cells["seed"], unseeded.cells["own generator"]) == (NONE, 0)
    assert seeded.cells["own generator"] > 1
    assert first.cells["own generator"] == again.cells["own generator"] != second.cells["own generator"]
    assert (first.cells["Python state"], first.cells["NumPy state"]) == (1, 1)
    assert min(second.cells["Python state"], second.cells["NumPy state"]) > 1
    assert (again.cells["Python state"], again.cells["NumPy state"]) == (
        second.cells["Python state"],
        second.cells["NumPy state"],
    )


def test_methods_of_a_mixin_are_events(record: Record) -> None:
    """A class may have ``reset`` and ``step`` from one that is no environment, as those of EnvPool; it is left as it
    was."""

    class Loop:
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.full(1, seed), {}

        def step(self, action: Any) -> Any:
            return np.full(1, action), 1.0, False, False, {}

    mixed: Any = abc.ABCMeta("mixed", (Loop, gymnasium.Env), {})  # as a library makes a class at run time
    with record.block() as got:
        env = mixed()
        env.reset(seed=3)
        env.step(1)
    assert [event.kind for event in events(got)] == [Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP]
    assert "reset" not in vars(mixed)


class TimeStep(NamedTuple):
    """As dm_env's."""

    step_type: int
    reward: float | None
    discount: float | None
    observation: Any

    def last(self) -> bool:
        return self.step_type == 2


class Root:
    """Of which all environments of a library are subclasses."""


def test_the_seed_that_a_pool_was_made_with(record: Record) -> None:
    """EnvPool takes none at a reset: that of its construction is what the first one has, and later ones go on."""

    class Pool(Walk):
        config = {"seed": 42}  # noqa: RUF012

        def reset(self, **given: Any) -> Any:
            return np.zeros(1, np.float32), {}

    with record.block() as got:
        for kind in (Pool, type("EnvPool", (Pool,), {"__module__": "envpool.classic"})):
            env = kind(length=2)
            env.reset()
            env.reset()
    assert [event.cells["seed"] for event in events(got)] == [NONE, NONE, 42, NONE]


def test_environments_in_which_agents_take_turns(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PettingZoo's return with ``last`` is the event, with the action before it; wrappers add none."""
    module = ModuleType("pettingzoo.utils.env")
    root = module.AECEnv = type("AECEnv", (Root,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class raw_env(root):  # type: ignore[misc, valid-type]  # noqa: N801  as all of them are called
        metadata = {"name": "nim_v0"}  # noqa: RUF012

        def reset(self, seed: int | None = None, options: Any = None) -> None:
            self.left = 3

        def step(self, action: int) -> None:
            self.left -= action

        def last(self, observe: bool = True) -> Any:
            return self.left, 0.5, self.left == 0, False, {}

    class Outer(root):  # type: ignore[misc, valid-type]
        def __init__(self, env: Any) -> None:
            self.env, self.unwrapped = env, env

        def reset(self, seed: int | None = None, options: Any = None) -> None:
            self.env.reset(seed)

        def step(self, action: int) -> None:
            self.env.step(action)

        def last(self, observe: bool = True) -> Any:
            return self.env.last(observe)

    with record.block() as got:
        env = Outer(raw_env())
        for _ in range(2):
            env.reset(seed=7)
            for action in (1, 2):
                env.last()
                env.step(action)
        assert env.last()[0] == 0
    found = events(got)
    assert [event.what for event in found] == ["environment 0"] * 7
    resets, turns = [e for e in found if "reset" in e.cells], [e for e in found if "step" in e.cells]
    assert [event.cells["seed"] for event in resets] == [7, 7]
    for name in ("action", "observation"):
        seen = [event.compared[name] for event in turns]
        assert [seen.index(one) for one in seen] == [0, 1, 0, 1, 4]
    assert [event.compared["terminated"] for event in turns] == [0, 0, 0, 0, 1]


def test_environments_of_other_libraries(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """dm_env's return a time step and take no seed, PettingZoo's have what each agent gets in dictionaries."""
    names = {"dm_env._environment": "Environment", "pettingzoo.utils.env": "ParallelEnv"}
    modules = {name: ModuleType(name) for name in names}
    roots = [type(root, (Root,), {}) for root in names.values()]
    for (name, root), made in zip(names.items(), roots, strict=True):
        setattr(modules[name], root, made)
        monkeypatch.setitem(sys.modules, name, modules[name])

    class Catch(roots[0]):  # type: ignore[misc]
        def reset(self) -> TimeStep:
            return TimeStep(0, None, None, np.zeros(1, np.float32))

        def step(self, action: Any) -> TimeStep:
            return TimeStep(2, 0.5, 1.0, np.ones(1, np.float32))

    class Two(roots[1]):  # type: ignore[misc]
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return {"a": seed, "b": 1}, {}

        def step(self, actions: Any) -> Any:
            return actions, {"a": 1.0, "b": 0.0}, {"a": False, "b": False}, {"a": False, "b": False}, {}

    with record.block() as got:
        for env, given, action in ((Catch(), {}, 1), (Two(), {"seed": 5}, {"a": 0, "b": 1})):
            env.reset(**given)
            env.step(action)
    reset, step, parallel, joint = events(got)
    assert "seed" not in reset.cells and reset.compared == {"observation": digest([0.0])}
    assert (step.compared["observation"], step.compared["reward"], step.compared["done"]) == (digest([1.0]), 0.5, 1)
    assert parallel.cells["seed"] == 5
    expected = {"action.a", "action.b", "observation.a", "observation.b", "reward", "terminated", "truncated"}
    assert set(joint.compared) == expected and set(parallel.compared) == {"observation.a", "observation.b"}


def test_each_environment_is_recorded_once_and_its_resets_have_its_number(record: Record) -> None:
    """Whatever wrappers are around it; the line is the program's own, below it the library's."""
    with record.block() as got:
        TimeLimit(Doubled(Walk(length=3)), 5)
        env = gymnasium.make("CartPole-v1")
        Doubled(env).reset(seed=0)
        SyncVectorEnv([Walk, Walk])
    found = events(got, BOTH)
    assert [(event.kind.name, event.owner, event.cells["made"]) for event in found] == [
        ("ENVIRONMENT_MADE", "Walk", 1),
        ("ENVIRONMENT_MADE", "CartPoleEnv", 2),
        ("ENVIRONMENT_RESET", "CartPole-v1", 2),
        ("ENVIRONMENT_MADE", "Walk", 3),
        ("ENVIRONMENT_MADE", "Walk", 4),
        ("ENVIRONMENT_MADE", "SyncVectorEnv", 5),
    ]
    assert found[0].row.line == "TimeLimit(Doubled(Walk(length=3)), 5)"
    assert found[1].row.line == 'env = gymnasium.make("CartPole-v1")'


class Logged(Walk):
    def __init__(self, length: int, folder: str = "", hook: Any = None, start: Any = None, **more: Any) -> None:
        super().__init__(length)


def test_arguments_are_recorded_and_absolute_paths_are_not(record: Record) -> None:
    def arguments(*args: Any, **kwargs: Any) -> int:
        (event,) = events(record(lambda: Logged(*args, **kwargs)), MADE)
        return int(event.compared["arguments"])

    assert arguments(5, folder="/tmp/run-1") == arguments(5, folder="/tmp/run-2") != arguments(6, folder="/tmp/run-1")
    assert arguments(length=5) != arguments(5, "logs")


def test_environments_of_an_environment_are_its_own_business_and_those_that_fail_are_none(record: Record) -> None:
    class Two(Walk):
        def __init__(self) -> None:
            self.inside = [Walk(), Walk()]
            super().__init__()

        def reset(self, **given: Any) -> Any:
            self.inside.append(Walk())
            return np.concatenate([env.reset()[0] for env in self.inside]), {}

    class Broken(Walk):
        def __init__(self) -> None:
            raise KeyError("its own")

    with record.block() as got:
        with pytest.raises(KeyError) as caught:
            Broken()
        assert caught.value.__context__ is None
        Two().reset(seed=0)
        Walk()
    assert [event.owner for event in events(got, MADE)] == ["Two", "Walk"]
    assert [event.owner for event in events(got)] == ["Two"]


def test_arguments_and_wrappers_are_recorded_in_words(record: Record) -> None:
    """By name, with defaults, and without what differs between unchanged runs: addresses, absolute paths, elements."""
    with record.block() as got:
        env = Logged(5, "/tmp/run-1", hook=lambda: 0, start=np.ones(3), names=["a", "b"], same=[1.5, 1.5])
        TimeLimit(Doubled(env), 5).reset(seed=0)
    made, reset = events(got, BOTH)
    assert made.texts == {
        "length": "5",
        "folder": "'a path'",
        "hook": "<lambda>",
        "start": "ndarray",
        "more": "{'names': ['a', 'b'], 'same': 2 × 1.5}",
    }
    assert reset.texts == {"wrappers": "TimeLimit(max_episode_steps=5) > Doubled()"}
