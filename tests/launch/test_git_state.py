"""The git facts of a program: read from its files, or asked of git by the launcher."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from rltrace.fingerprint.sources import git_revision
from rltrace.launch import command

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    line = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("1\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


@pytest.mark.parametrize(("packed", "detached"), [(False, False), (True, False), (False, True)])
def test_revision(repo: Path, packed: bool, detached: bool) -> None:
    """The commit is found on a branch and off it, in a loose reference and in a packed one."""
    head = git(repo, "rev-parse", "HEAD")
    if packed:
        git(repo, "pack-refs", "--all")
    if detached:
        git(repo, "checkout", "-q", "--detach")
    (repo / "deep" / "er").mkdir(parents=True)
    assert git_revision(repo) == git_revision(repo / "deep" / "er") == head


def test_worktree(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A worktree has its own commit and shares the references."""
    other = tmp_path_factory.mktemp("other") / "tree"
    git(repo, "worktree", "add", "-q", "-b", "side", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    assert git_revision(other) == git(other, "rev-parse", "HEAD") != git_revision(repo)


def test_dirty(repo: Path) -> None:
    """Changed files count, new ones (a trace, logs) do not; the index is left as it was."""
    assert command.git_state(repo) == {"git.revision": git(repo, "rev-parse", "HEAD"), "git.dirty": False}
    (repo / "train-1.zarr").mkdir()
    (repo / "notes").write_text("new")
    assert command.git_state(repo)["git.dirty"] is False
    index = (repo / ".git" / "index").read_bytes()
    (repo / "train.py").write_text("2\n")
    assert command.git_state(repo)["git.dirty"] is True
    assert (repo / ".git" / "index").read_bytes() == index


def test_an_answer_is_no_failure_though_children_are_ignored(repo: Path) -> None:
    """Where SIGCHLD is ignored the system forgets how git ended: a broken index would read as an unchanged tree."""
    (repo / ".git" / "index").write_bytes(b"broken")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert command.git_state(repo)["git.dirty"] is None
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_no_hook_runs(repo: Path) -> None:
    """Neither a hook nor a file-system monitor of the repository is started."""
    script = repo / "monitor"
    script.write_text(f"#!/bin/sh\ntouch {repo}/ran\n")
    script.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(script))
    git(repo, "config", "core.hooksPath", str(repo))
    command.git_state(repo)
    assert not (repo / "ran").exists()


def test_outside_a_repository(tmp_path: Path) -> None:
    """No repository, no facts; a damaged one says nothing."""
    if git_revision(tmp_path) is None:
        assert command.git_state(tmp_path) == {}
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert git_revision(tmp_path) is None
