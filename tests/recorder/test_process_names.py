"""Names of processes: the rank and the role, the same in every run; numbers of the programs that a process starts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.recorder.base import process_names
from rltrace.recorder.base.options import DEPTH, PARENT_RANK, VARIABLE
from rltrace.recorder.base.process_names import (
    RANKS,
    Children,
    _program_of,
    mark_children,
    own_number,
    process_name,
    recorded_name,
)
from rltrace.trace.format.process_start import STARTS

ASK = "import sys; from rltrace.recorder.base.process_names import own_number; print(own_number(sys.argv[1]))"


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that no launcher started."""
    for name in (*RANKS, DEPTH, PARENT_RANK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VARIABLE, "{}")
    monkeypatch.setattr(process_names, "_own", process_names._Own())
    monkeypatch.setattr("sys.argv", ["/home/me/eval.py", "--fast"])
    monkeypatch.setattr("sys.orig_argv", ["python", "/home/me/eval.py", "--fast"])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "rank0/main"),
        ({"RANK": "3"}, "rank3/main"),
        ({"RLTRACE_DEPTH": "1"}, "rank0/child:eval.py"),
        ({"RANK": "1", "RLTRACE_DEPTH": "2"}, "rank1/child:eval.py"),
        ({"RANK": "1", "RLTRACE_DEPTH": "2", "RLTRACE_PARENT_RANK": "1"}, "rank1/child:eval.py"),
        ({"RANK": "1", "RLTRACE_DEPTH": "1", "RLTRACE_PARENT_RANK": ""}, "rank1/main"),
        ({"RLTRACE_DEPTH": "1", "RLTRACE_PARENT_RANK": ""}, "rank0/child:eval.py"),
        ({"OMPI_COMM_WORLD_RANK": "2", "LOCAL_RANK": "0"}, "rank2/main"),
        ({"SLURM_PROCID": "5"}, "rank5/main"),
        ({"LOCAL_RANK": "1", "RLTRACE_DEPTH": "1", "RLTRACE_PARENT_RANK": ""}, "rank1/main"),
        ({"RANK": "4", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, "rank4/main"),
    ],
)
def test_names_of_processes(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    """The rank and the role, never a process id."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_name() == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"], "launcher:torchrun"),
        (["python", "-m", "torch.distributed.run", "train.py"], "launcher:torch.distributed.run"),
        (["python", "-u", "-m", "accelerate.commands.launch", "train.py"], "launcher:accelerate.commands.launch"),
        (["python", "train.py", "torchrun"], "rank0/main"),
        (["python", "-m", "train", "-m", "torch.distributed.run"], "rank0/main"),
    ],
)
def test_what_only_starts_ranks_takes_no_rank(
    monkeypatch: pytest.MonkeyPatch, command: list[str], expected: str
) -> None:
    """Rank 0 is the first to be called so, whatever started it; a rank that runs such a module is a rank."""
    monkeypatch.setattr("sys.orig_argv", command)
    monkeypatch.setattr("sys.argv", ["-m"] if "-m" in command else command[1:])
    monkeypatch.setenv("SLURM_PROCID", "0")  # of the job that it is started in
    assert process_name() == expected
    monkeypatch.setenv("RANK", "1")
    assert process_name() == "rank1/main"


@pytest.mark.parametrize(("argv", "above"), [("train.py", "1"), ("/venv/bin/torchrun", "0")])
def test_ranks_are_no_children_of_what_started_them(monkeypatch: pytest.MonkeyPatch, argv: str, above: str) -> None:
    """A program that starts another is above it; a launcher is not."""
    monkeypatch.setattr("sys.argv", [argv])
    for name in (DEPTH, PARENT_RANK):  # both are put back afterwards
        monkeypatch.setenv(name, "0")
    mark_children()
    assert os.environ[DEPTH] == above


def test_a_second_library_adds_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computes is recorded under the process's own name, which marking its children does not change."""
    for name in (DEPTH, PARENT_RANK):  # both are put back afterwards
        monkeypatch.setenv(name, "0" if name == DEPTH else "")
    assert recorded_name("a.zarr", "jax") == "rank0/main"
    mark_children()
    assert recorded_name("a.zarr", "torch") == "rank0/main/torch"
    assert recorded_name("a.zarr", "jax") == "rank0/main"
    assert recorded_name("b.zarr", "torch") == "rank0/main"


SPAWNING = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from rltrace.recorder.base.process_names import process_name

print(process_name(), flush=True)  # while the program's modules are imported, as when torch is

class Environment(multiprocessing.get_context("spawn").Process):
    def run(self):
        pass

def work(number):
    return number

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    plain, named = context.Process(target=work, args=(0,)), context.Process(target=work, args=("x" * 300_000,))
    named.name = "Env-0"
    for process in (plain, named, Environment()):
        process.start()
        process.join()
    import late  # which imports what prints, as torch is imported with what a process runs

    process = context.Process(target=late.work, args=(list(range(5_000)),))
    process.start()
    process.join()
    with context.Pool(1) as pool:
        assert pool.map(work, range(3)) == [0, 1, 2]
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        assert list(executor.map(work, range(3))) == [0, 1, 2]
"""


LATE = """
from rltrace.recorder.base.process_names import process_name

print(process_name(), flush=True)

def work(numbers):
    pass
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_process_is_named_before_it_knows_what_it_runs(tmp_path: Path, method: str) -> None:
    """By the number that its parent counts it by, or the name that the program gave it; whether a pool's is seen.

    What it runs may have been read from its parent to the end by then, so that nothing is left to look at.
    """
    program = tmp_path / "program.py"
    program.write_text(SPAWNING)
    (tmp_path / "late.py").write_text(LATE)
    ran = subprocess.run([sys.executable, program, method], capture_output=True, text=True, check=True, timeout=1200)
    workers = ["rank0/main", "rank0/worker:1", "rank0/worker:Env-0", "rank0/worker:Environment-3"]
    late = ["rank0/main", "rank0/worker:4", "rank0/worker:4"]
    assert ran.stdout.split() == [*workers, *late, "rank0/pool:5", "rank0/pool:6"]
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["python", "-u", "dir/evaluate.py", "--seed", "3"], "evaluate.py"),
        ("python evaluate.py --seed 3 | tee log", "evaluate.py"),
        (["sh", "-c", "cd x && python evaluate.py"], "evaluate.py"),
        (["torchrun", "-m", "pack.train"], "pack.train"),
        ([Path("/usr/bin/git"), b"status"], "git"),
        (Path("/opt/tool"), "tool"),
        ("an 'unfinished quote", ""),
        ([], ""),
        (None, ""),
        ([3], ""),
    ],
)
def test_what_runs(args: object, what: str) -> None:
    """The script, the module, or the program."""
    assert _program_of(args) == what


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / STARTS).mkdir()
    return tmp_path


@pytest.fixture
def numbered(trace: Path) -> Callable[..., str]:
    """Start a child that says its number."""

    def start(*command: object, **how: object) -> str:
        line = [*command, sys.executable, "-c", ASK, trace]
        result = subprocess.run([str(word) for word in line], capture_output=True, text=True, **how)
        assert result.returncode == 0, result.stderr
        return str(result.stdout.strip())

    return start


def test_numbers(trace: Path, numbered: Callable[..., str]) -> None:
    """By what they run; by way of other programs, too; none outside of the watch, and what was there is put back.

    Arguments that can be read once are left to the program that gave them.
    """
    original = subprocess.Popen.__init__
    children = Children(str(trace), f"{os.getpid()}-x")
    children.install()
    children.install()
    words = iter([sys.executable, "-c", "print('ran')"])  # arguments that can be read once
    assert subprocess.run(words, capture_output=True, text=True).stdout == "ran\n"
    assert [numbered(), numbered(), numbered("env", "A=b"), numbered("env", "A=c")] == ["1", "2", "1", "2"]
    assert numbered("sh", "-c", '"$@"; exit $?', "sh") == "1"
    with pytest.raises(FileNotFoundError):
        subprocess.run(["no-such-program"])
    children.uninstall()
    assert subprocess.Popen.__init__ is original
    assert numbered() == "None"
    assert own_number(str(trace)) is None
