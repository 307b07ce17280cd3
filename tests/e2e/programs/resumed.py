"""Eight steps in one go, or four more from a checkpoint; with RESUME=generator and so on, all but that is restored."""

import os

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"
RESUME = os.environ.get("RESUME", "")


class Walk(gymnasium.Env):
    """A random walk."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(2, np.float32)
        return self.place, {}

    def step(self, action):
        self.place = self.place + np.float32(2 * action - 1) + self.np_random.normal(size=2).astype(np.float32)
        return self.place, 0.0, False, False, {}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shuffling = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.rand(16, 2, generator=torch.Generator().manual_seed(4)))
    loader = DataLoader(data, batch_size=2, shuffle=True, generator=shuffling)
    environment = Walk()
    observation, _ = environment.reset(seed=5)
    batches = iter(loader)
    first = 0
    if RESUME:
        found = torch.load(CHECKPOINT, weights_only=False)
        first = found["step"]
        weights = found["model"]
        if RESUME == "parameter":
            weights["2.bias"] = model[2].bias.detach()
        model.load_state_dict(weights)
        if RESUME != "optimizer":
            optimizer.load_state_dict(found["optimizer"])
        if RESUME != "loader":
            for _ in range(first):
                next(batches)
        if RESUME != "environment":
            environment.place, environment.np_random.bit_generator.state = found["environment"]
            observation = environment.place
        if RESUME != "generator":
            torch.set_rng_state(found["generator"])
    for step in range(first, 8):
        if step == 4 and not RESUME:
            state = environment.place, environment.np_random.bit_generator.state
            saved = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**saved, "environment": state, "generator": torch.get_rng_state()}, CHECKPOINT)
        [inputs] = next(batches)
        seen = torch.from_numpy(observation).expand(2, 2)
        logits = model(torch.cat([inputs, seen], dim=1))
        action = torch.multinomial(logits[0].softmax(0), 1).item()
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
        observation, *_ = environment.step(action)


main()
