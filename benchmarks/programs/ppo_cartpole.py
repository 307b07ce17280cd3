"""The program that is measured: Stable-Baselines3 PPO on CartPole. ``ppo_cartpole.py STEPS``.

Writes to ``$BENCH_REPORT``: seconds of ``learn()``, processor time of its thread, peak resident memory of the process,
and the weights' sum of bytes. With ``$BENCH_LOG_LINE`` it runs one op more, which changes nothing.
"""

import os
import sys
import time

import torch
from reporting import peak_mib, sum_of, write_report
from stable_baselines3 import PPO

agent = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=1, device="cpu")
if "BENCH_LOG_LINE" in os.environ:
    torch.ones(3).sum()
begin, began = time.perf_counter(), time.thread_time()
agent.learn(int(sys.argv[1]))
seconds, busy = time.perf_counter() - begin, time.thread_time() - began
write_report(learn=seconds, learn_cpu=busy, peak_mib=peak_mib(), weights=sum_of(agent.policy.parameters()))
