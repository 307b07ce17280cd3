"""Stable-Baselines3 PPO on CartPole, as small as it still takes its kernels from several operators."""

from ending import end
from stable_baselines3 import PPO
from torch.optim import SGD

small = {"net_arch": [16], "ortho_init": False, "optimizer_class": SGD, "optimizer_kwargs": {"momentum": 0.9}}
agent = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, seed=3, policy_kwargs=small, device="cpu"
)
agent.learn(96)
end(agent.policy.state_dict().values())
