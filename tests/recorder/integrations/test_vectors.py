"""Vectors of environments: each environment by itself where it runs in this process, else the batch."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from recorded import Record
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from toy_environments import Walk, events

from rltrace.trace.format.schema import Kind, Step

MADE = [Walk, Walk, Walk]


@pytest.mark.parametrize("make", [SyncVectorEnv, DummyVecEnv, lambda fns: VecNormalize(DummyVecEnv(fns))])
def test_environments_stepped_in_this_process_are_events_each_and_the_vector_is_none(record: Record, make: Any) -> None:
    with record.block() as got:
        vector = make(MADE)
        vector.reset()
        vector.step(np.array([0, 1, 0]))
    found = events(got)
    assert [event.what for event in found] == ["environment 0", "environment 1", "environment 2"] * 2
    assert [event.kind for event in found] == [Kind.ENVIRONMENT_RESET] * 3 + [Kind.ENVIRONMENT_STEP] * 3
    assert found[3].compared == found[5].compared != found[4].compared


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [AsyncVectorEnv, lambda fns: SubprocVecEnv(fns, start_method="fork")])
def test_of_environments_in_other_processes_batch_and_each_result_are_recorded(record: Record, make: Any) -> None:
    """The digest ``of 1`` names the environment, where the batch alone would not."""

    def program(action: int) -> Any:
        def run() -> None:
            vector = make(MADE)
            vector.reset()
            vector.step(np.array([0, action, 0]))
            vector.close()

        return run

    reset, step = events(record(program(0)))
    assert (reset.what, step.what) == ("vector environment 0",) * 2
    assert {"action", "observation", "reward", "of 0", "of 1", "of 2"} <= set(step.compared)
    other = events(record(program(1)))[1]
    differing = {name for name in step.compared if step.compared[name] != other.compared[name]}
    assert differing >= {"action", "observation", "of 1"}
    assert [step.compared[f"of {k}"] == other.compared[f"of {k}"] for k in range(3)] == [True, False, True]


class Batched(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """All environments in one computation, as simulators on a GPU have them."""

    num_envs = 4
    single_observation_space = Walk.observation_space
    single_action_space = Walk.action_space
    observation_space = batch_space(Walk.observation_space, 4)
    action_space = batch_space(Walk.action_space, 4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((4, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        zeros = np.zeros(4, bool)
        return np.ones((4, 1), np.float32) * actions[:, None], np.ones(4), zeros, zeros, {}


def test_a_batch_counts_all_its_environments(record: Record) -> None:
    import torch

    with record.block() as found:
        vector, weight = Batched(), torch.nn.Parameter(torch.ones(1))
        vector.reset(seed=5)
        vector.step(np.arange(4))
        weight.sum().backward()
        torch.optim.SGD([weight], 0.1).step()
    assert found.steps[0][Step.ENVIRONMENT_STEPS] == 4
    reset, step = events(found)
    assert (reset.cells["seed"], reset.owner, step.cells["step"]) == (5, "Batched", 1)
