"""TorchRL PPO with two environments in processes of their own (``ParallelEnv``)."""

import os

import torch
from ending import end
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import Compose, DoubleToFloat, GymEnv, ParallelEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

PLANT = os.environ.get("PLANT")


def make() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    env = TransformedEnv(ParallelEnv(2, make), Compose(StepCounter(), RewardSum(), DoubleToFloat()))
    env.set_seed(5 if PLANT == "worker" else 0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    actor = ProbabilisticActor(
        TensorDictModule(policy, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        spec=env.full_action_spec_unbatched[env.action_key],
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)), in_keys=["observation"])
    collector = Collector(env, actor, frames_per_batch=64, total_frames=256)
    advantage = GAE(gamma=0.99, lmbda=0.9 if PLANT == "learner" else 0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)
    for data in collector:
        for _ in range(2):
            advantage(data)
            losses = loss(data.reshape(-1))
            total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    collector.shutdown()
    end(loss.parameters())
