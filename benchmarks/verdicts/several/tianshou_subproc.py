"""tianshou PPO with four environments in processes of their own, observations normalised by the parent."""

import os
import random

import gymnasium as gym
import numpy as np
import torch
from ending import end
from gymnasium.wrappers import TransformReward
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import SubprocVectorEnv, VectorEnvNormObs
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

PLANT = os.environ.get("PLANT")


def make(number: int) -> gym.Env:
    env = gym.make("CartPole-v1")
    return TransformReward(env, lambda reward: 0.5 * reward) if PLANT == "reward" and number == 2 else env


if __name__ == "__main__":
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    training = VectorEnvNormObs(SubprocVectorEnv([lambda number=number: make(number) for number in range(4)]))
    if PLANT != "worker":
        training.seed(5)
    space = gym.make("CartPole-v1").action_space
    space.seed(5)
    net = Net(state_shape=(4,), hidden_sizes=[32])
    actor = DiscreteActor(preprocess_net=net, action_shape=2)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=space,
        action_scaling=False,
        deterministic_eval=True,
    )
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=net),
        optim=AdamOptimizerFactory(lr=1e-3),
        gae_lambda=0.9 if PLANT == "learner" else 0.95,
    )
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector[CollectStats](algorithm, training, VectorReplayBuffer(512, buffer_num=4)),
            max_epochs=1,
            epoch_num_steps=256,
            collection_step_num_env_steps=128,
            batch_size=64,
            update_step_num_repetitions=2,
            show_progress=False,
            verbose=False,
            test_collector=None,
        )
    )
    training.close()
    end(algorithm.parameters())
