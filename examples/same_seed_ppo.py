"""PPO on CartPoles of many lengths in one file, after CleanRL: of each length, the agent learns a row of features.

python examples/same_seed_ppo.py
python examples/same_seed_ppo.py --deterministic
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
parser.add_argument("--deterministic", action="store_true", help="nothing whose result depends on threads' timing")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--updates", type=int, default=2)
parser.add_argument("--environments", type=int, default=31, help="each with a pole of its own length")
parser.add_argument("--rollout-steps", type=int, default=17, help="steps of each environment between two updates")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--features", type=int, default=256)
parser.add_argument("--learning-rate", type=float, default=1e-2)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--clip", type=float, default=0.2)
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)
torch.set_num_threads(args.threads)
torch.use_deterministic_algorithms(args.deterministic)
if args.deterministic:
    torch.tanh(torch.zeros(1))  # the first call of MKL's tanh in one thread only: pytorch#188792

# --- agent ----------------------------------------------------------------------------------------


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Linear(4, args.features)
        self.lengths = nn.Parameter(torch.zeros(args.environments, args.features))
        self.actor = nn.Linear(args.features, 2)
        self.critic = nn.Linear(args.features, 1)

    def forward(self, observation, length):
        features = torch.tanh(self.seen(observation) + self.lengths[length])
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)

# --- training -------------------------------------------------------------------------------------

environments = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * args.environments)
for number, environment in enumerate(environments.envs):
    environment.unwrapped.length = 0.25 + 0.05 * number
lengths = torch.arange(args.environments)

shape = (args.environments, args.rollout_steps)
observations = torch.zeros((*shape, 4))
actions, log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
now = torch.from_numpy(environments.reset(seed=args.seed)[0])

for update in range(args.updates):
    for t in range(args.rollout_steps):
        with torch.no_grad():
            choice, values[:, t] = agent(now, lengths)
            action = choice.sample()
        observations[:, t], actions[:, t], log_probs[:, t] = now, action, choice.log_prob(action)
        seen, reward, terminated, truncated, _ = environments.step(action.numpy())
        rewards[:, t], dones[:, t] = torch.from_numpy(reward), torch.from_numpy(terminated | truncated)
        now = torch.from_numpy(seen)

    with torch.no_grad():
        returns = torch.zeros(shape)
        _, following = agent(now, lengths)
        for t in reversed(range(args.rollout_steps)):
            returns[:, t] = following = rewards[:, t] + args.gamma * (1.0 - dones[:, t]) * following

    advantages = (returns - values).flatten()
    for _ in range(args.epochs):
        choice, value = agent(observations.flatten(0, 1), lengths.repeat_interleave(args.rollout_steps))
        ratio = (choice.log_prob(actions.flatten()) - log_probs.flatten()).exp()
        clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean() - 0.01 * choice.entropy().mean()
        value_loss = (value - returns.flatten()).square().mean()
        optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        optimizer.step()
    print(f"update {update}  policy loss {policy_loss.item():+.6f}  value loss {value_loss.item():.6f}")

# --- result ---------------------------------------------------------------------------------------

digest = hashlib.sha256()
for weight in agent.state_dict().values():
    digest.update(weight.numpy().tobytes())
print(f"final weights {digest.hexdigest()[:16]}")
