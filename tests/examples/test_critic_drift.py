"""``docs/stories/critic_drift.md``: other kernels in the critic alone, seen in the curves only much later."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from shown import PAGES, expect, run, shown_on, without

OF_THE_PROCESSOR = "How the curves diverge"
"""How a first difference grows is another story on another processor."""

SETTING = "ONEDNN_MAX_CPU_ISA"


def as_here(page: str) -> str:
    """The page, as it reads where the setting has a value to begin with: then that is what the first run had."""
    if given := os.environ.get(SETTING):
        for word, place in (("auto", "oneDNN {}"), ("auto", "set {} against"), ("unset", "{} against SSE41")):
            page = page.replace(place.format(word), place.format(given))
        page = page.replace("(unset) | SSE41", f"{given} | SSE41")
    return page


@pytest.mark.processor
def test_page(folder: Path) -> None:
    """The critic's gelu is named, for its kernel; the value loss differs later, and the returns not before it."""
    shown = shown_on(PAGES / "critic_drift.md")
    now = [run(one.command, folder) for one in shown]
    weights = [one.output.splitlines()[-2] for one in now[:2]]
    if weights[0] == weights[1]:
        pytest.skip(f"{SETTING} =SSE41 does not change what gelu computes on a processor that is no x86 with AVX2")
    pages = [replace(one, output=as_here(one.output)) for one in shown]
    expect(pages, now, lambda text: without(text, OF_THE_PROCESSOR))

    report = json.loads(run("rltrace diff here.zarr there.zarr --format json", folder).output)
    first = report["first_value"]
    assert (first["cause"], first["step"]) == ("kernel", 0)
    assert (first["op"], first["module"]) == ("aten.gelu.default", "Agent.critic.1")
    begins = {drift["name"].split('"')[1]: drift["first"]["step"] for drift in report["drift"]}
    assert 0 < begins["value loss"] <= begins.get("return", begins["value loss"])
    assert "First difference at step 0 (Agent.critic.1's gelu)" in " ".join(now[2].output.split())
