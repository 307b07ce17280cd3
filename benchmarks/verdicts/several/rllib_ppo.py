"""RLlib PPO: two actors that step environments, one that learns, and the driver between them."""

import os

import gymnasium as gym
import numpy as np
import ray
import torch
from ending import end
from gymnasium.wrappers import TransformReward
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

PLANT = os.environ.get("PLANT")


def make(config):
    env = gym.make("CartPole-v1")
    return TransformReward(env, lambda reward: 0.5 * reward) if config["planted"] and config.worker_index == 2 else env


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    register_env("cart", make)
    config = (
        PPOConfig()
        .environment("cart", env_config={"planted": PLANT == "runner"})
        .env_runners(num_env_runners=2, num_envs_per_env_runner=1, rollout_fragment_length=64)
        .learners(num_learners=1)
        .training(
            train_batch_size_per_learner=128,
            minibatch_size=64,
            num_epochs=2,
            lambda_=0.9 if PLANT == "learner" else 0.95,
        )
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .debugging(seed=3)
    )
    algo = config.build_algo()
    for _ in range(2):
        algo.train()
        weights = algo.learner_group.get_weights()
        for module in weights.values():
            for name, weight in module.items():
                scaled = torch.as_tensor(np.array(weight)) * (1.001 if PLANT == "driver" else 1.0)
                module[name] = scaled.numpy()
        algo.learner_group.set_weights(weights)
    weights = algo.learner_group.get_weights()
    algo.stop()
    ray.shutdown()
    end(torch.as_tensor(np.array(weight)) for module in weights.values() for _, weight in sorted(module.items()))
