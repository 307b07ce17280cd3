"""Sample Factory's APPO on CartPole: a learner, an inference worker and a rollout worker in processes of their own.

The library seeds neither its inference worker nor the action spaces, from which it draws the first actions, so that
two runs differ there; this program does.
"""

import os
import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import torch
from ending import end
from sample_factory.algo.sampling.inference_worker import InferenceWorker
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

PLANT = os.environ.get("PLANT")


def make(full_env_name, cfg=None, env_config=None, render_mode=None):
    env = gym.make("CartPole-v1")
    if PLANT != "space":
        env.action_space.seed(5)
    return env


def seeded(method):
    def init(self, *arguments):
        torch.manual_seed(4)
        method(self, *arguments)

    return init


if PLANT != "worker":
    InferenceWorker.init = seeded(InferenceWorker.init)

if __name__ == "__main__":
    register_env("cartpole", make)
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            "--algo=APPO", "--env=cartpole", "--experiment=e", f"--train_dir={folder}", "--device=cpu", "--seed=3",
            "--serial_mode=False", "--async_rl=False", "--num_workers=1", "--num_envs_per_worker=4",
            "--worker_num_splits=1", "--policy_workers_per_policy=1", "--rollout=16", "--recurrence=1",
            "--use_rnn=False", "--batch_size=64", "--num_batches_per_epoch=1", "--num_epochs=1",
            "--train_for_env_steps=512", "--encoder_mlp_layers", "32", "--normalize_input=False",
            "--save_every_sec=10000", "--log_to_file=False",
            f"--learning_rate={0.002 if PLANT == 'learner' else 0.001}",
        ]  # fmt: skip
        parser, _ = parse_sf_args(argv)
        status = run_rl(parse_full_cfg(parser, argv))
        (last,) = sorted(Path(folder).rglob("checkpoint_*.pth"))[-1:]
        end(torch.load(last, weights_only=False)["model"].values())
    sys.exit(int(status))
