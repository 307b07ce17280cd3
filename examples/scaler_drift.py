"""Several environments on one device, each with an agent and a GradScaler of its own: one of them skips steps.

In mixed precision a GradScaler multiplies the loss, and where the gradients overflow it leaves the step out and halves
its factor. Each environment sees other rewards, so each scaler goes its own way: agents that were meant to learn alike
take other numbers of steps. Environment 1 here pays a large penalty when the pole falls.

python examples/scaler_drift.py
rltrace record --level step -o a.zarr -- python examples/scaler_drift.py
rltrace series a.zarr --name 'scaler*'
"""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import rltrace

# --- arguments ------------------------------------------------------------------------------------

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--environments", type=int, default=3, help="how many learn side by side on the device")
parser.add_argument("--only", type=int, help="this environment alone, as on a device of its own")
parser.add_argument("--shared-scaler", action="store_true", help="one GradScaler for the device, not one for each")
parser.add_argument("--check", action="store_true", help="refuse a second GradScaler on a device")
parser.add_argument("--updates", type=int, default=24)
parser.add_argument("--rollout-steps", type=int, default=8)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--gamma", type=float, default=0.97)
parser.add_argument("--penalty", type=float, default=20_000.0, help="what environment 1 takes off when the pole falls")
parser.add_argument("--device", default="cpu")
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

# --- agents ---------------------------------------------------------------------------------------


class Agent(nn.Module):
    """Policy and value of one environment."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


numbers = range(args.environments) if args.only is None else [args.only]
first = Agent()
agents = {number: Agent().to(args.device) for number in numbers}
for agent in agents.values():
    agent.load_state_dict(first.state_dict())  # all start alike

# who takes a step together: each environment by itself, or all that share a scaler
teams = [list(numbers)] if args.shared_scaler else [[number] for number in numbers]
if args.check and len(teams) > 1:
    raise SystemExit(f"{len(teams)} GradScalers on {args.device}: share one, or give each environment its own device")
scalers = [torch.amp.GradScaler(args.device, init_scale=1024.0) for _ in teams]
optimizers = [
    torch.optim.Adam([{"params": agents[number].parameters()} for number in team], lr=args.learning_rate)
    for team in teams
]

# --- environments ---------------------------------------------------------------------------------

environments = {number: gym.make("CartPole-v1") for number in numbers}
observations = {n: environment.reset(seed=args.seed + n)[0] for n, environment in environments.items()}
draws = {n: torch.Generator().manual_seed(args.seed + n) for n in numbers}

# --- training -------------------------------------------------------------------------------------

for _ in range(args.updates):
    losses = {}
    for number, agent in agents.items():
        # one rollout
        seen, taken, rewards, ended = [], [], [], []
        for _ in range(args.rollout_steps):
            observation = torch.as_tensor(observations[number], device=args.device)
            with torch.no_grad():
                probabilities = agent.actor(observation).softmax(-1).cpu()
            action = int(torch.multinomial(probabilities, 1, generator=draws[number]))
            observations[number], reward, terminated, truncated, _ = environments[number].step(action)
            if terminated and number == 1:
                reward -= args.penalty
            if terminated or truncated:
                observations[number], _ = environments[number].reset()
            seen.append(observation)
            taken.append(action)
            rewards.append(float(reward))
            ended.append(terminated or truncated)

        # discounted returns
        returns, following = [], 0.0
        for reward, end in zip(reversed(rewards), reversed(ended), strict=True):
            following = reward + args.gamma * following * (not end)
            returns.insert(0, following)
        rltrace.watch(f"environment {number}/reward", sum(rewards))

        # the loss, in mixed precision
        with torch.autocast(args.device, dtype=torch.float16):
            inputs = torch.stack(seen)
            values = agent.critic(inputs).squeeze(-1)
            log_probabilities = agent.actor(inputs).log_softmax(-1)[range(len(taken)), taken]
        targets = torch.tensor(returns, device=args.device)
        advantages = (targets - values.detach()).clamp(-10, 10)
        losses[number] = (targets - values.float()).pow(2).mean() - (log_probabilities * advantages).mean()

    # one step each; a scaler leaves it out where infinities are in the gradients
    for team, optimizer, scaler in zip(teams, optimizers, scalers, strict=True):
        optimizer.zero_grad()
        scaler.scale(sum(losses[number] for number in team)).backward()
        scaler.step(optimizer)
        scaler.update()

# --- result ---------------------------------------------------------------------------------------

for team, optimizer, scaler in zip(teams, optimizers, scalers, strict=True):
    for number in team:
        steps = int(optimizer.state[next(agents[number].parameters())]["step"])
        print(f"environment {number}: {steps} of {args.updates} steps taken, scale {scaler.get_scale():g} at the end")
