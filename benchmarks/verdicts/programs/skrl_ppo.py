"""skrl PPO on Pendulum: running preprocessors of observations and values, an adaptive learning rate."""

import tempfile

import gymnasium as gym
import torch
from ending import end
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.resources.schedulers.torch import KLAdaptiveLR
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

set_seed(11)


class Policy(GaussianMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = nn.Sequential(nn.Linear(3, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1), nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(1))

    def compute(self, inputs, role=""):
        return 2 * self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(3, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1))

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {}


env = wrap_env(gym.make_vec("Pendulum-v1", num_envs=4, vectorization_mode="sync"))
memory = RandomMemory(memory_size=64, num_envs=env.num_envs, device="cpu")
models = {
    "policy": Policy(env.observation_space, env.action_space),
    "value": Value(env.observation_space, env.action_space),
}
with tempfile.TemporaryDirectory() as folder:
    settings = PPO_CFG(
        rollouts=64,
        learning_epochs=4,
        mini_batches=4,
        learning_rate=1e-3,
        learning_rate_scheduler=KLAdaptiveLR,
        learning_rate_scheduler_kwargs={"kl_threshold": 0.008},
        observation_preprocessor=RunningStandardScaler,
        observation_preprocessor_kwargs={"size": env.observation_space, "device": "cpu"},
        value_preprocessor=RunningStandardScaler,
        value_preprocessor_kwargs={"size": 1, "device": "cpu"},
    )
    settings.experiment.directory = folder
    settings.experiment.write_interval = 0
    settings.experiment.checkpoint_interval = 0
    agent = PPO(
        models=models,
        memory=memory,
        cfg=settings,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
    )
    SequentialTrainer(
        cfg={"timesteps": 256, "headless": True, "disable_progressbar": True}, env=env, agents=agent
    ).train()
end([p for model in models.values() for p in model.parameters()])
