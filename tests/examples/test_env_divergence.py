"""``docs/stories/env_divergence.md``: an environment with a generator that is not seeded."""

import re
from pathlib import Path

from shown import PAGES, expect, run, shown_on, without

OF_THE_WEATHER = "How the curves diverge"
"""How far the unseeded gust drives two runs apart is another story each time."""

EPISODES = re.compile(r"after\s+[\d,]+\s+environment\s+steps")
"""So is how long an episode lasts."""


def test_page(folder: Path) -> None:
    """``outside``, at what one environment returned at one of its steps; with its weather seeded, runs are equal."""
    shown = shown_on(PAGES / "env_divergence.md")
    now = [run(one.command, folder) for one in shown]
    expect(shown, now, lambda text: EPISODES.sub("after <n> environment steps", without(text, OF_THE_WEATHER)))
    compared, checked = (one for one in now if one.command.startswith(("rltrace diff", "rltrace check")))
    assert (compared.status, checked.status) == (1, 0)
    assert "outside: Environment 2 (Car) returned another observation" in " ".join(compared.output.split())
