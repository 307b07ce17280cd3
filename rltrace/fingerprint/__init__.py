"""Facts of the machine and the process that can change numerics, with dotted names.

Leaf. Runs inside the recorded program, so it imports neither torch nor numpy (it reads what is loaded), starts no
process, never initialises CUDA, and reads nothing whose reading fixes a setting that the program may still make: call
``start`` when torch has been imported, ``facts`` when ops have run. Every fact is a str, int, float, bool or None.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping

from rltrace.fingerprint import host, libraries, sources

Fact = str | int | float | bool | None
Facts = dict[str, Fact]

LAUNCHER_FACTS = "RLTRACE_FACTS"
"""Variable with a JSON object of facts for which the launcher has run other programs."""

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
    "cuda": host.cuda,
    "ray": libraries.ray,
}


def start() -> Facts:
    """Facts that can be read right after ``import torch`` without changing what the program does next.

    Thread counts, instruction sets and flags are not among them: PyTorch and MKL read their variables at the first
    query, after which setting ``os.environ["ATEN_CPU_CAPABILITY"]`` has no effect (measured).
    """
    return _collect(_EARLY) | sources.hashes({})


def facts(earlier: Mapping[str, Fact] | None = None, read: Iterable[sources.SourceFile] = ()) -> Facts:
    """All facts. Call it after the first op, on the thread that runs the ops (OpenMP counts threads for each).

    Source files hashed in ``earlier`` keep that hash: the program ran them as they were then. ``read``: files that were
    just read, and are not again.
    """
    return _collect(_EARLY) | _collect(_LATE) | sources.hashes(earlier or {}, read)


def _from_launcher() -> Facts:
    recorded = json.loads(os.environ.get(LAUNCHER_FACTS) or "{}")
    return {name: value for name, value in recorded.items() if value is None or isinstance(value, (str, int, float))}


def _collect(readers: Mapping[str, Callable[[], Facts]]) -> Facts:
    """The facts of all of them; one that cannot be read costs only its own facts."""
    found: Facts = {}
    for name, read in readers.items():
        try:
            found |= read()
        except Exception as error:
            found[f"unreadable.{name}"] = type(error).__name__
    return found
