"""Stable-Baselines3 PPO on CartPole: an ordinary training script, which knows nothing of rltrace.

python examples/ppo_cartpole.py
rltrace record -o a.zarr -- python examples/ppo_cartpole.py
"""

import argparse
import hashlib
import random

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO

# --- arguments ------------------------------------------------------------------------------------

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=512, help="environment steps in all")
parser.add_argument("--rollout-steps", type=int, default=128, help="environment steps between two updates")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--learning-rate", type=float, default=3e-4)
parser.add_argument("--default-init", action="store_true", help="initialise layers as torch does, not orthogonally")
args = parser.parse_args()

# --- seeding --------------------------------------------------------------------------------------

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

# --- training -------------------------------------------------------------------------------------

agent = PPO(
    "MlpPolicy",
    gym.make("CartPole-v1"),
    learning_rate=args.learning_rate,
    n_steps=args.rollout_steps,
    batch_size=args.batch_size,
    n_epochs=args.epochs,
    policy_kwargs={"ortho_init": not args.default_init},
    seed=args.seed,
    device="cpu",
)
agent.learn(total_timesteps=args.total_steps)

# --- result ---------------------------------------------------------------------------------------

digest = hashlib.sha256()
for name, weight in agent.policy.state_dict().items():
    digest.update(name.encode())
    digest.update(weight.numpy().tobytes())
print(f"final weights {digest.hexdigest()[:16]}")
