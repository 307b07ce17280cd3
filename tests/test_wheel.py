"""The wheel: every tracked file of both packages and nothing else, and it runs from a folder on ``PYTHONPATH``."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``pip wheel --no-deps .`` builds it, without a separate environment, and so without a network."""
    builder = pytest.importorskip("hatchling.builders.wheel", reason="the test extra has hatchling: make set-up")
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(path)


def test_it_holds_both_packages(wheel: Path) -> None:
    """Python, the sources of the native engine, SKILL.md, and what the page and the interface are drawn with."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "rltrace", "tui/rltrace_tui"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    expected = {name.removeprefix("tui/") for name in tracked.split("\0") if name and (ROOT / name).is_file()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = {Path(name).name: archive.read(name).decode() for name in names if ".dist-info/" in name}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {Path(name).suffix for name in expected} >= {".py", ".cpp", ".h", ".md", ".css", ".tcss"}
    assert {"METADATA", "entry_points.txt", "LICENSE", "RECORD", "WHEEL"} <= info.keys()
    assert "rltrace = rltrace.commands.main:main" in info["entry_points.txt"]
    assert "[pytest11]\nrltrace = rltrace.pytest_plugin" in info["entry_points.txt"]


def test_it_runs_from_a_folder_that_cannot_be_written(wheel: Path, tmp_path: Path) -> None:
    """The recipe for containers: unpacked, as ``pip install --target`` does, and named in ``PYTHONPATH``."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for folder, _, _ in os.walk(site):
        Path(folder).chmod(0o555)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": ""}
    code = "import rltrace, sys, runpy; print(rltrace.__file__); sys.argv[1:] = ['--version']; "
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}runpy.run_module('rltrace', run_name='__main__')"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    path, version = ran.stdout.splitlines()
    assert Path(path).is_relative_to(site)
    assert version == f"rltrace {wheel.name.split('-')[1]}"
    for folder, _, _ in os.walk(site):
        Path(folder).chmod(0o755)
