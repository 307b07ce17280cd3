"""The experiment's screen: there is an outcome, it is not finished, it is no outcome, there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tui_support import OUTCOME, at_terminal, press, screen_text

from rltrace.experiment.outcome import ArmState, outcome_path, write_outcome
from rltrace_tui.diff_app import DiffApp
from rltrace_tui.ops_screen import OpsScreen


async def test_an_outcome_beside_the_trace(diverged: tuple[Path, Path]) -> None:
    """Four arms, the word, the kinds of op with their share; Enter on a kind shows its first op in the list."""
    write_outcome(outcome_path(*diverged), OUTCOME)
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "4")
        text = "\n".join(screen_text(app))
        assert "✓ B←A" in text and "matches A to the end of step 2" in text and "CONFIRMED" in text
        assert "75.0%" in text and "needed" in text and "makes no difference" in text and "max 3 ULP" in text
        await press(pilot, app, "y")
        assert "✓ A0" in app.clipboard and "aten.sub.Tensor" in app.clipboard
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpsScreen)
        line = app.ops.list.line
        assert (line.a, line.b) == (25, 25)
        await press(pilot, app, "4", "down", "enter")
        assert any("in A was not recorded" in n.message for n in app._notifications)


async def test_an_experiment_that_goes_on(diverged: tuple[Path, Path], tmp_path: Path) -> None:
    """An unfinished one is drawn as far as it is, and again when its file has grown."""
    file = tmp_path / "elsewhere.json"
    arms = (OUTCOME.arms[0], replace(OUTCOME.arms[1], state=ArmState.RUNNING, result=""))
    write_outcome(file, replace(OUTCOME, word=None, arms=arms, classes=(), explanation=""))
    async with at_terminal(DiffApp(*diverged, confirm=file)) as (pilot, app):
        await press(pilot, app, "4")
        text = "\n".join(screen_text(app))
        assert "RUNNING" in text and "… B0" in text and "CONFIRMED" not in text
        write_outcome(file, OUTCOME)
        await press(pilot, app, "r")
        assert "CONFIRMED" in "\n".join(screen_text(app))


async def test_no_outcome(diverged: tuple[Path, Path], tmp_path: Path) -> None:
    """Without one it is said where it is looked for; a file that holds something else is named, with what is wrong."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "4")
        text = "".join("".join(screen_text(app)).replace("│", "").split())
        assert "Noexperimenthasbeenrun" in text and "a-b.confirm.json" in text
    (tmp_path / "wrong.json").write_text("[]")
    async with at_terminal(DiffApp(*diverged, confirm=tmp_path / "wrong.json")) as (pilot, app):
        await press(pilot, app, "4")
        text = " ".join("\n".join(screen_text(app)).replace("│", " ").split())
        assert "is not the outcome of an experiment" in text and app.failure is None
    write_outcome(tmp_path / "others.json", replace(OUTCOME, subject={"a": "1", "b": "2"}))
    async with at_terminal(DiffApp(*diverged, confirm=tmp_path / "others.json")) as (pilot, app):
        await press(pilot, app, "4")
        text = " ".join("\n".join(screen_text(app)).replace("│", " ").split())
        assert "on other traces" in text and "CONFIRMED" not in text
