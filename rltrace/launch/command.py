"""What a command line runs: the file that would be started, the script in it, a name for its trace.

Looks, never runs anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path


class Found(Enum):
    """Whether a command can be started, as env(1) tells it."""

    EXECUTABLE = "executable"
    NOT_EXECUTABLE = "not executable"
    NOTHING = "not found"


def look_up(program: str, environment: Mapping[str, str] = os.environ) -> Found:
    """Whether the system would find ``program`` and may start it."""
    if "/" in program:
        candidates = [Path(program)]
    else:
        candidates = [Path(folder or ".") / program for folder in environment.get("PATH", os.defpath).split(os.pathsep)]
    there = [path for path in candidates if os.path.lexists(path)] if program else []
    if any(path.is_file() and os.access(path, os.X_OK) for path in there):
        return Found.EXECUTABLE
    in_the_way = any(path.is_file() or "/" in program for path in there)
    return Found.NOT_EXECUTABLE if in_the_way else Found.NOTHING


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
