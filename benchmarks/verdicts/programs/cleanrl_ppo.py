"""PPO in one file, in the manner of CleanRL: preallocated rollout, two environments, a NumPy permutation a pass."""

import random

import gymnasium as gym
import numpy as np
import torch
from ending import end
from torch import nn
from torch.distributions import Categorical

SEED, ENVS, LENGTH, UPDATES, EPOCHS, MINIBATCH = 1, 4, 64, 4, 4, 64
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2

random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
torch.backends.cudnn.deterministic = True


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.constant_(made.bias, 0.0)
    return made


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))

    def act(self, observation, action=None):
        chances = Categorical(logits=self.actor(observation))
        if action is None:
            action = chances.sample()
        return action, chances.log_prob(action), chances.entropy(), self.critic(observation)


environments = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(ENVS)])
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

observations = torch.zeros((LENGTH, ENVS, 4))
actions, log_probs, rewards, dones, values = (torch.zeros((LENGTH, ENVS)) for _ in range(5))
now = torch.Tensor(environments.reset(seed=SEED)[0])
done = torch.zeros(ENVS)
for update in range(UPDATES):
    optimizer.param_groups[0]["lr"] = (1 - update / UPDATES) * 2.5e-4
    for t in range(LENGTH):
        observations[t], dones[t] = now, done
        with torch.no_grad():
            action, log_prob, _, value = agent.act(now)
        actions[t], log_probs[t], values[t] = action, log_prob, value.flatten()
        result, reward, terminated, truncated, _ = environments.step(action.numpy())
        rewards[t] = torch.tensor(reward)
        now, done = torch.Tensor(result), torch.Tensor(np.logical_or(terminated, truncated))

    with torch.no_grad():
        advantages = torch.zeros_like(rewards)
        last, after = 0.0, agent.critic(now).reshape(1, -1)
        for t in reversed(range(LENGTH)):
            alive = 1.0 - (done if t == LENGTH - 1 else dones[t + 1])
            following = after if t == LENGTH - 1 else values[t + 1]
            delta = rewards[t] + GAMMA * following * alive - values[t]
            advantages[t] = last = delta + GAMMA * LAMBDA * alive * last
        returns = advantages + values

    flat = [x.reshape(-1) for x in (actions, log_probs, advantages, returns)]
    places = np.arange(LENGTH * ENVS)
    for _ in range(EPOCHS):
        np.random.shuffle(places)
        for start in range(0, len(places), MINIBATCH):
            some = places[start : start + MINIBATCH]
            chosen, old, advantage, target = (x[some] for x in flat)
            _, new, entropy, value = agent.act(observations.reshape(-1, 4)[some], chosen.long())
            ratio = (new - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            loss = policy_loss - 0.01 * entropy.mean() + 0.5 * ((value.view(-1) - target) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
end(agent.parameters())
