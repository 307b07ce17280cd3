"""Spaces being seeded: by the program, or by themselves where it did not."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RescaleAction
from recorded import Record
from stable_baselines3.common.vec_env import SubprocVecEnv
from toy_environments import Walk, events

from rltrace.trace.format.events import NONE
from rltrace.trace.format.schema import Kind

SEEDS = (Kind.SEED,)


def made() -> Any:
    """An environment whose spaces are untouched."""
    env = Walk()
    env.action_space = gymnasium.spaces.Discrete(1_000)
    env.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    return env


def test_a_seed_is_recorded_and_whose_space_it_is(record: Record) -> None:
    with record.block() as got:
        env = made()
        env.action_space.seed(3)
        env.observation_space.seed(seed=4)
        gymnasium.spaces.Discrete(5).seed(5)
    found = events(got, SEEDS)
    assert [(event.what, event.owner, event.cells["seed"], event.cells["made"]) for event in found] == [
        ("action space", "Walk", 3, 1),
        ("observation space", "Walk", 4, 1),
        ("a space", "Discrete", 5, 0),
    ]
    assert found[0].row.line == "env.action_space.seed(3)"
    assert found[0].compared == {"given": found[0].cells["given"]}
    assert len({event.cells["state"] for event in found}) == 3


def test_an_unseeded_space_says_so_when_it_is_first_sampled_from(record: Record) -> None:
    """Once, at the program's own line, and with another state in every run, which is evidence; also one of parts."""

    def program() -> None:
        env = made()
        env.action_space.sample()
        env.action_space.sample()
        space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(99), "b": gymnasium.spaces.Discrete(9)})
        space.sample()
        space.sample()

    runs = [record(program) for _ in range(2)]
    (first, parts), (second, others) = (events(run, SEEDS) for run in runs)
    assert (parts.what, parts.owner, parts.cells["seed"]) == ("a space", "Dict", NONE)
    assert 0 != parts.cells["state"] != others.cells["state"] != 0
    assert (first.what, first.cells["seed"], first.row.line) == ("action space", NONE, "env.action_space.sample()")
    assert first.compared == second.compared
    assert first.cells["state"] != second.cells["state"]
    assert runs[0].chains == runs[1].chains


def test_spaces_of_vectors_of_wrappers_and_of_several_parts(record: Record) -> None:
    """A space of parts is one event; what an environment draws from its own space stands before its event."""

    class Sampling(Walk):
        action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def reset(self, **given: Any) -> Any:
            self.observation_space.seed(1)
            return super().reset(**given)

    with record.block() as got:
        vector: Any = SyncVectorEnv([made, made])
        vector.action_space.seed(1)
        env: Any = RescaleAction(Sampling(), np.float32(-2), np.float32(2))
        env.action_space.sample()
        env.reset(seed=0)
    found = events(got, (*SEEDS, Kind.ENVIRONMENT_RESET))
    assert [(event.what, event.owner) for event in found] == [
        ("action space", "SyncVectorEnv"),
        ("action space", "Sampling"),
        ("observation space", "Sampling"),
        ("environment 0", "Sampling"),
    ]


def test_spaces_draw_as_ever_and_are_themselves_again(record: Record) -> None:
    before = dict(vars(gymnasium.spaces.Space)), dict(vars(gymnasium.spaces.Dict))

    def program() -> list[str]:
        space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(99), "b": gymnasium.spaces.MultiBinary(9)})
        return [str(space.seed(7)), str(space.sample()), str(space.sample(mask=None))]

    assert record(program).returned == program()
    assert (dict(vars(gymnasium.spaces.Space)), dict(vars(gymnasium.spaces.Dict))) == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_seeds_that_a_vector_keeps_for_its_next_reset_are_recorded(record: Record) -> None:
    with record.block() as got:
        vector = SubprocVecEnv([Walk, Walk], start_method="fork")
        vector.seed(5)
        vector.reset()
        vector.reset()
        vector.close()
    first, second = events(got, (Kind.ENVIRONMENT_RESET,))
    assert (first.cells["seed"] == NONE, second.cells["seed"] == NONE) == (False, True)
