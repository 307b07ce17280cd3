"""``docs/stories/extra_logging.md``: logging that changes nothing, and logging that draws a random number."""

from pathlib import Path

from shown import PAGES, expect, run, shown_on


def test_page(folder: Path) -> None:
    """``same-values`` with the extra ops alone; then the extra draw, and ``rng`` at the next op that draws."""
    shown = shown_on(PAGES / "extra_logging.md")
    now = [run(one.command, folder) for one in shown]
    expect(shown, now)

    weights = [line for one in now for line in one.output.splitlines() if line.startswith("final weights")]
    assert weights[0] == weights[1] != weights[2]
    reports = [one for one in now if one.command.startswith("rltrace diff")]
    assert [one.status for one in reports] == [0, 1]
    assert "SAME VALUES" in reports[0].output
    assert reports[1].output.index("control-flow") < reports[1].output.index("cause    rng")
