"""A policy gradient on EnvPool's environments, which run in threads of C++."""

import os

import envpool
import torch
from ending import end
from torch import nn

PLANT = os.environ.get("PLANT")
torch.manual_seed(0)
seed = {} if PLANT == "worker" else {"seed": 3}
env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, **seed)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), 0.02 if PLANT == "learner" else 0.01)
seen, _ = env.reset()
for _ in range(8):
    scores, rewards = [], []
    for _ in range(16):
        choice = torch.distributions.Categorical(logits=policy(torch.as_tensor(seen)))
        action = choice.sample()
        seen, reward, *_ = env.step(action.numpy())
        scores.append(choice.log_prob(action))
        rewards.append(torch.as_tensor(reward))
    loss = -(torch.stack(scores) * torch.stack(rewards).flip(0).cumsum(0).flip(0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
end(policy.parameters())
