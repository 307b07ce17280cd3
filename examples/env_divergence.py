"""Advantage actor-critic in one file, on a car in gusty weather: four of them, each with a road of its own.

python examples/env_divergence.py
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
parser.add_argument("--updates", type=int, default=3)
parser.add_argument("--environments", type=int, default=4)
parser.add_argument("--rollout-steps", type=int, default=16, help="steps of each environment between two updates")
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--gamma", type=float, default=0.97)
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

# --- environment ----------------------------------------------------------------------------------


class Car(gym.Env):
    """Stay in the middle of the road: steer left, not at all, or right. A gust now and then pushes the car aside."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self):
        self.weather = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-0.5, 0.5, 2)
        return self._seen(), {}

    def step(self, action):
        gust = self.weather.normal() if self.np_random.random() < 0.02 else 0.0
        self.speed += 0.1 * (action - 1) + 0.3 * gust
        self.place += 0.1 * self.speed
        return self._seen(), 1.0 - abs(self.place), bool(abs(self.place) > 1), False, {}

    def _seen(self):
        return np.array([self.place, self.speed], np.float32)


# --- training -------------------------------------------------------------------------------------

actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=args.learning_rate)
environments = gym.vector.SyncVectorEnv([Car] * args.environments)
now = torch.from_numpy(environments.reset(seed=args.seed)[0])

for update in range(args.updates):
    log_probs, values, rewards, going = [], [], [], []
    for _ in range(args.rollout_steps):
        choice = Categorical(logits=actor(now))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        values.append(critic(now).squeeze(-1))
        seen, reward, terminated, truncated, _ = environments.step(action.numpy())
        rewards.append(torch.from_numpy(reward).float())
        going.append(torch.from_numpy(~(terminated | truncated)).float())
        now = torch.from_numpy(seen)

    following = critic(now).squeeze(-1).detach()
    targets = []
    for t in reversed(range(args.rollout_steps)):
        following = rewards[t] + args.gamma * going[t] * following
        targets.insert(0, following)
    advantage = torch.stack(targets) - torch.stack(values)
    policy_loss = -(torch.stack(log_probs) * advantage.detach()).mean()
    value_loss = advantage.square().mean()
    optimizer.zero_grad()
    (policy_loss + value_loss).backward()
    optimizer.step()
    mean_reward = torch.stack(rewards).mean()
    print(f"update {update}  mean reward {mean_reward.item():.4f}")

# --- result ---------------------------------------------------------------------------------------

digest = hashlib.sha256()
for weight in [*actor.parameters(), *critic.parameters()]:
    digest.update(weight.detach().numpy().tobytes())
print(f"final weights {digest.hexdigest()[:16]}")
