"""``docs/stories/trainer_generator.md``: where a trainer and its generator diverge; with the same sums they do not."""

import re
from pathlib import Path

import pytest
from shown import PAGES, expect, run, shown_on, without_numbers

from rltrace.commands.main import main

LEAST = "--group 2 --new-tokens 3"
"""What the variant is run with here: taken row by row, more tokens only take longer."""


@pytest.mark.processor
def test_page(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The attention is named, with both shapes, and the gap is the one that the program prints; required to be bitwise
    equal, it fails, and the variant passes."""
    shown = {one.command: one for one in shown_on(PAGES / "trainer_generator.md")}
    recording, comparing, again, requiring = shown
    now = {command: run(command, folder) for command in (recording, comparing)}
    printed = [float(mean) for mean in re.findall(r"difference\| (\S+)", now[recording].output)]
    if not any(printed):
        pytest.skip("on this processor the attention of both shapes comes to the same bits")
    expect((shown[command] for command in now), now.values(), without_numbers)
    assert now[comparing].status == 1
    apart = re.search(r"\|A - B\|  (\S+) mean", now[comparing].output)
    assert min(printed) <= float(apart[1]) <= max(printed)
    monkeypatch.chdir(folder)
    assert main(["compare", "grpo.zarr", "--require", "bitwise"]) == 1

    variant = run(f"{again} {LEAST}", folder)
    assert "mean |logprob difference| 0.000e+00  largest 0.000e+00" in variant.output, variant.output
    capsys.readouterr()
    assert requiring.split()[0] == "rltrace" and main(requiring.split()[1:]) == 0
    assert capsys.readouterr().out.startswith("BITWISE EQUAL")
