"""``rltrace rerun``: what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded import recorder
from torch import nn

from rltrace.commands.main import main
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.testing import TraceBuilder


def training() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("selector", "words", "why"),
    [
        ("all", ["--break-at", "3"], "are for a program: give it after --"),
        ("op=sum", ["--", "true"], "a program needs what all of its ops read"),
        ("all", ["--warm-up", "0", "--", "true"], "the first recorded step is step 1"),
        ("all", ["--values-inputs", "--", "true"], "--values-inputs needs --values"),
    ],
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], selector: str, words: list[str], why: str
) -> None:
    """With a word on what to do."""
    found = recorder(tmp_path)(training, steps=(1, 2), rerunnable=selector)
    assert main(["rerun", str(found.path), *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("words", [("repro", "--at", "0"), ("rerun",), ("rerun", "--size", "0:1")])
def test_calls_of_jax_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """And no command is suggested that would record them for that."""
    trace = TraceBuilder(tmp_path / "a.zarr", engine=JAX_ENGINE)
    trace.op("jit.update", outputs=["x"])
    assert main([words[0], str(trace.finish()), *words[1:]]) == 2
    error = capsys.readouterr().err
    assert "is of a JAX program: only ops of torch can be run again" in error
    assert "rltrace record" not in error
