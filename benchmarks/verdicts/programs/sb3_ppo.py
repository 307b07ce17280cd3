"""Stable-Baselines3 PPO on CartPole: eight minibatch updates a rollout."""

from ending import end
from stable_baselines3 import PPO

agent = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=4, seed=3, device="cpu")
agent.learn(512)
end(agent.policy.state_dict().values())
