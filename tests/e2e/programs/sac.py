"""Stable-Baselines3 SAC on Pendulum, small: three optimizers, a replay buffer, polyak updates."""

from ending import end
from stable_baselines3 import SAC

agent = SAC("MlpPolicy", "Pendulum-v1", learning_starts=32, batch_size=32, buffer_size=512, seed=3, device="cpu")
agent.learn(44)
end(agent.policy.state_dict().values())
