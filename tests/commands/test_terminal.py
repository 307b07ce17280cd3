"""When the terminal interface opens, and what the command ends with when it was left."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from programs import Do, recorded, training

from rltrace.commands import _terminal
from rltrace.commands.main import main
from rltrace.diff import CompareOptions, Comparison, compare
from rltrace.diff.base.model import Pair
from rltrace.errors import UsageError


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    other = [Do("aten.randn.default", (), "w1", 1, noise="x"), *training()[1:]]
    return recorded(tmp_path / "a.zarr", training()).path, recorded(tmp_path / "b.zarr", other).path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """As at a terminal: what the interface was opened on. It is left with the comparison."""
    asked: list[object] = []

    def show(a: Path, b: Path, *, strict: bool, starts: Pair[int] | None) -> Comparison:
        asked.append((a, b, strict))
        return compare(a, b, CompareOptions(strict=strict))

    monkeypatch.setattr(_terminal, "can_open", lambda: True)
    monkeypatch.setattr(_terminal, "show_diff", show)
    return asked


def test_status_is_that_of_the_verdict(traces: tuple[Path, Path], opened: list[object]) -> None:
    """Leaving the interface ends with what the report would have ended with."""
    assert main(["diff", *map(str, traces), "--strict"]) == 1
    assert opened == [(*traces, True)]


@pytest.mark.parametrize("option", [["--no-tui"], ["--format", "text"], ["--format", "json"]])
def test_report_on_request(
    traces: tuple[Path, Path], opened: list[object], option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """--no-tui and --format print, at a terminal too."""
    assert main(["diff", *map(str, traces), *option]) == 1
    assert opened == [] and "diverged" in capsys.readouterr().out.lower()
    assert main(["diff", *map(str, traces), "--confirm", "none.json"]) == 2
    assert opened == []


@pytest.mark.parametrize("option", [["--no-tui"], ["--format", "text"], ["--format", "json"], []])
def test_show(
    traces: tuple[Path, Path], option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One trace opens at a terminal; on request, and elsewhere, what ``info`` prints is printed."""
    opened: list[Path] = []
    monkeypatch.setattr(_terminal, "show_trace", opened.append)
    form = option if option[:1] == ["--format"] else []
    assert main(["info", str(traces[0]), *form]) == 0
    as_info = capsys.readouterr().out
    for at_a_terminal in (True, False):
        monkeypatch.setattr(_terminal, "can_open", lambda seated=at_a_terminal: seated)
        assert main(["show", str(traces[0]), *option]) == 0
        opens = at_a_terminal and not option
        assert opened == [traces[0]] if opens else capsys.readouterr().out == as_info
    assert main(["show", str(traces[0].parent / "none.zarr")]) == 2


def test_left_before_the_verdict(traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict, no word on the runs: 130, as after Ctrl-C. A failure of the search: 2."""
    monkeypatch.setattr(_terminal, "can_open", lambda: True)
    monkeypatch.setattr(_terminal, "show_diff", lambda *_, **__: None)
    assert main(["diff", *map(str, traces)]) == 130

    def broken(*_: object, **__: object) -> None:
        raise UsageError("they cannot be compared")

    monkeypatch.setattr(_terminal, "show_diff", broken)
    assert main(["diff", *map(str, traces)]) == 2


@pytest.mark.parametrize(("term", "opens"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_opens_at_a_terminal_that_can_draw(monkeypatch: pytest.MonkeyPatch, term: str, opens: bool) -> None:
    """Both ends have to be a terminal, and it has to be able to draw."""

    class End:
        def __init__(self, tty: bool) -> None:
            self.isatty = lambda: tty

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdin", End(True))
    monkeypatch.setattr(sys, "stdout", End(True))
    assert _terminal.can_open() is opens
    monkeypatch.setattr(sys, "stdout", End(False))
    assert not _terminal.can_open()


RUN = "import sys; from rltrace.commands.main import main; sys.exit(main(sys.argv[1:]))"
BROKEN = "import rltrace_tui.diff_text as words; words.environment_lines = lambda *_: 1 / 0; "


def at_a_terminal(code: str, traces: tuple[Path, Path], answer: bytes) -> tuple[int, bytes]:
    """Run ``rltrace diff`` in a pseudo-terminal, press ``answer`` at the verdict: exit status, and what was drawn."""
    master, slave = pty.openpty()
    command = [sys.executable, "-c", code, "diff", *map(str, traces)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True)
    os.close(slave)
    seen, pressed = b"", False
    try:
        while select.select([master], [], [], 60)[0]:
            try:
                seen += os.read(master, 1 << 16)
            except OSError:  # the other end is closed: it ended
                break
            if not pressed and b"DIVERGED" in seen and b"Overview" in seen:
                pressed = True
                os.write(master, answer)
        return process.wait(60), seen
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_real_terminal(traces: tuple[Path, Path]) -> None:
    """In a pseudo-terminal the interface draws the verdict; q leaves, with exit status 1."""
    status, seen = at_a_terminal(RUN, traces, b"q")
    assert status == 1 and b"DIVERGED" in seen and b"Traceback" not in seen


def test_no_traceback(traces: tuple[Path, Path]) -> None:
    """A mistake of ours in drawing ends the interface with one readable line, and the terminal as it was."""
    status, seen = at_a_terminal(BROKEN + RUN, traces, b"")
    assert status == 2 and b"rltrace: error: ZeroDivisionError" in seen and b"Traceback" not in seen
    assert seen.rindex(b"\x1b[?1049l") < seen.index(b"ZeroDivisionError")
