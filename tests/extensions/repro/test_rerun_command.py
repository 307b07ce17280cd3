"""``rltrace rerun``: what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.testing import TraceBuilder


@pytest.mark.parametrize("words", [("repro", "--at", "0"), ("rerun",), ("rerun", "--size", "0:1")])
def test_calls_of_jax_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """And no command is suggested that would record them for that."""
    trace = TraceBuilder(tmp_path / "a.zarr", engine=JAX_ENGINE)
    trace.op("jit.update", outputs=["x"])
    assert main([words[0], str(trace.finish()), *words[1:]]) == 2
    error = capsys.readouterr().err
    assert "is of a JAX program: only ops of torch can be run again" in error
    assert "rltrace record" not in error
