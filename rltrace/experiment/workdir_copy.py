"""A separate copy of the working folder for each run, so that no run reads what another writes.

Owns what is copied, shared by a link, or left out. Never changes the folder that it copies.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from rltrace.errors import UsageError
from rltrace.trace.format.root import is_trace

MAX_COPIED = 2 << 30
"""Bytes that are copied for a run at most."""
EXPERIMENT, EXPERIMENT_SCHEMA = "experiment.json", b'"rltrace.experiment/'
"""File, and start of its content, that mark a folder with the runs of an experiment."""
CACHES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"})


def extent_of(folder: Path, shared: tuple[str, ...] = (), without: Path | None = None) -> dict[str, int]:
    """Bytes of the files that ``copy_folder`` would copy, by the entry of the folder that holds them."""
    paths = [Path(entry.path) for entry in os.scandir(folder) if entry.name not in shared]
    return {path.name: sum(_sizes(path, without)) for path in paths}


def check_extent(folder: Path, shared: tuple[str, ...], without: Path | None, limit: int = MAX_COPIED) -> None:
    """Raise UsageError where more than ``limit`` bytes would be copied, or a name in ``shared`` does not exist."""
    missing = next((name for name in shared if not os.path.lexists(folder / name)), None)
    if missing is not None:
        raise UsageError(f"--share {missing}: there is no {folder / missing}; name an entry of the folder")
    extent = extent_of(folder, shared, without)
    size = sum(extent.values())
    if size > limit:
        name = max(extent, key=lambda name: extent[name])
        raise UsageError(
            f"each run would get a copy of {folder}, which holds {_gigabytes(size)} ({name}: "
            f"{_gigabytes(extent[name])}); share what the program only reads with --share {name}, or run in the folder "
            "with --in-place"
        )


def copy_folder(folder: Path, target: Path, shared: tuple[str, ...] = (), without: Path | None = None) -> None:
    """Copy ``folder`` to ``target``, which must not exist.

    Left out are traces, the runs of experiments, caches, the folder ``without``, and special files. Virtual
    environments and the entries in ``shared`` become links to the originals; relative links that lead out of the folder
    keep their targets.
    """
    target.mkdir(parents=True)
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        source = Path(entry.path)
        if entry.name in shared:
            (target / entry.name).symlink_to(source.absolute())
        else:
            _copy(source, target / entry.name, folder.resolve(), without)


def _copy(source: Path, target: Path, root: Path, without: Path | None) -> None:
    mode = source.lstat().st_mode
    if stat.S_ISLNK(mode):
        _copy_link(source, target, root)
    elif stat.S_ISREG(mode):
        shutil.copy2(source, target)
    elif stat.S_ISDIR(mode) and not _is_left_out(source, without):
        if _is_virtual_environment(source):
            target.symlink_to(source.absolute())
            return
        target.mkdir()
        for name in sorted(os.listdir(source)):  # noqa: PTH208  names are all that is needed
            _copy(source / name, target / name, root, without)
        shutil.copystat(source, target)


def _copy_link(source: Path, target: Path, root: Path) -> None:
    leads_to = Path(os.readlink(source))  # noqa: PTH115  as it is written, a dangling one too
    inside = (source.parent / leads_to).resolve().is_relative_to(root)
    target.symlink_to(leads_to if inside and not leads_to.is_absolute() else (source.parent / leads_to).absolute())


def _sizes(path: Path, without: Path | None) -> Iterator[int]:
    """Bytes of every file that would be copied from ``path``."""
    found = path.lstat()
    if stat.S_ISREG(found.st_mode):
        yield found.st_size
    elif stat.S_ISDIR(found.st_mode) and not _is_left_out(path, without) and not _is_virtual_environment(path):
        for name in os.listdir(path):  # noqa: PTH208
            yield from _sizes(path / name, without)


def _is_left_out(folder: Path, without: Path | None) -> bool:
    if folder.name in CACHES or is_trace(folder) or _is_experiment(folder):
        return True
    return without is not None and folder.resolve() == without.resolve()


def _is_experiment(folder: Path) -> bool:
    """Whether a folder holds the runs of an experiment."""
    try:
        with (folder / EXPERIMENT).open("rb") as opened:
            return EXPERIMENT_SCHEMA in opened.read(200)
    except OSError:
        return False


def _is_virtual_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
