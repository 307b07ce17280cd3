"""``docs/examples/critic_drift.md``: other kernels in the critic alone, seen in the curves only much later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shown import PAGES, differs, run, shown_on, without

OF_THE_PROCESSOR = ("Where the numbers that were read out part", "How the curves come apart")
"""How a first bit grows is another story on another processor."""


def test_page(folder: Path) -> None:
    """The critic's gelu is named, for its kernel; the value loss parts later, and the returns not before it."""
    shown = shown_on(PAGES / "critic_drift.md")
    now = [run(one.command, folder) for one in shown]
    if (
        now[0].output.splitlines()[-2] == now[1].output.splitlines()[-2]
    ):  # the final weights, as the program prints them
        pytest.skip("ONEDNN_MAX_CPU_ISA=AVX2 does not change what gelu computes on this processor")
    for one, other in zip(shown, now, strict=True):
        page, found = (without(text, *OF_THE_PROCESSOR) for text in (one.output, other.output))
        assert not differs(page, found), differs(page, found)

    report = json.loads(run("rltrace diff here.zarr there.zarr --format json", folder).output)
    first = report["first_value"]
    assert (first["cause"], first["op"], first["module"], first["step"]) == (
        "kernel",
        "aten.gelu.default",
        "Agent.critic.1",
        0,
    )
    begins = {drift["name"].split('"')[1]: drift["first"]["step"] for drift in report["drift"]}
    assert 0 < begins["value loss"] <= begins.get("return", begins["value loss"])
    assert "First bit at step 0 (Agent.critic.1's gelu)" in " ".join(now[2].output.split())
