"""torchrl REDQ on Pendulum: an ensemble of critics under vmap, a memory-mapped replay storage, a fused optimizer."""

import random
import tempfile

import numpy as np
import torch
from ending import end
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, DoubleToFloat, InitTracker, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.objectives.redq import REDQLoss

random.seed(9)
np.random.seed(9)
torch.manual_seed(9)
env = TransformedEnv(GymEnv("Pendulum-v1", device="cpu"), Compose(InitTracker(), DoubleToFloat()))
env.set_seed(9)

network = nn.Sequential(
    MLP(in_features=3, out_features=2, num_cells=[64], activation_class=nn.Tanh), NormalParamExtractor()
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
    MLP(in_features=4, out_features=1, num_cells=[64], activation_class=nn.Tanh),
    in_keys=["action", "observation"],
)
loss_module = REDQLoss(actor, critic, num_qvalue_nets=5, sub_sample_len=2)
loss_module.make_value_estimator(gamma=0.99)
targets = SoftUpdate(loss_module, eps=0.99)
optimizer = torch.optim.AdamW(loss_module.parameters(), lr=1e-3, fused=True)

with tempfile.TemporaryDirectory() as folder:
    memory = TensorDictReplayBuffer(storage=LazyMemmapStorage(1_000, scratch_dir=folder), batch_size=32)
    collector = Collector(env, actor, frames_per_batch=32, total_frames=384, init_random_frames=64)
    for data in collector:
        memory.extend(data.reshape(-1))
        for _ in range(4):
            losses = loss_module(memory.sample())
            optimizer.zero_grad(set_to_none=False)
            (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
            optimizer.step()
            targets.step()
    collector.shutdown()
    end(loss_module.state_dict().values())
