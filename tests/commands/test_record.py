"""``rltrace record`` as a person uses it: real programs with a real torch, and ways in which nothing is recorded."""

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.commands._recording import still_compiled, unmatched_selectors, unreached_steps
from rltrace.commands.main import main
from rltrace.distribution import own_requirement
from rltrace.errors import UsageError
from rltrace.launch.summary import RecordingSummary, advice
from rltrace.recorder.base.options import RecordOptions, parse_size, parse_steps
from rltrace.trace.format.records import ActivationRequest, ValueRequest
from rltrace.trace.read.reader import open_trace

RLTRACE = Path(sys.executable).parent / "rltrace"
PYTHON = sys.executable

PROGRAM = """
import sys
import torch

def work():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        (weight * 2).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    sys.stdout.buffer.write(repr(sys.argv[1:]).encode() + b"\\xff\\x00\\n")
    sys.stderr.buffer.write(b"\\xfe noise\\n")
    print(sys.stdin.read())
    work()
"""


def run(folder: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, input=b"from outside", capture_output=True
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one program in it."""
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_script(folder: Path) -> None:
    """A script: its streams, input and arguments are its own, byte by byte; two lines say what was recorded."""
    arguments = ["--help", "-o", "x", "--", "--steps", "3:4", "", "a b"]
    plain = run(folder, PYTHON, "train.py", *arguments)
    recorded = run(folder, RLTRACE, "record", "--engine", "mode", "--", PYTHON, "train.py", *arguments)
    quiet = run(folder, RLTRACE, "record", "--quiet", PYTHON, "train.py", *arguments)
    assert plain.stdout == recorded.stdout == quiet.stdout != b""
    assert quiet.stderr == plain.stderr
    assert recorded.returncode == quiet.returncode == 0
    first, noise, last = recorded.stderr.split(b"\n", 2)
    assert (first, noise) == (b"rltrace: recording to train-1.zarr (every op)", b"\xfe noise")
    assert last.startswith(b"rltrace: recorded 1 process, ")
    assert b" 4 steps, " in last
    assert last.endswith(b" (complete) in train-1.zarr\n")
    assert [process.state for process in open_trace(folder / "train-2.zarr").processes] == ["complete"]


FEW_OPS = """
import torch

def work():
    weight = torch.ones(3)
    (weight * 2).sum()

if __name__ == "__main__":
    work()
"""
SPAWN = """
import multiprocessing
from train import work
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""
CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'], check=True)\n"


@pytest.mark.usefixtures("new_processes")
def test_ways_in(folder: Path) -> None:
    """The recorder gets into every process that imports torch: a module, a script of the shell, the child of another
    process, a worker that is spawned."""
    (folder / "train.py").write_text(FEW_OPS)
    (folder / "tool").write_text(f"#!{PYTHON}\nfrom train import work\nwork()\n")
    (folder / "tool").chmod(0o755)
    (folder / "parent.py").write_text(CHILD)
    (folder / "spawn.py").write_text(SPAWN)
    script = f"{PYTHON} -m train | cat; ./tool && {PYTHON} parent.py && {PYTHON} spawn.py"
    result = run(folder, RLTRACE, "record", "-o", "t.zarr", "--", "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    found = open_trace(folder / "t.zarr").processes
    assert [process.state for process in found] == ["complete"] * 5
    assert sorted(process.after_op for process in found) == [0, 3, 3, 3, 3]


def test_until(folder: Path) -> None:
    """A program that ``--until`` ended has done what was asked: status 0, state ``stopped``."""
    result = run(folder, RLTRACE, "record", "-o", "t.zarr", "--until", "1", "--", PYTHON, "train.py")
    assert result.returncode == 0
    (process,) = open_trace(folder / "t.zarr").processes
    assert (process.state, len(process.steps)) == ("stopped", 2)


def test_launch_record(folder: Path) -> None:
    """The trace says what was launched and where, without secrets and without the home folder's path."""
    line = ["--api-key", "abcdef", "--lr=3e-4", f"{folder}/data"]
    run(folder, RLTRACE, "record", "-o", "t.zarr", "--", PYTHON, "train.py", *line, HOME=str(folder))
    launch = open_trace(folder / "t.zarr").launch
    command = launch["command"]
    assert isinstance(command, list)
    assert command[1:] == ["train.py", "--api-key", "***", "--lr=3e-4", "~/data"]
    assert launch["cwd"] == "~"
    options = {"level": "op", "first_step": 0, "end_step": None, "until": None, "verify_inputs": False}
    assert launch["options"] == options
    assert str(launch["created"]).endswith("+00:00")


# --- what is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([PYTHON, "-c", "print('hi')"], "never imported torch"),
        ([PYTHON, "-I", "train.py"], "started with -I"),
        ([PYTHON, "-E", "train.py"], "started with -E"),
        (["env", "-i", PYTHON, "train.py"], "env -i"),
        (["true"], "no Python process"),
    ],
)
def test_nothing_recorded(folder: Path, command: list[str], words: str) -> None:
    """A command that ended well and left nothing behind: 125, the likely reason, and no empty trace."""
    (folder / "train.py").write_text(FEW_OPS)
    result = run(folder, RLTRACE, "record", "--quiet", "-o", "t.zarr", "--", *command)
    assert result.returncode == 125
    assert "nothing was recorded" in result.stderr.decode(errors="replace")
    assert words in result.stderr.decode(errors="replace")
    assert not (folder / "t.zarr").exists()


def test_what_a_failed_recording_replaces(folder: Path) -> None:
    """``--force`` replaces a trace by one that holds something: a mistyped command, or one that fails, leaves it."""
    (folder / "train.py").write_text(FEW_OPS)
    (folder / "fails.py").write_text("import torch\nraise SystemExit(3)\n")
    record = (RLTRACE, "record", "--force", "-o", "t.zarr", "--")
    assert run(folder, *record, PYTHON, "train.py").returncode == 0
    first = open_trace(folder / "t.zarr").launch["id"]
    for command, status in (((PYTHON, "trian.py"), 2), (("pyton", "train.py"), 127)):
        assert run(folder, *record, *command).returncode == status
        assert open_trace(folder / "t.zarr").launch["id"] == first
    failed = run(folder, *record, PYTHON, "fails.py")
    assert (failed.returncode, b"to be replaced is t-old-1.zarr" in failed.stderr) == (3, True)
    assert open_trace(folder / "t-old-1.zarr").launch["id"] == first
    assert run(folder, *record, PYTHON, "train.py").returncode == 0
    assert open_trace(folder / "t.zarr").launch["id"] != first
    assert sorted(path.name for path in folder.glob("*.zarr")) == ["t-old-1.zarr", "t.zarr"]


@pytest.mark.usefixtures("new_processes")
def test_recorder_that_cannot_start(folder: Path) -> None:
    """The program runs as ever; the launcher says why nothing of it was recorded."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "train.py").write_text("import torch\nprint('as ever')\n")
    result = run(folder, RLTRACE, "record", "--quiet", "--", PYTHON, "train.py")
    assert (result.returncode, result.stdout) == (125, b"as ever\n")
    assert b"nothing was recorded: ModuleNotFoundError" in result.stderr
    assert result.stderr.count(b"recorded") == 1


@pytest.mark.parametrize("has_torch", [True, False])
@pytest.mark.parametrize("command", [("other/bin/python", "train.py"), ("other/bin/tool",)], ids=["python", "script"])
def test_python_without_rltrace(folder: Path, command: tuple[str, ...], has_torch: bool) -> None:
    """Nothing is started in a Python that has torch and no rltrace; one without torch may start another one."""
    venv.create(folder / "other", symlinks=True)
    (folder / "train.py").write_text("open('ran', 'w').close()\n")
    python = folder / "other" / "bin" / "python"
    (folder / "other" / "bin" / "tool").write_text(f"#!{python}\nopen('ran', 'w').close()\n")
    (folder / "other" / "bin" / "tool").chmod(0o755)
    if has_torch:
        (next((folder / "other").glob("lib/*/site-packages")) / "torch.py").write_text("")
    result = run(folder, RLTRACE, "record", "-o", "t.zarr", "--", *command)
    assert result.returncode == 125
    assert (folder / "ran").exists() is not has_torch
    assert not (folder / "t.zarr").exists()
    said = result.stderr.decode()
    assert said.startswith("rltrace: error: nothing was started: rltrace is not installed for ") is has_torch
    assert (f"other/bin/python -m pip install {own_requirement()}" in said) is has_torch


@pytest.mark.parametrize(
    ("code", "status"), [("import sys; sys.exit(3)", 3), ("import sys; sys.exit('text')", 1), ("1 +", 1)]
)
def test_status_is_the_commands_own(folder: Path, code: str, status: int) -> None:
    """A status other than 0 is never covered up; what the program says on standard error is there."""
    plain = run(folder, PYTHON, "-c", code)
    result = run(folder, RLTRACE, "record", "--quiet", "--", PYTHON, "-c", code)
    assert result.returncode == plain.returncode == status
    assert result.stderr.startswith(plain.stderr)


def test_command_that_cannot_be_started(folder: Path) -> None:
    """As env(1) has it, and nothing is made."""
    assert run(folder, RLTRACE, "record", "--", "no-such-command").returncode == 127
    result = run(folder, RLTRACE, "record", "--", "./train.py")
    assert result.returncode == 126
    assert b"rltrace record -- python ./train.py" in result.stderr
    (folder / "garbage").write_bytes(b"\x00\x01\x02")
    (folder / "garbage").chmod(0o755)
    assert run(folder, RLTRACE, "record", "--", "./garbage").returncode == 126
    assert sorted(path.name for path in folder.iterdir()) == ["garbage", "train.py"]


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "window"),
    [("3:5", (3, 5)), ("3:", (3, None)), (":5", (0, 5)), (":", (0, None)), (" 3 : 5 ", (3, 5)), ("3", (3, 4))],
)
def test_steps(text: str, window: tuple[int, int | None]) -> None:
    """A window is half open; either side may be left out."""
    assert parse_steps(text) == window


@pytest.mark.parametrize("text", ["", "a", "a:b", "-1:3", "3:3", "5:3", "1:2:3", "1.5:2", "\u0663:5"])
def test_bad_steps(text: str) -> None:
    """What is no window is refused with the text that was given."""
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


@pytest.mark.parametrize(
    ("variable", "value", "options", "error"),
    [
        ("RLTRACE_STEPS", "5:3", (), "RLTRACE_STEPS 5:3 is empty"),
        ("RLTRACE_STEPS", "5:3", ("--steps", "7:6"), "--steps 7:6 is empty"),
        ("RLTRACE_STEPS", "3:5", ("--level", "step"), "RLTRACE_STEPS selects steps"),
        ("RLTRACE_PROCESSES", "*policy*,", (), "RLTRACE_PROCESSES *policy*,: give patterns"),
        ("RLTRACE_PROCESSES", "rank0/*", ("--processes", ""), "--processes : give patterns"),
    ],
)
def test_bad_variables(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    options: tuple[str, ...],
    error: str,
) -> None:
    """The error names the variable, unless an option comes before it; the program does not start."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(variable, value)
    assert main(["record", *options, "--", "touch", "started"]) == 125
    assert error in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


def test_variables_are_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they choose is what the program's processes are started with, and what rltrace.environment() hands on."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RLTRACE_STEPS", "3:5")
    monkeypatch.setenv("RLTRACE_PROCESSES", "*policy*, rank0/main")
    main(["record", "--quiet", "--", "sh", "-c", 'printf %s "$RLTRACE_RECORD" > options'])
    given = json.loads((folder / "options").read_text())
    assert (given["steps"], given["processes"]) == ([3, 5], ["*policy*", "rank0/main"])


STALE = """
import ctypes, sys, torch
weight = torch.zeros(3).add_(1)
ctypes.memset(weight.data_ptr(), int(sys.argv[1]), 4)
(weight * 2).sum()
"""


def test_the_commands_that_settle_a_stale_link(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A write past torch leaves inputs of an exact op unknown; the printed commands, run as is, name the cause."""
    (folder / "stale.py").write_text(STALE)
    found = {}
    for name, noise in (("a", "5"), ("b", "6")):
        run(folder, RLTRACE, "record", "--quiet", "-o", f"{name}.zarr", "--", PYTHON, "stale.py", noise)
    monkeypatch.chdir(folder)
    main(["diff", "a.zarr", "b.zarr", "--format", "json"])
    compared = json.loads(capsys.readouterr().out)
    found["before"] = compared["first"]
    *record, diff = compared["advice"][:3]
    assert [line.split(" -o ")[0] for line in record] == ["rltrace record --steps 0:1 --until 0 --verify-inputs"] * 2
    path = f"{RLTRACE.parent}{os.pathsep}{os.environ['PATH']}"
    assert [run(folder, "sh", "-c", line, PATH=path).returncode for line in record] == [0, 0]
    main([*shlex.split(diff)[1:], "--format", "json"])
    found["after"] = json.loads(capsys.readouterr().out)["first"]
    assert {when: (f["op"], f["inputs_match"], f["cause"] == "untracked-write") for when, f in found.items()} == {
        "before": ("aten.mul.Tensor", "unknown", False),
        "after": ("aten.mul.Tensor", "differ", True),
    }


# --- engine -----------------------------------------------------------------------------------------------------------


def facts_of(trace: Path) -> list[dict[str, object]]:
    """The facts of each process."""
    return [dict(process.facts) for process in open_trace(trace).processes]


def test_without_the_native_engine(folder: Path) -> None:
    """One line of the launcher says what that costs and what to do, none with --quiet; Python records the ops."""
    (folder / "train.py").write_text(FEW_OPS)
    none = str(folder / "none")
    result = run(folder, RLTRACE, "record", "-o", "t.zarr", "--", PYTHON, "train.py", RLTRACE_CACHE=none)
    (hint,) = (line for line in result.stderr.decode().splitlines() if "build-engine" in line)
    assert re.fullmatch(
        r"  hint: no native engine is built for torch .*: small ops take about twice as long, "
        r"and linalg.eigvalsh, svdvals and gradients of prod get other bits; "
        "rltrace build-engine compiles one",
        hint,
    )
    (facts,) = facts_of(folder / "t.zarr")
    assert facts["engine.native"] is False
    assert str(facts["engine.native.why_not"]).startswith("no native engine is built for torch ")
    assert "engine" not in open_trace(folder / "t.zarr").launch["options"]
    for option in ("--quiet", "--level=step"):
        result = run(
            folder, RLTRACE, "record", "-o", "q.zarr", "--force", option, PYTHON, "train.py", RLTRACE_CACHE=none
        )
        assert b"build-engine" not in result.stderr
    assert [name for name in facts_of(folder / "q.zarr")[0] if name.startswith("engine.")] == []


def test_python_where_it_is_chosen(folder: Path) -> None:
    """Whether the native engine is there or not; the trace names the option."""
    (folder / "train.py").write_text(FEW_OPS)
    result = run(folder, RLTRACE, "record", "--engine", "mode", "-o", "t.zarr", "--", PYTHON, "train.py")
    assert b"build-engine" not in result.stderr
    (facts,) = facts_of(folder / "t.zarr")
    assert (facts["engine.native"], facts["engine.native.why_not"]) == (False, "--engine mode")
    assert open_trace(folder / "t.zarr").launch["options"]["engine"] == "mode"


def test_the_native_engine(folder: Path, native_library: object) -> None:
    """In every process of the program; the trace says how many ops it recorded, and how many it left to Python."""
    (folder / "train.py").write_text(FEW_OPS)
    (folder / "spawn.py").write_text(SPAWN)
    result = run(folder, RLTRACE, "record", "--engine", "native", "-o", "t.zarr", "--", PYTHON, "spawn.py")
    assert b"build-engine" not in result.stderr
    facts = facts_of(folder / "t.zarr")
    assert [process["engine.native"] for process in facts] == [True, True]
    assert sorted(process["engine.native.ops"] for process in facts) == [0, 3]
    assert [process["engine.native.handed"] for process in facts] == [0, 0]
    assert open_trace(folder / "t.zarr").engine == "dispatch"


# --- links -----------------------------------------------------------------------------------------------------------


POKES = """
import ctypes, torch
kept = torch.zeros(4).add_(1)
if {planted}:
    ctypes.memset(kept.data_ptr(), 5, 4)
print((kept * 2).sum().item() != 8)
"""


@pytest.mark.parametrize("planted", [True, False])
def test_links_are_checked(folder: Path, planted: bool) -> None:
    """A fault is printed with the ops around it and the command ends with 125; without one it ends as the program."""
    (folder / "train.py").write_text(POKES.format(planted=planted))
    result = run(folder, RLTRACE, "record", "--check-links", "-o", "t.zarr", "--", PYTHON, "train.py")
    errors = " ".join(result.stderr.decode().split())
    assert (result.returncode, result.stdout) == (125 if planted else 0, f"{planted}\n".encode())
    assert ("1 fault of links" in errors) is planted
    process = open_trace(folder / "t.zarr").processes[0]
    assert process.checks_links and len(process.link_faults) == planted
    if planted:
        assert "written by no op before aten.mul.Tensor at train.py:6" in errors
        assert "used last by aten.add_.Tensor at train.py:3" in errors and "aten.zeros.default at train.py:3" in errors
        assert b"checked, 1 fault" in run(folder, RLTRACE, "info", "t.zarr").stdout


# --- values ----------------------------------------------------------------------------------------------------------


def test_a_selector_that_matched_nothing_is_reported() -> None:
    """Where values or rows were requested and none are recorded, that is reported, unless they were left out."""
    options = RecordOptions("a.zarr", values=("op=x", "op=y"), rows=("module=z",))
    found = RecordingSummary(1, 9, 0, 1, ("complete",), 0, False, (), values=0, by_row=0)
    note = unmatched_selectors(options, found, Path("a.zarr"))
    assert note == "op=x or op=y or module=z matched nothing; rltrace ops a.zarr lists the recorded ops"
    assert unmatched_selectors(options, replace(found, values=1, by_row=2), Path("a.zarr")) == ""
    assert unmatched_selectors(options, replace(found, values=1), Path("a.zarr")).startswith("module=z matched nothing")
    assert unmatched_selectors(RecordOptions("a.zarr"), replace(found, values=None, by_row=None), Path("a.zarr")) == ""


def test_steps_that_the_program_did_not_reach() -> None:
    """They are named, where no op was recorded for that reason."""
    options = RecordOptions("a.zarr", steps=(50, 60))
    found = RecordingSummary(1, 0, 3, 1, ("complete",), 0, False, ())
    assert unreached_steps(options, found) == "no op was recorded: the program ended after 3 steps, before step 50"
    assert unreached_steps(options, replace(found, steps=51)) == ""
    assert unreached_steps(options, replace(found, ops=1)) == ""
    assert unreached_steps(RecordOptions("a.zarr"), found) == ""


def test_advice_where_nothing_was_recorded() -> None:
    """A program without an optimizer step is recorded by op: so the advice at step level."""
    found = RecordingSummary(1, 0, 0, 1, ("complete",), 0, False, ())
    assert advice(found, ["python"], "step").startswith("--level step records optimizer steps, and none ended")
    assert advice(found, ["python"], "op").startswith("torch or JAX was imported, but no op ran")


def test_a_graph_that_ran_compiled_all_the_same() -> None:
    """What was compiled ahead of time does not ask which stance torch's compiler has."""
    options = RecordOptions("a.zarr", compile="eager")
    found = RecordingSummary(1, 9, 0, 1, ("complete",), 0, False, (), compiled=True)
    assert still_compiled(options, found).startswith("--compile eager had no effect")
    assert still_compiled(options, replace(found, compiled=False)) == still_compiled(RecordOptions(""), found) == ""


def test_values_of_a_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is recorded, and what no longer fits: in two lines, in the trace, in ``info`` and ``verify``."""
    selectors = ["--values", "op=sum", "--values", "op=mul,step=1:3"]
    limited = [*selectors, "--values-inputs", "--values-limit", "0.4kB"]
    result = run(folder, RLTRACE, "record", "-o", "a.zarr", *limited, "--", PYTHON, "train.py")
    lines = result.stderr.decode(errors="replace").splitlines()
    assert lines[0] == "rltrace: recording to a.zarr (every op, with values of op=sum or op=mul,step=1:3)"
    assert lines[-2].startswith("rltrace: recorded 1 process, ")
    assert ", 5 values, " in lines[-2]
    assert lines[-1].startswith("  hint: not recorded: ")
    assert lines[-1].endswith(": the limit was reached; --values-limit raises it")
    process = open_trace(folder / "a.zarr").processes[0]
    assert process.values.request == ValueRequest(("op=sum", "op=mul,step=1:3"), True, 400)
    assert len(process.values) == 5
    assert main(["info", str(folder / "a.zarr")]) == 0
    _, _, summary = capsys.readouterr().out.partition("\n  values   5, ")
    assert " bytes of at most 400  (op=sum or op=mul,step=1:3, inputs too)\n           not recorded: " in summary
    assert "of rank0/main: the limit was reached" in " ".join(summary.split())
    assert main(["verify", str(folder / "a.zarr")]) == 0
    assert ", 5 of 5 values read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--values", "op=mm,modul=x"], "there is no key 'modul'"),
        (["--values", "op=mm,modul=x"], "\n  op=mm,modul=x\n        ^"),
        (["--values", "all", "--level", "step"], "--level step"),
        (["--values-inputs"], "--values SELECTOR"),
        (["--values", "all", "--values-limit", "1X"], "--values-limit 1X"),
        (["--rows", "op=mm,modul=x"], "there is no key 'modul'"),
        (["--rows", "all", "--level", "step"], "--level step"),
        (["--row-axes", "0"], "--rows SELECTOR"),
        (["--rows", "all", "--row-axes", "0,-1"], "--row-axes 0,-1"),
        (["--rows", "all", "--rows-limit", "1X"], "--rows-limit 1X"),
        (["--exit-code"], "--exit-code needs a live comparison, --against A, or --repeat"),
        (["--stop"], "--stop needs a live comparison: --against A"),
        (["--verify-inputs"], "--steps"),
        (["--level", "step", "--steps", "1:2"], "--level step"),
        (["--level", "step", "--check-links"], "--check-links"),
        (["--engine", "native"], "--engine native: no native engine is built for torch "),
        (["--engine", "native", "--level", "step"], "with --level step it cannot"),
        (["--engine", "native", "--steps", "0:1", "--verify-inputs"], "with --verify-inputs it cannot"),
        (["--engine", "native", "--steps", "0:1", "--check-links"], "with --check-links it cannot"),
    ],
)
def test_options_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Refused before anything is made; in a selector, the character is pointed at."""
    monkeypatch.setenv("RLTRACE_CACHE", str(folder / "none"))
    assert main(["record", "-o", str(folder / "a.zarr"), *arguments, "--", "true"]) == 125
    assert words in capsys.readouterr().err
    assert not (folder / "a.zarr").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "s3://b/runs/a.zarr"], "record with -o a.zarr, and copy that there"),
        (["-o", "ftp://b/a.zarr"], "unknown kind"),
        (["--nodes", "2", "-o", "a.zarr"], "name the part of this machine with -o TRACE/nodes/NUMBER"),
    ],
)
def test_places_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """A trace is recorded into a folder, and a machine of several names its part; nothing is run."""
    monkeypatch.chdir(folder)
    there = {*folder.iterdir()}
    assert main(["record", *arguments, "--", "touch", "ran"]) == 125
    assert words in " ".join(capsys.readouterr().err.split())
    assert {*folder.iterdir()} == there


def test_machines_that_record_one_run(folder: Path) -> None:
    """Each names its part; a reader of the folder has the processes of both."""
    for number in ("0", "1"):
        made = run(folder, RLTRACE, "record", "--nodes", "2", "-o", f"a.zarr/nodes/{number}", "--", PYTHON, "train.py")
        assert made.returncode == 0, made.stderr
    found = open_trace(folder / "a.zarr")
    assert [process.name for process in found.processes] == ["rank0/main", "rank0/main#2"]
    assert found.lost == ()


def test_rows_of_a_script(folder: Path) -> None:
    """What is recorded, in every process, and what no longer fits, in the two lines and in the trace."""
    asked = ["--rows", "op=sum", "--rows", "module=*", "--row-axes", "1,0", "--rows-limit", "0.4kB"]
    result = run(folder, RLTRACE, "record", "-o", "a.zarr", *asked, "--", PYTHON, "train.py")
    lines = result.stderr.decode(errors="replace").splitlines()
    assert lines[0] == "rltrace: recording to a.zarr (every op, with rows of op=sum or module=*)"
    assert re.search(r" \d steps, rows of \d tensors, ", lines[-2])
    assert re.fullmatch(
        r"  hint: not recorded: rows of [\d,]+ tensors: the limit .*; --rows-limit raises it", lines[-1]
    )
    kept = open_trace(folder / "a.zarr").processes[0].activations
    assert kept.request == ActivationRequest(("op=sum", "module=*"), (0, 1), 400)
    assert 0 < kept.tensor_count < 5


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("12 B", 12), ("500MB", 5 * 10**8), ("1GiB", 2**30), ("1.5k", 1500), ("2 Ti", 2**41)],
)
def test_sizes(text: str, size: int) -> None:
    """Decimal and binary units, as people write them."""
    assert parse_size(text, "--x") == size


@pytest.mark.parametrize("text", ["", "B", "1iB", "-1", "1,5k", "1 PB", "x", "1e3", "\u0663"])
def test_bad_sizes(text: str) -> None:
    """What is no size is refused with the text that was given."""
    with pytest.raises(UsageError, match="--x"):
        parse_size(text, "--x")


def test_trace_that_the_program_removed(folder: Path) -> None:
    """Even then the command's own status is what counts, and a status of 0 becomes 125."""
    code = "import shutil, sys; shutil.rmtree('t.zarr'); sys.exit(int(sys.argv[1]))"
    line = [RLTRACE, "record", "-o", "t.zarr", "--", PYTHON, "-c", code]
    assert run(folder, *line, 7).returncode == 7
    result = run(folder, *line, 0)
    assert result.returncode == 125
    assert b"the trace cannot be read" in result.stderr


def test_trace_that_another_recording_has_replaced(folder: Path) -> None:
    """It is left alone, though nothing of the own command was recorded."""
    code = (
        "from rltrace.trace.format.root import create_trace; from pathlib import Path;"
        "create_trace(Path('t.zarr'), {'command': ['another']}, force=True)"
    )
    result = run(folder, RLTRACE, "record", "-o", "t.zarr", "--", PYTHON, "-c", code)
    assert result.returncode == 125
    assert b"become another recording's trace" in result.stderr
    trace = open_trace(folder / "t.zarr")
    assert (trace.launch["command"], trace.exit) == (["another"], None)


def test_process_that_outlives_its_command(folder: Path) -> None:
    """A process left in the background may record yet: its trace stays, and the message says so."""
    (folder / "hold.py").write_text("open('started', 'w').write('x\\n')\nopen('finish').read()\n")
    for name in ("started", "finish"):
        os.mkfifo(folder / name)
    script = f"{PYTHON} hold.py >/dev/null 2>&1 & read x <started"
    result = run(folder, RLTRACE, "record", "-o", "t.zarr", "--", "sh", "-c", script)
    (folder / "finish").write_text("now")
    assert result.returncode == 125
    assert b"is still running" in result.stderr
    assert (folder / "t.zarr").is_dir()
