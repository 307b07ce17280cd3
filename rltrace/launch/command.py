"""Command lines: the file that would be started, the script, a name for the trace, the environment.

Runs nothing of the command.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from rltrace.extension import recorders
from rltrace.fingerprint import LAUNCHER_FACTS, Fact
from rltrace.fingerprint.sources import git_revision
from rltrace.launch.signals import waiting_for_children
from rltrace.recorder.base.options import DEPTH, PARENT_RANK, VARIABLE, RecordOptions
from rltrace.trace.format.files import CACHE_VARIABLE


class CommandLookup(Enum):
    """Whether a command can be started, in the terms of env(1)."""

    EXECUTABLE = "executable"
    NOT_EXECUTABLE = "not executable"
    NOTHING = "not found"


def look_up(program: str, environment: Mapping[str, str] = os.environ) -> CommandLookup:
    """Whether the system would find ``program`` and may start it."""
    if "/" in program:
        candidates = [Path(program)]
    else:
        candidates = [Path(folder or ".") / program for folder in environment.get("PATH", os.defpath).split(os.pathsep)]
    existing = [path for path in candidates if os.path.lexists(path)] if program else []
    if any(path.is_file() and os.access(path, os.X_OK) for path in existing):
        return CommandLookup.EXECUTABLE
    is_unusable = any(path.is_file() or "/" in program for path in existing)
    return CommandLookup.NOT_EXECUTABLE if is_unusable else CommandLookup.NOTHING


PYTHON_NAME = re.compile(r"python[\d.]*")

ASK = (
    "import importlib.util as u, sys; sys.path[0] = sys.argv[1];"
    "sys.exit(0 if u.find_spec('rltrace') or not (u.find_spec('torch') or u.find_spec('jax')) else 3)"
)
"""Python that exits with 3 where it finds torch or JAX and not rltrace, as its script in the folder ``argv[1]``
would."""

ASK_SECONDS = 30.0


def python_of(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str | None:
    """The Python that runs a command, ``python train.py`` or a script with a first line of that kind; None: none is
    seen there, or it is the one that runs rltrace."""
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is not None and not PYTHON_NAME.fullmatch(Path(program).name):
        program = _named_in(Path(program), environment)
    if program is None or not PYTHON_NAME.fullmatch(Path(program).name):
        return None
    own = Path(sys.executable)
    is_own = Path(program).parent == own.parent and os.path.realpath(program) == os.path.realpath(own)
    return None if is_own else program


def _named_in(script: Path, environment: Mapping[str, str]) -> str | None:
    """The interpreter of ``#!/usr/bin/env python`` or ``#!/venv/bin/python``; None: it is no such script."""
    try:
        with script.open("rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        return shutil.which(words[1], path=environment.get("PATH")) if len(words) == 2 else None
    return words[0] if words else None


def lacks_rltrace(python: str, folder: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this Python has torch or JAX, and not rltrace, for a script in ``folder``."""
    try:
        with waiting_for_children():
            line = [python, "-c", ASK, os.fspath(folder)]
            asked = subprocess.run(
                line, env=dict(environment), capture_output=True, stdin=subprocess.DEVNULL, timeout=ASK_SECONDS
            )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 3


def script_of(command: Sequence[str]) -> str | None:
    """The Python file a command names, if it names one: ``train.py`` of ``torchrun --nproc 2 train.py``."""
    return next((word for word in command if word.endswith(".py")), None)


def script_folder(command: Sequence[str]) -> Path:
    """Folder of the script that the command line names; else the current folder."""
    script = script_of(command)
    return Path(script).resolve().parent if script is not None else Path.cwd()


def trace_stem(command: Sequence[str]) -> str:
    """Name for a trace of this command: its script, its module, or its program."""
    script = script_of(command)
    if script is not None:
        stem = Path(script).stem
    elif "-m" in command[:-1]:
        stem = command[command.index("-m") + 1].rpartition(".")[2]
    else:
        stem = Path(command[0]).name
    return re.sub(r"[^\w.+-]+", "-", stem).strip("-.") or "trace"


# --- environment ------------------------------------------------------------------------------------------------------
#
# Owns the bootstrap's place on PYTHONPATH and the variables that every descendant inherits.


BOOTSTRAP = Path(__file__).parent / "bootstrap"

STARTS_VARIABLE = "RLTRACE_STARTS"
"""Folder for start records; not among the options, as the bootstrap reads it without parsing."""

RECORDERS = "RLTRACE_RECORDERS"
"""``library=module:function …``: what starts the recorder of each library, once it is imported."""

ORIGIN = "RLTRACE_ORIGIN"
"""The original of the current folder where an experiment runs a command in a copy; recorded in its place."""


def child_environment(
    options: RecordOptions, facts: Mapping[str, Fact], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """``environment`` for a command to record, inside another recording too."""
    child = dict(environment)
    for name in (DEPTH, PARENT_RANK):  # of another recording
        child.pop(name, None)
    child.pop(ORIGIN, None)
    options.to_environment(child)
    child[LAUNCHER_FACTS] = json.dumps(dict(facts))
    child[STARTS_VARIABLE] = os.fspath(Path(options.trace) / "starts")
    child[RECORDERS] = " ".join(f"{library}={start}" for library, start in recorders(options).items())
    bootstrap = os.fspath(BOOTSTRAP)
    before = [entry for entry in child.get("PYTHONPATH", "").split(os.pathsep) if entry != bootstrap]
    child["PYTHONPATH"] = os.pathsep.join([bootstrap, *before]) if before != [""] else bootstrap
    return child


def recording_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of ``environment`` that a process needs to be recorded too; empty outside of a recording."""
    if VARIABLE not in environment:
        return {}
    names = (VARIABLE, STARTS_VARIABLE, RECORDERS, LAUNCHER_FACTS, DEPTH, PARENT_RANK, CACHE_VARIABLE, "PYTHONPATH")
    return {name: environment[name] for name in names if name in environment}


# --- repository -------------------------------------------------------------------------------------------------------
#
# The commit of the program's folder, and whether files have changed since: read by the launcher before the program
# starts, for GIT_SECONDS at most. Git is run without hooks, locks or a file-system monitor.


GIT_SECONDS = 2.0

_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def git(folder: Path, *words: str, timeout: float | None = None) -> bytes | None:
    """What git prints in ``folder``; None: it failed, does not exist, or took longer than ``timeout`` seconds."""
    try:
        with waiting_for_children():
            answer = subprocess.run(
                [*_GIT, *words], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout
            )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def git_state(folder: Path) -> dict[str, str | bool | None]:
    """``git.revision`` and ``git.dirty`` (None: unknown); empty outside a repository."""
    revision = git_revision(folder)
    if revision is None:
        return {}
    status = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    changed = git(folder, *status, timeout=GIT_SECONDS)
    return {"git.revision": revision, "git.dirty": None if changed is None else bool(changed.strip())}
