"""``record --against`` between two jobs that run at the same time: they meet in the folders of their traces only."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rltrace.trace.read.reader import open_trace

PROGRAM = Path(__file__).parent / "programs" / "job.py"
RLTRACE = Path(sys.executable).parent / "rltrace"


class Job:
    """A recorded program that goes as far as the test asks it to."""

    def __init__(self, folder: Path, trace: str, other: str, differs: int, *options: str) -> None:
        self.trace = folder / trace
        line = (RLTRACE, "record", "-o", trace, *(("--against", other) if other else ()), *options)
        self.process = subprocess.Popen(
            [*map(str, line), "--", sys.executable, str(PROGRAM), str(differs)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def ask(self, steps: int) -> None:
        """Go so many steps further."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def go(self, steps: int) -> None:
        """The same, and wait until they are done and committed."""
        self.ask(steps)
        assert self.process.stdout.readline().strip().isdigit(), self.rest()

    def says(self, text: str) -> str:
        """Wait until the launcher says a line with this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.output += line
            if text in line:
                return line
        raise AssertionError(self.output)

    def rest(self) -> int:
        """Its end: the status; ``output`` is all that was printed."""
        _, rest = self.process.communicate()
        self.output += rest
        return self.process.returncode

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def jobs(*made: Job) -> Iterator[None]:
    try:
        yield
    finally:
        for job in made:
            if job.process.poll() is None:
                job.kill()
            for stream in (job.process.stdin, job.process.stdout, job.process.stderr):
                if stream is not None:
                    stream.close()


def test_both_end_where_they_diverge(cli: Any) -> None:
    """Each finds the step that a comparison of the traces names, whichever is ahead; both end in order."""
    a = Job(cli.folder, "a.zarr", "b.zarr", -1, "--stop")
    b = Job(cli.folder, "b.zarr", "a.zarr", 3, "--stop")
    with jobs(a, b):
        b.go(6)
        a.go(2)
        a.go(3)
        said = [job.says("differs from") for job in (a, b)]
        for job in (a, b):
            job.ask(1)
        assert [a.rest(), b.rest()] == [0, 0], a.output + b.output
    status, found = cli.diff("a.zarr", "b.zarr")
    first = found["decisive"]
    assert (status, first["step"], first["cause"]) == (1, 3, "outside")
    assert [f"op {row:,} of rank0/main" in line for row, line in zip(([first["b_index"]] * 2), said, strict=True)]
    assert [open_trace(job.trace).processes[0].state for job in (a, b)] == ["stopped", "stopped"]
    assert [open_trace(job.trace).processes[0].step_count for job in (a, b)] == [6, 7]
    assert "--stop ended it, as it differs from a.zarr in step 3" in str(open_trace(b.trace).processes[0].why)


def test_the_other_is_killed(cli: Any) -> None:
    """That is said, and how far both were equal; the run goes on, and it is not known whether it computes the same."""
    a = Job(cli.folder, "a.zarr", "", -1)
    b = Job(cli.folder, "b.zarr", "a.zarr", -1, "--stop", "--exit-code")
    with jobs(a, b):
        a.go(4)
        b.go(3)
        b.says("is being recorded")
        a.kill()
        assert "a.zarr was killed; the first 3 steps are equal; this run goes on" in b.says("was killed")
        b.go(3)
        assert b.rest() == 125
    assert "equal to a.zarr: all" in b.output
    assert cli.diff("a.zarr", "b.zarr")[0] == 3
