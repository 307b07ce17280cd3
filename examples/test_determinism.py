"""Tests of determinism as RL libraries write them, with the mark and the fixture of rltrace's pytest plugin.

pytest examples/test_determinism.py

Such tests usually train twice with one seed and compare rewards or weights at the end. These train once: the mark runs
the body twice, and where the runs diverge it names the first op and the cause. A library that is missing is skipped.
"""

import random

import numpy as np
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def seeded():
    """Set up anew for each of the runs, as every fixture of function scope is."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


# --- Stable-Baselines3 ----------------------------------------------------------------------------

SMALL = {
    "A2C": {"n_steps": 8},
    "PPO": {"n_steps": 32, "n_epochs": 2, "batch_size": 32},
    "DQN": {"learning_starts": 16, "target_update_interval": 16},
    "SAC": {"learning_starts": 48},
    "TD3": {"learning_starts": 48},
}


@pytest.mark.reproducible
@pytest.mark.parametrize("algorithm", SMALL)
def test_stable_baselines3_trains_alike(algorithm):
    library = pytest.importorskip("stable_baselines3")
    environment = "Pendulum-v1" if algorithm in ("SAC", "TD3") else "CartPole-v1"
    agent = getattr(library, algorithm)(
        "MlpPolicy", environment, policy_kwargs={"net_arch": [32]}, seed=0, device="cpu", **SMALL[algorithm]
    )
    agent.learn(64)


# --- one file, after CleanRL ----------------------------------------------------------------------


@pytest.fixture
def environment():
    gymnasium = pytest.importorskip("gymnasium")
    environment = gymnasium.make("CartPole-v1")
    yield environment
    environment.close()


def rollout(environment, actor, steps):
    """Observations, actions and rewards of so many steps."""
    observations, actions, rewards = [], [], []
    observation, _ = environment.reset(seed=1)
    for _ in range(steps):
        observation = torch.as_tensor(observation)
        action = torch.distributions.Categorical(logits=actor(observation)).sample()
        observations.append(observation)
        actions.append(action)
        observation, reward, terminated, truncated, _ = environment.step(action.item())
        rewards.append(reward)
        if terminated or truncated:
            observation, _ = environment.reset()
    return torch.stack(observations), torch.stack(actions), torch.tensor(rewards)


@pytest.mark.reproducible(runs=3)
def test_an_update_is_the_same_in_every_run(environment):
    actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(actor.parameters(), lr=2.5e-4, eps=1e-5)
    for _ in range(2):
        observations, actions, rewards = rollout(environment, actor, 16)
        returns = rewards.flip(0).cumsum(0).flip(0)
        log_probabilities = torch.distributions.Categorical(logits=actor(observations)).log_prob(actions)
        loss = -(log_probabilities * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()


def test_acting_gives_the_bits_of_learning(compare_bits):
    """A rollout computes log-probabilities without gradients, the update with them: any difference is no policy's."""
    actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    observations = torch.randn(16, 4)
    compare_bits(lambda: actor(observations).log_softmax(-1).detach(), under=torch.inference_mode())


# --- TorchRL --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.reproducible
def test_torchrl_rolls_out_and_learns_alike():
    pytest.importorskip("torchrl")
    from torchrl.envs.libs.gym import GymEnv
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss

    environment = GymEnv("CartPole-v1", device="cpu")
    environment.set_seed(1)
    network = MLP(in_features=4, out_features=2, num_cells=[32])
    actor = QValueActor(network, in_keys=["observation"], spec=environment.action_spec)
    loss_module = DQNLoss(actor, action_space=environment.action_spec)
    optimizer = torch.optim.Adam(loss_module.parameters())
    for _ in range(2):
        data = environment.rollout(16, actor)
        loss_module(data)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


# --- TRL ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.reproducible(level="step")
def test_trl_trains_alike(tmp_path):
    pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import DPOConfig, DPOTrainer

    set_seed(1)
    words = ["<pad>", "<unk>", "<s>", "</s>", "is", "it", "yes", "no"]
    vocabulary = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=32, pad_token_id=0, **sizes)
    policy, reference = LlamaForCausalLM(config), LlamaForCausalLM(config)
    settings = DPOConfig(
        output_dir=str(tmp_path), max_steps=3, use_cpu=True, bf16=False, report_to=[], save_strategy="no", seed=1
    )
    pairs = [{"prompt": "is it", "chosen": " yes", "rejected": " no"}] * 16
    data = Dataset.from_list(pairs)
    DPOTrainer(policy, reference, args=settings, train_dataset=data, processing_class=tokenizer).train()
