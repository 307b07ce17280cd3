"""What git says of the program's folder: its commit, and whether files were changed since.

Asked by the launcher before the program starts, never inside it. Runs git without hooks, locks or a file-system
monitor, and does without the answer where it takes long.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rltrace.fingerprint.sources import git_revision
from rltrace.launch.signals import waiting_for_children

PATIENCE = 2.0
"""Seconds."""

_STATUS = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
    "status",
    "--porcelain",
    "--untracked-files=no",
    "--ignore-submodules=all",
)


def state(folder: Path) -> dict[str, str | bool | None]:
    """``git.revision`` and ``git.dirty`` (None: not known); empty outside a repository."""
    revision = git_revision(folder)
    return {} if revision is None else {"git.revision": revision, "git.dirty": _dirty(folder)}


def _dirty(folder: Path) -> bool | None:
    try:
        with waiting_for_children():
            answer = subprocess.run(
                _STATUS, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE
            )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bool(answer.stdout.strip()) if answer.returncode == 0 else None
