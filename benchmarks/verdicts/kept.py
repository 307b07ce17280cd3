"""What the runs without rltrace gave, kept from one survey to the next: no change of rltrace can change it.

Owns the folder it is kept in. What is kept is found again only under the same programs, the same oracle, the same
libraries and the same processor; whoever changes anything else (a kernel, a driver) deletes the folder.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path


class Kept:
    """Files made once."""

    def __init__(self, folder: Path, sources: Iterable[Path]) -> None:
        """``sources``: the files of which what is kept is the outcome."""
        key = sha256(surroundings().encode())
        for source in sorted(sources):
            key.update(source.name.encode() + b"\0" + source.read_bytes())
        self.folder = folder / key.hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)

    def file(self, name: str, make: Callable[[Path], None]) -> Path:
        """The file ``name``; ``make`` writes it where it is missing, and raises where it cannot."""
        path = self.folder / name
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            make(unfinished)
            unfinished.rename(path)
        return path


@cache
def surroundings() -> str:
    """The libraries, rltrace left out, and the processor."""
    names = {(d.metadata["Name"], d.version) for d in distributions() if not d.metadata["Name"].startswith("rltrace")}
    processor = [line for line in _cpuinfo() if line.startswith(("model name", "flags"))][:2]
    return repr((platform.python_version(), sorted(names), processor))


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else [platform.processor()]
