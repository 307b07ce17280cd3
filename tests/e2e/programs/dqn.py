"""Stable-Baselines3 DQN on CartPole, small: a target network that is overwritten now and then."""

from ending import end
from stable_baselines3 import DQN

agent = DQN(
    "MlpPolicy",
    "CartPole-v1",
    learning_starts=16,
    batch_size=16,
    buffer_size=128,
    train_freq=2,
    target_update_interval=20,
    seed=3,
    device="cpu",
)
agent.learn(60)
end(agent.policy.state_dict().values())
