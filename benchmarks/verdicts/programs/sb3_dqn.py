"""Stable-Baselines3 DQN on CartPole: a target network that is overwritten now and then, greedy and random actions."""

from ending import end
from stable_baselines3 import DQN

agent = DQN(
    "MlpPolicy",
    "CartPole-v1",
    learning_starts=100,
    batch_size=32,
    buffer_size=1_000,
    train_freq=2,
    target_update_interval=200,
    seed=3,
    device="cpu",
)
agent.learn(1_500)
end(agent.policy.state_dict().values())
