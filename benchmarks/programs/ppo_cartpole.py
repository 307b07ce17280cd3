"""The program that is measured: Stable-Baselines3 PPO on CartPole. ``ppo_cartpole.py STEPS``.

Writes to ``$BENCH_REPORT``: seconds of ``learn()``, peak resident memory of the process, and the weights' sum of bytes.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO


def peak_mib() -> float:
    """Largest resident memory so far. Not ``getrusage``: that carries the launching process's peak over exec."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


agent = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=1, device="cpu")
begin = time.perf_counter()
agent.learn(int(sys.argv[1]))
seconds = time.perf_counter() - begin

weights = torch.cat([p.detach().flatten() for p in agent.policy.parameters()])
report = {
    "learn": seconds,
    "peak_mib": peak_mib(),
    "weights": int(weights.numpy().view("uint32").astype("uint64").sum()),
}
Path(os.environ["BENCH_REPORT"]).write_text(json.dumps(report))
