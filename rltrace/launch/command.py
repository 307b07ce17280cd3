"""What a command line runs: the file that would be started, the script in it, a name for its trace.

Looks, never runs anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from rltrace.fingerprint import LAUNCHER_FACTS, Fact
from rltrace.fingerprint.sources import git_revision
from rltrace.launch.signals import waiting_for_children
from rltrace.recorder.base.options import DEPTH, PARENT_RANK, VARIABLE, RecordOptions


class CommandLookup(Enum):
    """Whether a command can be started, as env(1) tells it."""

    EXECUTABLE = "executable"
    NOT_EXECUTABLE = "not executable"
    NOTHING = "not found"


def look_up(program: str, environment: Mapping[str, str] = os.environ) -> CommandLookup:
    """Whether the system would find ``program`` and may start it."""
    if "/" in program:
        candidates = [Path(program)]
    else:
        candidates = [Path(folder or ".") / program for folder in environment.get("PATH", os.defpath).split(os.pathsep)]
    there = [path for path in candidates if os.path.lexists(path)] if program else []
    if any(path.is_file() and os.access(path, os.X_OK) for path in there):
        return CommandLookup.EXECUTABLE
    in_the_way = any(path.is_file() or "/" in program for path in there)
    return CommandLookup.NOT_EXECUTABLE if in_the_way else CommandLookup.NOTHING


def script_of(command: Sequence[str]) -> str | None:
    """The Python file a command names, if it names one: ``train.py`` of ``torchrun --nproc 2 train.py``."""
    return next((word for word in command if word.endswith(".py")), None)


def script_folder(command: Sequence[str]) -> Path:
    """Where the program's own files are, as far as its command line tells; else the current folder."""
    script = script_of(command)
    return Path(script).resolve().parent if script is not None else Path.cwd()


def trace_stem(command: Sequence[str]) -> str:
    """What a trace of this command is called: after its script, its module, or itself."""
    script = script_of(command)
    if script is not None:
        stem = Path(script).stem
    elif "-m" in command[:-1]:
        stem = command[command.index("-m") + 1].rpartition(".")[2]
    else:
        stem = Path(command[0]).name
    return re.sub(r"[^\w.+-]+", "-", stem).strip("-.") or "trace"


def fresh_trace(folder: Path, stem: str) -> Path:
    """The first of ``stem-1.zarr``, ``stem-2.zarr``, … that is free in ``folder``."""
    number = 1
    while os.path.lexists(folder / f"{stem}-{number}.zarr"):
        number += 1
    return folder / f"{stem}-{number}.zarr"


# --- environment ------------------------------------------------------------------------------------------------------
#
# The environment of a recorded command: everything as it was, and the way in.
#
# Owns the bootstrap's place on PYTHONPATH and the variables that travel to every descendant.


BOOTSTRAP = Path(__file__).parent / "bootstrap"

BIRTHS = "RLTRACE_BIRTHS"
"""Folder for birth records; apart from the options, because the bootstrap reads it without parsing anything."""

ORIGIN = "RLTRACE_ORIGIN"
"""Folder that the current one is a copy of, where an experiment runs a command in a copy: the trace names that one."""


def child_environment(
    options: RecordOptions, facts: Mapping[str, Fact], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """``environment`` for a command that is to be recorded, within another recording too."""
    child = dict(environment)
    for above in (DEPTH, PARENT_RANK):  # of another recording
        child.pop(above, None)
    child.pop(ORIGIN, None)
    options.to_environment(child)
    child[LAUNCHER_FACTS] = json.dumps(dict(facts))
    child[BIRTHS] = os.fspath(Path(options.trace) / "births")
    bootstrap = os.fspath(BOOTSTRAP)
    before = [entry for entry in child.get("PYTHONPATH", "").split(os.pathsep) if entry != bootstrap]
    child["PYTHONPATH"] = os.pathsep.join([bootstrap, *before]) if before != [""] else bootstrap
    return child


def handed_down(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What of a recorded process's ``environment`` a process needs to be recorded with it; empty where none is."""
    if VARIABLE not in environment:
        return {}
    names = (VARIABLE, BIRTHS, LAUNCHER_FACTS, DEPTH, PARENT_RANK, "PYTHONPATH")
    return {name: environment[name] for name in names if name in environment}


# --- repository -------------------------------------------------------------------------------------------------------
#
# What git says of the program's folder: its commit, and whether files were changed since.
#
# Asked by the launcher before the program starts, never inside it. Runs git without hooks, locks or a file-system
# monitor, and does without the answer where it takes long.


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
