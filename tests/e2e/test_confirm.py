"""``rltrace confirm`` on Stable-Baselines3 PPO under two CPU kernel settings, which give masked origins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.trace.format.schema import Step
from rltrace.trace.read.reader import open_trace


def state_of(trace: Path) -> object:
    """Digests of weights at the end, and of weights and gradients as each step ended."""
    [process] = open_trace(trace).processes
    return process.parameters, process.steps[:, [Step.PARAMETERS, Step.GRADIENTS]].tolist()


@pytest.mark.timeout(900)  # as many runs as there are kinds of op, and some more
def test_masked_origins_of_ppo(cli: Any, kernel_setting: str) -> None:
    """CONFIRMED, with kinds of op that a plain comparison takes for receivers; in lockstep B is A to the last op; every
    kind of the minimal set is needed, which the trials of the search show.
    """
    window = ("--steps", "0:2", "--until", "1")
    assert cli.record("a.zarr", "small_ppo.py", *window).returncode == 0
    assert cli.record("b.zarr", "small_ppo.py", *window, setting=kernel_setting).returncode == 0
    done = cli.rltrace("confirm", "a.zarr", "b.zarr", "--yes", "--samples", 1, "--format", "json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["word"] == "confirmed"
    states = [state_of(cli.folder / name) for name in ("a.zarr", "b.zarr")]
    assert outcome["by_state"] is (states[0] != states[1])
    assert [arm["state"] for arm in outcome["arms"]] == ["as-expected"] * 4

    runs = cli.folder / "a-b.confirm"
    assert compare(runs / "A0.zarr", runs / "lockstep.zarr").verdict is Verdict.IDENTICAL
    visible = compare(cli.folder / "a.zarr", cli.folder / "b.zarr").first_value
    assert visible is not None
    masked = [kind for kind in outcome["classes"] if (kind["op"], kind["row_in_a"]) != (visible.op, visible.a_index)]
    assert len(masked) == len(outcome["classes"]) - 1, outcome["classes"]
    if not masked:
        pytest.skip(f"{kernel_setting} changes one kind of op of it on this processor: no other is hidden")

    _, *lines = (runs / "trials.jsonl").read_text().splitlines()
    trials = {frozenset(trial["classes"]): trial["repaired"] for trial in map(json.loads, lines)}
    needed = frozenset(kind["kind"] for kind in outcome["classes"] if kind["matters"])
    assert trials[needed] is True
    assert all(trials[needed - {kind}] is False for kind in needed if len(needed) > 1)
    assert outcome["trials"] == sum(map(bool, trials))
