"""An actor and a critic with an optimizer each, trained on all that was seen so far; the losses are logged rarely.

The batch grows by one with each update. Rates are powers of two and weights come from NumPy, so that nothing but the
critic's softplus, once the batch is wide enough for vector instructions, depends on the processor.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.utils import skip_init

environment = np.random.default_rng(3)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = skip_init(nn.Linear, 3, 4)
        self.value = skip_init(nn.Linear, 4, 1)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        features = nn.functional.softplus(self.body(observations))
        return self.value(features).squeeze(-1)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(skip_init(nn.Linear, 3, 4), nn.ReLU(), skip_init(nn.Linear, 4, 2))
        self.critic = Critic()


agent = Agent()
with torch.no_grad():
    for parameter in agent.parameters():
        parameter.copy_(torch.from_numpy(environment.standard_normal(parameter.shape)))
actor_optimizer = torch.optim.SGD(agent.actor.parameters(), lr=2**-6)
critic_optimizer = torch.optim.SGD(agent.critic.parameters(), lr=2**-3)
memory = []
for update in range(24):
    memory.append(torch.from_numpy(environment.standard_normal(3).astype(np.float32)))
    observations = torch.stack(memory)
    returns = observations.sum(dim=1)
    values = agent.critic(observations)
    critic_loss = (returns - values).pow(2).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    advantages = (returns - values).detach()
    actor_loss = -(agent.actor(observations)[:, 0] * advantages).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    if update % 12 == 11:
        print(f"critic {critic_loss.item():.3f}, actor {actor_loss.item():.3f}")
