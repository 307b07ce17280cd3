"""``docs/examples/router_replay.md``: experts that flip between rollout and update, and the rollout's put into it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shown import PAGES, differs, run, shown_on, without_numbers


def test_page(folder: Path) -> None:
    """Flips are found with their margins; the experts alone, put in, take most of the gap. With the weights it is one
    more run, which is tested elsewhere."""
    shown = shown_on(PAGES / "router_replay.md")[:4]
    now = [run(one.command, folder) for one in shown]
    _, train, compared, replayed = now
    flips = re.search(r"Routing: (\d+) of \d+ decisions flipped", compared.output)
    if flips is None or flips[1] == "0":
        pytest.skip("on this processor both programs choose the same experts")
    for one, other in zip(shown, now, strict=True):
        page, found = without_numbers(one.output), without_numbers(other.output)
        assert not differs(page, found), differs(page, found)
    assert [one.status for one in now] == [0, 0, 1, 0]
    before, after = (_gap(one.output) for one in (train, replayed))
    assert 0 < after < 0.7 * before
    assert f"apart    {before:.3e} in the mean" in compared.output


def _gap(printed: str) -> float:
    found = re.search(r"mean \|logprob difference\| (\S+)", printed)
    assert found is not None, printed
    return float(found[1])
