"""Sample Factory's APPO: processes that step environments, one that chooses actions and one that learns."""

import os
import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import torch
from ending import end
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

PLANT = os.environ.get("PLANT")


def make(name, config, env_config, render_mode=None):
    return gym.make("CartPole-v1")


if __name__ == "__main__":
    register_env("cart", make)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "--env=cart",
            f"--train_dir={folder}",
            "--experiment=one",
            "--device=cpu",
            "--num_workers=2",
            "--num_envs_per_worker=2",
            "--worker_num_splits=1",
            "--rollout=16",
            "--recurrence=1",
            "--use_rnn=False",
            "--batch_size=64",
            "--train_for_env_steps=512",
            "--seed=3",
            "--async_rl=False",
            "--encoder_mlp_layers=32",
            f"--gae_lambda={0.9 if PLANT == 'learner' else 0.95}",
        ]
        parser, config = parse_sf_args(arguments)
        config = parse_full_cfg(parser, arguments)
        status = run_rl(config)
        saved = max(Path(folder).rglob("checkpoint_p0/checkpoint_*.pth"))
        model = torch.load(saved, weights_only=False)["model"]
        end(weight for _, weight in sorted(model.items()))
    sys.exit(int(status))
