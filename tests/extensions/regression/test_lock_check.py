"""A program against its lock: real recordings of a tiny program, made within this process; what it is launched by is
tested elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rltrace.errors import RecordError
from rltrace.experiment.runner import RunRequest, RunResult
from rltrace.experiment.workdir_copy import copy_folder
from rltrace.extensions.regression.lock import read_lock, write_lock
from rltrace.extensions.regression.lock_check import LockPlan, check_lock, make_lock
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
            copy_folder(job.origin, job.copy, job.shared, job.without)
            options = dict(zip(job.options[::2], job.options[1::2], strict=True))
            until = options.get("--until")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(job.copy)
                status = self._record(
                    RecordOptions(str(job.trace), level=options["--level"], until=None if until is None else int(until))
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
    """A folder with the program and its lock."""
    folder = tmp_path_factory.mktemp("made") / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUNNER, Within)
        patch.setenv("OMP_NUM_THREADS", "2")
        make_lock(plan_of(folder, "made"))
    return folder


@pytest.fixture
def folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it for one test."""
    monkeypatch.setattr(RUNNER, Within)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    return Path(shutil.copytree(project, tmp_path / "project"))


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
    assert (checked.agrees, checked.comparison.steps, checked.explanation, checked.advice) == (True, 5, "", ())
    assert checked.comparison.system == ()
    shorter = check_lock(plan_of(folder, "shorter", until=2))
    assert (shorter.agrees, shorter.comparison.steps) == (True, 3)


def test_another_setting(folder: Path, monkeypatch: pytest.MonkeyPatch, dots_differ: None) -> None:
    """The step is named, the variable that differs, and the commands that record its ops here and as it was locked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    checked = check_lock(plan_of(folder, "out"))
    first = checked.comparison.first
    assert (checked.agrees, first.step, first.process) == (False, 2, "rank0/main")
    assert "every step before is equal" in first.explanation
    assert checked.explanation.startswith("variables differ, the lock having OMP_NUM_THREADS=2 (1 here); record")
    assert checked.advice == (
        "rltrace record --steps 1:3 --until 2 -o now.zarr -- python train.py",
        "rltrace record --steps 1:3 --until 2 -o as-locked.zarr -- python train.py",
        "rltrace diff as-locked.zarr now.zarr",
        "rltrace check -- python train.py",
    )


def test_another_source_line(folder: Path) -> None:
    """The file is named, and stays as it is."""
    edit(folder, "* 0.5).sum()", "* (0.5 if step < 3 else 0.25)).sum()")
    edited = (folder / "train.py").read_text()
    checked = check_lock(plan_of(folder, "out"))
    assert checked.comparison.first.step == 3
    assert checked.explanation.startswith("source files differ: train.py; record")
    assert (folder / "train.py").read_text() == edited


def test_another_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named as pip takes it."""
    edit(folder, "import os", "import os\nfrom importlib.metadata import version")
    edit(folder, "data = ", "data = float(version('brax')) * ")
    for number in ("1.0", "2.0"):
        metadata = folder.parent / number / "site-packages" / f"brax-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: brax\nVersion: {number}\n")
        monkeypatch.syspath_prepend(metadata.parents[1])
        checked = check_lock(plan_of(folder, f"out-{number}"), update=number == "1.0")
    assert [(fact.name, fact.a, fact.b) for fact in checked.comparison.system] == [("package.brax", "1.0", "2.0")]
    assert checked.explanation.startswith("packages differ, the lock having brax==1.0 (2.0 here); record")


def test_another_machine(folder: Path) -> None:
    """It is said to be one, with what the lock has of it, before what else differs."""
    here = read_lock(folder / "train.lock")
    (process,) = here.processes
    steps = [step._replace(parameters=1) if number >= 3 else step for number, step in enumerate(process.steps)]
    facts = {**here.facts, "host.cpu": "another", "env.MKL_CBWR": "AVX2"}
    write_lock(folder / "train.lock", replace(here, facts=facts, processes=(process._replace(steps=tuple(steps)),)))
    checked = check_lock(plan_of(folder, "out"))
    assert [fact.name for fact in checked.machine] == ["host.cpu"]
    assert checked.explanation.startswith(
        f"this is another machine, the lock's having host.cpu another ({here.facts['host.cpu']} here) and variables "
        "differ, the lock having MKL_CBWR=AVX2 (unset here); record"
    )


def test_what_no_lock_holds(folder: Path) -> None:
    """Where no fact differs it is data or a configuration, or another result each time, and that is what is said."""
    edit(folder, "1 << 17)", "1 << 17) * (0.5 if os.path.exists('odd') else 1)")
    check_lock(plan_of(folder, "update"), update=True)
    (folder / "odd").touch()
    checked = check_lock(plan_of(folder, "out"))
    assert checked.comparison.system == ()
    assert "no fact of the lock differs, so it is something that no lock holds" in checked.explanation
    assert "does not repeat itself, which the last command finds" in checked.explanation


def test_an_update(folder: Path) -> None:
    """It shows what moved and writes the lock of the run; unchanged, the file is not written."""
    before = (folder / "train.lock").read_text()
    assert not check_lock(plan_of(folder, "same"), update=True).updated
    edit(folder, "* 0.5", "* 0.25")
    checked = check_lock(plan_of(folder, "out"), update=True)
    assert checked.updated and checked.comparison.first is not None and checked.explanation == ""
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
