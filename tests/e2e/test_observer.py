"""Watching changes nothing: recorded and unrecorded runs end with the same bits, words and status."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("program", ["ppo.py", "sac.py", "zoo.py", "many_ops.py"])
def test_recorded_runs_compute_the_same_bits(cli: Any, program: str) -> None:
    """Weights, optimizer state and generator states (on stdout), exit status and stderr, at both levels."""
    plain = cli.python(program)
    assert "weights" in plain.stdout
    assert plain.returncode == 7
    for level in ("step", "op"):
        recorded = cli.record(f"{level}.zarr", program, "--level", level)
        assert recorded.stdout == plain.stdout
        assert recorded.stderr == plain.stderr
        assert recorded.returncode == plain.returncode
        assert cli.rltrace("verify", f"{level}.zarr").returncode == 0
