"""Portable 64-bit keys, which identify the same op in two runs.

Owns which facts are part of identity and which are for display only. A key never depends on a process id, an absolute
path, a line number, a bytecode offset or the order of first use. Imports no torch.
"""

import json
import re
from functools import lru_cache
from pathlib import Path

from xxhash import xxh3_64_intdigest

Key = int
"""64-bit unsigned portable key of a table entry."""


def portable_key(kind: str, *parts: object) -> Key:
    """Key of JSON-able ``parts`` under ``kind``: XXH3-64 of their canonical JSON, equal in every process and place."""
    return xxh3_64_intdigest(_canonical([kind, *parts]).encode("ascii"))


_canonical = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=True).encode


_VOLATILE_NAMES = tuple(
    (re.compile(pattern), stable)
    for pattern, stable in (
        (r"<ipython-input-\d+-\w+>|(.*/)?ipykernel_\d+/\d+\.py", "<cell>"),  # a notebook cell
        (r"<torch_package_\d+>(.*)", r"<torch_package>\1"),
        (r"<eval_with_key>\..*", "<eval_with_key>"),  # of torch.fx
        (r"<doctest (.*)\[\d+\]>", r"<doctest \1>"),
        (r"(<.*) at 0x[0-9a-fA-F]+(.*)", r"\1\2"),
        (r"(.*/)?tmp[a-z0-9_]{8}(\.\w+)", r"\1tmp\2"),  # of module tempfile
    )
)
"""File names with a counter, a random string or an address in them, and the part that is stable across runs."""


def stable_name(filename: str) -> str:
    """``filename`` without counters, process ids, addresses and random letters."""
    for pattern, stable in _VOLATILE_NAMES:
        match = pattern.fullmatch(filename)
        if match is not None:
            return match.expand(stable)
    return filename


def portable_path(filename: str) -> str:
    """``filename`` relative to the folder of its top-level package; a script outside a package is its bare name.

    ``/any/site-packages/torch/optim/adam.py`` becomes ``torch/optim/adam.py`` wherever it is installed, and
    ``/home/me/project/train.py`` becomes ``train.py``. A name that is not a file (``<string>``) is its ``stable_name``.
    """
    filename = stable_name(filename)
    if filename.startswith("<"):
        return filename
    folder, _, name = filename.rpartition("/")
    package = _package_path(folder) if folder else ""
    return f"{package}/{name}" if package else name


@lru_cache(4_096)
def _package_path(folder: str) -> str:
    """``folder`` relative to that of its top-level package; "" where it is no package."""
    path, parts = Path(folder), list[str]()
    for parent in (path, *path.parents):
        if not (parent / "__init__.py").is_file():
            break
        parts.append(parent.name)
    return "/".join(reversed(parts))


def frame_key(file: str, function: str, source: str) -> Key:
    """Key of one stack frame: portable path, qualified function name, text of the source line (stripped)."""
    return portable_key("frame", file, function, source.strip())


def site_key(frames: list[Key]) -> Key:
    """Key of a call site: the keys of its user frames, innermost first, without those inside torch and rltrace."""
    return portable_key("site", frames)
