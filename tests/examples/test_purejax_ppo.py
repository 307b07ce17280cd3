"""``docs/stories/purejax_ppo.md``: runs of a JAX program in two groups, by their instruction set."""

import os
from pathlib import Path

import pytest
from shown import PAGES, expect, run, shown_on


@pytest.mark.skipif(os.environ.get("EXAMPLES") != "new", reason="eight compilations of PPO by XLA: with EXAMPLES=new")
def test_page(folder: Path) -> None:
    """Four alike and three not, from the first iteration on; the same instruction set heals it."""
    shown = shown_on(PAGES / "purejax_ppo.md")
    now = [run(one.command, folder) for one in shown]
    assert [one.status for one in now] == [0, 0, 1, 0, 0]
    expect(shown, now)
