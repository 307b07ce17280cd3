"""Two collectors of TorchRL in processes of their own, each with its environment and a copy of the policy."""

import os

import torch
from ending import end
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import ProbabilisticActor

PLANT = os.environ.get("PLANT")


def make() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    actor = ProbabilisticActor(
        TensorDictModule(policy, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    collector = MultiSyncCollector([make, make], actor, frames_per_batch=64, total_frames=256, cat_results="stack")
    collector.set_seed(5 if PLANT == "worker" else 0)
    optimizer = torch.optim.Adam(policy.parameters(), 0.02 if PLANT == "learner" else 0.01)
    for data in collector:
        scores = policy(data["observation"]).log_softmax(-1).gather(-1, data["action"][..., None]).squeeze(-1)
        loss = -(scores * data["next", "reward"].squeeze(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        collector.update_policy_weights_()
    collector.shutdown()
    end(policy.parameters())
