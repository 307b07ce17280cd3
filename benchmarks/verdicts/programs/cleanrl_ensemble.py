"""An ensemble of world models in one file: vmap over stacked weights, parametrised layers, an autograd function of its
own, a replay of rows from ``empty``, and Langevin draws of a policy that is differentiated twice.
"""

import random

import numpy as np
import torch
from ending import end
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrizations

SEED, MEMBERS, WIDTH = 10, 4, 24
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)


class StraightThrough(torch.autograd.Function):
    """Signs forward, the gradient of a clamp backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, upstream: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return upstream * (x.abs() <= 1)


class Member(nn.Module):
    """Predicts what comes next from (state, action)."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Linear(5, WIDTH)
        self.after = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(StraightThrough.apply(self.code(x)) + torch.tanh(self.code(x)))


members = [Member() for _ in range(MEMBERS)]
weights, buffers = stack_module_state(members)
skeleton = Member()


def one(weights, buffers, x):
    return functional_call(skeleton, (weights, buffers), (x,))


energy = nn.Sequential(
    parametrizations.spectral_norm(nn.Linear(5, WIDTH)),
    nn.Softplus(),
    parametrizations.weight_norm(nn.Linear(WIDTH, 1)),
)
models = torch.optim.Adam(weights.values(), lr=3e-3)
policy = torch.optim.SGD(energy.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
memory = {"x": torch.empty(256, 5), "next": torch.empty(256, 4), "weight": torch.empty(MEMBERS, 256)}
numbers = np.random.default_rng(SEED)
state, filled = torch.zeros(4), 0


def act(state: torch.Tensor) -> torch.Tensor:
    """A few steps of Langevin dynamics down the energy."""
    slope = grad(lambda action: energy(torch.cat((state, action))).sum())
    action = torch.zeros(1)
    for _ in range(3):
        action = action - 0.1 * slope(action) + 0.05 * torch.randn(1)
    return action.detach()


for _update in range(60):
    for _ in range(4):
        action = act(state)
        push = torch.from_numpy(numbers.standard_normal(4).astype(np.float32))
        after = (0.9 * state + 0.1 * action + 0.1 * push).clamp(-2, 2)
        row = filled % 256
        memory["x"][row, :4], memory["x"][row, 4] = state, action[0]
        memory["next"][row] = after
        memory["weight"][:, row] = torch.bernoulli(torch.full((MEMBERS,), 0.7))
        state, filled = after, filled + 1
    rows = torch.from_numpy(numbers.integers(min(filled, 256), size=32))
    x, after, mask = memory["x"][rows], memory["next"][rows], memory["weight"][:, rows]
    guesses = vmap(one, in_dims=(0, 0, None))(weights, buffers, x)
    loss = (((guesses - after) ** 2).mean(dim=2) * mask).mean()
    models.zero_grad()
    loss.backward()
    models.step()
    # the policy likes what the members disagree on, and an energy whose slope is near one
    x.requires_grad_()
    value = energy(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    doubt = guesses.detach().std(dim=0).mean(dim=1, keepdim=True)
    policy.zero_grad()
    ((value + doubt) ** 2).mean().add((slope.norm(dim=1) - 1).square().mean()).backward()
    policy.step()
end([*weights.values(), *energy.state_dict().values()])
