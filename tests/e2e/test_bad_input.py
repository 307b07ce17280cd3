"""Whatever goes wrong has a clear message and the right exit status, and what was recorded stays readable."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FEW_OPS = "import torch\nweight = torch.ones(3)\nfor _ in range(10):\n    weight = weight * 2\n"
MANY_OPS = "import torch\nweight = torch.ones(3)\nfor _ in range(70_000):\n    weight.mul_(1.0)\n"
COMMITTED = """
import re
from pathlib import Path
journal, rows = Path("t.zarr/processes/0/journal/log"), re.compile(rb'"type":"commit"[^}]*?"rows":([0-9]+)')
while sum(map(int, rows.findall(journal.read_bytes()))) <= 60_000:
    pass
"""
"""Goes on when most of ``t.zarr`` is committed, which happens beside the program."""


def write(cli: Any, code: str) -> Path:
    """A program of a few lines."""
    program: Path = cli.folder / "program.py"
    program.write_text(code)
    return program


def record(cli: Any, code: str, trace: str = "t.zarr") -> Any:
    return cli.rltrace("record", "-o", trace, "--", sys.executable, write(cli, code))


@pytest.fixture(scope="module")
def few_ops(new_cli: Callable[[], Any]) -> Path:
    """A trace of a few ops, for copies of it that tests damage."""
    cli = new_cli()
    assert record(cli, FEW_OPS).returncode == 0
    trace: Path = cli.folder / "t.zarr"
    return trace


def complaint(result: Any) -> str:
    """What rltrace said on standard error; it never shows a traceback of its own."""
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("rltrace: error: ")
    return str(result.stderr)


def info(cli: Any, trace: str = "t.zarr") -> Any:
    return json.loads(cli.rltrace("info", trace, "--format", "json").stdout)


# --- traces that are none, or damaged ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "what"),
    [("info", "missing"), ("ops", "file"), ("verify", "folder"), ("diff", "folder")],
)
def test_not_a_trace(cli: Any, verb: str, what: str) -> None:
    """Each verb names the path and says that it is no trace; status 2."""
    path = cli.folder / "x.zarr"
    if what == "file":
        path.write_text("something else")
    elif what == "folder":
        path.mkdir()
    result = cli.rltrace(verb, path, *([path] if verb == "diff" else []))
    assert result.returncode == 2
    assert "x.zarr" in complaint(result)


def test_newer_format(cli: Any, few_ops: Path) -> None:
    """A trace of a newer major version is refused by its version."""
    shutil.copytree(few_ops, cli.folder / "t.zarr")
    root = cli.folder / "t.zarr" / "zarr.json"
    metadata = json.loads(root.read_text())
    metadata["attributes"]["rltrace"]["format"] = [99, 0]
    root.write_text(json.dumps(metadata))
    result = cli.rltrace("info", "t.zarr")
    assert result.returncode == 2
    assert "99" in complaint(result)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "edited":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()


def damaged_copy(cli: Any, whole: Path, part: str, how: str) -> None:
    """``t.zarr``, and ``damaged.zarr``: the same with one file of its process damaged."""
    for name in ("t.zarr", "damaged.zarr"):
        shutil.copytree(whole, cli.folder / name)
    files = [p for p in (cli.folder / "damaged.zarr" / "processes").rglob("*") if p.is_file() and part in p.parts]
    damage(next(p for p in files if p.name != "zarr.json"), how)


@pytest.mark.parametrize(("part", "how"), [("rows", "truncated"), ("rows", "deleted"), ("cells", "edited")])
def test_damaged_rows_are_named(cli: Any, few_ops: Path, part: str, how: str) -> None:
    """The damaged file is named, the rows are a hole, and a comparison may do without them but never makes them up."""
    damaged_copy(cli, few_ops, part, how)
    result = cli.rltrace("verify", "damaged.zarr")
    assert result.returncode == 1
    assert f"{part}/c." in result.stdout
    lines = cli.rltrace("ops", "damaged.zarr").stdout.splitlines()
    assert len(lines) == 1
    assert "HOLE" in lines[0]
    status, found = cli.diff("t.zarr", "damaged.zarr")
    assert (status, found["verdict"]) in ((0, "identical"), (3, "unknown"))
    assert found["first"] is None


def test_damaged_journals_are_named(cli: Any, few_ops: Path) -> None:
    """Records that are whole are believed, and no other; what the lost ones said may be anything, so it stays open."""
    damaged_copy(cli, few_ops, "journal", "edited")
    result = cli.rltrace("verify", "damaged.zarr")
    assert result.returncode == 1
    assert "journal" in result.stdout
    status, found = cli.diff("t.zarr", "damaged.zarr")
    assert (status, found["verdict"]) == (3, "unknown")
    assert found["first"] is None
    assert found["holes"]


def test_a_journal_cut_short_is_damage(cli: Any, few_ops: Path) -> None:
    """What a journal does not describe was not committed; but the launch's journal knows how far it had come."""
    damaged_copy(cli, few_ops, "journal", "truncated")
    result = cli.rltrace("verify", "damaged.zarr")
    assert result.returncode == 1
    assert "at the end of the launch" in result.stdout
    assert cli.diff("t.zarr", "damaged.zarr")[1]["verdict"] == "unknown"


# --- recordings that go wrong ----------------------------------------------------------------------------------------


def test_trace_still_being_written(cli: Any) -> None:
    """A trace can be read while its program runs: state ``running``, and no verdict beyond what is there."""
    program = write(cli, MANY_OPS + "print('ready', flush=True)\ninput()\n")
    line = [Path(sys.executable).parent / "rltrace", "record", "--quiet", "-o", "t.zarr", "--", sys.executable, program]
    with subprocess.Popen(line, cwd=cli.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        assert [process["state"] for process in info(cli)["processes"]] == ["running"]
        # A file that is being written has another name, and gets its own while the folder is copied.
        shutil.copytree(cli.folder / "t.zarr", cli.folder / "copy.zarr", ignore=shutil.ignore_patterns("*.partial"))
        status, found = cli.diff("t.zarr", "copy.zarr")
        assert (status, found["verdict"]) == (3, "unknown")
        assert cli.rltrace("verify", "t.zarr").returncode == 0
        running.communicate("go on\n")
    assert running.returncode == 0
    assert [process["state"] for process in info(cli)["processes"]] == ["complete"]


def in_own_mounts(cli: Any, script: str) -> Any:
    """Run a shell script that may mount file systems of its own; skips where that is not allowed."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    return cli.run("unshare", "-m", "sh", "-c", script, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_full_disk(cli: Any) -> None:
    """The program runs to its end though the disk is full; rltrace says so, and what was written stays readable."""
    write(cli, "import torch\nfor _ in range(70_000):\n    torch.randn(3)\nprint('done')\n")
    result = in_own_mounts(
        cli,
        "mkdir small && mount -t tmpfs -o size=192k tmpfs small"
        " && rltrace record -o small/t.zarr -- python program.py; echo status $?; cp -r small kept",
    )
    assert "done" in result.stdout
    assert "status 125" in result.stdout
    assert "No space left" in result.stderr
    found = info(cli, "kept/t.zarr")
    assert found["processes"][0]["state"] != "complete"
    assert cli.rltrace("ops", "kept/t.zarr", "--limit", "3").returncode == 0


def test_read_only_folder(cli: Any) -> None:
    """Nothing is started when the trace cannot be made."""
    write(cli, "print('started')\n")
    result = in_own_mounts(
        cli,
        "mkdir fixed && mount -t tmpfs -o ro tmpfs fixed && rltrace record -o fixed/t.zarr -- python program.py",
    )
    assert result.returncode == 125
    assert "started" not in result.stdout
    assert "fixed/t.zarr" in complaint(result)


def test_refuses_to_overwrite(cli: Any, few_ops: Path) -> None:
    """A trace is overwritten only with ``--force``; what is no trace, not even then."""
    shutil.copytree(few_ops, cli.folder / "t.zarr")
    assert record(cli, FEW_OPS).returncode == 125
    program = cli.folder / "program.py"
    assert cli.rltrace("record", "--force", "-o", "t.zarr", "--", sys.executable, program).returncode == 0
    keep = cli.folder / "precious"
    keep.mkdir()
    (keep / "thesis.txt").write_text("years of work")
    result = cli.rltrace("record", "--force", "-o", keep, "--", sys.executable, program)
    assert result.returncode == 125
    assert (keep / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(("name", "status"), [("no-such-command", 127), ("./program.py", 126)])
def test_commands_that_cannot_run(cli: Any, name: str, status: int) -> None:
    """As env(1): 127 for a command that is not there, 126 for one that is not executable; no trace is left."""
    write(cli, FEW_OPS)
    result = cli.rltrace("record", "-o", "t.zarr", "--", name)
    assert result.returncode == status
    assert name.removeprefix("./") in complaint(result)


def test_command_that_never_imports_torch(cli: Any) -> None:
    """Nothing recorded is not success: 125, with a hint; but a status of the command's own is never covered up."""
    assert record(cli, "raise SystemExit(9)\n").returncode == 9
    shutil.rmtree(cli.folder / "t.zarr", ignore_errors=True)
    result = record(cli, "print('hello')\n")
    assert result.returncode == 125
    assert result.stdout == "hello\n"
    assert "torch" in result.stderr
    assert "hint" in result.stderr


def test_a_program_that_is_killed(cli: Any) -> None:
    """The status is the program's own, and what was committed is readable. Other ways to end: ``tests/launch``."""
    result = record(cli, MANY_OPS + COMMITTED + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    assert result.returncode == -signal.SIGKILL
    process = info(cli)["processes"][0]
    assert process["state"] == "killed"
    assert process["after_op"] > 60_000
    assert cli.rltrace("verify", "t.zarr").returncode == 0
    shown = cli.rltrace("ops", "t.zarr", "op=mul_", "--limit", "1")
    assert "aten.mul_" in shown.stdout
