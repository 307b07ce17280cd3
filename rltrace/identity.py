"""What makes two ops of two runs the same op: portable 64-bit keys.

Owns the rule which facts take part in identity and which are for display only. A key never depends on a process id, an
absolute path, a line number, a bytecode offset or the order in which things were first seen. Leaf: imports neither
torch nor zarr.
"""

from __future__ import annotations

import json
from pathlib import Path

from xxhash import xxh3_64_intdigest

Key = int
"""64-bit unsigned portable key of a table entry."""


def portable_key(kind: str, *parts: object) -> Key:
    """Key of JSON-able ``parts`` under ``kind``: XXH3-64 of their canonical JSON, equal in every process and place."""
    text = json.dumps([kind, *parts], separators=(",", ":"), sort_keys=True, ensure_ascii=True)
    return xxh3_64_intdigest(text.encode("ascii"))


def portable_path(filename: str) -> str:
    """``filename`` relative to the folder that holds its top-level package; a lone script is its bare name.

    ``/any/site-packages/torch/optim/adam.py`` becomes ``torch/optim/adam.py`` wherever it is installed, and
    ``/home/me/project/train.py`` becomes ``train.py``. Names that are no files (``<string>``) stay as they are.
    """
    if filename.startswith("<"):
        return filename
    path = Path(filename)
    parts = [path.name]
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        parts.append(folder.name)
    return "/".join(reversed(parts))


def frame_key(file: str, function: str, source: str) -> Key:
    """Key of one stack frame: portable path, qualified function name, text of the source line (stripped)."""
    return portable_key("frame", file, function, source.strip())


def site_key(frames: list[Key]) -> Key:
    """Key of a call site: the keys of its user frames, innermost first, without those inside torch and rltrace."""
    return portable_key("site", frames)
