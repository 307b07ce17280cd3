"""Stable-Baselines3 PPO through the command line: two CPU kernel settings, and nothing changed at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_other_kernels_are_named(cli: Any, kernel_setting: str, oracle: Callable[[str, str], str]) -> None:
    """The first differing op is the one that an independent look at every op finds, and its kernel is the cause."""
    cli.record("a.zarr", "ppo.py")
    cli.record("b.zarr", "ppo.py", setting=kernel_setting)
    status, found = cli.diff("a.zarr", "b.zarr")
    assert (status, found["verdict"]) == (1, "diverged")
    first = found["first_value"]
    assert first["op"] == oracle("ppo.py", kernel_setting)
    assert first["cause"] == "kernel"
    assert first["inputs_match"] in ("read", "linked")
    assert first["kernel"]["a"] != first["kernel"]["b"]
    assert kernel_setting.partition("=")[0] in str(found["environment"])


def test_unchanged_runs_are_identical(cli: Any) -> None:
    """The same program twice is identical, and the whole of it was compared."""
    for trace in ("a.zarr", "b.zarr"):
        cli.record(trace, "ppo.py")
    status, found = cli.diff("a.zarr", "b.zarr")
    assert (status, found["verdict"]) == (0, "identical")
    assert found["first"] is None
    assert found["a"]["ops"] == found["b"]["ops"] > 5_000
    assert cli.rltrace("verify", "a.zarr").returncode == 0


@pytest.mark.parametrize("program", ["sac.py", "zoo.py", "many_ops.py"])
def test_what_lies_in_fresh_memory_is_no_difference(cli: Any, program: str) -> None:
    """glibc fills fresh memory with one byte or another: no digest and no verdict may depend on which."""
    for trace, byte in (("a.zarr", 85), ("b.zarr", 170)):
        cli.record(trace, program, setting=f"MALLOC_PERTURB_={byte}")
    status, found = cli.diff("a.zarr", "b.zarr")
    assert (status, found["verdict"]) == (0, "identical")
