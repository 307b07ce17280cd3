"""The compiled library of the native engine: found, compared with this torch and this Python, loaded, tried.

Owns what a library must have been built for. Runs in the recorded program and in the launcher: imports neither torch
nor the recorder, starts no process, and loads nothing that was built for something else.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from rltrace.digest import PAGE_BYTES, digest_buffer
from rltrace.json import from_json
from rltrace.trace.format.files import users_cache

MODULE = "rltrace_engine"
"""Name of the module that a library is."""


BUILD_RECORD = "engine.json"
"""Name of the build record, which names the library beside it."""

SOURCES = Path(__file__).parent / "sources"

VARIANT_VARIABLE = "RLTRACE_ENGINE_VARIANT"
"""Variable with the variant of the library that is built and used (``build.VARIANTS``); for tests."""

TRIED_SIZES = 0, 1, 8, 100, 200, 1_000, PAGE_BYTES, 3 * PAGE_BYTES + 5
"""Sizes at which a library's digest is compared: one of each rule."""

TRIED_SEED = 0x9E3779B97F4A7C15


# --- what a library is built for --------------------------------------------------------------------------------------


class BuildTarget(NamedTuple):
    """A torch, a Python and a machine. torch's C++ interface and Python's frames are stable within one build only."""

    torch: str
    """Version, as in ``2.13.0+cpu``."""
    torch_git: str
    cuda: str
    """Version of CUDA or ROCm that torch is built with; empty: none."""
    python: str
    """Implementation, version and ABI flags, as in ``CPython 3.13t``."""
    machine: str

    @property
    def text(self) -> str:
        """``torch 2.13.0+cpu, CPython 3.11, x86_64``."""
        return f"torch {self.torch}, {self.python}, {self.machine}"


class BuildRecord(NamedTuple):
    """What a library was built for, and of what."""

    target: BuildTarget
    compiler: str
    """Path and version."""
    flags: tuple[str, ...]
    variant: str
    """Empty: the usual one."""
    sources: str
    """Digest of the sources."""
    file: str
    """Name of the library, beside this record."""
    digest: str
    """Digest of that file."""


def read_record(folder: Path) -> BuildRecord:
    """The build record in a folder. Raises OSError, or ValueError where it is damaged."""
    return from_json(BuildRecord, json.loads((folder / BUILD_RECORD).read_text(encoding="utf-8")))


def content_digest(content: bytes) -> str:
    """XXH3-128: finds damage and change, not malice."""
    return xxh3_128_hexdigest(content)


def torch_folder() -> Path | None:
    """The folder of this Python's torch, without importing it; None: torch is not installed."""
    spec = PathFinder.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def target_of(torch: Path) -> BuildTarget | None:
    """This Python, this machine and the torch in a folder; None where its version cannot be read."""
    try:
        text = (torch / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = dict(re.findall(r"""^(\w+)\b[^=\n]*= *['"](.*)['"]""", text, re.MULTILINE))
    if "__version__" not in found:
        return None
    built_with = found.get("cuda") or (f"rocm {found['hip']}" if "hip" in found else "")
    return BuildTarget(found["__version__"], found.get("git_version", ""), built_with, _python(), platform.machine())


def _python() -> str:
    version = sys.version_info
    number = f"{version.major}.{version.minor}" if version.releaselevel == "final" else platform.python_version()
    return f"{platform.python_implementation()} {number}{sys.abiflags}"


def sources_digest(folder: Path = SOURCES) -> str:
    """Digest of the names and contents of the sources."""
    names = sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))
    return content_digest(b"".join(b"%s\0%s\0" % (path.name.encode(), path.read_bytes()) for path in names))


# --- where they are ---------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder with a folder for each library that was built here."""
    return users_cache("engine")


def name_of(target: BuildTarget, sources: str) -> str:
    """Beginning of the names of the folders with libraries for this target, built from these sources."""
    readable = f"torch{target.torch}-{target.python}-{target.machine}-{sources[:16]}"
    return re.sub(r"[^\w.+-]", "", readable)


class FoundLibrary(NamedTuple):
    """The library for a torch and this Python, or why there is none."""

    target: BuildTarget | None
    path: Path | None = None
    record: BuildRecord | None = None
    why_not: str = ""
    """Empty: there is one."""


def find(torch: Path | None) -> FoundLibrary:
    """The library for the torch in this folder, as it was built here. Loads nothing."""
    target = None if torch is None else target_of(torch)
    if target is None:
        return FoundLibrary(None, why_not="torch is not installed" if torch is None else f"{torch} has no version")
    sources = sources_digest()
    reasons = []
    for folder in _folders(target, sources):
        try:
            record = read_record(folder)
        except (OSError, ValueError) as error:
            reasons.append(f"{folder / BUILD_RECORD} cannot be read: {error}")
            continue
        path = folder / Path(record.file).name
        why_not = _mismatch(record, target, sources) or _damage(path, record)
        if not why_not:
            return FoundLibrary(target, path, record)
        reasons.append(f"that in {folder} {why_not}")
    missing = f"no native engine is built for {target.text}"
    return FoundLibrary(target, why_not=": ".join((missing, "; ".join(reasons))) if reasons else missing)


def _folders(target: BuildTarget, sources: str) -> Iterator[Path]:
    """Where a library may be: the cache's folders, the last built first."""
    cache, beginning = cache_folder(), f"{name_of(target, sources)}-"
    try:
        built = [cache / name for name in os.listdir(cache) if name.startswith(beginning)]  # noqa: PTH208  0.2 ms less
    except OSError:
        return
    yield from (folder for at, folder in sorted(((_built_at(folder), folder) for folder in built), reverse=True) if at)


def _built_at(folder: Path) -> float:
    """When the build record in a folder was written; 0: there is none."""
    try:
        return (folder / BUILD_RECORD).stat().st_mtime
    except OSError:
        return 0


def _mismatch(record: BuildRecord, target: BuildTarget, sources: str) -> str:
    """Why a library with this record must not be loaded; empty: it may be."""
    if record.target != target:
        same = record.target.text == target.text
        return f"is for {record.target.text}" + (f" of revision {record.target.torch_git or '?'}" if same else "")
    if record.sources != sources:
        return "is built from other sources than those of this rltrace"
    if record.variant != os.environ.get(VARIANT_VARIABLE, ""):
        return f"is the variant {record.variant or 'without checks'}"
    return ""


def _damage(path: Path, record: BuildRecord) -> str:
    try:
        return "" if content_digest(path.read_bytes()) == record.digest else "is damaged"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


# --- loading ----------------------------------------------------------------------------------------------------------


class LoadedLibrary(NamedTuple):
    """The module of a library, or why there is none."""

    module: Any = None
    why_not: str = ""
    hides_mode: bool = False
    """torch's functions choose as if the recorder's mode were not there."""


def load(torch: Path, constants: Mapping[str, int]) -> LoadedLibrary:
    """The library for the loaded torch, whose folder is given; its ``constants()`` must be these."""
    found = find(torch)
    if found.path is None:
        return LoadedLibrary(why_not=found.why_not)
    try:
        module = _import(found.path)
        wrong = _wrong(module, constants)
    except Exception as error:
        wrong = f"cannot be loaded: {type(error).__name__}: {error}"
    if wrong:
        return LoadedLibrary(why_not=f"the native engine's library {found.path} {wrong}")
    return LoadedLibrary(module)


@cache  # a second time, in a forked child say, it would register its classes twice
def _import(path: Path) -> Any:
    spec = spec_from_file_location(MODULE, path, loader=ExtensionFileLoader(MODULE, os.fspath(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wrong(module: Any, constants: Mapping[str, int]) -> str:
    """What the library computes or assumes otherwise than this rltrace; empty: nothing."""
    if module.constants() != constants:
        return "assumes another trace format"
    content = bytes(range(251)) * (TRIED_SIZES[-1] // 251 + 1)
    for size in TRIED_SIZES:
        if module.digest(content[:size], TRIED_SEED) != digest_buffer(content[:size], TRIED_SEED):
            return f"computes another digest of {size:,} bytes"
    return ""
