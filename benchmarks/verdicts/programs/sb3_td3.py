"""Stable-Baselines3 TD3 on Pendulum: the actor is updated every second time, twin critics, noise on target actions."""

import numpy as np
from ending import end
from stable_baselines3 import TD3
from stable_baselines3.common.noise import NormalActionNoise

noise = NormalActionNoise(mean=np.zeros(1), sigma=0.1 * np.ones(1))
agent = TD3(
    "MlpPolicy",
    "Pendulum-v1",
    action_noise=noise,
    learning_starts=64,
    batch_size=64,
    buffer_size=512,
    seed=3,
    device="cpu",
)
agent.learn(260)
end(agent.policy.state_dict().values())
