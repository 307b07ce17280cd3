"""Facts of the program's own files: a hash of each and of its lines, the variables that they name, and the git revision
they come from.

Only reads files: git itself is never run here. A source file is named relative to the script's folder, or else to the
current folder, so that it has one name on every machine.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from rltrace.fingerprint.host import named_variables
from rltrace.portable_keys import portable_path, stable_name

Facts = dict[str, str | int | float | bool | None]

MAX_FILES = 500
MAX_FILE_BYTES = 4 << 20
_LIBRARY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  to make paths absolute takes most of the time
LARGE = ("torch", "numpy", "sympy", "scipy", "pandas", "matplotlib", "transformers", "jax")
"""Packages whose modules are not hashed one by one, where they are installed: reading all takes 2 ms."""
_OWN = ("rltrace", "sitecustomize", "_rltrace_bootstrap")


def hashes(earlier: Mapping[str, str | int | float | bool | None], read: Iterable[SourceFile] = ()) -> Facts:
    """``source.NAME``: first 16 hexadecimal digits of SHA-256, of every loaded module that belongs to the program; and
    ``env.NAME``: what it was started with of every variable that one of these names.

    ``read``: files that were just read, and are not again.
    """
    texts = {file.path: file.text for file in read if file.text}
    found: Facts = {name: value for name, value in earlier.items() if name.startswith("source.")}
    for name, path in program_files():
        fact = f"source.{name}"
        if fact not in found and len(found) < MAX_FILES:
            text = texts[path] if path in texts else _read(path)[0]
            found[fact] = None if text is None else _hash(text)
            found |= {} if text is None else named_variables(variables_in(text))
    return found


_VARIABLE = re.compile(
    rb"""(?:environ(?:\.get|\.pop|\.setdefault)?\s*[\[(]|getenv\s*\()\s*b?["']([A-Za-z_]\w*)["']"""
    rb"""|["']([A-Za-z_]\w*)["']\s+(?:not\s+)?in\s+(?:os\.)?environ\b"""
)


def variables_in(text: bytes) -> set[str]:
    """The environment variables that a source file names where it reads or sets them."""
    if b"environ" not in text and b"getenv" not in text:
        return set()
    return {(first or second).decode() for first, second in _VARIABLE.findall(text)}


class SourceFile(NamedTuple):
    """A file of the program, or of a library that is not installed in a package folder."""

    path: str
    text: bytes


def line_digests(text: bytes) -> bytes:
    """CRC-32 of each line, little-endian."""
    digests = array("I", map(crc32, text.splitlines()))
    if sys.byteorder == "big":
        digests.byteswap()
    return digests.tobytes()


def source_files(known: Container[str], started: float) -> Iterator[tuple[str, SourceFile]]:
    """Loaded files by the names that call stacks give them, without those that are ``known``.

    The text is empty of those written after ``started``, a time since the epoch: the program may have loaded another.
    """
    found: set[str] = set()
    for path in _loaded_files():
        name = portable_path(path)
        if name in known or name in found or len(found) >= MAX_FILES:
            continue
        text, written = _read(path)
        if written is not None:
            found.add(name)
            yield name, SourceFile(path, text if text is not None and written <= started else b"")


def program_files() -> Iterator[tuple[str, str]]:
    """Portable name and path of the program's loaded source files."""
    roots = _roots()
    for path in _loaded_files():
        root = next((root for root in roots if path.startswith(root)), None)
        if root is not None:
            yield stable_name(path[len(root) :]), path


def _loaded_files() -> Iterator[str]:
    """Paths of loaded source files outside of package folders."""
    files = ((name, getattr(sys.modules.get(name), "__file__", None)) for name in LARGE)
    skipped = tuple(f"{name}." for name, file in files if isinstance(file, str) and _is_not_the_programs(file))
    for name, module in sys.modules.copy().items():  # unlike a list of the items, made while no other thread runs
        if name.startswith(skipped):
            continue
        file = _script() if name == "__main__" else getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or _is_not_the_programs(file) or name.partition(".")[0] in _OWN:
            continue
        path = os.path.abspath(file)  # noqa: PTH100
        if not _is_not_the_programs(path):
            yield path


def _script() -> str | None:
    """The file that the program is run from; Python takes ``__file__`` away when it has ended."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None and sys.argv and os.path.isfile(sys.argv[0]):  # noqa: PTH113
        return sys.argv[0]
    return file if isinstance(file, str) else None


def _is_not_the_programs(file: str) -> bool:
    """Whether a module's file is the standard library's, a package's, or no source.

    Called for thousands of modules before the program's first op, so it has no loop.
    """
    return not file.endswith(".py") or file.startswith(_LIBRARY) or "site-packages" in file or "dist-packages" in file


def _roots() -> list[str]:
    """The script's folder and the current one, each with a separator at its end."""
    main = _script()
    folders = [os.path.dirname(os.path.abspath(main))] if main is not None else []  # noqa: PTH100, PTH120
    with suppress(OSError):  # the folder may be gone
        folders.append(os.getcwd())  # noqa: PTH109
    return [folder.rstrip(os.sep) + os.sep for folder in folders]


def _read(path: str) -> tuple[bytes | None, float | None]:
    """The text of a file, None where it is too long, and when it was written; (None, None) where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  a Path or a buffer takes as long as reading it
            status = os.fstat(file.fileno())
            return file.readall() if status.st_size <= MAX_FILE_BYTES else None, status.st_mtime
    except OSError:
        return None, None


def _hash(text: bytes) -> str:
    return sha256(text).hexdigest()[:16]


def git() -> Facts:
    """``git.revision`` of the script's folder; nothing outside a repository."""
    roots = _roots()
    revision = git_revision(Path(roots[0])) if roots else None
    return {} if revision is None else {"git.revision": revision}


def git_revision(folder: Path) -> str | None:
    """The commit that ``folder`` has checked out, read from the files of its repository."""
    for parent in (folder, *folder.parents):
        entry = parent / ".git"
        try:
            if entry.is_dir():
                return _head(entry)
            if entry.is_file():  # a worktree or a submodule
                return _head(parent / entry.read_text().partition("gitdir:")[2].strip())
        except OSError:
            return None
    return None


def _head(repository: Path) -> str | None:
    head = (repository / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head or None
    reference = head.partition(":")[2].strip()
    common = repository / "commondir"
    shared = repository / common.read_text().strip() if common.is_file() else repository
    for place in (repository, shared):
        if (place / reference).is_file():
            return (place / reference).read_text().strip() or None
    packed = shared / "packed-refs"
    if packed.is_file():
        for line in packed.read_text().splitlines():
            revision, _, name = line.partition(" ")
            if name == reference:
                return revision
    return None
