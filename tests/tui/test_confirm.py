"""The experiment's screen: there is an outcome, it is not finished, it is no outcome, there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from tui_support import OUTCOME, play, press, screen_text

from rltrace.experiment.outcome import ArmState, outcome_path, write_outcome
from rltrace_tui.diff_app import DiffApp
from rltrace_tui.ops_screen import OpsScreen


def test_an_outcome_beside_the_trace(parted: tuple[Path, Path]) -> None:
    """Four arms, the word, the kinds of op with their share; Enter on a kind shows its first op in the list."""
    write_outcome(outcome_path(*parted), OUTCOME)

    async def scene(pilot: Pilot[Any], app: DiffApp) -> None:
        await press(pilot, app, "4")
        text = "\n".join(screen_text(app))
        assert "✓ B←A" in text and "matches A to the end of step 2" in text and "CONFIRMED" in text
        assert "75.0%" in text and "needed" in text and "makes no difference" in text and "max 3 ULP" in text
        await press(pilot, app, "y")
        assert "✓ A0" in app.clipboard and "aten.sub.Tensor" in app.clipboard
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpsScreen)
        line = app.ops.list.line
        assert line is not None and (line.a, line.b) == (25, 25)
        await press(pilot, app, "4", "down", "enter")
        assert any("in A was not recorded" in n.message for n in app._notifications)

    play(*parted, scene)


def test_an_experiment_that_goes_on(parted: tuple[Path, Path], tmp_path: Path) -> None:
    """An unfinished one is drawn as far as it is, and again when its file has grown."""
    file = tmp_path / "elsewhere.json"
    arms = (OUTCOME.arms[0], replace(OUTCOME.arms[1], state=ArmState.RUNNING, result=""))
    write_outcome(file, replace(OUTCOME, word=None, arms=arms, classes=(), explanation=""))

    async def scene(pilot: Pilot[Any], app: DiffApp) -> None:
        await press(pilot, app, "4")
        text = "\n".join(screen_text(app))
        assert "RUNNING" in text and "… B0" in text and "CONFIRMED" not in text
        write_outcome(file, OUTCOME)
        await press(pilot, app, "r")
        assert "CONFIRMED" in "\n".join(screen_text(app))

    play(*parted, scene, confirm=file)


def test_no_outcome(parted: tuple[Path, Path], tmp_path: Path) -> None:
    """Without one it is said where it is looked for; a file that holds something else is named, with what is wrong."""

    async def none(pilot: Pilot[Any], app: DiffApp) -> None:
        await press(pilot, app, "4")
        text = "".join("".join(screen_text(app)).replace("│", "").split())
        assert "Noexperimenthasbeenrun" in text and "a-b.confirm.json" in text

    async def wrong(pilot: Pilot[Any], app: DiffApp) -> None:
        await press(pilot, app, "4")
        text = " ".join("\n".join(screen_text(app)).replace("│", " ").split())
        assert "is not the outcome of an experiment" in text and app.failure is None

    async def others(pilot: Pilot[Any], app: DiffApp) -> None:
        await press(pilot, app, "4")
        text = " ".join("\n".join(screen_text(app)).replace("│", " ").split())
        assert "on other traces" in text and "CONFIRMED" not in text

    play(*parted, none)
    (tmp_path / "wrong.json").write_text("[]")
    play(*parted, wrong, confirm=tmp_path / "wrong.json")
    write_outcome(tmp_path / "others.json", replace(OUTCOME, subject={"a": "1", "b": "2"}))
    play(*parted, others, confirm=tmp_path / "others.json")
