"""The library with which programs of JAX digest their arrays: found, and compiled for this jaxlib, into the cache.

Loads nothing, and imports no JAX.
"""

import os
import platform
import re
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from rltrace.native.library import SOURCES, cache_folder, content_digest

SOURCE: Final = Path(__file__).with_name("digest_log.cpp")
"""Of the library; it includes ``digest.h`` of the native engine."""


def jaxlib_folder() -> Path | None:
    """The folder of this Python's jaxlib, without importing it; None: JAX is not installed."""
    spec = PathFinder.find_spec("jaxlib")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def log_library_path(jaxlib: Path) -> Path:
    """Where the library for a jaxlib is, or will be: another for each version and for other sources."""
    versions = re.findall(r"""^_version *= *['"](.*)['"]""", (jaxlib / "version.py").read_text("utf-8"), re.MULTILINE)
    own = content_digest(SOURCE.read_bytes()) + content_digest((SOURCES / "digest.h").read_bytes())
    name = f"jaxlib{versions[0] if versions else ''}-{platform.machine()}-{content_digest(own.encode())[:16]}.so"
    return cache_folder() / re.sub(r"[^\w.+-]", "", name)


def find() -> Path | None:
    """The library for this Python's jaxlib; None where none is built."""
    jaxlib = jaxlib_folder()
    path = None if jaxlib is None else log_library_path(jaxlib)
    return path if path is not None and path.is_file() else None


def build(*, force: bool = False) -> Path | None:
    """Compile the library; its path. None: JAX is not installed.

    Takes three seconds; where it is there, nothing unless ``force``. Raises BuildError.
    """
    from rltrace.native.build import compile_library

    jaxlib = jaxlib_folder()
    if jaxlib is None:
        return None
    path = log_library_path(jaxlib)
    if force or not path.is_file():
        folders = [word for folder in (jaxlib / "include", SOURCES) for word in ("-isystem", os.fspath(folder))]
        compile_library("the log of JAX programs", [*folders, os.fspath(SOURCE)], path)
    return path
