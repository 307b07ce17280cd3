"""Stable-Baselines3 PPO on CartPole, small."""

from ending import end
from stable_baselines3 import PPO

agent = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, seed=3, device="cpu")
agent.learn(128)
end(agent.policy.state_dict().values())
