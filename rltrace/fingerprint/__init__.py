"""What is known of a machine and a process that can change numerics: flat facts with dotted names.

Leaf. Runs inside the recorded program, so it imports neither torch nor numpy (it looks at what is loaded), starts no
process, never initialises CUDA, and asks no library a question that would fix a setting before the program has made
it: ``start`` is for the moment torch has been imported, ``facts`` for when ops have run. Every fact is a str, int,
float, bool or None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from rltrace.fingerprint import gpu, host, libraries, sources

Fact = str | int | float | bool | None
Facts = dict[str, Fact]

LAUNCHER_FACTS = "RLTRACE_FACTS"
"""Variable with a JSON object of facts that only the launcher could find out, by running other programs."""

_EARLY: Mapping[str, Callable[[], Facts]] = {
    "host": host.machine,
    "python": host.python,
    "env": host.environment,
    "packages": libraries.packages,
    "numpy": libraries.numpy_build,
    "torch": libraries.torch_build,
    "git": sources.git,
    "launcher": lambda: _from_launcher(),
}
_LATE: Mapping[str, Callable[[], Facts]] = {
    "config": libraries.torch_config,
    "threads": libraries.torch_threads,
    "flags": libraries.torch_flags,
    "cuda": gpu.cuda,
    "ray": libraries.ray,
}


def start() -> Facts:
    """Facts that can be asked for right after ``import torch`` without changing what the program does next.

    Thread counts, instruction sets and flags are not among them. PyTorch and MKL read their variables when first asked,
    and a program may still set ``os.environ["ATEN_CPU_CAPABILITY"]`` (measured: asking first makes that come too late).
    """
    return _collect(_EARLY) | sources.hashes({})


def facts(earlier: Mapping[str, Fact] | None = None) -> Facts:
    """All facts. Call it after the first op, on the thread that runs the ops (OpenMP counts threads for each).

    Source files hashed in ``earlier`` keep that hash: what ran is what was there then, not what an editor saved since.
    """
    return _collect(_EARLY) | _collect(_LATE) | sources.hashes(earlier or {})


def _from_launcher() -> Facts:
    told = json.loads(os.environ.get(LAUNCHER_FACTS) or "{}")
    return {name: value for name, value in told.items() if value is None or isinstance(value, (str, int, float))}


def _collect(parts: Mapping[str, Callable[[], Facts]]) -> Facts:
    """One part that cannot be read costs its own facts only."""
    found: Facts = {}
    for name, part in parts.items():
        try:
            found |= part()
        except Exception as error:
            found[f"unreadable.{name}"] = type(error).__name__
    return found
