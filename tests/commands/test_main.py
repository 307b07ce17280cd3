"""One exit status for whatever happens, and verbs that are loaded when they are called."""

import os
import subprocess
import sys
from importlib import import_module
from math import ceil
from pathlib import Path

import click
import pytest

from rltrace.commands import console
from rltrace.commands._option_types import VerbOption
from rltrace.commands.console import ExitCode
from rltrace.commands.main import VERBS, guarded, main
from rltrace.errors import NotATraceError, UsageError
from rltrace.extension import Verb
from rltrace.testing import TraceBuilder

RLTRACE = Path(sys.executable).parent / "rltrace"


# --- help and verbs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_screen(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 80 columns and 40 lines, whether -h or --help shows it; each option takes one of the lines."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = []
    for option in ("-h", "--help"):
        assert main([verb, option]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    lines = shown[0].splitlines()
    assert sum(max(1, ceil(len(line) / 80)) for line in lines) <= 40
    command = import_module(VERBS[verb].module).command
    options = [each for each in command.params if isinstance(each, VerbOption) and not each.hidden]
    last = shown[0].rpartition("\n\n")[2].splitlines() if options else []
    listed = [line.split()[0].rstrip(",") for line in last if line.startswith("  -")]
    assert sorted(listed) == sorted(each.opts[0] for each in options)
    assert len(last) == len(options) + len({each.group for each in options})


def test_help_lists_the_verbs_that_are_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A verb whose file is missing is left out; the others stay usable."""
    monkeypatch.setitem(VERBS, "no-such-verb", Verb("Look", "Does nothing.", "rltrace.commands.no_such_verb"))
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "record" in shown
    assert "no-such-verb" not in shown
    assert main(["no-such-verb"]) == ExitCode.TROUBLE


def test_the_module_is_the_command() -> None:
    """``python -m rltrace`` is the command."""
    shown = subprocess.run([sys.executable, "-m", "rltrace", "--version"], capture_output=True, text=True).stdout
    assert shown.startswith("rltrace ")


@pytest.mark.parametrize(
    ("arguments", "likely"),
    [
        (["dif", "a", "b"], "Did you mean diff?"),
        (["diff", "run", "run"], "run is no trace: no such file (did you mean run.zarr?)"),
        (["info", "ruin.zarr"], "ruin.zarr is no trace: no such file (did you mean run.zarr?)"),
        (["info", "no/run"], "no/run is no trace: no such file\n"),
        (["ops", "run.zarr", "mm"], "a selector is key=glob (op=mm?), with"),
        (["record", "b.zarr", "--", "python", "t.py"], "rltrace record -o b.zarr -- python t.py"),
    ],
)
def test_a_likely_slip_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    likely: str,
) -> None:
    """A verb, a trace's name, a selector and the trace of a recording as people write them."""
    monkeypatch.chdir(tmp_path)
    trace = TraceBuilder(tmp_path / "run.zarr")
    trace.op("aten.mm.default")
    trace.finish()
    assert main(arguments) != 0
    assert likely in capsys.readouterr().err


# --- exit statuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--no-such-option"], 2),
        (["no-such-verb"], 2),
        ([], 2),
        (["diff", "--no-such-option"], 2),
        (["record", "--no-such-option", "true"], 125),
        (["record"], 125),
        (["record", "--steps", "x", "true"], 125),
        (["record", "--level", "all", "true"], 125),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int) -> None:
    """A command line that makes no sense ends with 2, under ``record`` with 125, which no program's failure means."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == "" and err


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (NotATraceError("x is no trace"), 2, "rltrace: error: x is no trace"),
        (UsageError("no"), 2, "rltrace: error: no"),
        (ZeroDivisionError("division\nby zero"), 2, "rltrace: error: ZeroDivisionError: division by zero"),
        (FileNotFoundError(2, "No such file or directory", "a.zarr"), 2, "No such file or directory (a.zarr)"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_whatever_is_raised(capsys: pytest.CaptureFixture[str], error: BaseException, status: int, words: str) -> None:
    """Each kind of ending has its status and at most one line, never a traceback."""
    assert guarded(lambda: fail(error), ExitCode.TROUBLE) == status
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown
    assert bool(shown) == bool(words)


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The hint names the variable, and the variable shows where an unforeseen error comes from."""
    monkeypatch.delenv("RLTRACE_DEBUG", raising=False)
    assert guarded(lambda: fail(KeyError("k")), ExitCode.RLTRACE_FAILED) == 125
    assert "RLTRACE_DEBUG=1" in capsys.readouterr().err
    monkeypatch.setenv("RLTRACE_DEBUG", "1")
    assert guarded(lambda: fail(KeyError("k")), ExitCode.RLTRACE_FAILED) == 125
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("result", "status"), [(None, 0), (ExitCode.UNDECIDED, 3), (1, 1), (0, 0)])
def test_what_a_verb_returns(result: object, status: int) -> None:
    """A verb returns its status, or nothing."""
    assert guarded(lambda: result, ExitCode.TROUBLE) == status


def test_reader_that_left() -> None:
    """Standard output is not read: no message, and not a status that reads as a verdict."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        result = subprocess.run([RLTRACE, "--help"], stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written(unbuffered: str) -> None:
    """A full disk under standard output is an error, not success, and is reported once, whenever the write is made."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([RLTRACE, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert result.returncode == 2
    assert result.stderr.count("No space left on device") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_data_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said what could not be written, and is no failure of rltrace to be looked into."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert guarded(lambda: console.emit("data"), ExitCode.TROUBLE) == 2
        monkeypatch.undo()
    shown = capsys.readouterr().err
    assert shown == "rltrace: error: standard output cannot be written: No space left on device\n"


# --- the console ------------------------------------------------------------------------------------------------------


def test_color(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``--color`` beats NO_COLOR; without a terminal there is none."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.use_color("always")
    assert not console.use_color("auto")
    assert not console.use_color("never")
    monkeypatch.delenv("NO_COLOR")
    assert not console.use_color("auto")  # standard output is captured, so no terminal
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5_400_000_000, "5.4 GB"),
        (2 * 10**12, "2.0 TB"),
    ],
)
def test_readable_size(size: int, text: str) -> None:
    """Sizes keep one decimal and never read 1000 of a unit."""
    assert console.readable_size(size) == text
