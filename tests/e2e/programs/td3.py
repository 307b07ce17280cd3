"""Stable-Baselines3 TD3 on Pendulum, small: the actor is updated every second time."""

from ending import end
from stable_baselines3 import TD3

agent = TD3("MlpPolicy", "Pendulum-v1", learning_starts=16, batch_size=16, buffer_size=128, seed=3, device="cpu")
agent.learn(36)
end(agent.policy.state_dict().values())
