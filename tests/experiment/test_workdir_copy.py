"""A run's own copy of the working folder: whole, apart from what need not or must not be copied."""

import os
from pathlib import Path

import pytest
from samples import small_trace

from rltrace.errors import UsageError
from rltrace.experiment.confirm.run_cache import RunCache, RunSetting
from rltrace.experiment.confirm.steps_covered import StepsCovered
from rltrace.experiment.runner import Runner
from rltrace.experiment.workdir_copy import check_extent, copy_folder, extent_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a bit of everything that lies in folders of training programs."""
    folder = tmp_path / "outside" / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "model.py").write_text("x = 1\n")
    (folder / "package" / "__pycache__").mkdir()
    (folder / "package" / "__pycache__" / "model.pyc").write_bytes(b"old")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "pyvenv.cfg").write_text("home = /usr\n")
    (folder / "data").mkdir()
    (folder / "data" / "big.bin").write_bytes(bytes(1000))
    (folder.parent / "common.yaml").write_text("lr: 1\n")
    (folder / "common.yaml").symlink_to("../common.yaml")
    (folder / "alias.py").symlink_to("package/model.py")
    (folder / "gone").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    small_trace(folder / "old.zarr")
    return folder


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_what_rltrace_wrote_is_left_out(project: Path, tmp_path: Path) -> None:
    """An experiment keeps what its programs printed, and the runs of another one are no part of a program."""
    before = listing_of_copy(project, tmp_path / "before"), sum(extent_of(project).values())
    with Runner() as runner:
        RunCache(RunSetting(project / "old.confirm", {}, StepsCovered(0, 2)), {"a": "1"}, runner)
    (project / "old.confirm" / "A0.out").write_bytes(bytes(5000))
    assert (listing_of_copy(project, tmp_path / "after"), sum(extent_of(project).values())) == before


def listing_of_copy(folder: Path, target: Path) -> set[str]:
    copy_folder(folder, target)
    return listing(target)


def test_files_are_copied(project: Path, tmp_path: Path) -> None:
    """Files with their contents and modes; no caches, traces, pipes; the copy's files are the copy's own."""
    copy_folder(project, tmp_path / "copy")
    names = {
        "package",
        "package/model.py",
        "run.sh",
        ".venv",
        "data",
        "data/big.bin",
        "common.yaml",
        "alias.py",
        "gone",
    }
    assert listing(tmp_path / "copy") == names
    assert os.access(tmp_path / "copy" / "run.sh", os.X_OK)
    (tmp_path / "copy" / "alias.py").write_text("changed\n")
    assert (tmp_path / "copy" / "package" / "model.py").read_text() == "changed\n"
    assert (project / "package" / "model.py").read_text() == "x = 1\n"


def test_environments_and_shared_entries_are_links(project: Path, tmp_path: Path) -> None:
    """A virtual environment works from the copy, and a shared entry is there without having been copied."""
    copy_folder(project, tmp_path / "copy", ("data",))
    for name in (".venv", "data"):
        assert (tmp_path / "copy" / name).readlink() == project / name
    assert sum(extent_of(project, ("data",)).values()) == sum(extent_of(project).values()) - 1000


def test_links_lead_where_they_led(project: Path, tmp_path: Path) -> None:
    """A relative link out of the folder leads to the same file from any copy; one that led nowhere still does."""
    copy_folder(project, tmp_path / "far" / "away" / "copy")
    copy = tmp_path / "far" / "away" / "copy"
    assert (copy / "common.yaml").read_text() == "lr: 1\n"
    assert (copy / "gone").is_symlink() and not (copy / "gone").exists()


def test_a_copy_within_the_folder(project: Path) -> None:
    """The folder that gets the copies may lie in the one that is copied, and is left out."""
    output = project / "results"
    for name in "12":
        copy_folder(project, output / name, without=output)
    assert not (output / "2" / "results").exists()
    assert (output / "2" / "package" / "model.py").exists()


def test_a_folder_too_large_is_refused(project: Path) -> None:
    """The error names what is large and both ways out."""
    with pytest.raises(UsageError, match=r"data: 0\.0 GB.*--share data.*--in-place"):
        check_extent(project, (), None, limit=500)
    check_extent(project, ("data",), None, limit=500)


def test_a_shared_name_that_is_not_there(project: Path) -> None:
    """Sharing what does not exist is an error, before anything is copied."""
    with pytest.raises(UsageError, match="--share dta"):
        check_extent(project, ("dta",), None)
