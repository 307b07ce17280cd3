"""Stable-Baselines3 SAC on Pendulum: three optimizers, a replay buffer, polyak updates."""

from ending import end
from stable_baselines3 import SAC

agent = SAC("MlpPolicy", "Pendulum-v1", learning_starts=64, batch_size=64, buffer_size=512, seed=3, device="cpu")
agent.learn(200)
end(agent.policy.state_dict().values())
