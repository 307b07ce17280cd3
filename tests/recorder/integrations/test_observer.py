"""Watching environments changes nothing: what they compute, draw, copy and hand over is the same recorded and not."""

import copy
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from recorded import Record
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as check_for_stable_baselines
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_environments import Doubled, Walk

pytestmark = pytest.mark.filterwarnings("ignore")

Program = Callable[[], Any]


def bits(value: Any) -> Any:
    """Nested results as something that compares bit by bit; ``info`` and its times aside."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [bits(part) for part in value if not isinstance(part, dict)]
    return repr(value)


def drawn() -> Any:
    return random.getstate(), bits(np.random.get_state()[1]), bits(torch.get_rng_state())


def played(env: Any, steps: int = 12, actions: Any = 1) -> Any:
    return [env.reset(seed=3), *(env.step(actions) for _ in range(steps))]


def copied() -> Any:
    """A copy in the middle of an episode goes on as the original does, and separately from it."""
    env = Doubled(Walk(noise=1.0, length=99))
    env.reset(seed=1)
    env.step(1)
    again = copy.deepcopy(env)
    return [env.step(0), again.step(0), again.step(1), env.step(1)]


def learned(model: Any) -> Any:
    return [parameter.detach().clone() for parameter in model.learn(40).policy.parameters()]


PROGRAMS: dict[str, Program] = {
    "wrapped": lambda: played(Doubled(gymnasium.wrappers.TimeLimit(Walk(noise=0.5), 7))),
    "copied": copied,
    "sync": lambda: played(SyncVectorEnv([Walk, Walk]), actions=np.array([0, 1])),
    "async": lambda: played(AsyncVectorEnv([Walk, Walk]), actions=np.array([0, 1])),
    "normalised": lambda: [
        (venv := VecNormalize(DummyVecEnv([Walk, Walk]))).reset(),
        *(venv.step(np.array([1, 0])) for _ in range(9)),
    ],
    "checked": lambda: [check_env(Walk(), skip_render_check=True), check_for_stable_baselines(Walk())],
    "ppo": lambda: learned(PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=1, seed=0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits_come_out(record: Record, name: str) -> None:
    def run() -> Any:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return bits(PROGRAMS[name]()), drawn()

    plain = run()
    for level in ("op", "step"):
        assert record(run, level=level).returned == plain
    assert run() == plain
