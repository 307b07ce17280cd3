"""Environments in worker processes that never import torch, started in each way; the main process learns from them.

The vectors are Gymnasium's and, forked, Stable-Baselines3's. torch is imported where it is used, so that a worker that
imports this file anew does without.
"""

import gymnasium
from gymnasium.vector import AsyncVectorEnv

METHODS = "fork", "spawn"


def make() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def main() -> None:
    import torch
    from ending import end
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed, method in enumerate(METHODS):
        environments = AsyncVectorEnv([make] * 2, context=method)
        observations, _ = environments.reset(seed=seed)
        for _ in range(4):
            outputs = model(torch.as_tensor(observations))
            observations, *_ = environments.step(outputs.argmax(-1).numpy())
            optimizer.zero_grad()
            outputs.pow(2).mean().backward()
            optimizer.step()
        environments.close()
    forked = make_vec_env("CartPole-v1", 2, seed=3, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    agent = PPO("MlpPolicy", forked, n_steps=8, batch_size=16, n_epochs=1, seed=3, device="cpu")
    agent.learn(16)
    forked.close()
    end([*model.parameters(), *agent.policy.parameters()])


if __name__ == "__main__":
    main()
