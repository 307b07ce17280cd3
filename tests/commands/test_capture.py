"""``rltrace capture`` on the command line: what it refuses before anything is run, each in words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.testing import TraceBuilder


def made(name: str, value: str = "x", machine: str | None = None) -> None:
    """A trace of three steps; the second has this value."""
    builder = TraceBuilder(Path(name))
    if machine is not None:
        builder.fact("host.machine", machine)
    for step in range(3):
        builder.op("aten.mm.default", outputs=[value if step == 1 else f"{step}"])
        builder.end_step()
    builder.finish()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two traces that diverge in step 1, one of another machine, and files that are in the way."""
    monkeypatch.chdir(tmp_path)
    made("a.zarr")
    made("b.zarr", "y")
    made("far.zarr", machine="abacus")
    Path("letter.txt").write_text("dear all")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.zarr"], "give the steps: --for OTHER.zarr"),
        (["a.zarr", "--steps", "0:2", "--for", "b.zarr"], "one of the two"),
        (["a.zarr", "--steps", "0:2", "--until", "1"], "--until goes with --for"),
        (["a.zarr", "--steps", "1:"], "give the last step, too, as in 1:3"),
        (["a.zarr", "--steps", "2:1"], "--steps 2:1 is empty"),
        (["a.zarr", "--steps", "4:6"], "has no step 4: it has 3"),
        (["a.zarr", "--for", "a.zarr"], "the same trace"),
        (["a.zarr", "--for", "b.zarr", "--until", "0"], "ends before the first difference, which is in step 1"),
        (["a.zarr", "--steps", "0:2", "-o", "letter.txt"], "exists already"),
        (["a.zarr", "--steps", "0:2", "-o", "letter.txt", "--force"], "is no capture"),
        (["a.zarr", "--steps", "0:2", "-o", "gone/a.capture"], "there is no folder gone"),
        (["a.zarr", "--steps", "0:2", "--env", "NAME"], "is not NAME=VALUE"),
        (["a.zarr", "--steps", "0:2", "--folder", "gone"], "is not a folder"),
        (["a.zarr", "--steps", "0:2", "--folder", ".", "--share", "data"], "there is no"),
        (["far.zarr", "--steps", "0:2"], "its program has to be run there; capture it there"),
        (["letter.txt", "--steps", "0:2"], "letter.txt"),
    ],
)
def test_what_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Trouble, and nothing is left behind or written over."""
    before = sorted(Path().iterdir())
    assert main(["capture", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert sorted(Path().iterdir()) == before
    assert Path("letter.txt").read_text() == "dear all"


def test_without_a_terminal_to_ask_at(capsys: pytest.CaptureFixture[str]) -> None:
    """The command is shown, and not run: it comes from the trace, and was not agreed to."""
    arguments = ["capture", "a.zarr", "--for", "b.zarr", "--folder", ".", "--cmd", "python other.py --fast"]
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert "this runs 2 times, up to the end of steps 1 to 2" in shown
    assert "python other.py --fast" in shown and "give --yes" in shown
    assert not Path("a.capture.runs").exists()
