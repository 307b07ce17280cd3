"""What a rerunnable recording of a step would take, from a trace of its ops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded import recorder
from torch import nn

from rltrace.commands.main import main
from rltrace.extensions.repro.rerun_size import rerun_size
from rltrace.selectors import Range


def training() -> None:
    """Three steps; a batch from outside, and a buffer that holds the last outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    last = torch.zeros(8, 4)
    for step in range(3):
        batch = torch.frombuffer(bytearray(range(256)) * 8, dtype=torch.uint8).reshape(8, 256).float() * step
        optimizer.zero_grad()
        output = model(batch)
        (output - last).square().sum().backward()
        last.copy_(output.detach())
        optimizer.step()


@pytest.mark.parametrize("step", [0, 2])
def test_size_of_a_step(step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is what a recording of the step takes: whole tensors are read here, so exactly, but for the step counts of
    Adam, whose equal bytes are stored once."""
    record = recorder(tmp_path)
    plain, found = record(training), record(training, rerunnable=f"step={step}", steps=(step, step + 1))
    memory = rerun_size(plain.process, Range(step, step + 1))
    assert memory.ops > 20
    assert 0 <= memory.bytes - found.process.values.memory_bytes <= 3 * 4
    assert main(["rerun", "--size", str(step), str(plain.path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ABOUT ") and f"--steps {step}:{step + 1} --until {step} --rerunnable all" in text


def test_steps_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps that do not exist are an error, not a size of 0."""
    plain = recorder(tmp_path)(training)
    assert main(["rerun", "--size", "7:9", str(plain.path)]) == 2
    assert "has no ops of these steps" in capsys.readouterr().err
