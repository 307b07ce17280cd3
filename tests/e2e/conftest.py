"""The command line as a person uses it: real programs, real processes, real traces; what only reads is called here."""

import fcntl
import io
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from oracle_log import Difference, first_difference

import rltrace
from rltrace.commands.main import main

PROGRAMS = Path(__file__).parent / "programs"
PROBE = Path(__file__).parents[2] / "scripts" / "kernel_probe.py"
RLTRACE = Path(sys.executable).parent / "rltrace"

SETTINGS = ("ATEN_CPU_CAPABILITY=default", "OMP_NUM_THREADS=2")
"""They act as another machine; without them programs run on one thread, and on the best of the processor."""

READERS = ("diff", "info", "kernels", "ops", "series", "verify")

Result = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class CommandLine:
    """Runs commands in one folder. One thread and a fixed hash seed, so that programs repeat themselves."""

    folder: Path

    def run(self, *command: object, setting: str = "", **variables: str) -> Result:
        """Run any command to its end; ``setting`` is one more NAME=VALUE."""
        name, _, value = setting.partition("=")
        added = {**variables, **({name: value} if name else {})}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "NO_COLOR": "1", **added}
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def rltrace(self, *arguments: object, setting: str = "", **variables: str) -> Result:
        """A verb that reads is called in this process, which saves the start of one; any other is a process."""
        if arguments and arguments[0] in READERS and not setting and not variables:
            return self.read(*arguments)
        return self.run(RLTRACE, *arguments, setting=setting, **variables)

    def read(self, *arguments: object) -> Result:
        """What a command comes to that is called in this process."""
        out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        plain = patch.dict(os.environ, NO_COLOR="1", COLUMNS="80")
        with chdir(self.folder), plain, redirect_stdout(out), redirect_stderr(errors):
            status = main([str(word) for word in arguments])
        printed, errors_printed = (stream.buffer.getvalue().decode() for stream in (out, errors))
        return Result([*map(str, arguments)], status, printed, errors_printed)

    def python(self, program: str, *arguments: object, setting: str = "") -> Result:
        return self.run(sys.executable, PROGRAMS / program, *arguments, setting=setting)

    def record(self, trace: object, program: str, *options: object, setting: str = "") -> Result:
        """Record one of the programs."""
        line = ["record", "--quiet", "-o", trace, *options, "--", sys.executable, PROGRAMS / program]
        return self.rltrace(*line, setting=setting)

    def record_ranks(
        self, trace: str, ranks: int, options: Sequence[object], *command: object, **variables: str
    ) -> None:
        """Record a command once for each rank, started by a shell; they meet at a port that is free."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), **variables}
        started = " & ".join(f"RANK={rank} {' '.join(map(str, command))}" for rank in reversed(range(ranks)))
        line = ["record", "--quiet", *options, "-o", trace, "--", "sh", "-c", f"{started}; wait"]
        result = self.rltrace(*line, **where)
        assert result.returncode == 0, result.stderr

    def record_both(self, program: str, setting: str) -> tuple[str, str]:
        """Record a program as ``a.zarr``, and under ``setting`` as ``b.zarr``; returns what the two printed."""
        shown = [self.record("a.zarr", program), self.record("b.zarr", program, setting=setting)]
        assert [result.returncode for result in shown] == [0, 0], [result.stderr for result in shown]
        return shown[0].stdout, shown[1].stdout

    def diff(self, a: object, b: object, *options: object) -> tuple[int, Mapping[str, Any]]:
        """Exit status and the JSON object of ``rltrace diff``."""
        result = self.read("diff", a, b, "--format", "json", *options)
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    """A command line in an empty folder."""
    return CommandLine(tmp_path)


@pytest.fixture(scope="session")
def new_cli(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], CommandLine]:
    """Command lines in empty folders, for traces that several tests share."""
    return lambda: CommandLine(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def versions(tmp_path: Path) -> Callable[[str, str], list[Path]]:
    """``versions(a, b)``: traces of two versions of ``train.py``, each recorded in this process from another folder."""

    def record(*codes: str) -> list[Path]:
        traces = []
        for side, code in zip("ab", codes, strict=True):
            program = tmp_path / f"checkout of {side}" / "train.py"
            program.parent.mkdir()
            program.write_text(code)
            traces.append(tmp_path / f"{side}.zarr")
            torch.manual_seed(0)  # as in a new process
            with rltrace.record(traces[-1]):
                runpy.run_path(str(program), run_name="__main__")
        return traces

    return record


Once = Callable[[str, Callable[[Path], str]], tuple[Path, str]]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """``once(name, make)``: what ``make(folder)`` returned, and the folder; the first worker that asks makes it."""
    common = tmp_path_factory.getbasetemp()
    common = common.parent if "PYTEST_XDIST_WORKER" in os.environ else common

    def made(name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
        folder = common / f"once-{name}"
        folder.mkdir(exist_ok=True)
        with (folder / "result").open("a+") as answer:
            fcntl.flock(answer, fcntl.LOCK_EX)
            answer.seek(0)
            found = answer.read()
            result = found.removesuffix("\n") if found else make(folder)
            if not found:
                answer.write(f"{result}\n")
        return folder, result

    return made


@dataclass(frozen=True)
class AsItIs:
    """One of the programs, recorded as it is."""

    trace: Path
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def as_it_is(once: Once) -> Callable[[str], AsItIs]:
    """``as_it_is(program)``: recorded once for all tests that only look at that."""

    def record(program: str) -> AsItIs:
        def make(folder: Path) -> str:
            result = CommandLine(folder).record("t.zarr", program)
            return json.dumps([result.returncode, result.stdout, result.stderr])

        folder, result = once(program, make)
        return AsItIs(folder / "t.zarr", *json.loads(result))

    return record


@pytest.fixture(scope="session")
def probed(once: Once) -> Callable[..., str]:
    """``probed(*options)``: what the kernel probe prints."""

    def ask(*options: str, **variables: str) -> str:
        def make(folder: Path) -> str:
            environment = {**os.environ, **variables}
            command = [sys.executable, PROBE, *options]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

        return once(f"probe{'-'.join(options)}", make)[1]

    return ask


@pytest.fixture(scope="session")
def kernel_setting(probed: Callable[..., str]) -> str:
    """A NAME=VALUE under which this processor computes other bits; skips where there is none."""
    setting = probed().strip()
    if setting == "none":
        pytest.skip("no CPU kernel setting changes a bit on this processor")
    return setting


@pytest.fixture(scope="session")
def needs_change(probed: Callable[..., str]) -> Callable[[str, str], None]:
    """``needs_change(setting, op)`` skips where a setting does not change what an op computes on this processor."""
    known: dict[str, list[str]] = {}

    def check(setting: str, op: str) -> None:
        if not known:
            known.update(json.loads(probed("--changed", *SETTINGS, OMP_NUM_THREADS="1")))
        if op not in known[setting]:
            pytest.skip(f"{setting} does not change {op} on this processor")

    return check


@pytest.fixture
def oracle(cli: CommandLine) -> Callable[[str, str], Difference]:
    """The first op at which a program differs from itself only under a setting, found without rltrace."""

    def difference(program: str, setting: str) -> Difference:
        logs = []
        # glibc's fill byte differs between the unchanged two: unwritten memory then surely differs, and drops out
        for number, given in enumerate(("MALLOC_PERTURB_=85", "MALLOC_PERTURB_=170", setting)):
            logs.append(cli.folder / f"oracle{number}.log")
            result = cli.python("oracle.py", logs[-1], PROGRAMS / program, setting=given)
            assert logs[-1].exists(), result.stderr
        found = first_difference(*logs)
        assert found is not None
        return found

    return difference
