"""Workloads that are measured: ``workload.py grpo|mlp|cnn``.

``grpo``: updates of a transformer of 29 million parameters by group-relative advantages, each from one rollout: sampled
tokens, log-probabilities of the policy and of a frozen reference, a clipped loss with a KL penalty, AdamW. ``mlp``:
updates whose tensors are of 1 MiB. ``cnn``: Stable-Baselines3 PPO with a convolutional policy on frames of 84×84.
Writes what ``ppo_cartpole.py`` writes.
"""

import sys
import time
from collections.abc import Callable

import torch
from reporting import peak_mib, sum_of, write_report
from torch import nn
from torch.nn import functional

PROMPTS, GROUP, PROMPT, LENGTH = 4, 4, 16, 48
"""Prompts of a rollout, completions of each, tokens of a prompt, tokens with the completion."""
UPDATES, SAMPLED = 1, 8
"""Updates, and tokens of each completion that are sampled one by one; the others are drawn at once."""
WORDS = 8_192


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 448)
        self.place = nn.Embedding(LENGTH, 448)
        layer = nn.TransformerEncoderLayer(448, 8, 1_792, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 9, enable_nested_tensor=False)
        self.head = nn.Linear(448, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.embed(ids) + self.place(torch.arange(length))
        out: torch.Tensor = self.head(self.body(x, mask=mask, is_causal=True))
        return out


def log_probs(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    chosen = functional.log_softmax(model(ids[:, :-1]), -1).gather(-1, ids[:, 1:, None])
    return chosen.squeeze(-1)[:, PROMPT - 1 :]


def rollout(model: nn.Module) -> torch.Tensor:
    ids = torch.randint(0, WORDS, (PROMPTS, PROMPT)).repeat_interleave(GROUP, 0)
    with torch.no_grad():
        for _ in range(SAMPLED):
            logits = model(ids)[:, -1]
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
    rest = torch.randint(0, WORDS, (PROMPTS * GROUP, LENGTH - ids.shape[1]))
    return torch.cat([ids, rest], 1)


def grpo() -> tuple[Callable[[], object], nn.Module]:
    torch.manual_seed(0)
    policy, reference = Transformer(), Transformer()
    reference.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)

    def learn() -> None:
        for _ in range(UPDATES):
            ids = rollout(policy)
            rewards = ids[:, PROMPT:].remainder(7).float().mean(1).view(PROMPTS, GROUP)
            advantage = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            with torch.no_grad():
                old, base = log_probs(policy, ids), log_probs(reference, ids)
            new = log_probs(policy, ids)
            ratio, gain = (new - old).exp(), advantage.view(-1, 1)
            clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            penalty = (base - new).exp() - (base - new) - 1
            loss = (0.04 * penalty - clipped).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()

    return learn, policy


def mlp() -> tuple[Callable[[], object], nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(512, 512)

    def learn() -> None:
        for _ in range(60):
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return learn, model


def cnn() -> tuple[Callable[[], object], nn.Module]:
    import gymnasium
    import numpy as np
    from stable_baselines3 import PPO

    class Frames(gymnasium.Env):  # type: ignore[type-arg]
        """Frames of noise, of which the action chooses the brightness."""

        observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        action_space = gymnasium.spaces.Discrete(6)

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[object, dict[str, object]]:
            super().reset(seed=seed)
            return self._frame(0), {}

        def step(self, action: int) -> tuple[object, float, bool, bool, dict[str, object]]:
            return self._frame(int(action)), float(action == 3), self.np_random.random() < 0.01, False, {}

        def _frame(self, action: int) -> object:
            return self.np_random.integers(0, 40 * (action + 1), (4, 84, 84), np.uint8)

    agent = PPO("CnnPolicy", Frames(), n_steps=256, batch_size=64, n_epochs=2, seed=1, device="cpu")
    return lambda: agent.learn(256), agent.policy


learn, model = {"grpo": grpo, "mlp": mlp, "cnn": cnn}[sys.argv[1]]()
begin, began = time.perf_counter(), time.thread_time()
learn()
write_report(
    learn=time.perf_counter() - begin,
    learn_cpu=time.thread_time() - began,
    peak_mib=peak_mib(),
    parameters=sum(p.numel() for p in model.parameters()),
    weights=sum_of(model.parameters()),
)
