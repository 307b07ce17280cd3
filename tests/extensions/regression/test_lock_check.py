"""A program against its lock: real recordings of a tiny program, made within this process; what it is launched by is
tested elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rltrace.errors import RecordError
from rltrace.experiment.runner import RunRequest, RunResult
from rltrace.experiment.workdir_copy import copy_folder, replace_files
from rltrace.extensions.regression.lock import read_lock, write_lock
from rltrace.extensions.regression.lock_check import LockPlan, check_lock, make_lock, variables_to_put_back
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session.session import recording

PROGRAM = """
import os
import torch
torch.manual_seed(0)
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
data = torch.rand(8, 1 << 17)
weight = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.5)
for step in range(5):
    target = torch.stack([row.dot(row) for row in data]) if step >= 2 else data[:, :2].unbind(1)[step]
    optimizer.zero_grad()
    ((weight - target) ** 2 * 0.5).sum().backward()
    optimizer.step()
"""


RUNNER = "rltrace.extensions.regression.lock_check.Runner"


class Within:
    """Runs ``train.py`` of a copy of the folder within this process, recorded as ``rltrace record`` would."""

    def __enter__(self) -> Within:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, jobs: Sequence[RunRequest]) -> Iterator[RunResult]:
        for job in jobs:
            assert job.copy is not None and job.environment is not None
            copy_folder(job.origin, job.copy, job.shared, job.without)
            if job.commit is not None:
                replace_files(job.copy, job.origin, job.commit)
            options = dict(zip(job.options[::2], job.options[1::2], strict=True))
            first, _, end = options.get("--steps", "0:").partition(":")
            until = options.get("--until")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(job.copy)
                for name in os.environ.keys() - job.environment.keys():
                    patch.delenv(name)
                for name, value in job.environment.items():
                    patch.setenv(name, value)
                status = self._record(
                    RecordOptions(
                        str(job.trace),
                        level=options.get("--level", "op"),
                        steps=(int(first), int(end) if end else None),
                        until=None if until is None else int(until),
                    )
                )
            shutil.rmtree(job.copy)
            yield RunResult(job, status)

    @staticmethod
    def _record(options: RecordOptions) -> int:
        spec = importlib.util.spec_from_file_location("train", "train.py")
        threads, hook = torch.get_num_threads(), sys.excepthook
        module = sys.modules["train"] = importlib.util.module_from_spec(spec)
        module.__file__ = os.path.abspath("train.py")  # noqa: PTH100
        try:
            with suppress(KeyboardInterrupt), recording(options, force=False):
                exec(compile(Path("train.py").read_text(), module.__file__, "exec"), module.__dict__)
        except ZeroDivisionError:
            return 1
        finally:
            del sys.modules["train"]
            torch.set_num_threads(threads)
            sys.excepthook = hook
        return 0


@pytest.fixture(scope="module")
def dots_differ() -> None:
    """Skips where the dot products of the program have the same bits with one thread and with two."""
    data, found = torch.rand(8, 1 << 17, generator=torch.Generator().manual_seed(0)), []
    threads = torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        found.append([row.dot(row).item() for row in data])
    torch.set_num_threads(threads)
    if found[0] == found[1]:
        pytest.skip("the dot products have the same bits with one thread and with two")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the program and its lock."""
    folder = tmp_path_factory.mktemp("made") / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUNNER, Within)
        patch.setenv("OMP_NUM_THREADS", "2")
        make_lock(plan_of(folder, "made"))
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "lock")
    return folder


@pytest.fixture
def folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it for one test."""
    monkeypatch.setattr(RUNNER, Within)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    return Path(shutil.copytree(project, tmp_path / "project"))


def git(folder: Path, *arguments: str) -> None:
    line = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    subprocess.run(line, cwd=folder, capture_output=True, check=True)


def plan_of(folder: Path, output: str, until: int | None = None) -> LockPlan:
    (folder.parent / output).mkdir()
    return LockPlan(("python", "train.py"), folder / "train.lock", folder, folder.parent / output, until)


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "train.py").read_text()
    assert old in text
    (folder / "train.py").write_text(text.replace(old, new))


def test_a_run_that_holds(folder: Path) -> None:
    """Unchanged, it makes the steps of its lock; also as far as it is run."""
    checked = check_lock(plan_of(folder, "out"))
    assert (checked.agrees, checked.comparison.steps, checked.ops, checked.explanation) == (True, 5, None, "")
    assert checked.comparison.system == ()
    shorter = check_lock(plan_of(folder, "shorter", until=2))
    assert (shorter.agrees, shorter.comparison.steps) == (True, 3)


def test_another_setting(folder: Path, monkeypatch: pytest.MonkeyPatch, dots_differ: None) -> None:
    """With the variable put back it makes the lock's steps, so the op is found, and the kernel is its cause."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    checked = check_lock(plan_of(folder, "out"))
    first, ops = checked.comparison.first, checked.ops
    assert (checked.agrees, checked.repeats, checked.reproduced) == (False, True, True)
    assert first.step == 2 and "every step before is equal" in first.explanation
    assert checked.put_back == ("OMP_NUM_THREADS=2",)
    assert checked.explanation.endswith("up to step 2, so the reason is that")
    assert (ops.decisive.op, ops.decisive.cause, ops.decisive.step) == ("aten.dot.default", "kernel", 2)
    assert [path.name for path in checked.traces] == ["as-locked.zarr", "now.zarr"]


def test_another_source_line(folder: Path) -> None:
    """The files of the commit that has the lock make its steps; the edited line is named, and stays as it is."""
    edit(folder, "* 0.5).sum()", "* (0.5 if step < 3 else 0.25)).sum()")
    edited = (folder / "train.py").read_text()
    checked = check_lock(plan_of(folder, "out"))
    ops = checked.ops
    assert (checked.repeats, checked.reproduced) == (True, True)
    assert len(checked.put_back) == 1 and checked.put_back[0].startswith("the files of commit ")
    assert [fact.name for fact in checked.comparison.system] == ["source.train.py"]
    assert (ops.decisive.op, ops.decisive.cause, ops.decisive.step) == ("aten.mul.Tensor", "arguments", 3)
    assert (folder / "train.py").read_text() == edited


def test_a_line_that_reads_another_part(folder: Path) -> None:
    """The op is named that was called on it, with what it read in the locked run."""
    edit(folder, "unbind(1)[step]", "unbind(1)[0]")
    ops = check_lock(plan_of(folder, "out")).ops
    assert (ops.decisive.op, ops.decisive.cause, ops.decisive.step) == ("aten.sub.Tensor", "arguments", 1)
    assert "column 1 of what aten.rand" in ops.decisive.explanation
    assert "column 0 in B" in ops.decisive.explanation


def test_a_difference_from_before_the_window(folder: Path) -> None:
    """What no step digests, a tensor made in step 0 that step 2 reads, is found by recording all steps."""
    edit(folder, "data = torch.rand(8, 1 << 17)", "data = torch.rand(8, 1 << 17); data[:, 3] += 1")
    checked = check_lock(plan_of(folder, "out"))
    assert checked.comparison.first.step == 2
    assert (checked.ops.decisive.step, checked.ops.decisive.cause) == (0, "control-flow")  # the op that is new


def test_another_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package cannot be put back: only the step is known, and the commands that name the op are given."""
    edit(folder, "import os", "import os\nfrom importlib.metadata import version")
    edit(folder, "data = ", "data = float(version('brax')) * ")
    for number in ("1.0", "2.0"):
        metadata = folder.parent / number / "site-packages" / f"brax-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: brax\nVersion: {number}\n")
        monkeypatch.syspath_prepend(metadata.parents[1])
        checked = check_lock(plan_of(folder, f"out-{number}"), update=number == "1.0")
        git(folder, "commit", "--allow-empty", "-qam", number)
    assert [(fact.name, fact.a, fact.b) for fact in checked.comparison.system] == [("package.brax", "1.0", "2.0")]
    assert (checked.repeats, checked.reproduced, checked.ops) == (True, None, None)
    assert "packages differ, the lock having brax==1.0 (2.0 here); only" in checked.explanation
    assert [command.split()[1] for command in checked.advice] == ["record", "diff"]


def test_another_machine(folder: Path) -> None:
    """A setting that makes this processor compute like the lock's is tried; where that is not it, what differs of the
    machine is named."""
    here = read_lock(folder / "train.lock")
    (process,) = here.processes
    other = "AVX2" if here.facts["cpu.capability"] == "DEFAULT" else "DEFAULT"
    steps = [step._replace(parameters=1) if number >= 3 else step for number, step in enumerate(process.steps)]
    facts = {**here.facts, "host.cpu": "another", "cpu.capability": other}
    write_lock(folder / "train.lock", replace(here, facts=facts, processes=(process._replace(steps=tuple(steps)),)))
    checked = check_lock(plan_of(folder, "out"))
    assert [fact.name for fact in checked.machine] == ["host.cpu"]
    assert (checked.put_back, checked.reproduced) == ((f"ATEN_CPU_CAPABILITY={other.lower()}",), False)
    assert checked.explanation.startswith(
        f"with ATEN_CPU_CAPABILITY={other.lower()} it still does not make the lock's steps: this is another machine, "
        f"the lock's having host.cpu another ({here.facts['host.cpu']} here); "
    )


def test_what_no_lock_holds(folder: Path) -> None:
    """Where no fact differs and git has nothing else, it is data or a configuration, and that is what is said."""
    edit(folder, "1 << 17)", "1 << 17) * (0.5 if os.path.exists('odd') else 1)")
    git(folder, "commit", "-qam", "another program")
    check_lock(plan_of(folder, "update"), update=True)
    (folder / "odd").touch()
    checked = check_lock(plan_of(folder, "out"))
    assert (checked.reproduced, checked.comparison.system) == (None, ())
    assert "no fact of the lock differs, so it is something that no lock holds" in checked.explanation


def test_a_program_that_does_not_repeat_itself(folder: Path) -> None:
    """Nothing is searched for where the same program makes other steps the second time."""
    edit(folder, "torch.manual_seed(0)", "torch.seed()")
    checked = check_lock(plan_of(folder, "out"))
    assert (checked.agrees, checked.repeats, checked.put_back) == (False, False, ())
    assert checked.advice == ("rltrace check -- python train.py",)


def test_an_update(folder: Path) -> None:
    """It shows what moved and writes the lock of the run; unchanged, the file is not written."""
    before = (folder / "train.lock").read_text()
    assert not check_lock(plan_of(folder, "same"), update=True).updated
    edit(folder, "* 0.5", "* 0.25")
    checked = check_lock(plan_of(folder, "out"), update=True)
    assert checked.updated and checked.comparison.first is not None and checked.ops is None
    assert (folder / "train.lock").read_text() != before
    assert check_lock(plan_of(folder, "again")).agrees


def test_a_run_that_fails(folder: Path) -> None:
    """It decides nothing about the steps that it did not make, and is neither locked nor an update."""
    edit(folder, "for step in range(5):", "for step in range(5):\n    if step == 3: 1 / 0\n")
    checked = check_lock(plan_of(folder, "out"))
    assert (checked.agrees, checked.status) == (None, 1)
    assert "3 steps of 5 are equal, but " in checked.comparison.why
    before = read_lock(folder / "train.lock")
    with pytest.raises(RecordError, match="did not end well"):
        check_lock(plan_of(folder, "update"), update=True)
    with pytest.raises(RecordError, match="is not locked"):
        make_lock(plan_of(folder, "made-again"))
    assert read_lock(folder / "train.lock") == before


@pytest.mark.parametrize(
    ("locked", "found", "put"),
    [
        ({"env.MKL_CBWR": "AVX2"}, {}, {"MKL_CBWR": "AVX2"}),
        ({}, {"env.MKL_CBWR": "AVX2"}, {"MKL_CBWR": None}),
        ({"env.LD_PRELOAD": "x.so"}, {}, {}),
        ({"env.TORCH_KEY": "***"}, {}, {}),
        ({"torch.threads": 4}, {"torch.threads": 2}, {"OMP_NUM_THREADS": "4"}),
        ({"jax.threads": 4}, {"jax.threads": 2, "env.NPROC": "2"}, {"NPROC": None}),
        ({"jax.threads": 4}, {"jax.threads": 2}, {"NPROC": "4"}),
        ({}, {"jax.threads": 2}, {}),
        (
            {"cpu.capability": "AVX2"},
            {"cpu.capability": "AVX512", "host.isa": "avx avx2"},
            {"ATEN_CPU_CAPABILITY": "avx2"},
        ),
        ({"cpu.capability": "AVX512"}, {"cpu.capability": "AVX2", "host.isa": "avx avx2"}, {}),
        (
            {"cpu.capability": "AVX2"},
            {"cpu.capability": "DEFAULT", "env.ATEN_CPU_CAPABILITY": "default", "host.isa": "avx2"},
            {"ATEN_CPU_CAPABILITY": None},
        ),
    ],
)
def test_what_can_be_put_back(locked: dict[str, object], found: dict[str, object], put: dict[str, str | None]) -> None:
    """Recorded variables, and the settings of another processor as far as this one has its instructions."""
    assert variables_to_put_back(locked, found) == put
