"""An experiment on two runs whose environments returned something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from confirm_bench import confirm
from torch import nn
from toy_environments import Walk

from rltrace.experiment.outcome import Outcome


class Off(Walk):
    """One observation is off, at its second step."""

    off = 0.0
    steps = 0

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        self.steps += 1
        return (seen + np.float32(self.off) if self.steps == 2 else seen, *rest)


def test_what_an_environment_returned(tmp_path: Path) -> None:
    """The finding is at the environment's event; the experiment is made at the op that takes the observation in."""

    def program(is_b: bool) -> None:
        env, model = Off(length=99), nn.Linear(1, 3)
        env.off = 0.25 if is_b else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        env.reset(seed=0)
        for step in range(3):
            seen, *_ = env.step(step % 2)
            model(torch.from_numpy(seen)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    outcome = confirm(tmp_path, program)
    assert outcome.word is Outcome.CONFIRMED, outcome.explanation
    assert (outcome.first_step, outcome.end_step) == (1, 3)
    (kind,) = [kind for kind in outcome.classes if kind.matters]
    assert kind.parts == ("outside",)
