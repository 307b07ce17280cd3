"""REINFORCE on CartPole in one file, as one first writes it: no logging yet.

python examples/extra_logging.py
"""

import argparse
import hashlib
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

# --- arguments ------------------------------------------------------------------------------------

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--episodes", type=int, default=6)
parser.add_argument("--learning-rate", type=float, default=1e-2)
parser.add_argument("--gamma", type=float, default=0.99)
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

# --- training -------------------------------------------------------------------------------------

policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
environment = gym.make("CartPole-v1")
observation, _ = environment.reset(seed=args.seed)

for episode in range(args.episodes):
    log_probs, rewards = [], []
    over = False
    while not over:
        choice = Categorical(logits=policy(torch.from_numpy(observation)))
        action = choice.sample()
        observation, reward, terminated, truncated, _ = environment.step(action.item())
        log_probs.append(choice.log_prob(action))
        rewards.append(reward)
        over = terminated or truncated
    observation, _ = environment.reset()

    returns = torch.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = following = rewards[t] + args.gamma * following
    loss = -(torch.stack(log_probs) * (returns - returns.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"episode {episode:2}  return {sum(rewards):4.0f}")

# --- result ---------------------------------------------------------------------------------------

digest = hashlib.sha256()
for weight in policy.state_dict().values():
    digest.update(weight.numpy().tobytes())
print(f"final weights {digest.hexdigest()[:16]}")
