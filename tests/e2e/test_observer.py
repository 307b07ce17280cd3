"""Watching changes nothing: recorded and unrecorded runs end with the same bits, words and status."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("program", ["ppo.py", "zoo.py", "many_ops.py"])
def test_recorded_runs_compute_the_same_bits(
    cli: Any, as_it_is: Callable[[str], Any], program: str, request: pytest.FixtureRequest
) -> None:
    """Weights, states of optimizers and generators, exit status and stderr are equal at both levels."""
    if program == "ppo.py":
        request.getfixturevalue("new_processes")  # as users start it, in every respect
    plain = cli.python(program)
    assert "weights" in plain.stdout
    assert plain.returncode == 7
    steps = cli.record("step.zarr", program, "--level", "step")
    ops = as_it_is(program)
    for trace, recorded in (("step.zarr", steps), (ops.trace, ops)):
        assert recorded.stdout == plain.stdout
        assert recorded.stderr == plain.stderr
        assert recorded.returncode == plain.returncode
        assert cli.rltrace("verify", trace).returncode == 0
