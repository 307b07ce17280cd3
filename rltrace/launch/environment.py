"""The environment of a recorded command: everything as it was, and the way in.

Owns the bootstrap's place on PYTHONPATH and the variables that travel to every descendant.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rltrace.fingerprint import LAUNCHER_FACTS, Fact
from rltrace.record.options import DEPTH, PARENT_RANK, VARIABLE, RecordOptions

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
