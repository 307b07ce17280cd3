"""torchrl SAC on Pendulum: TensorDict modules, a collector, a preallocated replay storage, functional targets."""

import random

import numpy as np
import torch
from ending import end
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, DoubleToFloat, InitTracker, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.objectives.sac import SACLoss

random.seed(2)
np.random.seed(2)
torch.manual_seed(2)
env = TransformedEnv(GymEnv("Pendulum-v1", device="cpu"), Compose(InitTracker(), DoubleToFloat()))
env.set_seed(2)

network = nn.Sequential(
    MLP(in_features=3, out_features=2, num_cells=[64, 64], activation_class=nn.ReLU), NormalParamExtractor()
)
actor = ProbabilisticActor(
    TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
    in_keys=["loc", "scale"],
    spec=env.action_spec,
    distribution_class=TanhNormal,
    distribution_kwargs={"low": -2.0, "high": 2.0},
    return_log_prob=False,
)
critic = ValueOperator(
    MLP(in_features=4, out_features=1, num_cells=[64, 64], activation_class=nn.ReLU),
    in_keys=["action", "observation"],
)
loss_module = SACLoss(actor, critic, num_qvalue_nets=2)
loss_module.make_value_estimator(gamma=0.99)
targets = SoftUpdate(loss_module, eps=0.995)
memory = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=64)
optimizer = torch.optim.Adam(loss_module.parameters(), lr=3e-4)

collector = Collector(env, actor, frames_per_batch=32, total_frames=512, init_random_frames=64)
for data in collector:
    memory.extend(data.reshape(-1))
    for _ in range(6):
        losses = loss_module(memory.sample())
        optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        optimizer.step()
        targets.step()
collector.shutdown()
end(loss_module.state_dict().values())
