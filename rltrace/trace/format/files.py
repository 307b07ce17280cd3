"""Files of a trace: written atomically, read without leaving the folder.

Owns write-and-rename, and the refusal of oversized files, links and special files. Uses ``os`` alone, which works while
the interpreter shuts down.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

# Plain os calls: no pathlib object for each chunk, and flags that pathlib lacks.
# ruff: noqa: PTH105, PTH108, PTH111, PTH114, PTH118, PTH120, PTH123, PTH208


PARTIAL = ".partial"
"""Suffix of a file that is being written; a leftover one does not belong to the trace."""


MISSING = "is missing"


class UnreadableError(Exception):
    """A file of a trace cannot be read; the text is the reason, without the path."""


def open_for_writing(path: str, flags: int = 0) -> int:
    """Open a file, never as descriptor 0 to 2, which a program may have closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close a file. Raises OSError; an interrupted call has closed it, too."""
    with contextlib.suppress(InterruptedError):
        os.close(descriptor)


def write_whole(path: str, data: bytes) -> None:
    """Write ``path`` atomically. Raises OSError, and then leaves no file."""
    partial = path + PARTIAL
    try:
        descriptor = open_for_writing(partial, os.O_CREAT | os.O_TRUNC)
        try:
            write_all(descriptor, data)
        finally:
            close(descriptor)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class FileRequest(NamedTuple):
    """A file that is read next."""

    key: str
    limit: int
    """The longest that it may be, in bytes."""
    digest: str = ""
    """XXH3-64 of its bytes, 16 hex digits; "": not known."""


class TraceStore(Protocol):
    """Where the files of a trace are, by key: a folder, or an object store. Each method raises UnreadableError."""

    @property
    def unlisted(self) -> str:
        """Why processes that recorded nothing cannot be seen; "": they can."""

    def size(self, key: str) -> int:
        """Length in bytes of a file."""

    def holds(self, key: str) -> bool:
        """Whether a file, folder or link of this key exists."""

    def read(self, key: str, limit: int, digest: str = "") -> bytes:
        """The bytes of one file, at most ``limit``. ``digest``: of those that are wanted; others may be returned."""

    def names(self, key: str) -> list[str]:
        """Names in one folder, sorted; empty where the folder does not exist."""

    def walk(self) -> Iterator[tuple[str, int]] | None:
        """Keys and lengths of all files and links; None: they are not known."""

    def size_ahead(self, keys: Iterable[str]) -> None:
        """These sizes are asked for next."""

    def read_ahead(self, requests: Iterable[FileRequest]) -> None:
        """These files are read next, each once."""


class Folder:
    """The folder of a trace, read by key; never a file outside of it."""

    unlisted = ""

    def __init__(self, path: Path) -> None:
        self.root = os.path.realpath(path)
        self._inside: dict[str, bool] = {}

    def size(self, key: str) -> int:
        """Length in bytes of a file. Raises UnreadableError."""
        return self._stat(key).st_size

    def holds(self, key: str) -> bool:
        """Whether a file, folder or link of this key exists."""
        return self._is_inside(os.path.dirname(key)) and os.path.lexists(os.path.join(self.root, key))

    def read(self, key: str, limit: int, digest: str = "") -> bytes:
        """The bytes of one file, at most ``limit``. Raises UnreadableError."""
        if self._stat(key).st_size > limit:
            raise UnreadableError(f"is longer than the limit of {limit} bytes")
        try:
            descriptor = os.open(os.path.join(self.root, key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            return file.read(min(os.fstat(descriptor).st_size, limit))  # read() allocates all it may return

    def names(self, key: str) -> list[str]:
        """Names in one folder, sorted; empty where the folder does not exist."""
        if not self._is_inside(key):
            return []
        try:
            return sorted(os.listdir(os.path.join(self.root, key)))
        except OSError:
            return []

    def walk(self) -> Iterator[tuple[str, int]]:
        """Keys and lengths of all files and links."""
        for folder, folders, files in os.walk(self.root):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted(files + links):
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # a writer has renamed it
                    yield os.path.relpath(path, self.root), os.lstat(path).st_size

    def size_ahead(self, keys: Iterable[str]) -> None:
        """Nothing: a size takes microseconds."""

    def read_ahead(self, requests: Iterable[FileRequest]) -> None:
        """Nothing: the system reads ahead."""

    def _stat(self, key: str) -> os.stat_result:
        if not self._is_inside(os.path.dirname(key)):
            raise UnreadableError("is behind a symbolic link, which is not followed")
        try:
            found = os.lstat(os.path.join(self.root, key))
        except FileNotFoundError:
            raise UnreadableError(MISSING) from None
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror})") from None
        if stat.S_ISLNK(found.st_mode):
            raise UnreadableError("is a symbolic link, which is not followed")
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError("is not a file")
        return found

    def _is_inside(self, folder: str) -> bool:
        if folder not in self._inside:
            above, name = os.path.split(folder)
            if not folder:
                self._inside[folder] = os.path.realpath(self.root) == self.root
            else:  # one look at each folder, and not at all those above it
                plain = name not in ("", os.curdir, os.pardir) and self._is_inside(above)
                self._inside[folder] = plain and not os.path.islink(os.path.join(self.root, folder))
        return self._inside[folder]


# --- cache ------------------------------------------------------------------------------------------------------------


CACHE_VARIABLE: Final = "RLTRACE_CACHE"
"""Variable with the folder of what rltrace keeps; default: ``rltrace`` in the user's cache folder."""


def users_cache(name: str) -> Path:
    """The folder for what rltrace keeps of one kind on this machine."""
    own = os.environ.get(CACHE_VARIABLE)
    users = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # no error without a home
    return (Path(own) if own else Path(users, "rltrace")) / name


# --- JSON -------------------------------------------------------------------------------------------------------------
#
# JSON from an untrusted trace: a bounded number of values, without control characters.


MAX_VALUES_AT_ONCE: Final = 1 << 20
"""Values in one text: a journal record, a line of a table, a process start."""

MAX_VALUES: Final = 1 << 24
"""Values in all texts of one process. An empty list takes 3 bytes on disk and 64 in memory."""

_CONTROL = re.compile(rb"\\u00[0189][0-9a-f]|\\u007f|\\[bfr]|\x7f|\xc2[\x80-\x9f]", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ValueBudget:
    """A bound of the number of values that are parsed."""

    def __init__(self, limit: int = MAX_VALUES) -> None:
        self._left = limit

    def load(self, text: bytes) -> Any:
        """Parse a text. Raises ValueError where it is not JSON, or has too many values."""
        values = text.count(b",") + text.count(b"[") + text.count(b"{") + 1
        if values > MAX_VALUES_AT_ONCE:
            raise ValueError(f"holds more than {MAX_VALUES_AT_ONCE:,} values")
        self._left -= values
        if self._left < 0:
            raise ValueError("exceeds the limit of a reader for one process")
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("is nested too deep") from None


def has_control(text: bytes) -> bool:
    """Whether a JSON text holds control characters, and needs ``printable``."""
    return _CONTROL.search(text) is not None


def printable(found: Any) -> Any:
    """The value with control characters replaced, tabs and line ends aside."""
    if isinstance(found, str):
        return _UNPRINTABLE.sub("\ufffd", found)
    if isinstance(found, list):
        return [printable(item) for item in found]
    if isinstance(found, dict):
        return {printable(key): printable(value) for key, value in found.items()}
    return found
