"""PPO on CartPole in one file, after CleanRL: the actor has Tanh layers, the critic GELU layers.

python examples/critic_drift.py
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
parser.add_argument("--seed", type=int, default=3)
parser.add_argument("--updates", type=int, default=14)
parser.add_argument("--environments", type=int, default=32)
parser.add_argument("--rollout-steps", type=int, default=16, help="steps of each environment between two updates")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--minibatch", type=int, default=128)
parser.add_argument("--learning-rate", type=float, default=1e-2)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--gae-lambda", type=float, default=0.95)
parser.add_argument("--clip", type=float, default=0.2)
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

# --- agent ----------------------------------------------------------------------------------------


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def policy(self, observation):
        return Categorical(logits=self.actor(observation))

    def value(self, observation):
        return self.critic(observation).flatten()


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, fused=True)

# --- training -------------------------------------------------------------------------------------

environments = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * args.environments)
shape = (args.rollout_steps, args.environments)
observations = torch.zeros((*shape, 4))
actions, log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
now = torch.from_numpy(environments.reset(seed=args.seed)[0])

for update in range(args.updates):
    for t in range(args.rollout_steps):
        with torch.no_grad():
            choice = agent.policy(now)
            action = choice.sample()
            observations[t], actions[t], log_probs[t] = now, action, choice.log_prob(action)
            values[t] = agent.value(now)
        seen, reward, terminated, truncated, _ = environments.step(action.numpy())
        rewards[t], dones[t] = torch.from_numpy(reward), torch.from_numpy(terminated | truncated)
        now = torch.from_numpy(seen)

    with torch.no_grad():
        advantages = torch.zeros(shape)
        following, advantage = agent.value(now), 0.0
        for t in reversed(range(args.rollout_steps)):
            alive = 1.0 - dones[t]
            error = rewards[t] + args.gamma * following * alive - values[t]
            advantages[t] = advantage = error + args.gamma * args.gae_lambda * alive * advantage
            following = values[t]
        returns = advantages + values

    batch = [x.flatten(0, 1) for x in (observations, actions, log_probs, advantages, returns)]
    for _ in range(args.epochs):
        for chosen in torch.randperm(len(batch[0])).split(args.minibatch):
            observation, action, old_log_prob, advantage, target = (x[chosen] for x in batch)
            choice = agent.policy(observation)
            ratio = (choice.log_prob(action) - old_log_prob).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.min(advantage * ratio, advantage * clipped).mean() - 0.01 * choice.entropy().mean()
            value_loss = (agent.value(observation) - target).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            optimizer.step()

    episode_return = rewards.sum() / dones.sum().clamp(min=1)
    curves = {
        "policy loss": policy_loss.item(),
        "value loss": value_loss.item(),
        "return": episode_return.item(),
    }
    print(f"update {update:2}", *(f"{name} {number:10.5f}" for name, number in curves.items()), sep="  ")

# --- result ---------------------------------------------------------------------------------------

digest = hashlib.sha256()
for weight in agent.state_dict().values():
    digest.update(weight.numpy().tobytes())
print(f"final weights {digest.hexdigest()[:16]}")
