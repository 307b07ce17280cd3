"""tianshou DQN on CartPole: vectorised collectors, n-step returns, a lagged network, test episodes between epochs."""

import random

import gymnasium as gym
import numpy as np
import torch
from ending import end
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

SEED = 5
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)

space = gym.make("CartPole-v1")
training, testing = (DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)]) for _ in range(2))
training.seed(SEED)
testing.seed(SEED)
space.action_space.seed(SEED)
policy = DiscreteQLearningPolicy(
    model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64]),
    action_space=space.action_space,
    eps_training=0.1,
    eps_inference=0.05,
)
algorithm = DQN(
    policy=policy,
    optim=AdamOptimizerFactory(lr=1e-3),
    n_step_return_horizon=3,
    target_update_freq=100,
)
algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=Collector[CollectStats](
            algorithm,
            training,
            VectorReplayBuffer(2_000, buffer_num=4),
            exploration_noise=True,
        ),
        test_collector=Collector[CollectStats](algorithm, testing, exploration_noise=True),
        max_epochs=2,
        epoch_num_steps=400,
        collection_step_num_env_steps=8,
        test_step_num_episodes=2,
        batch_size=64,
        update_step_num_gradient_steps_per_sample=0.25,
        show_progress=False,
        verbose=False,
    )
)
end(algorithm.parameters())
