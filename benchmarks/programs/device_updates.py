"""The programs that are measured on a device: updates of PPO, SAC, a transformer. ``device_updates.py WHICH COUNT``.

Writes to ``$BENCH_REPORT``: seconds of one update (the last COUNT of them, the device waited for at both ends), the
device, and the sum of the parameters' bytes.
"""

import sys
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from reporting import sum_of, write_report
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP = 5
"""Updates before those that are measured: kernels are compiled and chosen, memory is taken."""


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).to(DEVICE)


def ppo() -> tuple[Callable[[], None], nn.Module]:
    """One minibatch of 2,048: 17 observations, 6 actions, 256 units."""
    net = nn.ModuleList([mlp(17, 256, 256), mlp(256, 6), mlp(256, 1)])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    observations, actions = torch.randn(2_048, 17, device=DEVICE), torch.randn(2_048, 6, device=DEVICE)
    before, returns = torch.randn(2_048, device=DEVICE), torch.randn(2_048, device=DEVICE)

    def update() -> None:
        hidden = net[0](observations)
        log_prob = -(actions - net[1](hidden)).pow(2).sum(1) / 2
        ratio = (log_prob - before).clamp(-5, 5).exp()
        surrogate = torch.min(ratio * returns, ratio.clamp(0.8, 1.2) * returns).mean()
        loss = (net[2](hidden).squeeze(1) - returns).pow(2).mean() - surrogate
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    return update, net


def sac() -> tuple[Callable[[], None], nn.Module]:
    """Twin critics and an actor, a batch of 256, target networks moved along."""
    actor, first, second = mlp(17, 256, 256, 12), mlp(23, 256, 256, 1), mlp(23, 256, 256, 1)
    critics, targets = nn.ModuleList([first, second]), nn.ModuleList([mlp(23, 256, 256, 1) for _ in range(2)])
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)
    batch = [torch.randn(256, size, device=DEVICE) for size in (17, 6, 1, 17)]

    def act(observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = actor(observations).chunk(2, dim=1)
        action = torch.tanh(mean + torch.randn_like(mean) * spread.clamp(-5, 2).exp())
        return action, -(spread + (1 - action.pow(2) + 1e-6).log()).sum(1, keepdim=True)

    def update() -> None:
        observations, actions, rewards, following = batch
        with torch.no_grad():
            action, entropy = act(following)
            both = torch.cat([following, action], dim=1)
            wanted = rewards + 0.99 * (torch.min(targets[0](both), targets[1](both)) + 0.2 * entropy)
        both = torch.cat([observations, actions], dim=1)
        critic_loss = sum(functional.mse_loss(critic(both), wanted) for critic in critics)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        action, entropy = act(observations)
        both = torch.cat([observations, action], dim=1)
        actor_loss = -(torch.min(first(both), second(both)) + 0.2 * entropy).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)

    return update, nn.ModuleList([actor, critics, targets])


def transformer() -> tuple[Callable[[], None], nn.Module]:
    """Four layers of 512 units (on a CPU 64), 8 sequences of 256 tokens, AdamW: a small policy over tokens."""
    width = 512 if DEVICE == "cuda" else 64
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.ModuleList([nn.Embedding(4_096, width), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)]).to(
        DEVICE
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    tokens = torch.randint(0, 4_096, (8, 256), device=DEVICE)
    mask = nn.Transformer.generate_square_subsequent_mask(256, device=DEVICE)

    def update() -> None:
        hidden = net[1](net[0](tokens), mask=mask, is_causal=True)
        logits = hidden @ net[0].weight.t()
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update, net


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


torch.manual_seed(1)
update, net = {"ppo": ppo, "sac": sac, "transformer": transformer}[sys.argv[1]]()
for _ in range(WARM_UP):
    update()
wait()
begin = time.perf_counter()
for _ in range(int(sys.argv[2])):
    update()
wait()
seconds = (time.perf_counter() - begin) / int(sys.argv[2])
device = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU: no GPU is here"
write_report(update=seconds, device=device, weights=sum_of(net.parameters()))
